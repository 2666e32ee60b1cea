"""Recomputation: blocks keep their input only, and compute their activations again.

::

    forward     block 1 | block 2 | block 3                 kept: inputs of 1 and 2, all of 3
    backward    B3 | F2 again, B2 | F1 again, B1            at once: all of the block that runs

The last block keeps its activations, because its backward pass follows its forward pass at once.
A step takes the other blocks' forward passes twice. What it takes follows from a profile without
recomputation, so a network is profiled once.

Source: T. Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from ddlbench.experiment.cell import Cell
from ddlbench.planning.plan import Options
from ddlbench.planning.strategy import known_strategy
from ddlbench.planning.workload import Block, Step, Tensor, Workload


@dataclass(frozen=True, kw_only=True)
class RecomputingOptions(Options):
    """The option of strategies whose blocks can compute their activations again."""

    recompute: bool = False
    """Blocks keep their input only, and compute their activations again before their backward pass.
    That saves memory and takes the time of a further forward pass. The last block keeps them."""


def recomputes(cell: Cell) -> bool:
    """Whether the blocks of a cell compute their activations again."""
    if cell.option("recompute", False) is not True:
        return False
    return issubclass(known_strategy(cell.strategy).options, RecomputingOptions)


def workload_of(cell: Cell, measured: Workload) -> Workload:
    """The costs of a cell's network, from those without recomputation."""
    return RecomputedWorkload(measured) if recomputes(cell) else measured


class RecomputedWorkload(Workload):
    """The costs of a network whose blocks compute their activations again.

    Args:
        measured: the costs without.
    """

    def __init__(self, measured: Workload) -> None:
        super().__init__(measured._profile, measured._where)
        self._measured = measured

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks; a backward pass begins with a forward pass, but for the last block's."""
        *earlier, last = self.measured_blocks
        # An earlier block may have kept the last one's input, which its saved bytes then lack.
        saved = max(last.saved_bytes, last.input_bytes)
        return (*map(_recomputed, earlier), replace(last, saved_bytes=saved))

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """The weights' tensors; their gradients are ready later than without recomputation."""
        measured, blocks = self.measured_blocks, self.blocks
        samples = max(max(block.backward.measured_s) for block in measured)
        before, after = _starts(measured, samples), _starts(blocks, samples)
        if not before[0]:
            return self._measured.tensors
        moved = []
        for tensor in self._measured.tensors:
            index = tensor.block
            within_s = tensor.ready_fraction * before[0] - before[index + 1]
            ready_s = after[index] - max(0.0, before[index] - before[index + 1] - within_s)
            moved.append(replace(tensor, ready_fraction=min(1.0, ready_s / after[0])))
        return tuple(sorted(moved, key=lambda tensor: tensor.ready_fraction))

    def _step(self, batch_size: float) -> Step:
        step = self._measured.step(batch_size)
        forward_s = [block.forward.at(batch_size) for block in self.measured_blocks]
        again_s = step.forward_s * sum(forward_s[:-1]) / (sum(forward_s) or 1.0)
        low_s, high_s = step.interval(1.0, again_s) or (None, None)
        return replace(
            step,
            step_s=step.step_s + again_s,
            backward_s=step.backward_s + again_s,
            low_s=low_s,
            high_s=high_s,
        )


def _recomputed(block: Block) -> Block:
    return replace(
        block,
        saved_bytes=block.input_bytes,
        recomputed_bytes=block.saved_bytes,
        backward=block.forward.then(block.backward),
    )


def _starts(blocks: Sequence[Block], samples: float) -> list[float]:
    """Seconds of the backward passes of each block and all later ones; 0 after the last."""
    backward_s = (block.backward.at(samples) for block in reversed(blocks))
    return list(accumulate(backward_s, initial=0.0))[::-1]
