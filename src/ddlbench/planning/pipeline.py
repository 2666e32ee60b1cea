"""The stages that a plan cuts a network into, and what decides the memory that they need.

::

    stage      |    0    |  1  |   2   |         each a range of blocks on its ranks
    ranks      |  0   1  |  2  |   3   |         stage 0 has two replicas
    in flight  |  3   3  |  2  |   1   |         forward passes without their backward pass
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddlbench.experiment.errors import ConfigError

__all__ = ["Pipeline", "PlannedStage"]


@dataclass(frozen=True)
class PlannedStage:
    """One stage of a plan.

    Args:
        first, last: its first block, and the block behind its last one.
        ranks: of its replicas.
        weight_versions: versions of its weights that a rank holds at most.
    """

    first: int
    last: int
    ranks: tuple[int, ...]
    weight_versions: int = 1


@dataclass(frozen=True)
class Pipeline:
    """All stages of a plan with one process a device.

    Args:
        stages: in the order of the network; a rank may hold several.
        samples: of one forward pass.
        in_flight: of each rank, the forward passes without their backward pass, at most.
        held: of each rank, the forward passes that it certainly holds at one moment.
        micro_batches: of a replica's part of a mini-batch, each with a receive buffer at every
            cut; None where mini-batches stay whole.
    """

    stages: tuple[PlannedStage, ...]
    samples: float
    in_flight: tuple[int, ...]
    held: tuple[int, ...]
    micro_batches: int | None = None

    @property
    def blocks(self) -> int:
        """Blocks of the network that the stages were cut from."""
        return self.stages[-1].last

    def check_blocks(self, profiled: int) -> None:
        """Raise ConfigError unless a profile has as many blocks as the plan cuts."""
        if profiled != self.blocks:
            raise ConfigError(
                f"the profile has {profiled} blocks, the plan cuts {self.blocks}: "
                "profile the network again"
            )

    def of_rank(self, rank: int) -> tuple[int, ...]:
        """Indices of the stages that a rank holds."""
        return tuple(index for index, stage in enumerate(self.stages) if rank in stage.ranks)

    def spans(self, rank: int) -> Sequence[tuple[int, int]]:
        """Block ranges of a rank's stages."""
        return [(self.stages[index].first, self.stages[index].last) for index in self.of_rank(rank)]
