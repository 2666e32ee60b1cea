"""The executor of every strategy, with the step loop that most of them share.

::

    worker                      executor
      | prepare(plan, process,     |   build, place, wrap
      |         network, data)     |
      | run(0, warm-up)            |   dropped
      | run(warm-up, measured)     |   the time at which each mini-batch was complete
      | checkpoint_state()         |   for checkpoints: no mini-batch is in flight

``run`` takes global mini-batch ids. So it suits a data-parallel rank, a pipeline stage with several
mini-batches in flight, one process that drives several devices, and a server of weights. A server
reads no data: it gets ``data=None``, and a mini-batch is complete when it has served it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp import GradScaler

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.status import Reason
from ddlbench.planning.network_tables import NetworkTraits
from ddlbench.planning.plan import Process
from ddlbench.planning.planner import StrategyPlan
from ddlbench.planning.recomputation import recomputes
from ddlbench.planning.strategy import strategy_of
from ddlbench.strategies.alone import MessageLog
from ddlbench.strategies.recomputation import (
    buffered_block,
    recompute_in_place,
    why_not_recomputed,
)
from ddlbench.strategies.timing import Span, SpanRecorder, StepClock
from ddlbench.strategies.training import (
    MeanCrossEntropy,
    compile_in_place,
    make_optimizer,
    set_learning_rate,
    state_tensors,
)

_LEFT: list[dist.ProcessGroup | None] = []
"""Groups that this process has left; they live until it ends.

DDP's reducer would destroy its group while it holds the interpreter's lock. The destructor waits
for gloo's threads, and one that still frees a tensor waits for that lock: pytorch issue 56297.
"""


class Unsupported(Exception):  # noqa: N818 - an outcome, not a fault
    """The strategy cannot run this cell, which only the network itself shows.

    Args:
        reason: one sentence.
        code: of the reason, unless the sentence is a ``Reason`` with a code of its own.
    """

    def __init__(self, reason: str, code: str = "unsupported") -> None:
        super().__init__(reason if isinstance(reason, Reason) else Reason(code, reason))


class MiniBatch(Protocol):
    """What a data stream yields: inputs (N, C, H, W) and labels (N,), on the device."""

    @property
    def inputs(self) -> Tensor: ...

    @property
    def labels(self) -> Tensor: ...


class DataStream(Protocol):
    """This process's part of every mini-batch, by global mini-batch id."""

    def batches(self, first: int, count: int) -> Iterator[MiniBatch]:
        """What this process consumes of mini-batches ``first`` to ``first + count - 1``."""
        ...


@dataclass
class Context:
    """Devices, addresses and callbacks of the process that an executor runs in.

    Args:
        devices: of this process, in the order of the plan.
        store: key-value store of all processes (rendezvous); None for a single process.
        interface: network interface for messages; None lets the library choose.
        local_address: address of this node that other processes reach.
        secret: of the run, known to its ranks only; None where they were started otherwise.
        patience_s: timeout of libraries. The supervisor's limits are lower, because it can tell a
            hang from a slow step.
        progress: called after each completed mini-batch with the number completed in this run.
        folder: for files that stay with the cell's result; made by whoever writes one. None keeps
            no files.
        fixed: ``details`` of the earlier run whose checkpoint this run continues; else empty.
        alone: of a profile: the rank runs without its peers, and its messages are listed here.
        traits: of the network; those of a built-in network are few.
        floating: type of the data's numbers, unless they are tokens.
    """

    devices: tuple[torch.device, ...]
    store: torch.distributed.Store | None = None
    interface: str | None = None
    local_address: str = "127.0.0.1"
    secret: str | None = None
    patience_s: float = 1800.0
    progress: Callable[[int], None] = lambda _done: None
    folder: Path | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)
    alone: MessageLog | None = None
    traits: NetworkTraits = field(default_factory=NetworkTraits)
    floating: torch.dtype = torch.float32


@dataclass
class RunRecord:
    """Measurements of one call of ``run``; lists are in the order of completion.

    Args:
        ids: global mini-batch ids.
        step_s: seconds from one completion to the next (the first from the start).
        load_s: the part of ``step_s`` in which the process waited for data.
        loss: mean loss over this process's samples; empty for a role without labels.
        spans: (kind, mini-batch id, start_s, end_s) by this host's ``time.perf_counter``, for
            timelines; optional.
        communication_wait_s: time spent waiting for other ranks; None if unknown.
    """

    ids: list[int] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    load_s: list[float] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    communication_wait_s: float | None = None

    def followed_by(self, later: RunRecord) -> RunRecord:
        """Join two records; spans are of one run only, as those of two would leave a gap."""
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


