"""The partitioner's input: a network as a chain of nodes, and the memory of a stage.

::

    node      0 --a_0--> 1 --a_1--> 2 --a_2--> 3         a cut before node 2 sends a_1 forward
    stage     [0 ------- 2)         [2 ------- 4)        and as many bytes of gradient back

A cut follows a *state*: what runs before it. State ``k`` of a chain holds the nodes up to ``k``; a
branching network has more (:mod:`ddlbench.planning.partition.states`). A stage ``[first, last)``
is what state ``last - 1`` holds and state ``first - 1`` does not.

A stage keeps in memory, with ``W`` mini-batches in flight beside its own::

    (W + 1) * (saved activations + weights)     one weight version for each mini-batch in flight
    + gradients + optimizer state + buffers     once
    + memory that the device loses at the start

``W`` is the warm-up of :mod:`ddlbench.planning.schedules.pipedream`, so the limit holds for the
schedule that is run. (The release counts ``W`` instead of ``W + 1`` and neither gradients nor
optimizer state, so its last stage never costs anything.)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ddlbench.common.errors import ConfigError

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Node:
    """One node at one batch size.

    Args:
        name: in the profile.
        time_s: forward and backward pass.
        output_bytes: sent over a cut after it.
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


class States(ABC):
    """Where a network may be cut: N states, each before those that it is a part of.

    Attributes:
        nodes: of the network.
        fixed_bytes: memory that a device loses before any node is placed (CUDA context).
    """

    nodes: tuple[Node, ...]
    fixed_bytes: float

    @property
    @abstractmethod
    def output_bytes(self) -> Array:
        """Bytes that cross a cut after each state; shape (N,)."""

    @abstractmethod
    def spans(self, values: Sequence[float]) -> Array:
        """Sums over the nodes of stages ``[i, j + 1)``, of one value a node.

        Shape (N, N), infinite where that is no stage.
        """

    def __len__(self) -> int:
        return len(self.output_bytes)

    @cached_property
    def time_s(self) -> Array:
        return self.spans([node.time_s for node in self.nodes])

    @cached_property
    def parameter_bytes(self) -> Array:
        return self.spans([node.parameter_bytes for node in self.nodes])

    @cached_property
    def saved_bytes(self) -> Array:
        return self.spans([node.saved_bytes for node in self.nodes])

    @cached_property
    def buffer_bytes(self) -> Array:
        return self.spans([node.buffer_bytes for node in self.nodes])


@dataclass(frozen=True)
class Chain(States):
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

    @cached_property
    def output_bytes(self) -> Array:
        return np.array([node.output_bytes for node in self.nodes], dtype=np.float64)

    def spans(self, values: Sequence[float]) -> Array:
        """Differences of running sums, in the release's order of operations."""
        until = np.cumsum(np.array(values, dtype=np.float64))
        before = np.concatenate(([0.0], until[:-1]))
        spans: Array = np.where(
            np.triu(np.ones((len(values), len(values)), dtype=bool)),
            until[None, :] - before[:, None],
            np.inf,
        )
        return spans


@dataclass(frozen=True)
class MemoryLimit:
    """Memory of each device, and what training keeps there.

    Args:
        limit_bytes: memory of one device.
        optimizer_states: tensors as large as the weights that the optimizer keeps: 1 for SGD with
            momentum, 0 without, 2 for Adam.
        extra_warmup: more mini-batches in flight on every stage but the last. The partitioner
            counts them once more for each stage behind: perhaps a few too many, never too few.
    """

    limit_bytes: float
    optimizer_states: float = 1.0
    extra_warmup: int = 0

    def __post_init__(self) -> None:
        if not self.limit_bytes > 0:
            raise ConfigError(f"memory of {self.limit_bytes} bytes: write more than 0")
        if self.optimizer_states < 0 or self.extra_warmup < 0:
            raise ConfigError("optimizer states and extra warm-up must be 0 or more")

    def demands(self, ranks: int, exact: bool) -> NDArray[np.int64]:
        """Grid of demands of later stages: all of them, or ever coarser ones above 8.

        A demand never reaches twice the ranks (and the extra warm-up of each): a stage adds less
        than twice its replicas.
        """
        most = (2 + self.extra_warmup) * ranks
        if exact:
            return np.arange(most + 1)
        coarse = {step * 2**power for power in range(2, most.bit_length() + 1) for step in (2, 3)}
        grid = np.array(sorted({*range(8), *coarse}))
        return grid[: np.searchsorted(grid, most) + 1]

    def once_bytes(self, states: States) -> Array:
        """Bytes kept once for nodes i..j; shape (N, N)."""
        held = (1 + self.optimizer_states) * states.parameter_bytes
        return held + states.buffer_bytes + states.fixed_bytes

    def per_flight_bytes(self, states: States) -> Array:
        """Bytes kept for each mini-batch in flight, for nodes i..j; shape (N, N)."""
        return states.saved_bytes + states.parameter_bytes

    def in_flight(self, waiting: int) -> int:
        """Mini-batches in a replica that delays its first backward pass by ``waiting`` of them."""
        return waiting + 1 + (self.extra_warmup if waiting else 0)

    def fits(self, states: States, waiting: int) -> NDArray[np.bool_]:
        """Which nodes i..j fit with so many warm-up mini-batches; bool, shape (N, N)."""
        upper = np.isfinite(states.time_s)
        need = self.in_flight(waiting) * self.per_flight_bytes(states) + self.once_bytes(states)
        fitting: NDArray[np.bool_] = upper & (need <= self.limit_bytes)
        return fitting

    def stage_bytes(self, states: States, first: int, last: int, in_flight: int) -> float:
        """Bytes of a device that runs ``[first, last)``."""
        stage = (first, last - 1)
        weights = float(states.parameter_bytes[stage])
        once = (1 + self.optimizer_states) * weights + float(states.buffer_bytes[stage])
        held = float(states.saved_bytes[stage]) + weights
        return once + states.fixed_bytes + in_flight * held

    def node_bytes(self, node: Node) -> float:
        """Bytes of a device that runs one node, for one mini-batch and without ``fixed_bytes``."""
        return self.stage_bytes(Chain((node,)), 0, 1, 1)
