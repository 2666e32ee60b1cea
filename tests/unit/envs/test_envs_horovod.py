"""What Horovod is built with decides which wheel is used, and whether set-up runs again.

Scripts run with a Python, an nvcc and a pip that are made up: nothing is fetched or compiled.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ENVS = Path(__file__).parents[3] / "envs"
NVCC = "Cuda compilation tools, release {}, V{}.85"


class Machine:
    """A folder with programs of its own; scripts find them before the system's."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs = folder / "programs"
        self.programs.mkdir()
        self.calls = folder / "calls"
        self.calls.touch()
        self.python = self.program("python", self._python())
        self.cuda("None")

    def program(self, name: str, text: str) -> Path:
        path = self.programs / name
        path.write_text(f"#!/bin/bash\n{text}\n")
        path.chmod(0o755)
        return path

    def cuda(self, version: str) -> None:
        """The CUDA that torch was built for, as Python writes it."""
        torch = self.folder / "site" / "torch"
        torch.mkdir(parents=True, exist_ok=True)
        (torch / "__init__.py").write_text("raise SystemExit('torch must not be imported')")
        (torch / "version.py").write_text(f"cuda = {version}\n")

    def nvcc(self, release: str | None) -> None:
        if release is None:
            (self.programs / "nvcc").unlink()
        else:
            self.program("nvcc", f"echo '{NVCC.format(release, release)}'")

    def _python(self) -> str:
        """Notes how it was called; a script on standard input really runs, with our torch."""
        return (
            f'echo "$*" >> {self.calls}\n'
            'case "$*" in\n'
            f"  -) PYTHONPATH={self.folder}/site exec {sys.executable} - ;;\n"
            f"  *sys.prefix*) echo {self.folder}/env ;;\n"
            "  *py%d%d*) echo py311-torch2.13.0 ;;\n"
            '  *"pip download"*) exit 1 ;;\n'
            "esac"
        )

    def run(self, *command: object, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {
            k: v for k, v in os.environ.items() if not k.startswith(("HOROVOD_", "DDLBENCH_"))
        }
        environment["PATH"] = f"{self.programs}:/usr/bin:/bin"
        return subprocess.run(
            ["bash", *map(str, command)],
            env={**environment, **variables},
            capture_output=True,
            text=True,
            check=False,
        )

    def options(self, **variables: str) -> list[str]:
        done = self.run(ENVS / "horovod_options.sh", self.python, **variables)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()


@pytest.fixture
def machine(tmp_path):
    if shutil.which("nvcc", path="/usr/bin:/bin"):
        pytest.skip("nvcc lies where it cannot be hidden")
    return Machine(tmp_path)


def test_without_nvcc_it_is_built_for_cpus_and_no_python_starts(machine):
    machine.cuda("'12.6'")
    assert machine.options() == []
    assert machine.calls.read_text() == ""


def test_nvcc_counts_where_torch_is_a_build_for_cuda(machine):
    machine.nvcc("12.6")
    assert machine.options() == []
    machine.cuda("'12.6'")
    assert machine.options() == ["nccl-cuda12.6"]
    machine.nvcc("12.8")
    assert machine.options() == ["nccl-cuda12.8"]
    assert machine.options(HOROVOD_GPU_OPERATIONS="MPI") == ["mpi-cuda12.8"]


def test_mpi_and_other_variables_count(machine):
    assert machine.options(HOROVOD_WITH_MPI="1") == ["mpi"]
    assert machine.options(HOROVOD_WITH_MPI="") == []
    assert machine.options(HOROVOD_LOG_LEVEL="info") == []
    (first,) = machine.options(HOROVOD_NCCL_HOME="/opt/nccl-2.27")
    (second,) = machine.options(HOROVOD_NCCL_HOME="/opt/nccl-2.28")
    assert first.startswith("set-")
    assert first != second


def build(machine, **variables):
    """Build Horovod where only the wheel for CPUs is kept; what was then asked of pip."""
    kept = machine.folder / "cache" / "horovod-0.28.1-iface-py311-torch2.13.0-cpu"
    kept.mkdir(parents=True, exist_ok=True)
    (kept / "horovod-0.28.1.whl").touch()
    (machine.folder / "env").mkdir(exist_ok=True)
    for tool in ("g++", "cmake"):
        machine.program(tool, "exit 0")
    machine.calls.write_text("")
    done = machine.run(
        ENVS / "build_horovod.sh", machine.python, machine.folder / "cache", **variables
    )
    return done.returncode, machine.calls.read_text()


def test_a_kept_wheel_serves_only_what_it_was_built_with(machine):
    code, calls = build(machine)
    assert code == 0
    assert "pip install" in calls
    assert "pip download" not in calls
    for variables in ({"HOROVOD_WITH_MPI": "1"}, {"HOROVOD_NCCL_HOME": "/opt/nccl"}):
        code, calls = build(machine, **variables)
        assert code == 1  # there is no source to be had here
        assert "pip download" in calls
    machine.cuda("'12.6'")
    machine.nvcc("12.6")
    assert "pip download" in build(machine)[1]


# It downloads Horovod, and compiles it for CPUs, or for GPUs, too; the folder is that of a Machine.
PIP = """
folder=$(dirname "$0")/..
for word in "$@"; do
    [ "$last" != --dest ] || dest=$word
    [ "$last" != --wheel-dir ] || wheels=$word
    last=$word
done
case "$*" in
    download*) tar -czf "$dest/horovod-0.28.1.tar.gz" -C "$folder" horovod-0.28.1 ;;
    wheel*)
        for_gpus=${HOROVOD_GPU_OPERATIONS:-}
        echo "${for_gpus:-cpu} ${CUDA_HOME:-} ${HOROVOD_NCCL_LINK:-}" >> "$folder/builds"
        [ -z "$for_gpus" ] || [ -f "$folder/compiles-for-gpus" ] || exit 1
        mkdir -p "$wheels"
        touch "$wheels/horovod-0.28.1.whl" ;;
esac
"""
SOURCES = (
    "CMakeLists.txt", "horovod/torch/CMakeLists.txt", "horovod/common/gloo/gloo_context.cc",
    "cmake/Modules/FindPytorch.cmake",
)  # fmt: skip


def touch(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()


class Compiler:
    """A machine with torch for CUDA, an nvcc and a compiler, which may do for CPUs only."""

    def __init__(self, machine: Machine, gpus: bool) -> None:
        self.machine, self.builds = machine, machine.folder / "builds"
        for name in SOURCES:
            touch(machine.folder / "horovod-0.28.1" / name)
        if gpus:
            touch(machine.folder / "compiles-for-gpus")
        text = machine.python.read_text()
        text = text.replace('*"pip download"*) exit 1', '"-m pip "*) shift 2; exec pip "$@"')
        machine.program("pip", PIP)
        machine.program("python", text.removeprefix("#!/bin/bash\n"))
        (machine.folder / "env").mkdir(exist_ok=True)
        for tool in ("g++", "cmake"):
            machine.program(tool, "exit 0")
        machine.cuda("'12.6'")
        version, toolkit = NVCC.format("12.6", "12.6"), machine.folder / "cuda-12.6"
        toolkit.mkdir()
        says = f'echo "{version}" || echo "#$ TOP={toolkit}"'
        machine.program("nvcc", f'[ "$1" = --version ] && {says}')

    def build(self, *last: str) -> list[str]:
        """Run the script; what each compilation was given."""
        self.builds.write_text("")
        script, cache = ENVS / "build_horovod.sh", self.machine.folder / "cache"
        done = self.machine.run(script, self.machine.python, cache, *last)
        assert done.returncode == 0, done.stderr
        return self.builds.read_text().splitlines()


@pytest.mark.parametrize("gpus", [True, False])
def test_where_it_does_not_compile_for_gpus_it_is_built_for_cpus(machine, gpus):
    nccl = machine.folder / "site" / "nvidia" / "nccl"
    for name in ("include/nccl.h", "lib/libnccl.so.2"):
        touch(nccl / name)
    compiler = Compiler(machine, gpus)
    tried = [f"NCCL {machine.folder}/cuda-12.6 SHARED"]
    why = machine.folder / "env" / "horovod-no-gpu.txt"
    assert compiler.build("build") == (tried if gpus else [*tried, "cpu  "])
    assert why.exists() != gpus
    assert compiler.build() == []  # the second call of a set-up installs
    if not gpus:
        assert "horovod-build-gpu.log" in why.read_text()
        assert compiler.build("build") == tried  # the next set-up tries again


@pytest.fixture
def checkout(machine, tmp_path):
    """As much of the project as set-up reads, with an environment that has a Python already."""
    folder = tmp_path / "checkout"
    shutil.copytree(ENVS, folder / "envs")
    (folder / "plugins" / "toy").mkdir(parents=True)
    for place in (folder, folder / "plugins" / "toy"):
        (place / "pyproject.toml").touch()
    (folder / "envs" / "build_horovod.sh").write_text("exit 0\n")
    (folder / ".venv" / "bin").mkdir(parents=True)
    shutil.copy(machine.python, folder / ".venv" / "bin" / "python")
    return folder


def test_set_up_runs_again_only_for_more(machine, checkout):
    def set_up(**variables):
        machine.calls.write_text("")
        done = machine.run(checkout / "envs" / "setup.sh", PYTHON=str(machine.python), **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        return "-m pip" in machine.calls.read_text().replace("--disable", "")

    assert set_up()
    assert "--editable ./plugins/toy/" in machine.calls.read_text()
    assert not set_up()
    assert set_up(HOROVOD_WITH_MPI="1")
    assert not set_up(HOROVOD_WITH_MPI="1")
    assert not set_up()  # the next shell does not take away what was built
    machine.cuda("'12.6'")
    machine.nvcc("12.6")
    assert set_up(HOROVOD_WITH_MPI="1")
    assert not set_up()
    machine.nvcc("12.8")
    assert set_up()
    machine.nvcc(None)
    assert not set_up()


def test_set_up_says_when_gpus_will_have_no_nccl(machine, checkout):
    for_cuda = "*torch.version.cuda*) exit 1 ;;\n  -)"
    interpreter = checkout / ".venv" / "bin" / "python"
    interpreter.write_text(interpreter.read_text().replace("-)", for_cuda, 1))
    done = machine.run(checkout / "envs" / "setup.sh", PYTHON=str(machine.python))
    assert "without NCCL" in done.stderr
    assert "module load CUDA" in done.stderr
