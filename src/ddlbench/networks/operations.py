"""Operations of a training step: what the network needs, whatever a strategy computes twice.

They are those of matrix products and convolutions, a multiplication and an addition each, of the
forward and the backward pass::

    forward                       x W           2 N i o
    gradient of the weights       x^T dy        2 N i o
    gradient of the inputs        dy W^T        2 N i o     not of the first layer, which needs none

Convolutions count as the direct algorithm, causal attention as if no position were masked.
Normalisations, activations, loss and optimiser do not count, and neither does recomputation: this
is the numerator of model FLOPs utilisation (Chowdhery et al., "PaLM", 2022, appendix B).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

from ddlbench.experiment.dataset_spec import DatasetSpec
from ddlbench.networks.factory import build, skeleton
from ddlbench.networks.inputs import input_dtype

_SAMPLES = 2  # batch normalisation needs more than one


def training_flops(network: str, spec: DatasetSpec) -> int:
    """Floating-point operations of a forward and a backward pass of one sample.

    It is counted on the device "meta", where nothing is computed; a network that this device cannot
    run computes two samples on the CPU.

    Raises:
        ConfigError: the network cannot be loaded or built.
    """
    try:
        return counted(skeleton(network, spec), spec)
    except Exception:  # what the device lacks, or what is wrong: the CPU tells
        return counted(build(network, spec, seed=0), spec)


def counted(network: nn.Module, spec: DatasetSpec) -> int:
    """The same of a network that is there, on the device that it lies on."""
    device = next((weight.device for weight in network.parameters()), torch.device("cpu"))
    inputs = torch.zeros(_SAMPLES, *spec.shape, dtype=input_dtype(spec), device=device)
    counter = FlopCounterMode(
        display=False, custom_mapping={torch.ops.aten.convolution_backward: _convolution_backward}
    )
    # The fused kernels of attention recompute in their backward pass; the plain one does not.
    with sdpa_kernel(SDPBackend.MATH), torch.enable_grad(), counter:
        outputs = network(inputs)
        if outputs.requires_grad:  # else nothing is trained
            outputs.float().sum().backward()
    return round(counter.get_total_flops() / _SAMPLES)


def _convolution_backward(
    gradient: Sequence[int],
    inputs: Sequence[int],
    weights: Sequence[int],
    _bias: Any,
    _stride: Any,
    _padding: Any,
    _dilation: Any,
    transposed: bool,
    _output_padding: Any,
    _groups: int,
    wanted: Sequence[bool],
    **_others: Any,
) -> int:
    """Each gradient takes as many operations as the forward pass.

    torch's own formula leaves out that a filter of a grouped convolution reads one group only, and
    so counts depthwise convolutions many times over.
    """
    forward: int = conv_flop_count(
        list(inputs), list(weights), list(gradient), transposed=transposed
    )
    return forward * sum(wanted[:2])
