"""PipeDream and model parallelism over gloo (CPU) or NCCL (CUDA): one stage for each process.

::

    prepare   | join, keep the stage's blocks, learn the forms of messages, connect | dry_run
    run       | 1F1B: fill | steady state ............................... | drain |

The pipeline fills and drains once in each run: between warm-up and the measured region, but not
between epochs. :mod:`ddlbench.strategies.pipedream.runner` carries out the actions of the plan's
schedule. On GPUs every stage makes a dry run first (:mod:`ddlbench.strategies.alone`).

The replay trains one mini-batch after the other on one device::

    mini-batch   0   1   2   3   4      stage 0 of two: weights of max(0, b - 1) updates
    stage 0     w0  w0  w1  w2  w3      both passes of a mini-batch use the same
    stage 1     w0  w1  w2  w3  w4

Source: Narayanan et al., SOSP 2019, section 3.3.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, repeat
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddlbench.common.quantities import counted
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.networks.block_forms import TensorForm, block_forms, sample_form
from ddlbench.planning.planner import StrategyPlan
from ddlbench.planning.recomputation import recomputes
from ddlbench.planning.schedules import Schedule
from ddlbench.strategies.alone import dry_run
from ddlbench.strategies.executor import Context, Executor, RunRecord, Unsupported, free_blocks
from ddlbench.strategies.pipedream.descriptor import PipeDreamDetails, StagedStrategy
from ddlbench.strategies.pipedream.runner import (
    Channels,
    Groups,
    MadeUpMessages,
    ScheduleRunner,
    Stage,
    StageParts,
    WeightVersions,
    channels_between,
)
from ddlbench.strategies.process_group import connect, every_rank, join_all, side_by_side
from ddlbench.strategies.timing import Span, SpanRecorder, StepClock
from ddlbench.strategies.training import Loss, Run, make_optimizer, rate_of, set_learning_rate

# Spans of the first mini-batches are kept: the filling, and many rounds of the steady state.
KEPT_MINI_BATCHES = 200


class PipeDreamExecutor(Executor):
    """One replica of one stage."""

    groups: Groups
    replica_group: dist.ProcessGroup | None
    forms: list[TensorForm]

    def begin(self) -> None:
        self.spans = SpanRecorder(self.context.devices[0], keep_first=KEPT_MINI_BATCHES)
        if self.needs_dry_run():
            dry_run(self.module, self.context.devices, self.practise)
        self.parts = self._parts(self.module, self.optimizer, self.context)

    def practise(self, double: nn.Module) -> None:
        """Train a copy of the stage, without messages, until the pipeline would be full.

        Sums over replicas are real, so that their connections are made, too.
        """
        device, batches = self.context.devices[0], None
        if self.data is not None:
            (batch,) = self.data.batches(0, self.process.turns)  # its own one of these
            batches = repeat(batch)
        quiet = replace(self.context, progress=lambda _done: None)
        schedule = self._schedule(self.filling())
        runner = ScheduleRunner(
            self._parts(double, self._sgd(double), quiet),
            schedule,
            self._version_in(schedule),
            batches=batches,
            messages=MadeUpMessages(self._arriving(), device),
            spans=SpanRecorder(device, enabled=False),
            clock=StepClock(self.context.devices),
            set_rate=lambda _number: None,
        )
        runner.run(self.process.rank)

    def place(self, network: nn.Sequential) -> nn.Module:
        """Join the process groups and keep this stage's blocks."""
        self.descriptor = cast(StagedStrategy, self.plan.strategy)
        self.planned = PipeDreamDetails.of(self.plan)
        self.stages = self.planned.stages
        device = self.context.devices[0]
        if self.stages[-1][1] != len(network):
            raise Unsupported(
                f"balance {self.planned.balance} deals {counted(self.stages[-1][1], 'block')}, "
                f"the network has {len(network)}",
                code="wrong_balance",
            )
        self._join(device)
        # Of a mini-batch's inputs, and of every block's outputs.
        cell, floating = self.plan.cell, self.context.floating
        inputs = sample_form(DATASETS[cell.dataset], cell.batch_size, floating)
        self.forms = block_forms(network, inputs, device)
        first, end, _ = self.stages[self.process.stage]
        blocks = list(network.named_children())[first:end]
        free_blocks(network, dict(blocks))
        return nn.Sequential(OrderedDict(blocks)).to(device)

    def make_optimizer(self) -> torch.optim.Optimizer:
        return self._sgd(self.module)

    def run(self, first: int, count: int) -> RunRecord:
        record = RunRecord(list(range(first, first + count)))
        if count == 0:
            return record
        schedule = self._schedule(count)
        self.spans.begin_run(first)
        clock = StepClock(self.context.devices)

        def set_rate(number: int) -> None:
            set_learning_rate(self.optimizer, self.plan.cell, first + number)

        runner = ScheduleRunner(
            self.parts,
            schedule,
            self._version_in(schedule),
            batches=None if self.data is None else iter(self.data.batches(first, count)),
            messages=self._channels(schedule),
            spans=self.spans,
            clock=clock,
            set_rate=set_rate,
        )
        runner.run(self.process.rank)
        for update, seconds in enumerate(clock.finish()):
            share = len(runner.mini_batches(update))
            record.step_s += [seconds / share] * share
        record.load_s = [runner.load_s.get(number, 0.0) for number in range(count)]
        record.loss = self._losses(runner.losses, count)
        record.spans = self.spans.spans()
        record.communication_wait_s = self.spans.wait_s
        return record

    def record_step(self, _mini_batch: int) -> list[Span]:
        return []  # measured runs record spans

    def details(self) -> dict[str, Any]:
        """Add the bytes of one mini-batch across each cut, in each direction."""
        cuts = [end for _, end, _ in self.stages[:-1]]
        return {**super().details(), "cut_bytes": [self.forms[cut].bytes for cut in cuts]}

    def filling(self) -> int:
        # Every replica of every stage has made an update while holding all its versions.
        versions = self.planned.weight_versions or (1,) * len(self.stages)
        return max(
            replicas * (count + 1)
            for (_, _, replicas), count in zip(self.stages, versions, strict=True)
        )

    def persistent_tensors(self) -> Iterator[Tensor]:
        return chain(super().persistent_tensors(), self.parts.versions.tensors())

    def _join(self, device: torch.device) -> None:
        """Join the groups of all ranks, of each direction, and of this stage's replicas."""
        join_all(self.context, self.process, self.plan.world_size)
        stage_ranks = self.planned.stage_ranks
        self.groups = {kind: every_rank(self.context) for kind in ("activation", "gradient")}
        mine = side_by_side(stage_ranks, self.context)
        self.replica_group = mine if len(stage_ranks[self.process.stage]) > 1 else None
        connect(channels_between(stage_ranks), self.process.rank, self.groups, device)

    def _sgd(self, module: nn.Module) -> torch.optim.Optimizer:
        """SGD at the stage's rate, as a stage of r replicas steps once in r mini-batches."""
        rates = self.planned.learning_rates
        rate = rates[self.process.stage] if rates else None
        return make_optimizer(self.plan.cell, module.parameters(), rate)

    def _parts(
        self, module: nn.Module, optimizer: torch.optim.Optimizer, context: Context
    ) -> StageParts:
        number, last = self.process.stage, len(self.stages) - 1
        assert isinstance(module, nn.Sequential)
        stage = Stage(
            module,
            number == 0,
            self.loss_function if number == last else None,
            # No built-in network does.
            runs_backward=bool(context.traits.blocks) or recomputes(self.plan.cell),
        )
        return StageParts(
            number=number,
            stage=stage,
            versions=WeightVersions(module, optimizer),
            replica_group=self.replica_group,
            asynchronous=self.planned.stage_all_reduce == "async",
            context=context,
        )

    def _schedule(self, count: int) -> Schedule:
        return self.descriptor.schedule(self.plan.details, count, self.process.rank)

    def _version_in(self, schedule: Schedule) -> Callable[[int], int]:
        """Updates that the weights of a mini-batch of a run with this schedule have seen."""
        return partial(self.descriptor.version, self.plan.details, schedule, self.process.stage)

    def _arriving(self) -> dict[str, TensorForm]:
        """Forms of the messages that this stage receives."""
        first, end, _ = self.stages[self.process.stage]
        return {"activation": self.forms[first], "gradient": self.forms[end]}

    def _channels(self, schedule: Schedule) -> Channels:
        return Channels(
            schedule.actions[self.process.rank],
            self.groups,
            self._arriving(),
            device=self.context.devices[0],
            most=schedule.receives_ahead,
            # Without warm-ups one mini-batch is in flight at a time, so no message can be early.
            ahead=1 if any(schedule.warmups) else 0,
            spans=self.spans,
        )

    def _losses(self, by_mini_batch: dict[int, Tensor], count: int) -> list[float]:
        """Losses of all mini-batches, on every replica of the last stage; empty elsewhere."""
        if self.process.stage != len(self.stages) - 1:
            return []
        device = self.context.devices[0]
        losses = torch.zeros(count, dtype=torch.float64, device=device)
        for number, loss in by_mini_batch.items():
            losses[number] = loss
        if self.replica_group is not None:
            dist.all_reduce(losses, group=self.replica_group)
        return losses.tolist()


