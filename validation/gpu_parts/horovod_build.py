"""Horovod with NCCL, compiled from its source release beside other checks.

::

    sources/horovod-0.28.1.tar.gz -> mended -> pip install --target <out>/site
    nvidia.nccl wheel  -> include, libnccl.so -> libnccl.so.2
    nvcc --dryrun      -> CUDA's own folder, also where nvcc in PATH is a wrapper

What is mended, and why, stands at ``_MENDED``.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from contextlib import suppress
from pathlib import Path

from gpu_parts.carry import HOROVOD
from gpu_parts.study import NotHere, in_process, own_environment

__all__ = ["Build", "where_installed"]

# File, text, its replacement.
_MENDED = (
    # The headers of torch 2.9 and later need C++20.
    ("CMakeLists.txt", "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 20)"),
    ("horovod/torch/CMakeLists.txt", "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 20)"),
    # nvcc 13 still takes C++11 for this file, but CUDA's own C++ headers ask for C++17 by now.
    (
        "horovod/common/ops/cuda/CMakeLists.txt",
        "set(CMAKE_CUDA_STANDARD 11)",
        "set(CMAKE_CUDA_STANDARD 17)",
    ),
    # A second copy for the old C++ ABI, which nothing links with torch 2.6 and later.
    (
        "horovod/common/ops/cuda/CMakeLists.txt",
        "add_library(compatible_horovod_cuda_kernels cuda_kernels.cu)",
        "return()",
    ),
    # Python 3.12 has no distutils of its own.
    (
        "horovod/torch/CMakeLists.txt",
        "from distutils.sysconfig import get_python_inc; print(get_python_inc())",
        "import sysconfig; print(sysconfig.get_paths()['include'])",
    ),
    # Process sets forget the network interface and take the one of the host's name.
    (
        "horovod/common/gloo/gloo_context.cc",
        "  }\n\n  attr device_attr;\n  device_attr.iface = gloo_iface_;",
        "  }\n\n  attr device_attr;\n  device_attr.iface = global_context.gloo_iface_;",
    ),
    # A target that make takes for a setting, and ninja for a target.
    ("setup.py", "make_args.append('VERBOSE=1')", "pass"),
)
_SWITCHES = {
    "HOROVOD_WITH_PYTORCH": "1",
    "HOROVOD_WITHOUT_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITHOUT_MPI": "1",
    "HOROVOD_WITH_GLOO": "1",
    "HOROVOD_GPU_OPERATIONS": "NCCL",
    "HOROVOD_NCCL_LINK": "SHARED",
    # Headers of gcc 13 and later no longer bring these along for others.
    "CXXFLAGS": "-include cstdint -include string",
    # The vendored libraries ask for versions of CMake that CMake 4 refuses.
    "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
}


def where_installed() -> Path | None:
    """The folder in which this Python, and with it every rank, finds a Horovod that it can load.

    One that was compiled for another torch is there and cannot be loaded: then None, too.
    """
    importlib.invalidate_caches()
    spec = importlib.util.find_spec("horovod")
    if spec is None or spec.origin is None:
        return None
    command = [sys.executable, "-W", "ignore", "-c", "import horovod.torch"]
    done = subprocess.run(command, capture_output=True, check=False, env=own_environment())
    return None if done.returncode else Path(spec.origin).parents[1]


class Build:
    """The compilation, in processes of its own.

    Args:
        carried: folder that ``--prepare`` made.
        work: gets the source and the log.
        site: gets the package.

    Raises:
        NotHere: something that it needs is not on this machine.
    """

    def __init__(self, carried: Path | None, work: Path, site: Path) -> None:
        archive = None if carried is None else carried / "sources" / f"{HOROVOD}.tar.gz"
        if archive is None or not archive.is_file():
            raise NotHere(f"no {HOROVOD}.tar.gz was carried here, and Horovod is not installed")
        for tool in ("nvcc", "cmake", "g++"):
            if shutil.which(tool) is None:
                raise NotHere(f"no {tool} is installed, and Horovod must be compiled")
        self.log = work / "horovod-build.log"
        source = _mended(archive, work)
        environment = own_environment(**_SWITCHES, **_places(work), **_speed())
        options = ("--no-deps", "--no-build-isolation", "--use-pep517", "--no-index", "--upgrade")
        command = [sys.executable, "-m", "pip", "install", "--verbose", *options]
        self._began_s = time.monotonic()
        self.seconds: float | None = None
        with self.log.open("w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                [*command, "--target", str(site), str(source)],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    def wait(self, limit_s: float) -> None:
        """Return when it is installed.

        Raises:
            RuntimeError: it does not compile, or not in time.
        """
        try:
            status = self._process.wait(timeout=max(limit_s, 0.1))
        except subprocess.TimeoutExpired:
            self.stop()
            spent_s = time.monotonic() - self._began_s
            raise RuntimeError(f"not compiled after {spent_s:.0f} s; see {self.log}") from None
        self.seconds = time.monotonic() - self._began_s
        if status:
            raise RuntimeError(f"it does not compile: {_first_error(self.log)}; see {self.log}")
        if where_installed() is None:
            raise RuntimeError(f"it is compiled, but cannot be loaded; see {self.log}")

    def stop(self) -> None:
        """End it with all that it started."""
        if self._process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def _mended(archive: Path, work: Path) -> Path:
    source = work / HOROVOD
    shutil.rmtree(source, ignore_errors=True)
    with tarfile.open(archive) as packed:
        packed.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.4 or later
        packed.extractall(work)
    for name, text, instead in _MENDED:
        path = source / name
        before = path.read_text(encoding="utf-8")
        if text not in before:
            raise RuntimeError(f"{path} has no {text!r}")
        path.write_text(before.replace(text, instead), encoding="utf-8")
    return source


def _places(work: Path) -> dict[str, str]:
    """Where CUDA and NCCL are."""
    home = cuda_home()
    variables = {"CUDA_HOME": str(home), "HOROVOD_CUDA_HOME": str(home)}
    wheel = importlib.util.find_spec("nvidia.nccl") if importlib.util.find_spec("nvidia") else None
    if wheel is None or not wheel.submodule_search_locations:
        return variables  # then CMake looks where a system has it
    folder = Path(next(iter(wheel.submodule_search_locations)))
    # The wheel has the library under its full name only, and the linker asks for the short one.
    links = work / "nccl"
    links.mkdir(exist_ok=True)
    (links / "libnccl.so").unlink(missing_ok=True)
    (links / "libnccl.so").symlink_to(folder / "lib" / "libnccl.so.2")
    return {
        **variables,
        "HOROVOD_NCCL_INCLUDE": str(folder / "include"),
        "HOROVOD_NCCL_LIB": str(links),
    }


def cuda_home() -> Path:
    """CUDA's folder as the compiler itself names it: nvcc in PATH may be a wrapper elsewhere."""
    done = subprocess.run(
        ["nvcc", "--dryrun", "-x", "cu", os.devnull, "-o", os.devnull],
        capture_output=True,
        text=True,
        check=False,
    )
    named = re.search(r"_HERE_=(\S+)", done.stderr + done.stdout)
    binaries = Path(named[1]) if named else Path(os.path.realpath(str(shutil.which("nvcc")))).parent
    return binaries.parent


