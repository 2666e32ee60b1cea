"""plan.json: which process runs where, and what the strategy fixes; read by run and predict.

``details`` are plain JSON: a strategy's options, and what follows from them. Only the strategy
itself reads them, through a view that names each value and its type::

    class TensorDetails(PlanDetails):
        group: int

    TensorDetails.of(plan).group

:mod:`ddlbench.planning.planner` makes plans.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from ddlbench.common.document import digest_of
from ddlbench.common.errors import shown
from ddlbench.common.form import Form, WrongForm, read_form
from ddlbench.experiment.cell import Cell, OptionValue

SCHEMA_VERSION = 1
Needs = Literal["inputs", "labels"]


@dataclass(frozen=True)
class Process(Form):
    """One process of a running cell.

    Args:
        rank: index over the whole cell.
        role: "worker", "stage", "server", ...
        node: index of its node.
        local_rank: index among the processes of its node.
        devices: indices of the node's devices that it drives.
        stage: index of its pipeline stage; 0 without stages.
        replica: which copy of that stage it is.
        shard, num_shards: which part of each mini-batch it reads; shard -1 reads none.
        turns: it reads every ``turns``-th mini-batch of a run, the ``replica``-th first.
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


def process_at(cell: Cell, rank: int, role: str, **further: Any) -> Process:
    """The process of a rank that drives one device; ranks are numbered node by node."""
    node, local_rank = divmod(rank, cell.devices_per_node)
    return Process(rank, role, node, local_rank, (local_rank,), **further)


def needs_of(inputs: bool, labels: bool) -> tuple[Needs, ...]:
    """What a process reads of a batch."""
    return (*(("inputs",) if inputs else ()), *(("labels",) if labels else ()))


@dataclass(frozen=True)
class Plan:
    """A cell's processes, and the other values that its strategy fixes."""

    cell: Cell
    processes: tuple[Process, ...]
    details: dict[str, Any]

    @property
    def world_size(self) -> int:
        return len(self.processes)

    def on_node(self, node: int) -> tuple[Process, ...]:
        return tuple(process for process in self.processes if process.node == node)

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "cell": self.cell.to_dict(),
            "processes": [process.to_dict() for process in self.processes],
            "details": self.details,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Plan:
        """Read what :meth:`to_dict` writes.

        Raises:
            WrongForm: it is of another version, or a part is missing or not of its type.
            ConfigError: the cell cannot be one.
        """
        parts = read_form(_PlanFile, values)
        if parts.schema_version != SCHEMA_VERSION:
            raise WrongForm(f"schema_version: is {parts.schema_version}, not {SCHEMA_VERSION}")
        return cls(Cell.from_dict(parts.cell), parts.processes, dict(parts.details))

    def check_options(self, options: Mapping[str, OptionValue]) -> None:
        """Check that details and options agree.

        A number that was damaged could have a schedule of it built without end.

        Raises:
            WrongForm: they do not.
        """
        for name, value in options.items():
            if name not in self.details:
                raise WrongForm(f"details.{name}: is missing")
            planned = self.details[name]
            if isinstance(value, int) and value and planned != value:  # 0 lets the plan choose
                raise WrongForm(f"details.{name}: {shown(planned)} is not the cell's {value}")

    @property
    def digest(self) -> str:
        return digest_of(self.to_dict())


@dataclass(frozen=True)
class _PlanFile(Form):
    """Parts of plan.json and their types."""

    schema_version: int
    cell: Mapping[str, Any]
    processes: tuple[Process, ...]
    details: Mapping[str, Any]


@dataclass(frozen=True)
class PlanDetails:
    """Base of the views; a field without a default must be in the plan."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = {"strict": True, "extra": "ignore"}

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """The view of a plan's details. JSON lists become tuples, also those within lists.

        Raises:
            WrongForm: the plan lacks a value, or it is not of its type; so it is of another
                strategy, or damaged.
        """
        return read_form(cls, plan.details)
