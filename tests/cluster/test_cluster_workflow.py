"""The real workflow on a real SLURM: geometry, node-local data, and only missing cells."""

from __future__ import annotations

import json

import pytest
from cluster_project import Project
from testbed import Options, TestBed, missing

from ddlbench.experiment.cell import Cell

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(bool(missing()), reason=f"no test bed here: {missing()}"),
]

EXPERIMENT = {
    "experiment": "geometry",
    "site": "testbed",
    "matrix": {
        "dataset": ["mnist"],
        "network": ["cluster_network:plain"],
        "strategy": ["sequential", "horovod", "ddp", "gpipe"],
        "geometry": ["1x4", "2x2", "4x1"],
    },
    "settings": {"batch_size": 16, "data_scale": 0.0008, "epochs": 1, "warmup_steps": 1},
    "strategies": {"gpipe": {"balance": "blocks"}},
    # Horovod runs on one node, and on nodes of one device, in test_cluster_stranger.py.
    "exclude": [{"strategy": "horovod", "geometry": each} for each in ("1x4", "4x1")],
}
NETWORK = """
from torch import nn

def plain(spec):
    return nn.Sequential(nn.Flatten(), nn.Linear(spec.image_bytes, 64), nn.ReLU(),
                         nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

another = plain
"""


@pytest.fixture(scope="module")
def bed():
    with TestBed(Options(nodes=4, devices=4, bandwidth="1gbit")) as bed:
        yield bed


@pytest.fixture(scope="module")
def project(bed, tmp_path_factory):
    return Project(tmp_path_factory.mktemp("cluster"), bed, EXPERIMENT, NETWORK)


@pytest.fixture(scope="module")
def first_run(project):
    run = project.snakemake("cells")
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-6000:]
    return run


def test_every_geometry_of_every_strategy_runs_in_one_job_a_cell(project, first_run):
    results = project.results()
    geometries = {
        strategy: {cell.geometry for cell in results if cell.strategy == strategy}
        for strategy in EXPERIMENT["matrix"]["strategy"]
    }
    assert geometries == {
        "sequential": {"1x1"},
        "horovod": {"2x2"},
        "ddp": {"1x4", "2x2", "4x1"},
        "gpipe": {"1x4"},
    }
    assert {result["status"] for result in results.values()} == {"ok"}
    assert project.jobs_submitted(first_run) == len(results)
    jobs = {result["provenance"]["slurm_job_id"] for result in results.values()}
    assert len(jobs) == len(results)
    assert None not in jobs


def test_processes_sit_on_the_right_nodes(project, first_run):
    for cell, result in project.results().items():
        hosts = {}
        for rank in result["ranks"]:
            hosts.setdefault(rank["node"], set()).add(rank["host"])
        assert sorted(hosts) == list(range(cell.nodes))
        # One host a node, and no host twice.
        assert all(len(names) == 1 for names in hosts.values())
        assert len(set.union(*hosts.values())) == cell.nodes
        devices = sum(len(rank["devices"]) for rank in result["ranks"])
        assert devices == cell.devices
        assert result["processes"] == (1 if cell.strategy == "gpipe" else cell.devices)
        assert result["staging"]["nodes"] == cell.nodes


def test_each_node_has_its_own_copy_of_the_data(project, first_run, bed):
    places = set()
    for node in bed.nodes:
        actual = bed.run(node, "sh", "-c", "stat -c '%d:%i' /scratch/ddlbench-data-*/mnist-*/")
        places.add(actual.stdout.strip())
    assert len(places) == len(bed.nodes)


def test_a_second_run_submits_nothing(project, first_run):
    run = project.snakemake("cells")
    assert run.returncode == 0
    assert project.jobs_submitted(run) == 0


def test_torchrun_on_each_node_trains_what_srun_trains(project, first_run):
    """PyTorch's launcher, once on each node, starts two ranks there; Horovod meets by gloo."""
    project.add_site("torchrun", starter="torchrun")
    wanted = json.loads(json.dumps(EXPERIMENT)) | {"site": "torchrun"}
    wanted["matrix"] |= {"strategy": ["ddp", "horovod"], "geometry": ["2x2"]}
    project.configure(wanted)
    try:
        run = project.snakemake("cells")
    finally:
        project.configure(EXPERIMENT)
    assert run.returncode == 0, run.stdout[-6000:] + run.stderr[-6000:]
    known = project.results()
    results = project.results("torchrun")
    assert sorted(cell.strategy for cell in results) == ["ddp", "horovod"]
    for cell, result in results.items():
        assert result["status"] == "ok", result["reason"]
        assert result["loss"] == pytest.approx(known[cell]["loss"], rel=1e-6)
        assert _places(result) == _places(known[cell])
        assert "TORCHELASTIC_RUN_ID" in result["provenance"]["environment"]


def test_a_node_that_lost_its_data_makes_it_anew_and_only_that_node(project, first_run, bed):
    cell = next(c for c in project.results() if c.geometry == "4x1" and c.strategy == "ddp")
    folder = project.folder / "results/testbed/cells" / cell.id
    inodes = {node: _inode(bed, node) for node in bed.nodes}
    bed.run("n3", "sh", "-c", "rm -rf /scratch/ddlbench-data-*")
    (folder / "result.json").unlink()
    run = project.snakemake("cells")
    assert run.returncode == 0, run.stderr[-4000:]
    changed = {node for node in bed.nodes if _inode(bed, node) != inodes[node]}
    assert changed == {"n3"}


def test_cells_of_one_shape_are_one_array_and_a_lost_task_runs_again_alone(project, first_run):
    more = json.loads(json.dumps(EXPERIMENT))
    more["matrix"] |= {
        "network": ["cluster_network:plain", "cluster_network:another"],
        "strategy": ["sequential"],
        "geometry": ["1x1"],
    }
    project.configure({**more, "experiment": "repeated", "repeats": 2})
    project.most_jobs = 10
    before = _jobs(project)
    run = project.snakemake("cells")
    assert run.returncode == 0, run.stderr[-4000:]
    jobs = _jobs(project)
    new = {cell: job for cell, job in jobs.items() if cell not in before}
    assert {cell: jobs[cell] for cell in before} == before
    # The second repeat, and both of the network that was added.
    arrays, tasks = zip(*(job.split("_") for job in new.values()), strict=True)
    assert len(set(arrays)) == 1
    assert sorted(tasks) == ["1", "2", "3"]
    victim = next(iter(new))
    (project.folder / "results/testbed/cells" / victim.id / "result.json").unlink()
    again = project.snakemake("cells")
    assert again.returncode == 0, again.stderr[-4000:]
    after = _jobs(project)
    assert {cell for cell in jobs if jobs[cell] != after[cell]} == {victim}


def _places(result: dict) -> dict[int, tuple[int, list]]:
    """Node and devices of each rank."""
    return {rank["rank"]: (rank["node"], rank["devices"]) for rank in result["ranks"]}


def _jobs(project: Project) -> dict[Cell, str]:
    """The SLURM job of each cell."""
    results = project.results().items()
    return {cell: result["provenance"]["slurm_job_id"] for cell, result in results}


def _inode(bed: TestBed, node: str) -> str:
    process = bed.run(node, "sh", "-c", "stat -c '%i' /scratch/ddlbench-data-*/mnist-*/")
    return process.stdout.strip()