def _speed() -> dict[str, str]:
    """All cores, and code for the GPUs that are here only."""
    variables = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    models = in_process(_models)
    if models:
        variables["HOROVOD_BUILD_CUDA_CC_LIST"] = ",".join(models)
    if shutil.which("make") is None and shutil.which("ninja") is not None:
        return {**variables, "CMAKE_GENERATOR": "Ninja"}
    return {**variables, "MAKEFLAGS": f"-j{os.cpu_count()}"}


def _models() -> list[str]:
    """Compute capabilities; in a process of its own, which opens no context in this one."""
    import torch  # noqa: PLC0415 - see above

    count = torch.cuda.device_count()
    capabilities = {torch.cuda.get_device_capability(index) for index in range(count)}
    return [f"{major}{minor}" for major, minor in sorted(capabilities)]


# As compilers, linkers, CMake and make say it; not names of files, as error.cc.
_ERROR = re.compile(
    r"\berror\s*[:#]|\berror C?\d|CMake Error|nvcc fatal|undefined reference|cannot find -l|No rule"
    r"|\b[A-Z]\w*Error: ",
    re.IGNORECASE,
)
_KEPT = 300


def _first_error(log: Path) -> str:
    """The first error that a build's log tells, without pip's own words on it."""
    text = log.read_text(encoding="utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [place for place, line in enumerate(lines) if _ERROR.search(line)]
    if not errors:
        return lines[-1][:_KEPT] if lines else "it said nothing"
    first = lines[errors[0]]
    # CMake tells where on one line and what on the next.
    if first.startswith("CMake Error") and first.endswith("):"):
        first = " ".join(lines[errors[0] : errors[0] + 2])
    return first[:_KEPT]
