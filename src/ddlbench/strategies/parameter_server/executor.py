"""Executor of the parameter server, over gloo (CPU) or NCCL (CUDA).

::

    worker   | forward | backward: pushes leave, weights come | wait | forward ...
    server   | wait    | update message by message, answer           | wait    ...

All messages are point to point. All processes build the same network from the seed, so each one
knows the place of every tensor, and messages have no header. The servers send their weights to all
workers once before training. In async mode they do so after each run, too, so that all workers end
with the same weights.

First all connections are made, and on GPUs every process makes a dry run
(:mod:`ddlbench.strategies.alone`), because later a receive is posted at all times.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from ddlbench.experiment.site import Accelerator
from ddlbench.strategies.alone import dry_run
from ddlbench.strategies.executor import Executor, RunRecord, free_blocks
from ddlbench.strategies.parameter_server.descriptor import ParameterServerOptions
from ddlbench.strategies.parameter_server.server import (
    PULL,
    PUSH,
    AsyncServer,
    Groups,
    Layout,
    Round,
    Server,
    ServiceLog,
    SyncServer,
    Worker,
    channels_between,
    pieces,
)
from ddlbench.strategies.process_group import connect, every_rank, join_all
from ddlbench.strategies.timing import Span, SpanRecorder, StepClock
from ddlbench.strategies.training import make_optimizer, set_learning_rate

# Spans of the first mini-batches are kept.
_KEPT_MINI_BATCHES = 200


class ParameterServerExecutor(Executor):
    """One server or one worker.

    ``module`` is the network of a worker; a server's holds its messages as parameters. Each worker
    keeps its own batch-norm statistics, as with DDP and Horovod.
    """

    groups: Groups
    layout: Layout
    _number: int
    worker: Worker | None = None
    server: Server | None = None

    def begin(self) -> None:
        device = self.context.devices[0]
        self.spans = SpanRecorder(device, keep_first=_KEPT_MINI_BATCHES)
        self._log, self._reports = ServiceLog(self.plan.cell.warmup_steps), 0
        channels = channels_between(self._ranks("server"), self._ranks("worker"))
        connect(channels, self.process.rank, self.groups, device)
        if self.needs_dry_run():
            dry_run(self.module, self.context.devices, self.practise)
        if self.process.role == "server":
            self.server = self._server_of(self.module, self.optimizer)
        else:
            self.worker = Worker(self.module, self.layout, self._ranks("server"), self.groups)
        self._begin_alike()

    def practise(self, double: nn.Module) -> None:
        """Train a copy without messages: step two of two adds to gradients and momentum."""
        if self.process.role == "server":
            server = self._server_of(double, self._sgd(double))
            for _ in range(2):
                server.practise()
            return
        assert self.data is not None
        (batch,) = self.data.batches(0, 1)
        for _ in range(2):
            self._loss(double, batch.inputs, batch.labels).backward()

    def place(self, network: nn.Sequential) -> nn.Module:
        """Join the process groups; a worker keeps the network, a server its messages only."""
        device = self.context.devices[0]
        servers = self._ranks("server")
        trained = [p for p in network.parameters() if p.requires_grad]
        details = ParameterServerOptions.of(self.plan)
        self.layout = Layout(trained, len(servers), details.message_cap(Accelerator.shrunk))
        join_all(self.context, self.process, self.plan.world_size)
        self.groups = {direction: every_rank(self.context) for direction in (PUSH, PULL)}
        if self.process.role != "server":
            return network.to(device)
        server = servers.index(self.process.rank)
        weights = pieces(network, self.layout, server, device)
        free_blocks(network)  # the workers hold them
        for message, tensor in zip(self.layout.of_server(server), weights, strict=True):
            network.register_parameter(f"message_{message.number}", nn.Parameter(tensor))
        return network

    def make_optimizer(self) -> torch.optim.Optimizer:
        """The servers' SGD; a worker's never steps."""
        return self._sgd(self.module)

    def step(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Train a worker's mini-batch, until all new weights are here."""
        assert self.worker is not None
        number, self._number = self._number, self._number + 1
        self.worker.begin()
        with self.spans.span("forward", number):
            loss = self._loss(self.module, inputs, labels)
        with self.spans.span("backward", number):
            loss.backward()
            self.worker.push_rest()
        with self.spans.span("receive_wait", number):
            self.worker.finish()
        return loss.detach()

    def run(self, first: int, count: int) -> RunRecord:
        self._number = 0
        record = super().run(first, count) if self.worker else self._serve(first, count)
        if self._asynchronous:
            self._begin_alike()
        return record

    def record_step(self, _mini_batch: int) -> list[Span]:
        return []  # measured runs record spans

    def details(self) -> dict[str, Any]:
        """Add the messages, and on servers a report of all servers on measured runs."""
        details: dict[str, Any] = {
            **super().details(),
            "learning_rate": self._learning_rate,
            "messages": len(self.layout.messages),
            "server_bytes": [
                sum(m.end - m.begin for m in self.layout.of_server(server))
                * self.layout.dtype.itemsize
                for server in range(len(self._ranks("server")))
            ],
        }
        if self.server is not None:
            details["service"] = self._service_of_all()
        return details

    def persistent_tensors(self) -> Iterator[Tensor]:
        buffers = () if self.server is None else self.server.buffers()
        return chain(super().persistent_tensors(), buffers)

    @property
    def _asynchronous(self) -> bool:
        return ParameterServerOptions.of(self.plan).mode == "async"

    @property
    def _learning_rate(self) -> float:
        # An async update uses one worker's N-th of the mini-batch. With an N-th of the rate, the
        # updates of a mini-batch move the weights as far as in sync mode.
        rate = self.plan.cell.learning_rate
        return rate / len(self._ranks("worker")) if self._asynchronous else rate

    def _ranks(self, role: str) -> list[int]:
        return [process.rank for process in self.plan.processes if process.role == role]

    def _sgd(self, module: nn.Module) -> torch.optim.Optimizer:
        return make_optimizer(self.plan.cell, module.parameters(), self._learning_rate)

    def _server_of(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> Server:
        """A server of the messages in ``module``."""
        kind = AsyncServer if self._asynchronous else SyncServer
        return kind(
            list(module.parameters()),
            optimizer,
            self.layout.of_server(self._ranks("server").index(self.process.rank)),
            self._ranks("worker"),
            self.groups,
        )

    def _loss(self, module: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
        return self.loss_function(module(inputs), labels)

    def _begin_alike(self) -> None:
        """Give all workers the servers' weights."""
        if self.server is not None:
            self.server.hand_out()
        if self.worker is not None:
            self.worker.take()

    def _serve(self, first: int, count: int) -> RunRecord:
        assert self.server is not None
        clock = StepClock(self.context.devices)
        self.spans.begin_run(first)

        def set_rate(number: int) -> None:
            set_learning_rate(self.optimizer, self.plan.cell, first + number)

        run = Round(count, self.spans, clock, self.context.progress, set_rate)
        served = self.server.serve(run)
        self._log.add(first, served)
        ids = list(range(first, first + count))
        return RunRecord(
            ids,
            clock.finish(),
            [0.0] * count,
            spans=self.spans.spans(),
            # An asynchronous server waits in several threads at once.
            communication_wait_s=None if self._asynchronous else self.spans.wait_s,
        )

    def _service_of_all(self) -> list[dict[str, Any]]:
        """Reports of all servers, exchanged by the store; all servers call this together."""
        store, self._reports = self.context.store, self._reports + 1
        assert store is not None
        keys = {rank: f"parameter-server/{self._reports}/{rank}" for rank in self._ranks("server")}
        store.set(keys[self.process.rank], json.dumps(self._service()))
        return [json.loads(store.get(key)) for key in keys.values()]

    def _service(self) -> dict[str, Any]:
        """This server's report, as JSON values; on CUDA the host cannot tell how busy it was."""
        served, stale = self._log.served, self._log.served.staleness
        report: dict[str, Any] = {"rank": self.process.rank}
        if self.context.devices[0].type == "cpu" and served.elapsed_s:
            report["busy"] = served.busy_s / served.elapsed_s
        if stale:
            report["mean_staleness"] = sum(k * n for k, n in stale.items()) / stale.total()
            report["max_staleness"] = max(stale)
        return report
