"""Compares recorded blocks with their module: outputs, gradients, buffers and random numbers.

Both are copies that begin alike. They see numbers that were not recorded, and first a batch of a
size that was not::

    module  4 samples -> output -> backward    2 samples -> output -> backward    generators
    blocks  4 samples -> output -> backward    2 samples -> output -> backward    generators
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from ddlbench.experiment.dataset_spec import DatasetSpec
from ddlbench.networks.foreign import Whole, seeded
from ddlbench.networks.inputs import made_up_inputs
from ddlbench.networks.inspection import copy_of, tensors_of
from ddlbench.networks.recorded_state import generator_states
from ddlbench.networks.recording import CannotRecord

_CHECKED_SAMPLES = (4, 2)  # of two calls; batch norm needs more than one
_CHECKED_BYTES = 2**28  # of the weights of the largest networks that are compared
_TOLERANCE = 1e-3


def can_be_compared(network: Whole) -> bool:
    """Whether a network computes within seconds: one of weights with values, and not too many."""
    weights = list(tensors_of(network))
    return (
        not any(weight.is_meta for weight in weights)
        and sum(weight.nbytes for weight in weights) <= _CHECKED_BYTES
    )


def check(
    network: Whole, spec: DatasetSpec, blocks_of: Callable[[nn.Module], nn.Sequential]
) -> None:
    """Compare the blocks of a copy with another copy, in two calls.

    Raises:
        CannotRecord: they compute, draw or keep something else.
    """
    whole, other = copy_of(network).train(), copy_of(network).train()
    blocks = blocks_of(other.module).train()
    with seeded(1):
        batches = [made_up_inputs(spec, samples, "cpu") for samples in _CHECKED_SAMPLES]
    (expected, drawn), (computed, drawn_by_blocks) = (
        _outputs(call, batches) for call in (whole, blocks)
    )
    for mine, theirs in zip(expected, computed, strict=True):
        _compare("its output", mine, theirs)
    if drawn != drawn_by_blocks:
        raise CannotRecord("its blocks draw other random numbers than it does")
    weights_of_both = zip(whole.module.named_parameters(), other.module.parameters(), strict=True)
    for (name, weight), theirs in weights_of_both:
        _compare(f"the gradient of {name}", weight.grad, theirs.grad)
    buffers_of_both = zip(whole.module.named_buffers(), other.module.buffers(), strict=True)
    for (name, buffer), theirs in buffers_of_both:
        _compare(name, buffer, theirs)


def _outputs(
    call: Callable[[Tensor], Tensor], batches: Sequence[Tensor]
) -> tuple[list[Tensor], tuple[object, ...]]:
    """The output of each batch, with its gradients made, and the states of all generators."""
    with seeded(2), torch.enable_grad():
        outputs = []
        for batch in batches:
            output = call(batch.clone())
            if output.requires_grad:
                output.square().mean().backward()
            outputs.append(output.detach())
        return outputs, generator_states()


def _compare(what: str, mine: Tensor | None, other: Tensor | None) -> None:
    mine, other = (
        tensor.to_dense() if tensor is not None and tensor.layout != torch.strided else tensor
        for tensor in (mine, other)
    )
    if mine is None or other is None:
        same = mine is other
    elif not mine.is_floating_point():
        same = torch.equal(mine, other)
    else:
        finite = mine[mine.isfinite()].abs()
        reach = _TOLERANCE * (float(finite.max()) if finite.numel() else 0.0)
        same = mine.shape == other.shape and torch.allclose(
            mine, other, rtol=_TOLERANCE, atol=reach, equal_nan=True
        )
    if not same:
        raise CannotRecord(f"its blocks and the network differ ({what})")
