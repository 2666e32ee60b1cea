"""What runs a plan on the nodes: the protocol of every strategy, and the one step loop.

::

    worker                      executor
      | prepare(plan, process,     |   build, place, wrap
      |         network, data)     |
      | run(0, warm-up)            |   dropped
      | run(warm-up, measured)     |   completions: when each mini-batch was done
      | checkpoint_state()         |   where checkpoints are asked for: nothing is under way

``run`` takes global mini-batch ids, so it fits a data-parallel rank, a pipeline stage with
several mini-batches in flight, one process that drives several devices, and a parameter server
that owns no batch: such a role gets ``data=None`` and completes what it served.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ddlbench.experiment.status import Reason
from ddlbench.planning.plan import Plan
from ddlbench.planning.strategy import Process
from ddlbench.strategies.timing import Span, SpanRecorder, StepClock
from ddlbench.strategies.training import make_loss, make_optimizer


class Unsupported(Exception):  # noqa: N818 - an outcome, not a fault
    """The strategy cannot run this cell, found only once the network was at hand.

    Args:
        reason: one sentence.
        code: what to count it by, where the sentence carries no code of its own.
    """

    def __init__(self, reason: str, code: str = "unsupported") -> None:
        super().__init__(reason if isinstance(reason, Reason) else Reason(code, reason))


class MiniBatch(Protocol):
    """What a data stream yields: inputs (N, C, H, W) and labels (N,), on the device."""

    @property
    def inputs(self) -> Tensor:
        """Images."""
        ...

    @property
    def labels(self) -> Tensor:
        """Classes."""
        ...


class DataStream(Protocol):
    """This process's part of every mini-batch, by global mini-batch id."""

    def batches(self, first: int, count: int) -> Iterator[MiniBatch]:
        """Mini-batches ``first`` to ``first + count - 1``, as far as this process's turns go."""
        ...


@dataclass
class Context:
    """What an executor may use of its surroundings.

    Args:
        devices: what this process drives, in the order of the plan.
        store: key-value store of all processes (rendezvous); None for a single process.
        interface: network interface to talk over; None lets the library choose.
        local_address: address of this node that other processes reach.
        patience_s: how long libraries wait for another process. The supervisor's limits are lower:
            it knows a hang from a slow step.
        progress: called after each completed mini-batch with the number completed in this run.
        fixed: what an earlier run of the cell fixed when it ran (its ``details``), where this one
            goes on from its checkpoint; else empty.
    """

    devices: tuple[torch.device, ...]
    store: torch.distributed.Store | None = None
    interface: str | None = None
    local_address: str = "127.0.0.1"
    patience_s: float = 1800.0
    progress: Callable[[int], None] = lambda _done: None
    fixed: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class RunRecord:
    """What one call of ``run`` measured; lists run in the order of completion.

    Args:
        ids: global mini-batch ids.
        step_s: seconds from one completion to the next (the first from the start).
        load_s: seconds of that during which the process waited for data.
        loss: mean loss over this process's samples; empty for a role without labels.
        spans: (kind, mini-batch id, start_s, end_s) by this host's ``time.perf_counter``, for
            timelines; optional.
        communication_wait_s: waiting for other ranks; None where the strategy cannot tell.
    """

    ids: list[int] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    load_s: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    communication_wait_s: float | None = None

    def followed_by(self, later: RunRecord) -> RunRecord:
        """Both as one. Spans are of the first that has any: those of two runs would leave a gap."""
        if not self.step_s:
            return later
        waits = (self.communication_wait_s, later.communication_wait_s)
        known = [seconds for seconds in waits if seconds is not None]
        return RunRecord(
            ids=self.ids + later.ids,
            step_s=self.step_s + later.step_s,
            load_s=self.load_s + later.load_s,
            loss=self.loss + later.loss,
            spans=self.spans or later.spans,
            communication_wait_s=sum(known) if len(known) == len(waits) else None,
        )


class Executor(Protocol):
    """The life of a strategy in one process."""

    def prepare(
        self,
        plan: Plan,
        process: Process,
        network: nn.Sequential,
        data: DataStream | None,
        context: Context,
    ) -> None:
        """Place the network, join the others."""
        ...

    def run(self, first: int, count: int) -> RunRecord:
        """Train mini-batches ``first`` to ``first + count - 1``."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Weights and optimiser state of this process, under the names of the plain network."""
        ...

    def checkpoint_state(self) -> dict[str, Any]:
        """All that the next step of this process depends on, between two calls of ``run``.

        Tensors, numbers and texts in mappings and lists. Random generators and the position in the
        data are not its business.
        """
        ...

    def load_checkpoint_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`checkpoint_state` gave, in this process or in another one.

        It may have trained other steps before; nothing of them is left.
        """
        ...

    def details(self) -> dict[str, Any]:
        """What was fixed only at run time (balance, buckets), as JSON values."""
        ...

    def persistent_tensors(self) -> Iterator[Tensor]:
        """Tensors that live from step to step: weights, gradients, optimiser state."""
        ...

    def filling(self) -> int:
        """Mini-batches after which it holds as much memory as it ever will."""
        ...

    def threaded_modules(self) -> list[nn.Module]:
        """Modules whose forward runs in other threads than the loop's."""
        ...

    def buffer_bytes(self) -> int:
        """Bytes that its communication library holds out of torch's sight."""
        ...

    def record_step(self, mini_batch: int) -> list[Span]:
        """Spans of one more step that nobody counts; none where ``run`` records them itself.

        All processes of a cell call it together, after everything else.
        """
        ...

    def close(self) -> None:
        """Leave the process group."""
        ...


