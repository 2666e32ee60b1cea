"""Layers that treat every position alike, so that rows stay where they are."""

from __future__ import annotations

from torch import nn

__all__ = ["DROPOUTS", "POINTWISE"]

POINTWISE = (
    nn.CELU,
    nn.ELU,
    nn.GELU,
    nn.Hardsigmoid,
    nn.Hardswish,
    nn.Hardtanh,
    nn.Identity,
    nn.LeakyReLU,
    nn.LogSigmoid,
    nn.Mish,
    nn.PReLU,
    nn.ReLU,
    nn.ReLU6,
    nn.SELU,
    nn.Sequential,  # a layer only where it is empty, as the shortcut of some residual blocks
    nn.SiLU,
    nn.Sigmoid,
    nn.Softplus,
    nn.Softsign,
    nn.Tanh,
)

# Ranks with different rows would draw different numbers of random numbers.
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
