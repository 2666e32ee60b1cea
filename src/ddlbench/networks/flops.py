"""Floating-point operations that a training step needs, whatever a strategy computes twice.

Matrix products and convolutions count, a multiplication and an addition each, of both passes::

    forward                       x W           2 N i o
    gradient of the weights       x^T dy        2 N i o
    gradient of the inputs        dy W^T        2 N i o     not of the first layer, which needs none

Convolutions count as the direct algorithm, causal attention as if no position were masked.
Normalisations, activations, loss and optimiser do not count, and neither does recomputation: this
is the numerator of model FLOPs utilisation (Chowdhery et al., "PaLM", 2022, appendix B). Equation 3
of Megatron-LM (SC 2021) and torchtitan count attention whole, too; later versions of Megatron-LM
count the half that is not masked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import conv_flop_count, flop_registry

from ddlbench.experiment.dataset_spec import DatasetSpec
from ddlbench.networks.inputs import input_dtype

_SAMPLES = 2  # batch normalisation needs more than one


class FlopCounter(TorchDispatchMode):
    """Adds up the floating-point operations of what runs within, by torch's formulas.

    torch's own counter has hooks that forbid some ways to differentiate, and imports torch's
    compiler.

    Once ``goes_back`` is set, a backward pass runs. Of it only what needs no gradient counts: the
    rest is a forward pass that ``torch.utils.checkpoint`` computes again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = 0
        self.goes_back = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        count = _FORMULAS.get(func.overloadpacket)
        if count is not None and not (self.goes_back and torch.is_grad_enabled()):
            self.total += count(*args, **(kwargs or {}), out_val=outputs)
        return outputs

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


def step_flops(network: nn.Module, spec: DatasetSpec) -> int:
    """Operations of a forward and a backward pass of one sample, on the network's device."""
    device = next((weight.device for weight in network.parameters()), torch.device("cpu"))
    inputs = torch.zeros(_SAMPLES, *spec.shape, dtype=input_dtype(spec), device=device)
    # The fused kernels of attention recompute in their backward pass; the plain one does not.
    with sdpa_kernel(SDPBackend.MATH), torch.enable_grad(), FlopCounter() as counter:
        outputs = network(inputs)
        if outputs.requires_grad:  # else nothing is trained
            counter.goes_back = True
            outputs.float().sum().backward()
    return round(counter.total / _SAMPLES)


def _convolution_backward(
    gradient: Tensor,
    inputs: Tensor,
    weights: Tensor,
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
        list(inputs.shape), list(weights.shape), list(gradient.shape), transposed=transposed
    )
    return forward * sum(wanted[:2])


_FORMULAS = {**flop_registry, torch.ops.aten.convolution_backward: _convolution_backward}
