"""What a strategy says of itself without being run: options, limits, placement.

A descriptor needs no torch, so a login node can check, plan and predict with it. What runs on
the nodes is the executor that it names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from ddlbench.experiment.cell import Cell, OptionValue
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.registry import load
from ddlbench.experiment.schema import check
from ddlbench.experiment.status import Reason

__all__ = ["DeviceKind", "Needs", "Process", "Strategy", "normalise", "strategy_of", "workers_of"]

DeviceKind = Literal["cpu", "cuda"]
Needs = Literal["inputs", "labels"]


@dataclass(frozen=True)
class Process:
    """One process of a running cell.

    Args:
        rank: index over the whole cell.
        role: what it does ("worker", "stage", "server", ...).
        node: index of the node it runs on.
        local_rank: index among the processes of its node.
        devices: indices of the node's devices that it drives.
        stage: index of its pipeline stage; 0 where there are none.
        replica: which copy of that stage it is.
        shard, num_shards: which part of each mini-batch it consumes; shard -1 owns none.
        turns: it consumes one in so many mini-batches of a run, the ``replica``-th first.
        needs: what of a batch it reads; a server reads nothing.
    """

    rank: int
    role: str
    node: int
    local_rank: int
    devices: tuple[int, ...]
    stage: int = 0
    replica: int = 0
    shard: int = 0
    num_shards: int = 1
    turns: int = 1
    needs: tuple[Needs, ...] = ("inputs", "labels")

    def to_dict(self) -> dict[str, Any]:
        """The form that plan.json holds."""
        values = {**asdict(self), "devices": list(self.devices), "needs": list(self.needs)}
        if self.turns == 1:  # the rule; plans that keep to it look as they always did
            del values["turns"]
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Process:
        """Read the form that :meth:`to_dict` writes."""
        return cls(
            **{**values, "devices": tuple(values["devices"]), "needs": tuple(values["needs"])}
        )


class Strategy:
    """Base of all descriptors; one module a strategy derives from it.

    Class attributes:
        name, label: key in configurations and paths, and how figures write it.
        family: hue in figures ("baseline", "data parallel", "pipeline", "model", "split").
        executor: ``module:attribute`` of the class that runs it.
        synchronous: every step's update uses gradients of the current weights; where an option
            decides, :meth:`is_synchronous` says so.
        requires: packages it imports besides torch.
        options: JSON-schema properties of its options, each with a default and a description.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    family: ClassVar[str]
    executor: ClassVar[str]
    synchronous: ClassVar[bool] = True
    requires: ClassVar[tuple[str, ...]] = ()
    options: ClassVar[dict[str, dict[str, Any]]] = {}

    def supports(self, cell: Cell) -> str | None:
        """Why the cell cannot run with this strategy on any site; None when it can."""
        raise NotImplementedError

    def placement(self, cell: Cell) -> tuple[Process, ...]:
        """The cell's processes, in the order of their ranks."""
        raise NotImplementedError

    def details(self, cell: Cell) -> dict[str, Any]:
        """What else the plan fixes (micro-batches, balance, schedule), as JSON values."""
        return self.option_values(cell)

    def plan(
        self, cell: Cell, site: str | None = None
    ) -> tuple[tuple[Process, ...], dict[str, Any]]:
        """Processes and details; ``site`` names whose measurements a plan may be made from."""
        return self.placement(cell), self.details(cell)

    def measured_inputs(self, cell: Cell, site: str) -> tuple[Path, ...]:
        """Files with a site's measurements that the cell's plan is made from."""
        return ()

    def note(self, device_kind: DeviceKind) -> str | None:
        """What a reader of this strategy's numbers must know on such devices."""
        return None

    def workers(self, devices: int, options: Mapping[str, Any]) -> int:
        """How many of a cell's devices train; all, unless some do nothing but serve.

        Args:
            devices: of the whole cell.
            options: the cell's own; what it leaves out has its default.
        """
        return devices

    def ideal_speedup(self, cell: Cell) -> float | None:
        """Highest speed-up over one device that its schedule allows; None if it is no pipeline.

        With equal stages and free messages; a backward pass takes as long as two forward passes.
        What a measured pipeline stays below this is messages, uneven stages and overhead; what
        this stays below the number of devices is the bubble.
        """
        return None

    def is_synchronous(self, cell: Cell) -> bool:
        """Whether every update of the cell uses gradients of the current weights."""
        return self.synchronous

    def option_values(self, cell: Cell) -> dict[str, OptionValue]:
        """All options, the cell's own over the defaults."""
        defaults = {name: schema["default"] for name, schema in self.options.items()}
        return {**defaults, **dict(cell.options)}

    def check_options(self, options: Mapping[str, Any], where: str) -> dict[str, OptionValue]:
        """Validate options and keep those that differ from their defaults.

        Raises:
            ConfigError: an option is unknown or has a value its schema forbids.
        """
        schema = {
            "type": "object",
            "additionalProperties": False,
            "properties": self.options,
        }
        check(dict(options), schema, where)
        return {
            name: value
            for name, value in sorted(options.items())
            if value != self.options[name]["default"]
        }


def strategy_of(name: str) -> Strategy:
    """The descriptor that ``name`` stands for.

    Raises:
        ConfigError: there is none, or it is no descriptor.
    """
    found = load("ddlbench.strategies", name)
    if not (isinstance(found, type) and issubclass(found, Strategy)):
        raise ConfigError(f"{name!r} is not a strategy: it must name a subclass of Strategy")
    return found()


def workers_of(cell: Cell) -> int:
    """Devices of a cell that train; all where its strategy's package is not here."""
    try:
        strategy = strategy_of(cell.strategy)
    except ConfigError:
        return cell.devices
    return strategy.workers(cell.devices, dict(cell.options))


def normalise(cell: Cell) -> Cell:
    """The same cell in its one canonical form: the baseline is one device, and has no network."""
    if cell.strategy != "sequential":
        return cell
    return cell.with_(nodes=1, devices_per_node=1, fabric="default")


def data_parallel_placement(cell: Cell) -> tuple[Process, ...]:
    """One process a device, each with its own share of every mini-batch."""
    return tuple(
        Process(
            rank=rank,
            role="worker",
            node=rank // cell.devices_per_node,
            local_rank=rank % cell.devices_per_node,
            devices=(rank % cell.devices_per_node,),
            replica=rank,
            shard=rank,
            num_shards=cell.devices,
        )
        for rank in range(cell.devices)
    )


def uneven_shares(cell: Cell) -> str | None:
    """Why the mini-batch cannot be shared equally; None when it can."""
    workers = workers_of(cell)
    if cell.batch_size % workers:
        return Reason(
            "uneven_batch",
            f"a mini-batch of {cell.batch_size} does not divide over {workers} workers; "
            f"make batch_size a multiple of {workers}",
        )
    return None
