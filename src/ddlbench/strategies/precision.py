"""Arithmetic of the network, the same way for every strategy.

Autocast is a property of a thread, and torchgpipe runs partitions in threads of its own: so each
block carries its autocast with it instead of the loop that calls it.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import Tensor, nn

__all__ = ["Autocast", "with_precision"]


class Autocast(nn.Module):
    """A block that computes in bfloat16 where autocast deems it safe; weights stay float32."""

    def __init__(self, block: nn.Module, device_type: str) -> None:
        super().__init__()
        self.block = block
        self.device_type = device_type

    def forward(self, inputs: Tensor) -> Tensor:
        """The block's output."""
        with torch.autocast(self.device_type, dtype=torch.bfloat16):
            outputs: Tensor = self.block(inputs)
        return outputs


def with_precision(network: nn.Sequential, precision: str, device_type: str) -> nn.Sequential:
    """The network in "fp32", "tf32" or "bf16"; sets torch's matrix-product precision too."""
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    if precision != "bf16":
        return network
    # Not named_children: it leaves out a block that stands at a second place too.
    blocks = ((str(place), block) for place, block in network._modules.items())
    return nn.Sequential(
        OrderedDict((name, Autocast(b, device_type)) for name, b in blocks if b is not None)
    )
