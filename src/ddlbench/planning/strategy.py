"""Descriptors: all that is known of a strategy without running it.

A descriptor knows options, placement, memory, schedule and look. It needs no torch, so a login node
can check, plan and predict with it. It names the executor that runs on the nodes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ddlbench.common.entry_points import described, why_no_target, within
from ddlbench.common.errors import ConfigError, shown
from ddlbench.common.schema import check
from ddlbench.experiment.cell import Cell, OptionValue
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.registry import BASE, STRATEGIES, check_class, known, load
from ddlbench.experiment.site import Accelerator, ComputeKind
from ddlbench.experiment.status import Reason, code_of
from ddlbench.planning.block_costs import BlockCost, blocks_of
from ddlbench.planning.network_tables import NetworkTraits
from ddlbench.planning.plan import BlockSource, Options, Plan, Process, options_fault

if TYPE_CHECKING:
    from ddlbench.planning.pipeline import Pipeline, PipelineRun, PlannedSchedule
    from ddlbench.planning.step import Step
    from ddlbench.planning.workload import Block, Workload


_GROUP = "ddlbench.strategies"
DeviceKind = Literal["cpu", "cuda"]
PARADL = ("paradl-authors", "paradl-corrected")
"""The two variants of ParaDL's predictor."""


@dataclass(frozen=True)
class LayerSplit:
    """How a plan splits the layers of a profiled network.

    Args:
        weight_shares: share of each layer's weights on the fullest device, by the layer's name.
        grid: devices along each split dimension of activations, counted from the last (-1 is
            width); empty if activations stay whole.
        end: first block that every device computes whole; None if no rows are split.
    """

    weight_shares: Mapping[str, float]
    grid: Mapping[int, int] = field(default_factory=dict)
    end: int | None = None


