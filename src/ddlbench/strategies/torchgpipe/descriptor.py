"""torchgpipe: one process drives all devices of one node (Kim et al. 2020).

::

    blocks     | a | b | c | d | e |       the plan cuts them only with balance ``profile``;
    devices    |---0---|---1---|-2-|       torchgpipe itself profiles for ``time`` and ``size``

    gpipe      device 0  F0 F1 F2 F3          B3 B2 B1 B0
               device 1     F0 F1 F2 F3    B3 B2 B1 B0        4 micro-batches, 2 partitions
                         ------------- time ------------->    the triangles are the bubble

    model-     device 0  F-----                B-----
    parallel   device 1         F-----  B-----                one device works at a time

A balance of the plan makes the largest cost of a partition minimal::

    blocks   | a | b | c | d | e |        costs of blocks, cut into partitions
    devices  |---0---|---1---|-2-|

The memory of each micro-batch in flight depends on recomputation (Huang et al. 2019, section 2.3;
in torchgpipe: Kim et al. 2020, section 3.2.3)::

    never          everything that autograd saves
    except_last    its input only, but everything for the last micro-batch
    always         its input only; one is recomputed at a time
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from ddlbench.common.errors import ConfigError
from ddlbench.common.form import Count
from ddlbench.common.quantities import counted
from ddlbench.experiment.cell import Cell, OptionValue
from ddlbench.experiment.site import ComputeKind
from ddlbench.experiment.status import Reason
from ddlbench.planning.memory import backward_peak_bytes, persistent_bytes
from ddlbench.planning.pipeline import PlannedSchedule
from ddlbench.planning.pipeline_stages import (
    check_enough,
    even_blocks,
    even_costs,
    measured_chain,
    measured_files,
    why_no_stages,
)
from ddlbench.planning.plan import BlockSource, Options, Plan, Process, RuleText, Tried
from ddlbench.planning.planner import compared_micro_batches, micro_batch_counts
from ddlbench.planning.schedules import Action, gpipe
from ddlbench.planning.strategy import PARADL, Strategy

if TYPE_CHECKING:
    from ddlbench.planning.workload import Block, Workload


@dataclass(frozen=True, kw_only=True)
class TorchGPipeOptions(Options):
    """Options of every strategy that torchgpipe runs."""

    balance: Annotated[
        str | int, RuleText(r"^(time|size|blocks|profile|[1-9]\d*(\+[1-9]\d*)*)$"), Tried("profile")
    ] = "time"
    """How blocks are dealt to devices: 'time' and 'size' let torchgpipe profile the network,
    'profile' evens out the times of the site's profile, 'blocks' gives each device as many blocks,
    '5+9' says it by hand."""


@dataclass(frozen=True, kw_only=True)
class GPipeOptions(TorchGPipeOptions):
    """Options of GPipe."""

    chunks: Annotated[Count, Tried(1, 2, 8, 16, 32)] = 4
    """Micro-batches that a mini-batch is cut into."""
    checkpoint: Annotated[Literal["except_last", "always", "never"], Tried("never", "always")] = (
        "except_last"
    )
    """For which micro-batches activations are recomputed."""


@dataclass(frozen=True, kw_only=True)
class TorchGPipeDetails(TorchGPipeOptions):
    """Plan details of torchgpipe; model parallelism is one chunk without recomputation.

    Args:
        chunks, checkpoint: options of GPipe.
        blocks_per_device: the distribution, if the plan fixes it (balance ``profile``).
    """

    chunks: int = 1
    checkpoint: str = "never"
    blocks_per_device: tuple[int, ...] = ()

    @property
    def recomputed(self) -> int:
        """Number of micro-batches whose forward pass runs twice."""
        return {"always": self.chunks, "except_last": self.chunks - 1}.get(self.checkpoint, 0)


class TorchGPipe(Strategy):
    """Base of the strategies that torchgpipe runs: one process with several partitions."""

    executor: ClassVar[str] = "ddlbench.strategies.torchgpipe.executor:GPipeExecutor"
    scales_loss: ClassVar[bool] = True
    takes_turns: ClassVar[bool] = True
    not_compiled: ClassVar[str] = (
        "torchgpipe runs and recomputes parts in threads of its own, which torch cannot trace"
    )
    requires: ClassVar[tuple[str, ...]] = ("torchgpipe",)
    options: ClassVar[type[Options]] = TorchGPipeOptions

    def supports(self, cell: Cell) -> str | None:
        if cell.nodes > 1:
            return Reason(
                "one_node_only",
                f"torchgpipe drives the devices of one node and cannot span {cell.nodes}; "
                "write a geometry of one node, as 1x4",
            )
        rule = str(TorchGPipeOptions.of_cell(cell).balance)
        if not rule[0].isdigit():  # a run deals the blocks, or the plan by a profile
            return None
        return why_no_stages(cell, rule, (1,) * cell.devices, self.blocks_of(cell))

    def placement(self, cell: Cell) -> tuple[Process, ...]:
        return (Process(0, "driver", 0, 0, devices=tuple(range(cell.devices_per_node))),)

    def plan(
        self, cell: Cell, source: BlockSource = None
    ) -> tuple[tuple[Process, ...], dict[str, Any]]:
        """Add ``blocks_per_device`` with balance ``profile``."""
        processes, details = super().plan(cell, source)
        if details["balance"] == "profile":
            from ddlbench.planning.partition import balance  # noqa: PLC0415 - of few plans

            micro_batch = cell.batch_size // int(details.get("chunks", 1))
            chain = measured_chain(cell, source, micro_batch)
            check_enough(cell, len(chain), cell.devices)
            details["blocks_per_device"] = list(balance(chain, cell.devices))
        return processes, details

    def stage_blocks(self, workload: Workload, plan: Plan) -> list[Sequence[Block]]:
        """The blocks of each partition.

        Balances ``5+9``, ``blocks`` and ``profile`` (whose cut is in the plan) are exact. For
        ``time`` and ``size`` torchgpipe profiles the network when a run starts. Here the profile's
        times or bytes are balanced, which may give another cut.

        Raises:
            ConfigError: there are fewer blocks than devices, or the numbers do not add up.
        """
        details = TorchGPipeDetails.of(plan)
        rule, micro_batch = str(details.balance), plan.cell.batch_size / details.chunks
        blocks = workload.blocks
        parts = len(plan.processes[0].devices)
        if len(blocks) < parts:
            raise ConfigError(
                f"{workload.network} has {counted(len(blocks), 'block')}, too few for {parts} "
                "devices; use fewer devices"
            )
        if rule == "time":
            costs = [b.forward.at(micro_batch) + b.backward.at(micro_batch) for b in blocks]
            counts = _balanced(costs, parts)
        elif rule == "size":
            costs = [2 * b.parameter_bytes + plan.cell.batch_size * b.saved_bytes for b in blocks]
            counts = _balanced(costs, parts)
        elif rule == "profile":
            counts = list(details.blocks_per_device)
        elif rule == "blocks":
            counts = list(even_blocks(len(blocks), (1,) * parts))
        else:
            counts = [int(count) for count in rule.split("+")]
        if sum(counts) != len(blocks) or len(counts) != parts:
            raise ConfigError(
                f"balance {rule} deals {counted(sum(counts), 'block')} to "
                f"{counted(len(counts), 'device')}; "
                f"{workload.network} has {counted(len(blocks), 'block')}, the cell "
                f"{counted(parts, 'device')}"
            )
        ends = list(itertools.accumulate(counts))
        return [blocks[end - count : end] for count, end in zip(counts, ends, strict=True)]

    def schedule_of(self, plan: Plan, mini_batches: int) -> PlannedSchedule:
        """One step, whatever ``mini_batches``, as a run records the spans of one step."""
        details = TorchGPipeDetails.of(plan)
        return torchgpipe_step(plan.cell.devices, details.chunks, details.recomputed)

    def micro_batches(self, plan: Plan) -> int:
        return TorchGPipeDetails.of(plan).chunks

    def recomputed_micro_batches(self, plan: Plan) -> int:
        return TorchGPipeDetails.of(plan).recomputed

    def memory_bytes(self, workload: Workload, plan: Plan) -> tuple[int, ...]:
        """Peak bytes of every partition."""
        details = TorchGPipeDetails.of(plan)
        chunks, checkpoint = details.chunks, details.checkpoint
        micro_batch = plan.cell.batch_size / chunks
        peaks = []
        for blocks in self.stage_blocks(workload, plan):
            everything = micro_batch * sum(block.saved_bytes for block in blocks)
            boundary = micro_batch * blocks[0].input_bytes
            # Memory of waiting micro-batches while the first, then the second, goes backward.
            waiting = everything if checkpoint == "never" else boundary
            first = (chunks - 1) * waiting + backward_peak_bytes(blocks, micro_batch)
            if checkpoint == "always":
                first += boundary
            peak = first
            if chunks > 1:
                recomputed = boundary if checkpoint != "never" else 0.0
                second = (chunks - 2) * waiting + recomputed
                second += backward_peak_bytes(blocks, micro_batch, gradients_exist=True)
                peak = max(first, second)
            persistent = persistent_bytes(blocks, plan.cell.optimizer_states)
            peaks.append(round(workload.fixed_memory_bytes + persistent + peak))
        return tuple(peaks)

    def measured_inputs(self, cell: Cell, site: str) -> tuple[Path, ...]:
        options = TorchGPipeOptions.of_cell(cell)
        return measured_files(cell, site) if options.balance == "profile" else ()

    def note(self, compute_kind: ComputeKind) -> str | None:
        if compute_kind != "cpu":
            return None
        return "torchgpipe runs its CPU partitions one after the other: no speed-up can show here"


class GPipe(TorchGPipe):
    """Synchronous pipeline with micro-batches and recomputation (Huang et al. 2019)."""

    name: ClassVar[str] = "gpipe"
    label: ClassVar[str] = "GPipe"
    colour: ClassVar[str] = "#D55E00"
    marker: ClassVar[str] = "^"
    family: ClassVar[str] = "pipeline"
    parallelism: ClassVar[str | None] = "pipeline"
    predictors = ("ddlbench-eq2", "thesis-6", "torchgpipe-turns", "torchgpipe-replay", *PARADL)
    # On CPU torchgpipe's partitions take turns; on GPUs and emulated devices they compute at once.
    preferred_predictor: ClassVar[Mapping[str, str]] = {
        "cpu": "torchgpipe-turns",
        "emulated": "torchgpipe-replay",
        "cuda": "thesis-6",
    }
    recommended_by: ClassVar[Mapping[str, str]] = {
        "thesis": "thesis-6",
        "ddlbench-2020": "ddlbench-eq2",
    }
    options: ClassVar[type[Options]] = GPipeOptions

    def supports(self, cell: Cell) -> str | None:
        chunks = GPipeOptions.of_cell(cell).chunks
        if cell.batch_size % chunks:
            return Reason(
                "uneven_batch",
                f"a mini-batch of {cell.batch_size} does not divide into {chunks} micro-batches; "
                f"make batch_size a multiple of {chunks}",
            )
        return super().supports(cell)

    def most_speedup(self, cell: Cell, compute_kind: ComputeKind = "cuda") -> float:
        """The bound p m / (m + p - 1) (Huang et al. 2019, section 2), without recomputation.

        On cores of a CPU torchgpipe's partitions compute one after the other.
        """
        if compute_kind == "cpu":
            return 1.0
        chunks = GPipeOptions.of_cell(cell).chunks
        return cell.devices * chunks / (chunks + cell.devices - 1)

    def suits(self, cell: Cell) -> bool:
        """With fewer micro-batches than devices some always wait."""
        return GPipeOptions.of_cell(cell).chunks >= cell.devices

    def alternatives(self, cell: Cell) -> Iterator[Mapping[str, OptionValue]]:
        """Micro-batches that divide the mini-batch."""
        for chunks in micro_batch_counts(cell.batch_size, cell.devices):
            yield {"chunks": chunks}

    def refinements(self, cell: Cell) -> Iterator[Mapping[str, OptionValue]]:
        """Other numbers of micro-batches."""
        numbers = compared_micro_batches(cell.batch_size, cell.devices)
        yield from ({"chunks": n} for n in numbers)


class ModelParallel(TorchGPipe):
    """torchgpipe with ``chunks=1, checkpoint='never'``."""

    name: ClassVar[str] = "model-parallel"
    label: ClassVar[str] = "Model parallel"
    colour: ClassVar[str] = "#009E73"
    marker: ClassVar[str] = "P"
    family: ClassVar[str] = "model"
    predictors = ("ddlbench-eq2", "model-parallel", "torchgpipe-turns", "torchgpipe-replay")
    preferred_predictor: ClassVar[Mapping[str, str]] = {
        "cpu": "torchgpipe-turns",
        "emulated": "torchgpipe-replay",
        "cuda": "model-parallel",
    }
    recommended_by: ClassVar[Mapping[str, str]] = {"ddlbench-2020": "ddlbench-eq2"}

    def most_speedup(self, cell: Cell, compute_kind: ComputeKind = "cuda") -> float:
        """One device at a time computes."""
        return 1.0


def torchgpipe_step(devices: int, chunks: int, recomputed: int) -> PlannedSchedule:
    """One step of torchgpipe: GPipe's, whose first ``recomputed`` micro-batches run twice.

    ::

        device 0   F0 F1       R0 B0 R1 B1     R: a second forward pass, before the device waits
        device 1      F0 F1 B1 R0 B0           for that micro-batch's gradient

    Source: torchgpipe 0.0.7, ``checkpoint.py``, on recomputation that precedes the gradient.
    """
    schedule = gpipe(devices, chunks)

    def with_recomputation(actions: tuple[Action, ...]) -> Iterator[Action]:
        last = actions[0].stage == devices - 1
        gradient_comes_by = "backward" if last else "receive_gradient"
        for action in actions:
            if action.kind == gradient_comes_by and action.micro_batch < recomputed:
                yield Action("forward", action.stage, chunks + action.micro_batch)
            yield action

    actions = tuple(tuple(with_recomputation(passes)) for passes in schedule.actions)
    return PlannedSchedule(replace(schedule, actions=actions), chunks, recomputes=True)


def _balanced(costs: Sequence[float], parts: int) -> list[int]:
    """Blocks of each partition, such that the maximum cost of a partition is minimal."""
    return list(even_costs(costs, [0.0] * len(costs), (1,) * parts))