State = dict[str, Tensor]
VersionOf = Callable[[int, int], int]
"""(stage, number in the run) -> updates of the run that its weights have seen."""


@dataclass
class _Stage:
    """The weights of a stage."""

    newest: dict[str, nn.Parameter]  # copies of its parameters that are trained
    optimizer: torch.optim.Optimizer
    replicas: int  # mini-batches whose gradients one update averages
    versions: list[State] = field(default_factory=list)  # after each update of the current run
    waiting: list[Mapping[str, Tensor | None]] = field(default_factory=list)  # gradients not used

    def version(self) -> State:
        """A copy of the newest weights."""
        return {name: weight.detach().clone() for name, weight in self.newest.items()}


def replay(
    plan: StrategyPlan, networks: Sequence[nn.Module], runs: Iterable[Run], loss_function: Loss
) -> Iterator[tuple[float, ...]]:
    """Train one network in place with the weights that each stage has for each mini-batch."""
    (network,) = networks
    strategy = cast(StagedStrategy, plan.strategy)

    def versions_of(count: int) -> VersionOf:
        return partial(strategy.version, plan.details, strategy.schedule(plan.details, count))

    stages = PipeDreamDetails.of(plan).stages
    training = OldWeights(plan.cell, network, stages, versions_of)
    yield from ((loss,) for loss in training.train(runs, loss_function))


