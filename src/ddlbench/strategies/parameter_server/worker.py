"""A worker's side: gradients leave while backward runs, weights come back in their place.

::

    backward   | layer n ... | ... layer 1 |
    push          |-0-|-1-|  |-2-|  |-3-|         a message leaves when its last gradient is there,
    pull               |-0-|-1-|  |-2-|  |-3-|    and its weights come back when the server is done
                                           |--|   exposed

Messages leave in the order of their numbers, as the servers expect them: one that is ready early
waits for those before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch.distributed as dist
from torch import Tensor, nn

from ddlbench.strategies.parameter_server.layout import Layout, Row
from ddlbench.strategies.process_group import Channel

PUSH, PULL = "push", "pull"

# Two directions that must not wait for each other: over NCCL a group's messages between two ranks
# go one after the other.
Groups = dict[str, dist.ProcessGroup]


class Worker:
    """The weights of one worker, and its talk with the servers.

    Weights are received into the parameters themselves. That is safe while backward still runs: a
    message comes back after it was pushed, it is pushed when the gradients of its weights are
    there, and autograd has then made the last use of these weights.

    Args:
        network: on its device; its parameters move into a row.
        layout: of these.
        servers: rank of each.
        groups: for both directions.
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
        """A backward pass follows: its gradients are added to zeros."""
        self._row.gradients.zero_()
        self._missing = list(self._gradients_of)

    def push_rest(self) -> None:
        """The backward pass is over: what no gradient was made for is pushed as zeros."""
        self._missing = [0] * len(self._messages)
        self._push_ready()

    def finish(self) -> None:
        """Wait until all new weights are here."""
        for work in [*self._pulls, *self._pushes]:
            work.wait()
        self._pulls.clear()
        self._pushes.clear()

    def take(self) -> None:
        """Receive all weights without pushing anything, as the servers hand them out."""
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
            self._pull(number)  # first: an answer that is expected waits for nobody
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
    """Both channels of every server and every worker, in one order for all."""
    return [
        (direction, worker, server) if direction == PUSH else (direction, server, worker)
        for direction in (PUSH, PULL)
        for server in servers
        for worker in workers
    ]
