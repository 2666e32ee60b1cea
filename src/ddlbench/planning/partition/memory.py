"""What a stage keeps in memory, and how many mini-batches may be in flight within a limit.

::

    (W + 1) * (saved activations + weights)     one weight version for each mini-batch in flight
    + gradients + optimizer state + buffers     once
    + what the device loses before any of it

``W`` is the warm-up of :mod:`ddlbench.planning.warmup`, so the limit holds for the schedule that is
run. (The release counts ``W`` instead of ``W + 1`` and neither gradients nor optimizer state, so
its last stage never costs anything.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ddlbench.experiment.errors import ConfigError
from ddlbench.planning.partition.chain import Array, Chain

__all__ = ["MemoryLimit"]


@dataclass(frozen=True)
class MemoryLimit:
    """What each device has, and what training keeps there.

    Args:
        limit_bytes: memory of one device.
        optimizer_states: tensors as large as the weights that the optimizer keeps: 1 for SGD with
            momentum, 0 without, 2 for Adam.
        extra_warmup: more mini-batches in flight on every stage but the last. The partitioner
            counts them once more for each stage behind, which may be a few too many, never too
            few.
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
        """Demands of later stages that are told apart: all, or above 8 ever coarser ones.

        A demand never reaches twice the ranks (and the extra warm-up of each): a stage adds less
        than twice its replicas.
        """
        most = (2 + self.extra_warmup) * ranks
        if exact:
            return np.arange(most + 1)
        coarse = {step * 2**power for power in range(2, most.bit_length() + 1) for step in (2, 3)}
        grid = np.array(sorted({*range(8), *coarse}))
        return grid[: np.searchsorted(grid, most) + 1]

    def once_bytes(self, chain: Chain) -> Array:
        """Kept however many mini-batches are in flight, for nodes i..j; shape (N, N)."""
        held = (1 + self.optimizer_states) * chain.parameter_bytes
        return held + chain.buffer_bytes + chain.fixed_bytes

    def per_flight_bytes(self, chain: Chain) -> Array:
        """Kept for each mini-batch in flight, for nodes i..j; shape (N, N)."""
        return chain.saved_bytes + chain.parameter_bytes

    def in_flight(self, waiting: int) -> int:
        """Mini-batches in a replica that holds back its first backward pass for ``waiting``."""
        return waiting + 1 + (self.extra_warmup if waiting else 0)

    def fits(self, chain: Chain, waiting: int) -> NDArray[np.bool_]:
        """Which nodes i..j fit with so many warm-up mini-batches; bool, shape (N, N)."""
        upper = np.isfinite(chain.time_s)
        need = self.in_flight(waiting) * self.per_flight_bytes(chain) + self.once_bytes(chain)
        fitting: NDArray[np.bool_] = upper & (need <= self.limit_bytes)
        return fitting

    def stage_bytes(self, chain: Chain, first: int, last: int, in_flight: int) -> float:
        """Bytes of stage ``[first, last)`` with so many mini-batches in flight."""
        once = self.once_bytes(chain)[first, last - 1]
        return float(once + in_flight * self.per_flight_bytes(chain)[first, last - 1])
