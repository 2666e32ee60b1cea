"""Compares a backward pass in two parts with a whole one, for the stages of a zero-bubble schedule.

torch computes the gradient of a stage's input first, and those of its weights later. It starts the
second part where a weight's path meets the path of the input::

    input ---- o ---- o ---- output        B: along the upper path
              /      /                     W: from each o to its weight
             w0     w1

So a weight whose path never meets the input's has no gradient, as after ``detach``. A hook beyond
an ``o`` runs twice. Whether a network has such places, only a trial shows.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.networks.copying import copy_of
from ddlbench.networks.foreign import seeded
from ddlbench.networks.inputs import made_up_inputs
from ddlbench.strategies.executor import Unsupported
from ddlbench.strategies.pipelining.stage import StageModule

_SAMPLES = 2
_RELATIVE, _OF_THE_LARGEST = 1e-3, 1e-5  # far above the rounding of float32


def check_split_backward(
    network: nn.Sequential,
    stages: Sequence[range],
    cell: Cell,
    floating: torch.dtype = torch.float32,
) -> None:
    """Check all stages but the first, whose backward pass torch does not split.

    Raises:
        Unsupported: the gradients of a stage's weights or input are not those of a whole pass.
    """
    blocks = list(network._modules.items())
    with seeded(0):
        passing = made_up_inputs(DATASETS[cell.dataset], _SAMPLES, "cpu")
        if passing.is_floating_point():
            passing = passing.to(floating)
        for number, stage in enumerate(stages):
            own = nn.Sequential(OrderedDict(blocks[stage.start : stage.stop]))
            if number and (why := _difference(own, passing)) is not None:
                raise Unsupported(
                    f"{cell.strategy} splits backward passes, and on stage {number} {why}; take "
                    "pipe-1f1b, which does not split them",
                    code="split_backward_differs",
                )
            passing = copy_of(own)(passing).detach()


def _difference(blocks: nn.Sequential, inputs: Tensor) -> str | None:
    """What differs, for a sentence; None if nothing does, or a whole pass fails as well."""
    try:
        whole = _gradients(blocks, inputs, _whole_pass)
    except Exception:
        return None
    try:
        split = _gradients(blocks, inputs, _split_pass)
    except Exception as error:
        cause = error.__cause__ or error
        return f"that fails: {_first_sentence(cause)}"
    for name, gradient in whole.items():
        if not _alike(gradient, split[name]):
            return f"{name} would get another gradient than from a whole pass"
    return None


def _gradients(
    blocks: nn.Sequential, inputs: Tensor, backward: Callable[[nn.Module, Tensor, Tensor], None]
) -> dict[str, Tensor | None]:
    """Gradients of a copy's weights and input after one pass, with the same random numbers."""
    stage = StageModule(copy_of(blocks)).train()
    with seeded(1):
        received = inputs.detach().clone().requires_grad_()
        outputs = stage(received)
        if outputs.requires_grad:
            backward(stage, received, outputs)
    weights = {name: weight.grad for name, weight in stage.blocks.named_parameters()}
    return {**weights, "its input": received.grad}


def _whole_pass(_stage: nn.Module, _received: Tensor, outputs: Tensor) -> None:
    outputs.backward(_weighting(outputs))


def _split_pass(stage: nn.Module, received: Tensor, outputs: Tensor) -> None:
    _, groups = stage_backward_input(
        [outputs], [_weighting(outputs)], [received], stage.parameters()
    )
    stage_backward_weight(stage.parameters(), groups)


def _first_sentence(error: BaseException) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0].partition(". ")[0].rstrip(".")


def _weighting(outputs: Tensor) -> Tensor:
    """A gradient of the outputs in which all places differ."""
    return torch.linspace(-1, 1, outputs.numel()).view(outputs.shape).to(outputs.dtype)


def _alike(gradient: Tensor | None, other: Tensor | None) -> bool:
    """Whether two gradients are the same but for rounding; a missing one is zero."""
    if gradient is None or other is None:
        known = gradient if other is None else other
        return known is None or not known.to_dense().any()
    gradient, other = gradient.to_dense(), other.to_dense()
    absolute = 0.0
    if gradient.numel():
        absolute = _OF_THE_LARGEST * float(gradient.abs().nan_to_num().max())
    return torch.allclose(gradient, other, rtol=_RELATIVE, atol=absolute, equal_nan=True)
