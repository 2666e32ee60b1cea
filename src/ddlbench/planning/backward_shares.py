"""What the two halves of a backward pass take, where a zero-bubble schedule has them apart.

::

    backward       | gradients of input and weights |       1
    apart          | of the input | | of the weights |      input_share + weight_share >= 1

A profile times whole backward passes. By its layers: a convolution or matrix product needs as many
operations for either gradient, so half each; a layer without weights has the gradient of its input
only; a normalisation gives both at once, so it runs in both halves. That the halves of a
convolution take equally long is a rule, not a measurement.

Source: Zero Bubble Pipeline Parallelism (Qi et al., ICLR 2024), section 2, on the operations of a
matrix product's two gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["backward_shares"]


def backward_shares(layers: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """``input_share`` and ``weight_share`` of a block's backward pass, from its layers' entries.

    Half each where no layer was timed.
    """
    whole_s = input_s = weight_s = 0.0
    for layer in layers:
        if not layer["backward"]:
            continue
        seconds = max(layer["backward"], key=lambda timing: int(timing["batch_size"]))["time_s"]
        for_input, for_weights = _halves(layer)
        whole_s += seconds
        input_s += for_input * seconds
        weight_s += for_weights * seconds
    if whole_s == 0:
        return {"input_share": 0.5, "weight_share": 0.5}
    return {"input_share": input_s / whole_s, "weight_share": weight_s / whole_s}


def _halves(layer: Mapping[str, Any]) -> tuple[float, float]:
    if not layer["parameter_bytes"]:
        return 1.0, 0.0
    return (1.0, 1.0) if "Norm" in layer["kind"] else (0.5, 0.5)
