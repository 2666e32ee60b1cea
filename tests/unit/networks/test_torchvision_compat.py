"""torchvision with and without its C++ operators.

What is imported once stays, so every case is a process of its own; a stand-in package plays the
torchvision that is not installed here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

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


def _run(script: str, package: Path | None = None) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(package or ""), os.environ.get("PYTHONPATH", "")]))
    return subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )


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


def test_installed_torchvision() -> None:
    done = _run(
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


def test_nothing_is_declared_where_the_operators_load(package: Path) -> None:
    _write(package, DEFINE + DESCRIBE + PARTS)
    done = _run(IMPORT + "assert compat._declared is None", package)
    assert done.returncode == 0, done.stderr


def test_schemas_are_declared_where_the_operators_are_missing(package: Path) -> None:
    _write(package, DESCRIBE + PARTS)
    alone = _run("import torchvision", package)
    assert "operator torchvision::nms does not exist" in alone.stderr
    done = _run(
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
def test_another_failure_is_not_hidden(package: Path, defined: str) -> None:
    _write(package, defined + "raise RuntimeError('something else')")
    done = _run(IMPORT, package)
    assert done.returncode != 0
    assert "RuntimeError: something else" in done.stderr
