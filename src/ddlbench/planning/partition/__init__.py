# ruff: noqa: F401 - the names of the package
"""Where to cut a network into pipeline stages, and how often to replicate each."""

from ddlbench.planning.partition.graph import Chain, LayerGraph, MemoryLimit, Node
from ddlbench.planning.partition.profiles import chain_of_profile, read_network
from ddlbench.planning.partition.programme import COST_MODELS, Level
from ddlbench.planning.partition.stages import (
    Partition,
    balance,
    partition,
    partition_graph,
    stage_memory_bytes,
)
