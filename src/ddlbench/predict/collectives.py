"""Times of collectives from their sweeps, and what a message takes from computation.

::

    operation        message S counts              ring over P ranks, latency a, b seconds a byte
    all_reduce       the buffer of one rank        2 (P-1) a + 2 (P-1)/P S b
    reduce_scatter   the buffer that a rank gives    (P-1) a +   (P-1)/P S b
    all_gather       the part that a rank gives      (P-1) a +   (P-1)   S b
    broadcast        the buffer                      a binomial tree: ceil(log2 P) (a + S b)

A sweep over another number of ranks is carried to P by the ratio of the formula's terms.
Source: P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms", 2009.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from ddlbench.common.fits import HockneyFit, given_hockney

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER = "all_reduce", "all_gather", "reduce_scatter"
BROADCAST = "broadcast"


@dataclass(frozen=True)
class CollectiveTimes:
    """Times of a collective over a fixed number of ranks.

    ``alpha_factor`` and ``beta_factor`` scale the fit from its own number of ranks; both are 1 for
    the number of ranks that was swept.
    """

    fit: HockneyFit
    alpha_factor: float
    beta_factor: float
    notes: tuple[str, ...]

    def time_s(self, message_bytes: float) -> float:
        """Seconds of one collective with messages of ``message_bytes``."""
        alpha_s, beta_s_per_byte = self.fit.terms(message_bytes)
        return self.alpha_factor * alpha_s + self.beta_factor * beta_s_per_byte * message_bytes


def formula_terms(operation: str, ranks: int) -> tuple[float, float]:
    """Factors of latency and of seconds a byte in the formula's time."""
    if operation == BROADCAST:
        return (depth := math.ceil(math.log2(ranks))), depth
    passes = 2 if operation == ALL_REDUCE else 1
    share = 1 if operation == ALL_GATHER else 1 / ranks
    return passes * (ranks - 1), passes * (ranks - 1) * share


def carried_to(operation: str, fit: HockneyFit, swept: int, ranks: int) -> CollectiveTimes:
    """Times over ``ranks`` from a fit over ``swept`` of them."""
    if swept == ranks:
        return CollectiveTimes(fit, 1.0, 1.0, ())
    wanted, known = formula_terms(operation, ranks), formula_terms(operation, swept)
    name = operation.replace("_", "-")
    note = f"{name} over {ranks} ranks is carried from {swept} by its formula"
    return CollectiveTimes(fit, wanted[0] / known[0], wanted[1] / known[1], (note,))


def formula_times(
    operation: str, ranks: int, latency_s: float, bandwidth_bytes_per_s: float
) -> CollectiveTimes:
    """Times over links that were given by hand, whose collectives nobody measured."""
    alpha, beta = formula_terms(operation, ranks)
    fit = given_hockney(alpha * latency_s, bandwidth_bytes_per_s / beta)
    name = operation.replace("_", "-")
    note = f"{name} by its formula from links given by hand"
    return CollectiveTimes(fit, 1.0, 1.0, (note,))


class _OfGeometry(Protocol):
    @property
    def nodes(self) -> int: ...
    @property
    def devices_per_node(self) -> int: ...
    @property
    def ranks(self) -> int: ...


_Measured = TypeVar("_Measured", bound=_OfGeometry)


def nearest_of(measured: Sequence[_Measured], nodes: int, devices_per_node: int) -> _Measured:
    """That of this geometry, or of the nearest number of ranks."""
    return min(
        measured,
        key=lambda one: (
            (one.nodes, one.devices_per_node) != (nodes, devices_per_node),
            abs(one.ranks - nodes * devices_per_node),
        ),
    )


def between(points: Sequence[tuple[float, float]], message_bytes: float) -> float:
    """Seconds at a size: linear between points, in proportion beyond the last one."""
    sizes, seconds = zip(*points, strict=True)
    if message_bytes > sizes[-1]:
        return float(seconds[-1] * message_bytes / sizes[-1])
    return float(np.interp(message_bytes, sizes, seconds))


@dataclass(frozen=True)
class Contention:
    """What a message takes from the computation beside it.

    A message that waits for the wire takes nothing; one that needs the core that computes delays
    the computation by its processor time.

    Args:
        exposed_share: of a message's time; used where processor times are unknown.
        notes: what was not measured.
        busy: bytes and processor seconds of messages, ascending.
        delay: seconds of delay a second of processor time.
    """

    exposed_share: float
    notes: tuple[str, ...]
    busy: Sequence[tuple[float, float]] = ()
    delay: float = 0.0

    def stolen_s(self, message_bytes: float, carried_s: float) -> float:
        """Seconds by which a message of so many bytes and seconds delays the computation."""
        if not self.busy:
            return self.exposed_share * carried_s
        return min(carried_s, self.delay * between(self.busy, message_bytes))
