"""What a stage costs: the released optimizer's formula and the paper's.

``r`` replicas, each a component of ``G`` devices joined by links of ``B`` bytes/s; ``T`` seconds
of one component, ``w`` bytes of weights, ``a_in``, ``a_out`` bytes across the stage's cuts::

    released   first stage   (T + 4 (r-1) w / (B r) / G) / r            computation + all-reduce
               others    max((T + 4 (r-1) w / (B r)) / r,  2 a_in / (B r),  2 a_out / (B r))
               where the last node of the network has no a_out

    paper      every stage   max(T, 2 (r-1) w / B) / r                  computation || all-reduce
               and each cut  2 a / B

Sources: ``released`` is ``optimizer/optimizer_graph_hierarchical.py`` of the PipeDream release with
``--activation_compression_ratio 1`` (without that argument it ignores the cuts); the order of
operations is kept, so that results are equal to the last bit. ``paper`` is the recurrence of
section 3.1 of PipeDream (Narayanan et al., SOSP 2019).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ddlbench.common.errors import ConfigError
from ddlbench.planning.partition.chain import Array, States

Cuts = tuple[Array, Array]  # bytes into a stage, bytes out of it


@dataclass(frozen=True)
class Level:
    """One level of the machine: components joined by links, innermost level first.

    Args:
        machines: components of the level below in one component of this level.
        bandwidth_bytes_per_s: of the links between them.
    """

    machines: int
    bandwidth_bytes_per_s: float

    def __post_init__(self) -> None:
        if self.machines < 1:
            raise ConfigError(f"machines {self.machines}: write 1 or more for each level")
        if not self.bandwidth_bytes_per_s > 0:
            raise ConfigError(
                f"bandwidth {self.bandwidth_bytes_per_s}: write bytes per second, more than 0"
            )


@dataclass(frozen=True)
class CostModel:
    """Seconds per mini-batch of a stage, for arrays.

    Attributes:
        first: ``(T, w, r, level, G)`` of a stage without a cut before it; T and w broadcast.
        other: ``(T, w, r, level, (a_in, a_out))`` of a stage behind a cut; a_out is 0 at the end
            of the network.
        antichains: a cut through a graph is charged as in the release, see
            :mod:`ddlbench.planning.partition.states`.
    """

    first: Callable[[Array, Array, int, Level, int], Array]
    other: Callable[[Array, Array, int, Level, Cuts], Array]
    antichains: bool = False


def cost_model(name: str) -> CostModel:
    """The cost model called ``name``.

    Raises:
        ConfigError: there is none.
    """
    if name not in COST_MODELS:
        raise ConfigError(f"no cost model {name!r}; write one of {', '.join(COST_MODELS)}")
    return COST_MODELS[name]


def cut_outputs(states: States) -> Array:
    """Bytes that cross a cut after each state; shape (N,), 0 for the last."""
    outputs = states.output_bytes.copy()
    outputs[-1] = 0.0
    return outputs


def _released_first(time: Array, weights: Array, r: int, level: Level, inner: int) -> Array:
    reduce = (4 * (r - 1) * weights) / (level.bandwidth_bytes_per_s * r)
    return (time + reduce / inner) / r


def _released_other(time: Array, weights: Array, r: int, level: Level, cuts: Cuts) -> Array:
    stage = (time + (4 * (r - 1) * weights) / (level.bandwidth_bytes_per_s * r)) / r
    across = (2.0 * np.maximum(*cuts)) / (level.bandwidth_bytes_per_s * r)
    return np.maximum(stage, across)


def _paper_stage(time: Array, weights: Array, r: int, level: Level) -> Array:
    return np.maximum(time, 2 * (r - 1) * weights / level.bandwidth_bytes_per_s) / r


def _paper_other(time: Array, weights: Array, r: int, level: Level, cuts: Cuts) -> Array:
    stage = _paper_stage(time, weights, r, level)
    return np.maximum(stage, 2 * cuts[0] / level.bandwidth_bytes_per_s)


COST_MODELS = {
    "released": CostModel(_released_first, _released_other, antichains=True),
    "paper": CostModel(
        lambda time, weights, r, level, _: _paper_stage(time, weights, r, level), _paper_other
    ),
}
