"""A convolution over rows: each rank has the rows that its own outputs read, and all weights.

::

    input     | rank 0        | rank 1        |      kernel 3: a row of the neighbour
    needed    [ . . . . . . . . ]
                            [ . . . . . . . . ]
    output    | rank 0        | rank 1        |

Source: Kahira et al., section 3 (spatial); Dryden et al., IPDPS 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from ddlbench.strategies.tensor_parallel.halo import exchange
from ddlbench.strategies.tensor_parallel.layout import Halo, Window, halo_of
from ddlbench.strategies.tensor_parallel.shard_group import GridAxis

__all__ = ["CONVOLUTIONS", "FUNCTIONS", "Convolution", "SpatialConvolution"]

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
# By the number of dimensions beside samples and channels.
FUNCTIONS: dict[int, Callable[..., Tensor]] = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


class SpatialConvolution(nn.Module):
    """A convolution over this rank's rows.

    Gradients of the weights are those of the own rows alone, to be added up over the ranks.

    Args:
        layer: the whole layer, padded with zeros; its parameters are taken over.
        lines: the ranks along each split dimension.
        inputs, outputs: whole shapes, (N, C, ...).
    """

    def __init__(
        self,
        layer: Convolution,
        lines: Sequence[GridAxis],
        inputs: Sequence[int],
        outputs: Sequence[int],
    ) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.stride, self.dilation, self.groups = layer.stride, layer.dilation, layer.groups
        around = _padding(layer)
        self.halos: list[tuple[Halo, GridAxis]] = []
        for line in lines:
            place = line.dim
            before, after = around[place]
            window = Window(
                layer.kernel_size[place], layer.stride[place], layer.dilation[place], before, after
            )
            self.halos.append((halo_of(window, line.parts(inputs), line.parts(outputs)), line))
            around[place] = (0, 0)  # comes with the halo
        self.padding = tuple(before for before, _ in around)
        # "same" with an even kernel pads more behind than before; F.pad wants the last one first.
        self.more = [size for low, high in reversed(around) for size in (0, high - low)]
        self.convolve = FUNCTIONS[len(around)]

    def forward(self, rows: Tensor) -> Tensor:
        """Own rows of the input -> own rows of the output."""
        for halo, line in self.halos:
            rows = exchange(rows, halo, line, fill=0.0)
        if any(self.more):
            rows = F.pad(rows, self.more)
        return self.convolve(
            rows, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups
        )


def _padding(layer: Convolution) -> list[tuple[int, int]]:
    """Padding before and behind, along each dimension; torch says it pairwise from the last."""
    pairs = layer._reversed_padding_repeated_twice
    return [(pairs[place], pairs[place + 1]) for place in reversed(range(0, len(pairs), 2))]
