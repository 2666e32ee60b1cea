"""A network as the partitioner sees it: a chain of nodes that a cut may fall between.

::

    node      0 --a_0--> 1 --a_1--> 2 --a_2--> 3         a cut before node 2 sends a_1 forward
    stage     [0 ------- 2)         [2 ------- 4)        and as many bytes of gradient back

Node numbers count from 0, the states of PipeDream's optimizer; a stage is ``[first, last)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ddlbench.experiment.errors import ConfigError

__all__ = ["Array", "Chain", "Node"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Node:
    """One node at one batch size.

    Args:
        name: how the profile calls it.
        time_s: forward and backward pass.
        output_bytes: what crosses a cut after it.
        saved_bytes: kept from forward to backward.
        parameter_bytes: its weights.
        buffer_bytes: tensors that are no weights (batch-norm statistics), kept once.
    """

    name: str
    time_s: float
    output_bytes: float
    saved_bytes: float
    parameter_bytes: float
    buffer_bytes: float = 0.0


@dataclass(frozen=True)
class Chain:
    """Nodes in the order of the forward pass.

    Args:
        nodes: at least one.
        fixed_bytes: memory that a device loses before any node is placed (CUDA context).
    """

    nodes: tuple[Node, ...]
    fixed_bytes: float = 0.0

    def __post_init__(self) -> None:
        if not self.nodes:
            raise ConfigError("a network of no nodes cannot be cut; the profile holds none")
        for number, node in enumerate(self.nodes):
            values = (node.time_s, node.output_bytes, node.saved_bytes)
            if not all(0 <= v < np.inf for v in (*values, node.parameter_bytes, node.buffer_bytes)):
                raise ConfigError(
                    f"node {number} ({node.name}) has a time or size that is negative or no "
                    f"number: {node}; times and sizes must be 0 or more"
                )

    def __len__(self) -> int:
        return len(self.nodes)

    @cached_property
    def output_bytes(self) -> Array:
        """What crosses a cut after each node; shape (N,)."""
        return np.array([node.output_bytes for node in self.nodes], dtype=np.float64)

    @cached_property
    def time_s(self) -> Array:
        """Forward and backward of nodes i..j inclusive; shape (N, N), infinite for j < i."""
        return _spans([node.time_s for node in self.nodes])

    @cached_property
    def parameter_bytes(self) -> Array:
        """Weights of nodes i..j inclusive; shape (N, N)."""
        return _spans([node.parameter_bytes for node in self.nodes])

    @cached_property
    def saved_bytes(self) -> Array:
        """What one mini-batch keeps in nodes i..j inclusive; shape (N, N)."""
        return _spans([node.saved_bytes for node in self.nodes])

    @cached_property
    def buffer_bytes(self) -> Array:
        """Buffers of nodes i..j inclusive; shape (N, N)."""
        return _spans([node.buffer_bytes for node in self.nodes])


def _spans(values: Sequence[float]) -> Array:
    """Sums over i..j as differences of running sums, in the release's order of operations."""
    until = np.cumsum(np.array(values, dtype=np.float64))
    before = np.concatenate(([0.0], until[:-1]))
    spans: Array = np.where(
        np.triu(np.ones((len(values), len(values)), dtype=bool)),
        until[None, :] - before[:, None],
        np.inf,
    )
    return spans
