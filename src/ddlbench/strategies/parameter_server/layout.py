"""The weights as one vector, the *row*, and its cut into messages.

::

    row        | fc.bias | fc.weight       | conv2.bias | conv2.weight  | conv1.bias | conv1 ... |
    messages   |      0      |      1      |      2      |      3      |      4      |     5     |
    server            0             1             0             1             0            1

The last layers come first, as their gradients do. Messages have almost equal sizes, so all servers
hold and serve equally much, whatever the sizes of tensors: a large tensor is in several messages,
small ones share one. Servers own ranges of one vector of keys in Li et al. 2014, too (sections 3.2
and 4.3).

Tensors and messages begin at multiples of 64 bytes (of float32), for vector instructions. The gaps
are always zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from ddlbench.strategies.executor import Unsupported
from ddlbench.strategies.parameter_server.descriptor import message_count

ALIGNMENT = 16  # elements


@dataclass(frozen=True)
class Message:
    """A piece of the row.

    Args:
        number: its index among all messages, and its tag.
        server: index of its server.
        begin, end: elements of the row.
    """

    number: int
    server: int
    begin: int
    end: int


class Layout:
    """Places of tensors and messages in the row, the same in every process.

    Raises:
        Unsupported: there are no parameters, or of several types.
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], servers: int, message_bytes: int
    ) -> None:
        types = {parameter.dtype for parameter in parameters}
        if len(types) != 1:
            names = " and ".join(sorted(map(str, types))) or "no trained weights"
            raise Unsupported(
                f"the servers hold one row of weights of one type, but the network has {names}",
                code="mixed_weight_types",
            )
        (self.dtype,) = types
        self._sizes = [parameter.numel() for parameter in parameters]
        self._begins = [0] * len(parameters)
        self.elements = 0
        for index in reversed(range(len(parameters))):
            self._begins[index] = self.elements
            self.elements += _aligned(self._sizes[index])
        count = message_count(self.elements * self.dtype.itemsize, servers, message_bytes)
        # A set: a network of few weights has fewer messages than servers.
        edges = sorted({_aligned(self.elements * edge // count) for edge in range(count + 1)})
        self.messages = [
            Message(number, number % servers, begin, end)
            for number, (begin, end) in enumerate(pairwise(edges))
        ]

    def views(self, row: Tensor, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
        """Each parameter's part of a row, in its shape."""
        return [
            row[begin : begin + size].view(parameter.shape)
            for begin, size, parameter in zip(self._begins, self._sizes, parameters, strict=True)
        ]

    def messages_of(self, parameter: int) -> list[int]:
        """Numbers of the messages that contain a parameter's gradient."""
        begin = self._begins[parameter]
        end = begin + self._sizes[parameter]
        return [m.number for m in self.messages if m.begin < end and begin < m.end]

    def of_server(self, server: int) -> list[Message]:
        return [message for message in self.messages if message.server == server]


class Row:
    """Moves a network's weights and gradients into two rows, so that no message is copied.

    Parameters become views of ``weights``. Their ``grad`` are views of ``gradients``, to which
    autograd adds.
    """

    def __init__(self, network: nn.Module, layout: Layout) -> None:
        self.parameters = [p for p in network.parameters() if p.requires_grad]
        device = self.parameters[0].device
        self.weights = torch.zeros(layout.elements, dtype=layout.dtype, device=device)
        self.gradients = torch.zeros_like(self.weights)
        weights = layout.views(self.weights, self.parameters)
        gradients = layout.views(self.gradients, self.parameters)
        for parameter, weight, gradient in zip(self.parameters, weights, gradients, strict=True):
            weight.copy_(parameter.detach())
            parameter.data = weight
            parameter.grad = gradient


def _aligned(elements: int) -> int:
    return -(-elements // ALIGNMENT) * ALIGNMENT
