"""How long each stage of a planned pipeline computes, from the profile of one device."""

from __future__ import annotations

from dataclasses import dataclass

from ddlbench.planning.plan import Plan
from ddlbench.planning.strategy import strategy_of
from ddlbench.planning.workload import Workload
from ddlbench.predict.prediction import joined

__all__ = ["StageTimes", "stage_times"]


@dataclass(frozen=True)
class StageTimes:
    """Seconds of one pass, of the update and of loading; one number a stage.

    Args:
        forward_s, backward_s: of one micro- or mini-batch.
        input_s, weight_s: the backward pass where a schedule has its halves apart.
        update_s: optimiser.
        load_s: a replica's share of a mini-batch, from the dataset to the first stage.
        notes: what was extrapolated.
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    input_s: tuple[float, ...]
    weight_s: tuple[float, ...]
    update_s: tuple[float, ...]
    load_s: float
    notes: tuple[str, ...]

    def of(self, kind: str, stage: int) -> float:
        """Seconds of a pass or update of a stage; of a message or all-reduce, 0."""
        tables = {
            "forward": self.forward_s,
            "backward": self.backward_s,
            "backward_input": self.input_s,
            "backward_weight": self.weight_s,
            "update": self.update_s,
        }
        return tables[kind][stage] if kind in tables else 0.0


def stage_times(workload: Workload, plan: Plan, samples: float, loaded: float) -> StageTimes:
    """Times of a plan's stages.

    The optimiser's time is shared out by parameter bytes. The first stage has no gradient of an
    input to give on: where the halves are apart, it does all in the second.

    Args:
        workload: the profile.
        plan: of a pipeline.
        samples: of one forward pass.
        loaded: samples that the first stage loads at a time.

    Raises:
        ConfigError: the plan cuts a network of other blocks than the profile's.
    """
    stages = strategy_of(plan.cell.strategy).stage_blocks(workload, plan)
    step = workload.step(loaded)
    weights = [sum(block.parameter_bytes for block in blocks) for blocks in stages]
    whole = sum(weights) or 1
    backward = [[block.backward.at(samples) for block in blocks] for blocks in stages]
    paired = [
        list(zip(blocks, seconds, strict=True))
        for blocks, seconds in zip(stages, backward, strict=True)
    ]
    inputs = [sum(block.input_share * s for block, s in one) for one in paired]
    apart = [sum(block.weight_share * s for block, s in one) for one in paired]
    return StageTimes(
        forward_s=tuple(sum(block.forward.at(samples) for block in blocks) for blocks in stages),
        backward_s=tuple(map(sum, backward)),
        input_s=(0.0, *inputs[1:]),
        weight_s=(sum(backward[0]), *apart[1:]),
        update_s=tuple(step.optimizer_s * size / whole for size in weights),
        load_s=step.load_s,
        notes=joined(_extrapolated(workload, samples), step.remark),
    )


def _extrapolated(workload: Workload, samples: float) -> str | None:
    outside = any(
        timing.extrapolates(samples)
        for block in workload.blocks
        for timing in (block.forward, block.backward)
    )
    return f"times of blocks at {samples:g} samples are extrapolated" if outside else None
