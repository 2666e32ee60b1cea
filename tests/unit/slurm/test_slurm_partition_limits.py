"""Limits of partitions, as scontrol 22.05 prints them."""

from __future__ import annotations

import pytest

from ddlbench.slurm import partition_limits as module
from ddlbench.slurm.jobs import SlurmError
from ddlbench.slurm.partition_limits import PartitionLimits, parse_limits, partition_limits

SHOWN = """\
PartitionName=gpu AllowGroups=ALL MaxNodes=UNLIMITED MaxTime=UNLIMITED MinNodes=0 LLN=NO \
MaxCPUsPerNode=UNLIMITED Nodes=n[1-3] DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED
PartitionName=small AllowGroups=ALL MaxNodes=UNLIMITED MaxTime=01:00:00 MinNodes=0 LLN=NO \
MaxCPUsPerNode=UNLIMITED Nodes=n1 DefMemPerNode=UNLIMITED MaxMemPerNode=100
PartitionName=narrow AllowGroups=ALL MaxNodes=1 MaxTime=UNLIMITED MinNodes=0 LLN=NO \
MaxCPUsPerNode=1 Nodes=n[1-3] DefMemPerCPU=20 MaxMemPerCPU=50
"""
CONFIG = """\
DefMemPerCPU            = 12052
MaxMemPerNode           = UNLIMITED
"""


def test_limits_are_read_and_those_of_the_whole_cluster_hold_where_a_partition_has_none():
    assert parse_limits(SHOWN, CONFIG) == [
        PartitionLimits("gpu", default_memory_per_cpu_mb=12052),
        PartitionLimits("small", memory_mb=100, default_memory_per_cpu_mb=12052),
        PartitionLimits(
            "narrow",
            nodes=1,
            cpus_per_node=1,
            memory_per_cpu_mb=50,
            default_memory_per_cpu_mb=20,
        ),
    ]
    gpu, small, narrow = parse_limits(SHOWN, CONFIG.replace("UNLIMITED", "500"))
    assert (gpu.memory_mb, small.memory_mb, narrow.memory_mb) == (500, 100, None)


def test_memory_of_a_core_is_as_much_as_the_cores_of_a_node():
    """Job 33 of that cluster asked for 101 MB on a node of two cores: BadConstraints."""
    limits = PartitionLimits("percpu", memory_per_cpu_mb=50)
    assert limits.refused(1, 1, 101, node_cpus=2) == {"memory_mb": (101, 100)}
    assert limits.refused(1, 1, 100, node_cpus=2) == {}


@pytest.mark.parametrize(
    ("memory_mb", "refused"),
    [(90, {}), (400, {"memory_mb": (400, 100)}), (0, {"memory_mb": (24104, 100)})],
)
def test_memory_that_a_job_does_not_ask_for_is_the_default(memory_mb, refused):
    """Job 26 of that cluster asked for no memory, and waited as MaxMemPerLimit."""
    small = parse_limits(SHOWN, CONFIG)[1]
    assert small.refused(1, 2, memory_mb, node_cpus=2) == refused


def test_a_controller_that_does_not_answer_tells_no_limits(monkeypatch):
    def silent(_command):
        raise SlurmError("no answer")

    monkeypatch.setattr(module, "ask", lambda words: CONFIG if "config" in words else SHOWN)
    assert [limits.partition for limits in partition_limits(["small"])] == ["small"]
    monkeypatch.setattr(module, "ask", silent)
    assert partition_limits(["small"]) == []
