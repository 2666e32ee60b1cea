"""Initial weights of the layers that are ours: torchvision's rule, so that both variants agree."""

from __future__ import annotations

from torch import nn

__all__ = ["initialize"]


def initialize(network: nn.Module) -> None:
    """Draw weights as torchvision's VGG and MobileNetV2 do.

    Convolutions: He et al. 2015 (normal, fan out); linear layers: normal, 0.01; biases: zero.
    Normalisations start as PyTorch leaves them, scale 1 and shift 0.
    """
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, 0, 0.01)
        else:
            continue
        if module.bias is not None:
            nn.init.zeros_(module.bias)