def rows_share(extents: Sequence[int], grid: Mapping[int, int]) -> float:
    """Share of an activation on the fullest device; 1 if it has no split dimension."""
    share = 1.0
    for dim, size in grid.items():
        if len(extents) > -dim:
            share *= -(-extents[dim] // size) / extents[dim]
    return share


class Strategy:
    """Base of all descriptors; each strategy has a folder with its own.

    Class attributes:
        name, label: key in configurations and paths, and its name in figures.
        family: hue in figures ("baseline", "data parallel", "pipeline", "model", "split").
        colour, marker: of its points and bars; by default a shade of its family's hue.
        parallelism: kind of parallelism after Kahira et al. 2021, section 3 ("data", "spatial",
            "filter", "channel", "data+filter", "data+spatial", "pipeline"); else None.
        executor: ``module:attribute`` of the class that runs it.
        replay: ``module:attribute`` of the function that trains on one device what its ranks train
            with older weights; see :mod:`ddlbench.strategies.training`. Empty without one.
        synchronous: every step's update uses gradients of the current weights; if an option
            decides, :meth:`is_synchronous` tells.
        takes_turns: on CPUs its devices compute one after the other.
        splits_layers: its devices compute parts of a layer, which no accelerator emulates.
        splits_pairs: what it splits are pairs of linear layers, which traits must tell then.
        requires: packages it imports besides torch.
        install: how to get them, for whoever lacks one.
        float64: its ranks can train in float64, in which ``ddlbench check`` compares weights.
        not_compiled: why its cells cannot have ``compile``; empty if they can.
        scales_loss: its ranks agree which updates of a scaled loss are left out, as fp16 needs.
        predictors: names of the predictors that model it, besides those of every strategy.
        preferred_predictor: the predictor that ``recommend`` uses, by what computes ("cpu",
            "cuda", "emulated"); see :meth:`preferred_on`.
        recommended_by: the predictor that a published recommender uses, by the recommender's name.
        options: dataclass of its options.

    Attributes:
        accelerator: that the site of the cells emulates; None if its devices are real.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    family: ClassVar[str]
    colour: ClassVar[str] = ""
    marker: ClassVar[str] = ""
    parallelism: ClassVar[str | None] = None
    executor: ClassVar[str]
    replay: ClassVar[str] = ""
    synchronous: ClassVar[bool] = True
    takes_turns: ClassVar[bool] = False
    splits_layers: ClassVar[bool] = False
    splits_pairs: ClassVar[bool] = False
    requires: ClassVar[tuple[str, ...]] = ()
    float64: ClassVar[bool] = True
    not_compiled: ClassVar[str] = "its executor does not say that torch.compile trains the same"
    scales_loss: ClassVar[bool] = False
    install: ClassVar[str] = "see envs/README.md"
    predictors: ClassVar[tuple[str, ...]] = ()
    preferred_predictor: ClassVar[Mapping[str, str]] = {}
    recommended_by: ClassVar[Mapping[str, str]] = {}
    options: ClassVar[type[Options]] = Options
    accelerator: Accelerator | None = None

    def blocks_of(self, cell: Cell) -> tuple[BlockCost, ...] | None:
        """The blocks of the cell's network on the site's devices; None if no table knows them."""
        return blocks_of(cell, self.accelerator)

    def supports(self, cell: Cell) -> str | None:
        """Why the cell cannot run with this strategy on any site; None if it can."""
        raise NotImplementedError

    def why_not_layers(self, traits: NetworkTraits, cell: Cell) -> Reason | None:
        """Why the cell's network rules the strategy out, whatever the plan; None if it does not."""
        return None

    def why_not_network(self, traits: NetworkTraits, plan: Plan) -> Reason | None:
        """Why the strategy cannot train a network with these traits as one device does."""
        return None

    def placement(self, cell: Cell) -> tuple[Process, ...]:
        raise NotImplementedError

    def details(self, cell: Cell) -> dict[str, Any]:
        """What else the plan fixes (micro-batches, balance, schedule), as JSON values."""
        return self.option_values(cell)

    def plan(
        self, cell: Cell, source: BlockSource = None
    ) -> tuple[tuple[Process, ...], dict[str, Any]]:
        """Processes and details; a plan may be made from the times of ``source``."""
        return self.placement(cell), self.details(cell)

    def measured_inputs(self, cell: Cell, site: str) -> tuple[Path, ...]:
        """Files of a site's measurements that the cell's plan is made from."""
        return ()

    def note(self, compute_kind: ComputeKind) -> str | None:
        """A remark for readers of this strategy's numbers on such devices."""
        return None

    def preferred_on(self, compute_kind: ComputeKind) -> str | None:
        """The preferred predictor on such devices; without one the strategy is not ranked there.

        Messages of emulated accelerators take this machine's cores, so what is not of them alone
        is of CPUs.
        """
        preferred = self.preferred_predictor
        fallback = preferred.get("cpu") if compute_kind == "emulated" else None
        return preferred.get(compute_kind, fallback)

    def remarks(self, cell: Cell, details: Mapping[str, Any]) -> tuple[str, ...]:
        """Further remarks on a run, from what its details say."""
        return ()

    def workers(self, devices: int, options: Mapping[str, Any]) -> int:
        """How many of a cell's devices train: all but those that only serve.

        Options that are left out have their defaults.
        """
        return devices

    def most_speedup(self, cell: Cell, compute_kind: ComputeKind = "cuda") -> float:
        """The highest speed-up over one device that the cell can reach.

        The devices that train, unless a schedule allows less. Schedules assume equal stages,
        messages that take no time, and backward passes as long as two forward passes. The
        difference to the number of devices is then the bubble.

        Raises:
            ConfigError: there is no schedule for the cell's numbers.
        """
        return float(self.workers(cell.devices, dict(cell.options)))

    def suits(self, cell: Cell) -> bool:
        """Whether nobody would choose other options for a cell that it supports."""
        return True

    def alternatives(self, cell: Cell) -> Iterator[Mapping[str, OptionValue]]:
        """Values of options to try where the defaults do not fit the cell, best first."""
        return iter(())

    def refinements(self, cell: Cell) -> Iterator[Mapping[str, OptionValue]]:
        """Values of options that may make a cell faster that it supports."""
        return iter(())

    def reductions(self, cell: Cell) -> Iterator[Mapping[str, OptionValue]]:
        """Values of options with which a cell needs less memory, the slightest change first."""
        return iter(())

    def memory_bytes(self, workload: Workload, plan: Plan) -> tuple[int, ...]:
        """Peak bytes of every device, in the order of ranks and their devices.

        Raises:
            ConfigError: the strategy has no memory model, or the profile does not fit the plan.
        """
        raise ConfigError(f"there is no model of the memory of strategy {plan.cell.strategy}")

    def pipeline_of(self, plan: Plan) -> Pipeline | None:
        """The stages of a plan; None if it has none."""
        return None

    def step(self, workload: Workload, plan: Plan) -> Step | None:
        """What a rank computes and sends in a step; None if a schedule or nothing tells it.

        Raises:
            ConfigError: the profile lacks what the step needs, or only a run can tell.
        """
        return None

    def schedule_of(self, plan: Plan, mini_batches: int) -> PlannedSchedule | None:
        """Actions of the plan's devices for ``mini_batches``; None if no schedule is known."""
        return None

    def pipeline_run(self, plan: Plan) -> PipelineRun | None:
        """The plan's events, to be timed by a replay; None if there are none."""
        return None

    def layer_split(self, workload: Workload, plan: Plan) -> LayerSplit | None:
        """How the devices of a plan compute each layer together; None if they do not.

        Raises:
            ConfigError: the profile lacks what the split needs.
        """
        return None

    def device_work(self, cell: Cell) -> str | None:
        """A key of what one device of a cell computes, if only a run of that device tells its time.

        Cells with the same key share one measurement. None if times of whole blocks tell it.
        """
        return None

    def stage_blocks(self, workload: Workload, plan: Plan) -> list[Sequence[Block]]:
        """The profiled blocks of each stage, or of each partition.

        Raises:
            ConfigError: the strategy has no stages, or the profile is of another network.
        """
        pipeline = self.pipeline_of(plan)
        if pipeline is None:
            raise ConfigError(f"the plan of {plan.cell.strategy} holds no stages")
        pipeline.check_blocks(len(workload.blocks))
        return [workload.blocks[stage.first : stage.last] for stage in pipeline.stages]

    def micro_batches(self, plan: Plan) -> int:
        """Parts of a replica's share of a mini-batch; 1 if it stays whole."""
        return 1

    def recomputed_micro_batches(self, plan: Plan) -> int:
        """Micro-batches of a step whose forward pass runs again before their backward pass."""
        return 0

    def is_synchronous(self, cell: Cell, details: Mapping[str, Any] | None = None) -> bool:
        """Whether updates use gradients of the current weights; a plan's details may decide."""
        return self.synchronous

    def precision(self, cell: Cell) -> str:
        """The least precise numbers that a step computes or sends; by default the cell's."""
        return cell.precision

    def replayed_networks(self, plan: Plan) -> int:
        """Networks that a replay trains: one, or a replica for each rank."""
        return 1

    def zero_stage(self, cell: Cell) -> int:
        """ZeRO's stage: replicas share nothing (0), momentum (1), gradients (2) or weights (3)."""
        return 0

    def round_steps(self, cell: Cell) -> int:
        """Steps from one communication to the next; :meth:`step` lists, and times are of, them all.

        It is 1 unless ranks communicate in every H-th step only.
        """
        return 1

    def samples_per_update(self, cell: Cell, details: Mapping[str, Any]) -> int:
        """Samples whose gradients one update sums, at most; a mini-batch by default."""
        return cell.batch_size

    def ran_as(self, cell: Cell, details: Mapping[str, Any]) -> str:
        """What a plan amounts to where the strategy's name says another thing; else empty.

        It follows the strategy's label in tables and figures.
        """
        samples = self.samples_per_update(cell, details)
        return f"{samples} samples an update" if samples != cell.batch_size else ""

    def option_values(self, cell: Cell) -> dict[str, OptionValue]:
        """All options: the cell's own, and defaults for the others."""
        return {**self.options.defaults(), **self.options.named(cell)}

    def check_options(self, options: Mapping[str, Any], where: str) -> dict[str, OptionValue]:
        """Validates options and keeps those that differ from their defaults.

        Raises:
            ConfigError: an option is unknown or has a value that its schema forbids.
        """
        if not options:  # of most cells of a large matrix
            return {}
        known, defaults = self.options.schemas(), self.options.defaults()
        schema = {"type": "object", "additionalProperties": False, "properties": known}
        check(dict(options), schema, where)
        return {name: value for name, value in sorted(options.items()) if value != defaults[name]}


def strategy_of(name: str, accelerator: Accelerator | None = None) -> Strategy:
    """The descriptor called ``name``, for cells on devices that a site may emulate.

    Raises:
        ConfigError: there is none, or it is no descriptor.
    """
    target = STRATEGIES.get(name)
    strategy_class = _class_of(name) if target is None else _built_in(name, target)
    strategy = strategy_class()
    strategy.accelerator = accelerator
    return strategy


@cache
def _built_in(name: str, _target: str) -> type[Strategy]:
    return _class_of(name)


def check_label(name: str) -> None:
    """Refuse a label, which tables show, in place of the strategy's name.

    Raises:
        ConfigError: with the name to write.
    """
    names = known(_GROUP)
    if ":" in name or name in names:
        return
    for each in names:
        label = known_strategy(each).label
        if label.casefold() == name.strip().casefold():
            raise ConfigError(f"{shown(name)} is the label of strategy {each}; write {each}")


def _class_of(name: str) -> type[Strategy]:
    check_label(name)
    loaded = load(_GROUP, name)
    if not (isinstance(loaded, type) and issubclass(loaded, Strategy)):
        raise ConfigError(f"{shown(name)} is not a strategy: it must name a subclass of Strategy")
    if not (isinstance(loaded.options, type) and issubclass(loaded.options, Options)):
        raise ConfigError(
            f"strategy {shown(name)}: its options must be a subclass of Options "
            "(ddlbench.planning.plan)"
        )
    check_class(_GROUP, name, loaded, ("name", "label", "family", "executor"))
    if name not in STRATEGIES and (fault := _class_fault(name, loaded)):  # type: ignore[arg-type] # a class is hashable
        raise ConfigError(f"{described(_GROUP, name)}: {fault}")
    return loaded


@cache
def _class_fault(name: str, strategy: type[Strategy]) -> str | None:
    """What is wrong with the class of another package, and what to write; None if nothing is."""
    missing = [
        method
        for method in ("supports", "placement")
        if getattr(strategy, method) is getattr(Strategy, method)
    ]
    if missing:
        return f"its class {strategy.__name__} lacks {' and '.join(missing)}; write what it lacks"
    for role in ("executor", "replay"):
        target = getattr(strategy, role)
        why = why_no_target(str(target)) if target or role == "executor" else None
        if why:
            return f"its {role} is {shown(target)}, but {why}; write module:attribute of what is"
    label = str(strategy.label).casefold()
    for other in itertools.takewhile(lambda each: each != name, known(_GROUP)):
        try:
            taken = str(getattr(load(_GROUP, other), "label", "")).casefold()
        except ConfigError:
            continue
        if label == taken and ":" not in name:
            return f"its label {shown(strategy.label)} is that of {other}; write another label"
    return options_fault(strategy.options)


def why_not_supported(cell: Cell, strategy: Strategy) -> str | None:
    """Why a cell cannot run with its strategy on any site; None if it can.

    Of a strategy of another package, its placement is looked at, too.

    Raises:
        ConfigError: ``supports`` or ``placement`` has a fault.
    """
    if cell.precision == "fp16" and not strategy.scales_loss:
        return Reason(
            "precision_unavailable",
            f"strategy {cell.strategy} scales no loss, as fp16 needs; write precision: bf16 or "
            "fp32",
        )
    if strategy.name in STRATEGIES:
        return strategy.supports(cell)
    whose = described(_GROUP, strategy.name)
    with within(_GROUP, strategy.name):
        why: object = strategy.supports(cell)
        if isinstance(why, str) and why:
            return why
        if why not in (None, ""):
            raise ConfigError(
                f"{whose}: its supports returns {shown(why)}; return None, or the reason as text"
            )
        processes: object = strategy.placement(cell)
    if not (
        isinstance(processes, Sequence)
        and processes
        and all(isinstance(process, Process) for process in processes)
    ):
        raise ConfigError(
            f"{whose}: its placement returns {shown(processes)}; return a tuple with a Process "
            "for each rank"
        )
    return None


class MissingStrategy(Strategy):
    """A strategy whose package is not on this machine, while results of its cells are.

    It is a family of its own, all devices train, and it has no options to check.
    """

    def __init__(self, name: str) -> None:
        self.name = self.family = name  # type: ignore[misc]
        self.label = name.rpartition(":")[2]  # type: ignore[misc]

    def check_options(self, options: Mapping[str, Any], where: str) -> dict[str, OptionValue]:
        return dict(options)


def known_strategy(name: str, accelerator: Accelerator | None = None) -> Strategy:
    """The descriptor called ``name``, or what stands for it where its package is missing.

    Whatever reads results uses it. What measures takes :func:`strategy_of`, which raises.
    """
    try:
        return strategy_of(name, accelerator)
    except ConfigError:
        return MissingStrategy(name)


def why_not_compiled(cell: Cell, strategy: Strategy) -> str | None:
    """Why the cell's network cannot be compiled with its strategy; None if it can, or is not."""
    if not (cell.compile and strategy.not_compiled):
        return None
    return Reason(
        "cannot_compile",
        f"torch.compile is not used with strategy {cell.strategy}: {strategy.not_compiled}; "
        "write compile: false",
    )


def workers_of(cell: Cell) -> int:
    """Devices of a cell that train; all if its strategy's package is not on this machine."""
    return known_strategy(cell.strategy).workers(cell.devices, dict(cell.options))


def normalise(cell: Cell) -> Cell:
    """The canonical form: the baseline has one device and no network, and own data is real."""
    if DATASETS[cell.dataset].source:
        cell = cell.with_(data_source="real")
    if cell.strategy != BASE:
        return cell
    return cell.with_(nodes=1, devices_per_node=1, fabric="default")


def cut_by_profile(cell: Cell, strategy: Strategy, written: Mapping[str, Any]) -> Cell:
    """The cell with balance ``profile`` where only a profile knows the blocks of its network.

    A network whose blocks a table knows stays as it is, and so does a balance that the user wrote.
    """
    if "balance" in written or strategy.blocks_of(cell) is not None:
        return cell
    if code_of(why_not_supported(cell, strategy)) != "unknown_blocks":
        return cell
    options = strategy.check_options({**dict(cell.options), "balance": "profile"}, cell.strategy)
    return cell.with_(options=tuple(options.items()))


def too_few_steps(cell: Cell, strategy: Strategy, steps_per_epoch: int) -> str | None:
    """Why no whole round of the cell's strategy is measured; None if one is."""
    round_steps = strategy.round_steps(cell)
    if cell.max_steps is not None:
        steps_per_epoch = min(steps_per_epoch, cell.max_steps)
    measured = cell.epochs * steps_per_epoch
    if measured >= round_steps:
        return None
    return Reason(
        "too_few_steps",
        f"a round of {round_steps} steps is longer than all measured ones ({measured}), so they "
        "may hold no communication; raise max_steps, epochs or data_scale",
    )
