"""A worker: it pushes gradients while backward runs, and pulls new weights.

::

    backward   | layer n ... | ... layer 1 |
    push          |-0-|-1-|  |-2-|  |-3-|         a message leaves when its last gradient is ready,
    pull               |-0-|-1-|  |-2-|  |-3-|    and its weights return when the server has updated
                                           |--|   exposed

Messages leave in the order of their numbers, as the servers expect: one that is ready early waits
for those before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch.distributed as dist
from torch import Tensor, nn

from ddlbench.strategies.parameter_server.layout import Layout, Row
from ddlbench.strategies.process_group import Channel

PUSH, PULL = "push", "pull"

# A group for each direction, so that they do not block each other: over NCCL the messages of a
# group between two ranks go one after the other.
Groups = dict[str, dist.ProcessGroup]


class Worker:
    """The weights of one worker, and its messages with the servers.

    New weights are received into the parameters themselves, while backward may still run. This is
    safe: a message is pushed when the gradients of its weights are ready, so autograd needs these
    weights no more, and it returns only after that.
    """

    def __init__(
        self, network: nn.Module, layout: Layout, servers: list[int], groups: Groups
    ) -> None:
        self._messages = layout.messages
        self._servers, self._groups = servers, groups
        self._row = Row(network, layout)
        self._gradients_of = [0] * len(self._messages)
        for index, parameter in enumerate(self._row.parameters):
            numbers = layout.messages_of(index)
            for number in numbers:
                self._gradients_of[number] += 1
            parameter.register_post_accumulate_grad_hook(partial(self._ready, numbers))
        self._missing: list[int] = []
        self._pushes: list[dist.Work] = []
        self._pulls: list[dist.Work] = []

    def begin(self) -> None:
        """Set gradients to zero before a backward pass."""
        self._row.gradients.zero_()
        self._missing = list(self._gradients_of)

    def push_rest(self) -> None:
        """Push the other messages after the backward pass; missing gradients are zeros."""
        self._missing = [0] * len(self._messages)
        self._push_ready()

    def finish(self) -> None:
        """Wait until all new weights are here."""
        for work in [*self._pulls, *self._pushes]:
            work.wait()
        self._pulls.clear()
        self._pushes.clear()

    def take(self) -> None:
        """Receive the weights that the servers hand out."""
        for number in range(len(self._messages)):
            self._pull(number)
        self.finish()

    def _ready(self, numbers: list[int], _parameter: Tensor) -> None:
        for number in numbers:
            self._missing[number] -= 1
        self._push_ready()

    def _push_ready(self) -> None:
        while len(self._pushes) < len(self._messages) and not self._missing[len(self._pushes)]:
            number = len(self._pushes)
            message = self._messages[number]
            self._pull(number)  # before the push, so that the answer finds its receive posted
            work = dist.isend(
                self._row.gradients[message.begin : message.end],
                self._servers[message.server],
                group=self._groups[PUSH],
                tag=number,
            )
            assert work is not None
            self._pushes.append(work)

    def _pull(self, number: int) -> None:
        message = self._messages[number]
        work = dist.irecv(
            self._row.weights[message.begin : message.end],
            self._servers[message.server],
            group=self._groups[PULL],
            tag=number,
        )
        assert work is not None
        self._pulls.append(work)


def channels_between(servers: Sequence[int], workers: Sequence[int]) -> list[Channel]:
    """Both channels of every server and worker, in the same order on all ranks."""
    return [
        (direction, worker, server) if direction == PUSH else (direction, server, worker)
        for direction in (PUSH, PULL)
        for server in servers
        for worker in workers
    ]
