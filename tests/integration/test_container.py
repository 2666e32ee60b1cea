"""A cell whose processes run in a real Apptainer image.

``DDLBENCH_IMAGE`` names the image (envs/containers/ddlbench.def), ``DDLBENCH_APPTAINER`` further
options of exec, parted by blanks; without both an image and Apptainer this is skipped.
"""

from __future__ import annotations

import os
import shutil

import pytest
from local_cells import local_site, run_one

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.site import Container

IMAGE = os.environ.get("DDLBENCH_IMAGE", "")
OPTIONS = tuple(os.environ.get("DDLBENCH_APPTAINER", "").split())
missing = not (IMAGE and shutil.which("apptainer"))
pytestmark = pytest.mark.skipif(missing, reason="no Apptainer, or no image in DDLBENCH_IMAGE")

CELL = Cell(
    **{"dataset": "mnist", "network": "mlp", "batch_size": 8, "strategy": "ddp", "epochs": 1},
    **{"devices_per_node": 2, "warmup_steps": 1, "max_steps": 3, "data_scale": 0.0008},
)


@pytest.mark.parametrize("starter", ["auto", "torchrun"])
@pytest.mark.parametrize("strategy", ["ddp", "horovod"])
def test_it_trains_what_it_trains_outside(strategy, starter, tmp_path, monkeypatch, shared_cells):
    # The image has a ddlbench of its own.
    monkeypatch.delenv("PYTHONPATH", raising=False)
    box = Container(image=IMAGE, arguments=("--bind", str(tmp_path), *OPTIONS))
    cell = CELL.with_(strategy=strategy)
    site = local_site(tmp_path, container=box, starter=starter)
    actual, folder = run_one(cell, site, tmp_path)
    assert actual["status"] == "ok", (actual["reason"], (folder / "log.txt").read_text()[-2000:])
    known = shared_cells.run(cell).result
    assert actual["loss"] == pytest.approx(known["loss"], rel=1e-5)
