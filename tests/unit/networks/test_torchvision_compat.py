"""torchvision with and without its C++ operators.

What is imported once stays, so every case is a process of its own, a fork of one that has imported
torch; a stand-in package plays the torchvision that is not installed here.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

Run = Callable[..., subprocess.CompletedProcess[str]]

IMPORT = "import torch, ddlbench.networks.torchvision_compat as compat\n"
PARTS = "from . import datasets, models, ops, transforms\n"
# As torchvision's _meta_registrations does, with or without its library.
DESCRIBE = """
import torch
for name in ("nms", "qnms"):
    torch.library.register_fake(f"torchvision::{name}")(lambda dets, scores, iou_threshold: dets)
"""
DEFINE = """
import torch
library = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


# Each line names a script, a folder to import from first, and files for what it prints.
_SERVER = """
import json, os, sys, traceback, torch, torch._dynamo
for line in sys.stdin:
    script, folder, *outputs = json.loads(line)
    child = os.fork()
    if child == 0:
        for stream, output in enumerate(outputs, start=1):
            os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT), stream)
        sys.path.insert(0, folder)
        status = 0
        try:
            exec(script, {})
        except Exception:
            status = 1
            traceback.print_exc()
        sys.stdout.flush()
        os._exit(status)  # else it frees all of torch
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def server() -> Iterator[subprocess.Popen[str]]:
    """A process that has imported torch, and forks for each script."""
    command = [sys.executable, "-c", _SERVER]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        yield process


@pytest.fixture
def run(server: subprocess.Popen[str], tmp_path: Path) -> Run:
    """Run a script in a process of its own; with a package, it is imported before others."""

    def run(script: str, package: Path | None = None) -> subprocess.CompletedProcess[str]:
        folder = str(package or tmp_path / "none")
        outputs = [tmp_path / "stdout", tmp_path / "stderr"]
        for output in outputs:
            output.write_text("")
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps([script, folder, *map(str, outputs)]) + "\n")
        server.stdin.flush()
        status = int(server.stdout.readline())
        return subprocess.CompletedProcess(script, status, *(o.read_text() for o in outputs))

    return run


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """An empty package ``torchvision`` with the parts that are imported from it."""
    folder = tmp_path / "torchvision"
    folder.mkdir()
    for part in ("datasets", "models", "ops", "transforms"):
        (folder / f"{part}.py").touch()
    return tmp_path


def _write(package: Path, text: str) -> None:
    (package / "torchvision" / "__init__.py").write_text(text)


def test_installed_torchvision(run: Run) -> None:
    done = run(
        IMPORT
        + "import torchvision\n"
        + "loaded = torchvision.extension._has_ops()\n"
        + "assert (compat._declared is None) == loaded\n"
        + "compat.models.resnet18, compat.datasets.ImageFolder, compat.transforms.ToTensor\n"
        + "boxes = torch.tensor([[0.0, 0.0, 1.0, 1.0]])\n"
        + "try:\n"
        + "    torch.ops.torchvision.nms(boxes, torch.ones(1), 0.5)\n"
        + "except NotImplementedError:\n"
        + "    assert not loaded\n"
        + "else:\n"
        + "    assert loaded\n"
    )
    assert done.returncode == 0, done.stderr


def test_nothing_is_declared_where_the_operators_load(package: Path, run: Run) -> None:
    _write(package, DEFINE + DESCRIBE + PARTS)
    done = run(IMPORT + "assert compat._declared is None", package)
    assert done.returncode == 0, done.stderr


def test_schemas_are_declared_where_the_operators_are_missing(package: Path, run: Run) -> None:
    _write(package, DESCRIBE + PARTS)
    alone = run("import torchvision", package)
    assert "operator torchvision::nms does not exist" in alone.stderr
    done = run(
        IMPORT
        + "assert compat._declared is not None\n"
        + "print(torch.ops.torchvision.nms.default._schema)\n"
        + "print(torch.ops.torchvision.qnms.default._schema)\n",
        package,
    )
    assert done.stdout.splitlines() == [
        f"torchvision::{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        for name in ("nms", "qnms")
    ]


@pytest.mark.parametrize("defined", [DEFINE, ""])
def test_another_failure_is_not_hidden(package: Path, defined: str, run: Run) -> None:
    _write(package, defined + "raise RuntimeError('something else')")
    done = run(IMPORT, package)
    assert done.returncode != 0
    assert "RuntimeError: something else" in done.stderr