class OldWeights:
    """Training with versions of the weights: the network takes one, the newest is updated."""

    def __init__(
        self,
        cell: Cell,
        network: nn.Module,
        stages: Sequence[tuple[int, int, int]],
        versions_of: Callable[[int], VersionOf],
    ) -> None:
        self._cell, self._network, self._versions_of = cell, network.train(), versions_of
        self._parameters = dict(network.named_parameters())
        self._stages = list(_stages(cell, network, stages))
        self._done = 0

    def train(self, runs: Iterable[Run], loss_function: Loss) -> Iterator[float]:
        """Train, and yield the loss of each mini-batch."""
        for count, batches in runs:
            version_of = self._versions_of(count)
            for stage in self._stages:  # no gradient is under way
                stage.versions = [stage.version()]
            for number, (inputs, labels) in enumerate(batches):
                for place, stage in enumerate(self._stages):
                    self._load(stage.versions[version_of(place, number)])
                self._network.zero_grad()
                loss = loss_function(self._network(inputs), labels)
                loss.backward()
                self._end_mini_batch(is_last=number == count - 1)
                yield loss.item()
        for stage in self._stages:
            self._load(stage.version())

    @torch.no_grad()
    def _load(self, values: State) -> None:
        for name, value in values.items():
            self._parameters[name].copy_(value)

    def _end_mini_batch(self, is_last: bool) -> None:
        """Take the gradients; stages whose replicas all have one update."""
        self._done += 1
        for stage in self._stages:
            stage.waiting.append({name: self._parameters[name].grad for name in stage.newest})
            if len(stage.waiting) == stage.replicas or is_last:
                rate = rate_of(self._cell, self._done - len(stage.waiting))
                self._update(stage, rate * stage.replicas / self._stages[0].replicas)

    @torch.no_grad()
    def _update(self, stage: _Stage, rate: float) -> None:
        """Average the gradients that wait, and add a version; a weight without any stays."""
        for name, weight in stage.newest.items():
            gradients = [g for waiting in stage.waiting if (g := waiting[name]) is not None]
            dense = [gradient.to_dense() for gradient in gradients]
            weight.grad = torch.stack(dense).sum(dim=0) / len(stage.waiting) if dense else None
        for group in stage.optimizer.param_groups:
            group["lr"] = rate
        stage.optimizer.step()
        stage.versions.append(stage.version())
        stage.waiting = []


def _stages(
    cell: Cell, network: nn.Module, stages: Sequence[tuple[int, int, int]]
) -> Iterator[_Stage]:
    place = {name: number for number, name in enumerate(network._modules)}
    trained = {name: p for name, p in network.named_parameters() if p.requires_grad}
    for first, end, replicas in stages:
        newest = {
            name: nn.Parameter(weight.detach().clone())
            for name, weight in trained.items()
            if first <= place[name.split(".")[0]] < end
        }
        yield _Stage(newest, make_optimizer(cell, newest.values()), replicas)
