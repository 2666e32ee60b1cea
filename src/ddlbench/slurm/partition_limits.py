"""What a partition gives one job at most: nodes, cores and memory of a node.

sbatch takes a job beyond these limits unless the administrator has set ``EnforcePartLimits``
(slurm.conf(5)); the job then waits for ever, as ``MaxMemPerLimit`` or ``PartitionNodeLimit``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from ddlbench.slurm.jobs import SlurmError, ask

_FIELD = re.compile(r"\b(\w+)\s*=\s*(\S+)")


@dataclass(frozen=True)
class PartitionLimits:
    """Limits of one job; None where there is none.

    Args:
        partition: its name.
        nodes: of the job.
        cpus_per_node: that it may use.
        memory_mb: on a node (SLURM's MB).
        memory_per_cpu_mb: a job that asks for more gets further cores, as far as a node has them.
        default_memory_mb: on a node, of a job that asks for none.
        default_memory_per_cpu_mb: for each core, of a job that asks for none.
    """

    partition: str
    nodes: int | None = None
    cpus_per_node: int | None = None
    memory_mb: int | None = None
    memory_per_cpu_mb: int | None = None
    default_memory_mb: int | None = None
    default_memory_per_cpu_mb: int | None = None

    def memory_of(self, memory_mb: int, cpus: int) -> int:
        """MB on a node of a job that asks for so much memory there (0: for none) and cores."""
        by_cpus = (self.default_memory_per_cpu_mb or 0) * cpus
        return memory_mb or self.default_memory_mb or by_cpus

    def most_memory_mb(self, node_cpus: int) -> int | None:
        """MB that a job can get on a node of so many cores."""
        if self.memory_per_cpu_mb is None:
            return self.memory_mb
        return self.memory_per_cpu_mb * min(node_cpus, self.cpus_per_node or node_cpus)

    def refused(
        self, nodes: int, cpus: int, memory_mb: int, node_cpus: int
    ) -> dict[str, tuple[int, int]]:
        """``nodes``, ``cpus`` and ``memory_mb`` over a limit: what is requested, the limit.

        Cores and memory are of one node, which has ``node_cpus``.
        """
        limits = {
            "nodes": (nodes, self.nodes),
            "cpus": (cpus, self.cpus_per_node),
            "memory_mb": (self.memory_of(memory_mb, cpus), self.most_memory_mb(node_cpus)),
        }
        return {
            what: (requested, limit)
            for what, (requested, limit) in limits.items()
            if limit is not None and requested > limit
        }


def parse_limits(partitions: str, configuration: str = "") -> list[PartitionLimits]:
    """Parse ``scontrol --oneliner show partition``.

    ``configuration`` is of ``scontrol show config``, which holds what a partition does not set.
    """
    of_all = dict(_FIELD.findall(configuration))
    limits = []
    for line in partitions.splitlines():
        fields = dict(_FIELD.findall(line))
        if "PartitionName" not in fields:
            continue

        # A limit of memory is of a node or of a core; a partition's own is instead of either.
        for kind in ("DefMemPer", "MaxMemPer"):
            names = (f"{kind}Node", f"{kind}CPU")
            if not any(fields.get(name, "").isdecimal() for name in names):
                fields |= {name: of_all.get(name, "") for name in names}
        numbers = {name: int(text) for name, text in fields.items() if text.isdecimal()}
        limits.append(
            PartitionLimits(
                partition=fields["PartitionName"],
                nodes=numbers.get("MaxNodes"),
                cpus_per_node=numbers.get("MaxCPUsPerNode"),
                memory_mb=numbers.get("MaxMemPerNode"),
                memory_per_cpu_mb=numbers.get("MaxMemPerCPU"),
                default_memory_mb=numbers.get("DefMemPerNode"),
                default_memory_per_cpu_mb=numbers.get("DefMemPerCPU"),
            )
        )
    return limits


def partition_limits(names: Sequence[str]) -> list[PartitionLimits]:
    """Limits of some partitions, as scontrol shows them; empty where it does not answer."""
    with suppress(SlurmError):
        shown = ask(["scontrol", "--all", "--oneliner", "show", "partition"])
        limits = parse_limits(shown, ask(["scontrol", "show", "config"]))
        return [each for each in limits if each.partition in names]
    return []