class Executor:
    """The life of a strategy in one process; as it stands, plain training on one device.

    Strategies override the parts that differ.
    """

    spans: SpanRecorder  # off outside record_step, unless a strategy records measured steps, too
    module: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: GradScaler | None  # of float16

    def prepare(
        self,
        plan: StrategyPlan,
        process: Process,
        network: nn.Sequential,
        data: DataStream | None,
        context: Context,
    ) -> None:
        """Place the network and join the other processes."""
        self.plan, self.process, self.context = plan, process, context
        self.data = data
        self.loss_function = MeanCrossEntropy()
        self.spans = SpanRecorder(context.devices[0], enabled=False)
        if recomputes(plan.cell):
            self._recompute(network)
        self.module = self.place(network)
        if plan.cell.compile:
            for module in self.compiled_modules():
                compile_in_place(module)
        self.optimizer = self.make_optimizer()
        # A network in float16 loses gradients below 6e-8 (Micikevicius et al., "Mixed Precision
        # Training", 2018, section 3.2). Those of a scaled loss are kept; an update whose gradients
        # overflow is left out, and the scale halved.
        scales = plan.cell.precision == "fp16"
        self.scaler = GradScaler(context.devices[0].type) if scales else None
        self.module.train()
        self.begin()

    def begin(self) -> None:
        """What a strategy does once the network and its optimiser are there."""

    def place(self, network: nn.Sequential) -> nn.Module:
        """Put the network on its device(s), wrapped as the strategy needs."""
        return network.to(self.context.devices[0])

    def _recompute(self, network: nn.Sequential) -> None:
        self.check_recomputation(network, "recompute: false")
        if self.plan.cell.compile and (block := buffered_block(network)) is not None:
            raise Unsupported(
                f"a compiled block would change its buffers once more when it is recomputed, and "
                f"{block} has some; write recompute: false or compile: false",
                code="cannot_compile",
            )
        recompute_in_place(network)

    def check_recomputation(
        self, network: nn.Sequential, instead: str, *, with_graph: bool = True
    ) -> None:
        """Check that a network's passes can run again; those of built-in ones can.

        Raises:
            Unsupported: they cannot; ``instead`` is the setting to write.
        """
        if not self.context.traits.blocks:
            return
        spec, floating = DATASETS[self.plan.cell.dataset], self.context.floating
        why = why_not_recomputed(network, spec, floating, instead, with_graph=with_graph)
        if why is not None:
            raise Unsupported(why)

    def compiled_modules(self) -> list[nn.Module]:
        """What torch.compile compiles, of a strategy whose descriptor says ``compiles``."""
        return [self.module]

    def make_optimizer(self) -> torch.optim.Optimizer:
        return make_optimizer(self.plan.cell, self.module.parameters())

    def step(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Make one optimiser step; return the detached loss."""
        self.spans.begin_step()
        self.zero_grad()
        loss = self.forward_backward(inputs, labels)
        self.update()
        self.spans.phase("")
        return loss

    def zero_grad(self) -> None:
        """Drop the gradients of the last step, so that activations have their memory."""
        self.optimizer.zero_grad()

    def forward_backward(self, inputs: Tensor, labels: Tensor, divisor: int = 1) -> Tensor:
        """Go forward and backward; return the detached loss, a ``divisor``-th of the mean."""
        self.spans.phase("forward")
        loss = self.loss_function(self.module(inputs), labels)
        if divisor > 1:
            loss = loss / divisor
        self.spans.phase("backward")
        self.backward(loss if self.scaler is None else self.scaler.scale(loss))
        return loss.detach()

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def update(self) -> None:
        self.spans.phase("update")
        self.step_optimizer()

    def step_optimizer(self) -> None:
        """Update the weights, unless gradients of a scaled loss have overflowed."""
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def train(self, batch: MiniBatch | None) -> list[Tensor]:
        """Train one mini-batch; the detached loss, if this process has it."""
        assert batch is not None
        return [self.step(batch.inputs, batch.labels)]

    def run(self, first: int, count: int) -> RunRecord:
        """Train mini-batches ``first`` to ``first + count - 1``: wait for data, step, mark."""
        clock = StepClock(self.context.devices)
        losses: list[Tensor] = []
        load_s: list[float] = []
        progress, data = self.context.progress, self.data
        batches: Iterator[MiniBatch | None]
        batches = repeat(None) if data is None else data.batches(first, count)
        # In a single step, workers that read ahead have not done so, and loading takes longer.
        loads = data is not None and (count > 1 or not self.plan.cell.loader_workers)
        self.spans.begin_run(first)
        clock.start()
        for done in range(1, count + 1):
            begin_s = time.perf_counter()
            with self.spans.span("load", done - 1) if loads else nullcontext():
                batch = next(batches)
            load_s.append(time.perf_counter() - begin_s)
            set_learning_rate(self.optimizer, self.plan.cell, first + done - 1)
            losses += self.train(batch)
            clock.mark()
            progress(done)
        step_s = clock.finish()
        loss = torch.stack(losses).tolist() if losses else []
        ids = list(range(first, first + count))
        return RunRecord(ids, step_s, load_s, loss, self.spans.spans(), self.spans.wait_s)

    def record_step(self, mini_batch: int) -> list[Span]:
        """Spans of one more step, which is not measured; empty where ``run`` records them itself.

        All processes of a cell call this together, after everything else.
        """
        if self.spans.enabled:
            return []
        self.spans.enabled = True
        with self.watched():
            spans = self.run(mini_batch, 1).spans
        self.spans.enabled = False
        return spans

    def partition_spans(self, mini_batch: int) -> Sequence[tuple[Any, ...]]:
        """Spans of one more step of the partitions that this process drives; empty without any.

        Each is (partition, kind, micro-batch, start_s, end_s).
        """
        return []

    def watched(self) -> AbstractContextManager[None]:
        """Context of a recorded step, for hooks that recording needs."""
        return nullcontext()

    def state_dict(self) -> dict[str, Any]:
        """Weights and optimiser state of this process, under the names of the plain network."""
        return {"network": self.module.state_dict(), "optimizer": self.optimizer.state_dict()}

    def checkpoint_state(self) -> dict[str, Any]:
        """The state that this process's next step depends on, between two calls of ``run``.

        It holds tensors, numbers and texts in mappings and lists. The caller saves random
        generators and the position in the data.
        """
        state = {"module": self.module.state_dict(), "optimizer": self.optimizer.state_dict()}
        return {**state, **self.scale_state()}

    def load_checkpoint_state(self, state: Mapping[str, Any]) -> None:
        """Restore a :meth:`checkpoint_state`; steps that were trained before leave no effect."""
        self.module.load_state_dict(state["module"])  # in place: views of the weights stay valid
        self.optimizer.load_state_dict(state["optimizer"])
        self.load_scale_state(state)

    def scale_state(self) -> dict[str, Any]:
        """The part of a :meth:`checkpoint_state` that belongs to a scaled loss."""
        return {} if self.scaler is None else {"scale": self.scaler.state_dict()}

    def load_scale_state(self, state: Mapping[str, Any]) -> None:
        if self.scaler is not None:
            self.scaler.load_state_dict(state["scale"])

    def details(self) -> dict[str, Any]:
        """Settings that only the run fixes (balance, buckets), as JSON values."""
        return dict(self.plan.details)

    def buffer_bytes(self) -> int:
        """Bytes that a communication library holds and torch does not count."""
        return 0

    def persistent_tensors(self) -> Iterator[Tensor]:
        """Tensors that live from step to step: weights, gradients, optimiser state."""
        for parameter in self.module.parameters():
            yield parameter
            if parameter.grad is not None:
                yield parameter.grad
        yield from self.module.buffers()
        yield from state_tensors(self.optimizer)

    @property
    def transport(self) -> str | None:
        """Transport of messages to other ranks: "tcp" (gloo) or "nccl"; None if unknown."""
        return "tcp" if self.context.devices[0].type == "cpu" else "nccl"

    def filling(self) -> int:
        """Number of mini-batches after which memory no longer grows."""
        return 1

    def needs_dry_run(self) -> bool:
        """Whether a posted receive blocks the device: on GPUs, but not over gloo."""
        return self.context.devices[0].type == "cuda"

    def threaded_modules(self) -> list[nn.Module]:
        """Modules whose forward pass runs in another thread than the loop."""
        return []

    def close(self) -> None:
        """Leave the process groups and end threads."""
        if dist.is_initialized():
            _LEFT.append(dist.group.WORLD)
            dist.destroy_process_group()


def executor_of(cell: Cell) -> Any:
    """A new executor of the cell's strategy."""
    return resolve_name(strategy_of(cell.strategy).executor)()


def free_blocks(network: nn.Sequential, kept: Container[str] = ()) -> None:
    """Delete the blocks that other processes hold."""
    for name in list(network._modules):
        if name not in kept:
            delattr(network, name)