class StepwiseExecutor:
    """An executor whose mini-batches follow one another: plain training on one device.

    Subclasses say what else one step is.

    Attributes:
        spans: what a step tells of its parts; it records in :meth:`record_step` only, unless a
            strategy records measured steps, too.
    """

    spans: SpanRecorder
    module: nn.Module
    optimizer: torch.optim.Optimizer

    def prepare(
        self,
        plan: Plan,
        process: Process,
        network: nn.Sequential,
        data: DataStream | None,
        context: Context,
    ) -> None:
        """Place the network and make the optimiser; see :meth:`place`."""
        self.plan, self.process, self.context = plan, process, context
        self.data = data
        self.loss_function = make_loss(plan.cell)
        self.spans = SpanRecorder(context.devices[0], enabled=False)
        self.module = self.place(network)
        self.optimizer = self.make_optimizer()
        self.module.train()

    def place(self, network: nn.Sequential) -> nn.Module:
        """The network on its device(s), wrapped as the strategy needs."""
        return network.to(self.context.devices[0])

    def make_optimizer(self) -> torch.optim.Optimizer:
        """The cell's optimiser over the weights of this process."""
        return make_optimizer(self.plan.cell, self.module.parameters())

    def step(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """One optimiser step; returns the detached loss."""
        self.spans.begin_step()
        self.optimizer.zero_grad()
        self.spans.phase("forward")
        loss: Tensor = self.loss_function(self.module(inputs), labels)
        self.spans.phase("backward")
        self.backward(loss)
        self.update()
        self.spans.phase("")
        return loss.detach()

    def backward(self, loss: Tensor) -> None:
        """Gradients of the loss."""
        loss.backward()

    def update(self) -> None:
        """The optimiser's step."""
        self.spans.phase("update")
        self.optimizer.step()

    def run(self, first: int, count: int) -> RunRecord:
        """The one timed loop: wait for data, step, read the clock."""
        assert self.data is not None
        clock = StepClock(self.context.devices)
        losses: list[Tensor] = []
        load_s: list[float] = []
        progress = self.context.progress
        batches = self.data.batches(first, count)
        self.spans.begin_run(first)
        clock.start()
        for done in range(1, count + 1):
            asked = time.perf_counter()
            batch = next(batches)
            load_s.append(time.perf_counter() - asked)
            losses.append(self.step(batch.inputs, batch.labels))
            clock.mark()
            progress(done)
        step_s = clock.finish()
        loss = torch.stack(losses).tolist() if losses else []
        return RunRecord(
            list(range(first, first + count)),
            step_s,
            load_s,
            loss,
            spans=self.spans.spans(),
            communication_wait_s=self.spans.wait_s,
        )

    def record_step(self, mini_batch: int) -> list[Span]:
        """One step with the recorder on, and with :meth:`watched` around it."""
        if self.spans.enabled:
            return []
        self.spans.enabled = True
        with self.watched():
            spans = self.run(mini_batch, 1).spans
        self.spans.enabled = False
        return spans

    def watched(self) -> AbstractContextManager[None]:
        """What a strategy adds to a step so that it can be recorded; nothing by default."""
        return nullcontext()

    def state_dict(self) -> dict[str, Any]:
        """Weights under the names of the plain network, and the optimiser's state."""
        return {"network": self.module.state_dict(), "optimizer": self.optimizer.state_dict()}

    def checkpoint_state(self) -> dict[str, Any]:
        """Weights and buffers under the names that the placed module gives, and the optimiser."""
        return {"module": self.module.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_checkpoint_state(self, state: Mapping[str, Any]) -> None:
        """In place: what others hold of the weights stays theirs."""
        self.module.load_state_dict(state["module"])
        self.optimizer.load_state_dict(state["optimizer"])

    def details(self) -> dict[str, Any]:
        """Nothing but the plan, unless a strategy says more."""
        return dict(self.plan.details)

    def buffer_bytes(self) -> int:
        """None, unless a strategy says more."""
        return 0

    def persistent_tensors(self) -> Iterator[Tensor]:
        """Weights, buffers, gradients and the optimiser's state."""
        for parameter in self.module.parameters():
            yield parameter
            if parameter.grad is not None:
                yield parameter.grad
        yield from self.module.buffers()
        for state in self.optimizer.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))

    @property
    def transport(self) -> str | None:
        """What messages to other ranks go over: "tcp" (gloo), "nccl"; None where unknown."""
        return "tcp" if self.context.devices[0].type == "cpu" else "nccl"

    def filling(self) -> int:
        """One, unless a strategy has several in flight."""
        return 1

    def threaded_modules(self) -> list[nn.Module]:
        """None, unless a strategy says more."""
        return []

    def close(self) -> None:
        """Nothing to leave."""
