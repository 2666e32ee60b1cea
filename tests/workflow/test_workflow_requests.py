"""What a cell asks of SLURM, by geometry: the table of `ddlbench.planning.budget`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.fabric import LinkCondition
from ddlbench.experiment.site import Site, load_site
from ddlbench.planning.budget import SchedulerRequest, request


def cell(geometry: str) -> Cell:
    nodes, devices = geometry.split("x")
    return Cell(
        dataset="mnist",
        network="resnet18",
        strategy="ddp",
        batch_size=16,
        nodes=int(nodes),
        devices_per_node=int(devices),
    )


def asked_by(cell: Cell, site: Site) -> SchedulerRequest:
    return request(*site.held_geometry(cell), site)


@pytest.mark.parametrize(
    ("geometry", "expected"),
    [
        # nodes, mpi, tasks, tasks per node, devices of a node
        ("1x1", (1, None, None, None, "gpu:1")),
        ("1x4", (1, "srun", None, 4, "gpu:4")),
        ("2x4", (2, "srun", None, 4, "gpu:4")),
        ("4x1", (4, "srun", 4, None, "gpu:1")),
    ],
)
def test_one_rule_asks_for_every_geometry(geometry, expected):
    actual = asked_by(cell(geometry), load_site("slurm-example", as_example=True))
    assert expected == (actual.nodes, actual.mpi, actual.tasks, actual.tasks_per_node, actual.gres)
    assert actual.tasks_per_gpu == 0
    assert actual.cpus_per_task == 6
    assert actual.mem_mb == 45000 * int(geometry.split("x")[1])
    assert actual.runtime_min == 30 + 86400 / 60 + 5
    assert actual.extra == "--exclusive"


def test_sites_of_one_name_are_not_mixed_up():
    site = load_site("slurm-example", as_example=True)
    other = replace(site, slurm=replace(site.slurm, gpu_type="v100", exclusive=False))
    assert asked_by(cell("1x2"), site).gres == "gpu:2"
    assert asked_by(cell("1x2"), other).gres == "gpu:v100:2"
    assert asked_by(cell("1x2"), other).extra == ""


def test_this_machine_is_asked_for_nothing():
    actual = asked_by(cell("1x2"), load_site("local"))
    assert (actual.mpi, actual.gres, actual.account, actual.partition) == (None, None, None, None)


def test_nodes_of_an_emulated_fabric_are_devices_of_one_node():
    site = load_site("slurm-example", as_example=True)
    lat10 = LinkCondition(latency_s=0.01, bandwidth_bits_per_s=None, loss=0.0)
    site = Site(**{**vars(site), "fabrics": {"lat10": lat10}})
    actual = asked_by(cell("2x2").with_(fabric="lat10"), site)
    assert (actual.nodes, actual.mpi, actual.tasks, actual.tasks_per_node) == (1, "srun", None, 4)
    assert (actual.gres, actual.mem_mb) == ("gpu:4", 4 * 45000)
    assert asked_by(cell("2x2").with_(fabric="mine"), site).nodes == 2
