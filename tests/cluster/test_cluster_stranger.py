"""A stranger's first hour on a cluster: init, doctor, and the smoke experiment."""

from __future__ import annotations

import subprocess
import sys

import pytest
import yaml
from cluster_project import ROOT, Project
from testbed import Options, TestBed, missing

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(bool(missing()), reason=f"no test bed here: {missing()}"),
]


@pytest.fixture(scope="module")
def bed():
    with TestBed(Options(nodes=2, devices=2, bandwidth="1gbit")) as bed:
        yield bed


@pytest.fixture(scope="module")
def smoke():
    smoke = yaml.safe_load((ROOT / "config/experiments/smoke.yaml").read_text())
    # A cell is its job here, not its steps.
    smoke["settings"].update(batch_size=16, warmup_steps=1, max_steps=2)
    return {**smoke, "site": "mine"}


@pytest.fixture(scope="module")
def project(bed, tmp_path_factory, smoke):
    return Project(tmp_path_factory.mktemp("stranger"), bed, smoke, "")


def ddlbench(project, *arguments):
    return subprocess.run(
        [sys.executable, "-m", "ddlbench.cli", *arguments],
        cwd=project.folder,
        env=project.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_init_asks_slurm_and_writes_a_site_file_that_passes_the_doctor(project):
    written = ddlbench(
        project, "site", "init", "mine", "--yes", "--scratch", "/scratch", "--interface", "eth0",
        "--device", "cpu",
    )  # fmt: skip
    assert written.returncode == 0, written.stdout + written.stderr
    site = yaml.safe_load((project.folder / "config/sites/mine.yaml").read_text())
    assert (site["nodes"], site["devices_per_node"]) == (2, 2)
    assert site["slurm"]["partition"] == "gpu"
    checked = ddlbench(project, "site", "doctor", "--site", "mine")
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_doctor_says_what_to_change(project):
    good = project.folder / "config/sites/mine.yaml"
    site = {**yaml.safe_load(good.read_text()), "scratch": "/proc/nowhere"}
    (project.folder / "config/sites/wrong.yaml").write_text(yaml.safe_dump(site))
    checked = ddlbench(project, "site", "doctor", "--site", "wrong")
    assert checked.returncode == 1
    assert "scratch" in checked.stdout
    assert "Traceback" not in checked.stdout + checked.stderr


ON_ONE_NODE = ("gpipe", "model-parallel")  # torchgpipe's two


@pytest.mark.parametrize(
    ("every_geometry", "cells"),
    [
        (False, 1 + 9),  # the base; nine strategies, on two nodes if they can
        pytest.param(True, 1 + 9 + 7, marks=pytest.mark.exhaustive),
    ],
)
def test_the_smoke_experiment_measures_every_strategy(project, smoke, every_geometry, cells):
    on_two = [strategy for strategy in smoke["matrix"]["strategy"] if strategy not in ON_ONE_NODE]
    left_out = (
        [] if every_geometry else [{"strategy": strategy, "geometry": "1x2"} for strategy in on_two]
    )
    project.configure({**smoke, "exclude": left_out})
    run = project.snakemake()
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-4000:]
    shown = ddlbench(project, "status", "--configfile", "experiment.yaml")
    assert shown.returncode == 0
    folder = project.folder / "results/mine/smoke"
    assert (folder / "figures/speedup.png").stat().st_size > 0
    actual = list((project.folder / "results/mine/cells").rglob("result.json"))
    assert len(actual) == cells
