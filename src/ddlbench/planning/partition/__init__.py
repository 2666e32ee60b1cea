"""Where to cut a network into pipeline stages, and how often to replicate each."""

from ddlbench.planning.partition.chain import (
    Chain,
    MemoryLimit,
    Node,
    chain_of_profile,
    read_chain,
    read_table,
)
from ddlbench.planning.partition.cost import COST_MODELS, Level
from ddlbench.planning.partition.stages import (
    Partition,
    Stage,
    balance,
    partition,
    stage_memory_bytes,
)

__all__ = [
    "COST_MODELS",
    "Chain",
    "Level",
    "MemoryLimit",
    "Node",
    "Partition",
    "Stage",
    "balance",
    "chain_of_profile",
    "partition",
    "read_chain",
    "read_table",
    "stage_memory_bytes",
]
