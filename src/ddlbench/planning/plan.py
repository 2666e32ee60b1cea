"""plan.json: which process runs where, and what the strategy fixes; read by run and predict.

``details`` are plain JSON: a strategy's options, and what follows from them. Only the strategy
itself reads them, through a view that names each value and its type::

    class TensorDetails(PlanDetails):
        group: int

    TensorDetails.of(plan).group

:mod:`ddlbench.planning.planner` makes plans.

Options are the fields of a dataclass with defaults, described by the text below each::

    @dataclass(frozen=True, kw_only=True)
    class DdpOptions(Options):
        accumulate: Count = 1
        \"\"\"Micro-batches of a rank's share of a mini-batch.\"\"\"

    DdpOptions.schemas()                 of each option: what a file may say, and the documents
    DdpOptions.of_cell(cell).accumulate  what the cell names, else the default
    DdpOptions.of(plan).accumulate       what the plan fixes
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache, cached_property, lru_cache
from inspect import get_annotations
from typing import Any, ClassVar, Literal, Self, get_args, get_type_hints

from ddlbench.common.document import digest_of
from ddlbench.common.errors import ConfigError, first_line, shown
from ddlbench.common.form import Form, WrongForm, read_form, schema_of
from ddlbench.experiment.cell import Cell, OptionValue

SCHEMA_VERSION = 1
Needs = Literal["inputs", "labels"]
BlockSource = str | Callable[[int], Any] | None
"""Where a plan reads the times of a network's blocks: the name of a site with a profile, or a
function from samples to a :class:`~ddlbench.planning.partition.graph.Chain`."""


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


def a_worker_each(nodes: int, devices: int, per_node: int) -> tuple[Process, ...]:
    """A process for each of the first ``devices`` devices of nodes that have ``per_node``."""
    total = nodes * per_node
    return tuple(
        Process(rank, "worker", node, local, (local,), shard=rank, num_shards=total)
        for node in range(nodes)
        for local in range(devices)
        for rank in [node * per_node + local]
    )


def placement_of_groups(cell: Cell, size: int) -> tuple[Process, ...]:
    """One process a device; a group is a replica and has neighbouring ranks."""
    devices = cell.devices
    count, groups = devices // size, [rank // size for rank in range(devices)]
    return tuple(
        process_at(cell, rank, "worker", replica=group, shard=group, num_shards=count)
        for rank, group in enumerate(groups)
    )


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

    @cached_property
    def views(self) -> dict[type, Any]:
        """Views of the details that were read, by their class."""
        return {}

    def on_node(self, node: int) -> tuple[Process, ...]:
        return tuple(process for process in self.processes if process.node == node)

    def to_dict(self) -> dict[str, Any]:
        return self._with_cell(self.cell.to_dict())

    def _with_cell(self, cell: Any) -> dict[str, Any]:
        return {
            "schema_version": SCHEMA_VERSION,
            "cell": cell,
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
                raise WrongForm(f"details.{name} is missing")
            planned = self.details[name]
            if isinstance(value, int) and value and planned != value:  # 0 lets the plan choose
                raise WrongForm(f"details.{name}: {shown(planned)} is not the cell's {value}")

    @property
    def digest(self) -> str:
        """Names the plan. A setting of later versions, at its default, does not change it."""
        return digest_of(self._with_cell(self.cell.id))


@dataclass(frozen=True)
class _PlanFile(Form):
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
        if cls not in plan.views:
            plan.views[cls] = read_form(cls, plan.details)
        view: Self = plan.views[cls]
        return view


@dataclass(frozen=True, kw_only=True)
class Options(PlanDetails):
    """Base of the options of a strategy; a strategy without options uses this class."""

    @classmethod
    @lru_cache(maxsize=256)  # a strategy reads them many times of each cell
    def of_cell(cls, cell: Cell) -> Self:
        """What a cell names of these options, and defaults for the others.

        Raises:
            ConfigError: an option is not of the kind of its default, as in a path that was edited.
        """
        defaults = cls.defaults()
        named = {name: value for name, value in cls.named(cell).items() if name in defaults}
        for name, value in named.items():
            if not _is_like(value, defaults[name]):
                raise ConfigError(f"{cell.strategy}: option {name} cannot be {shown(value)}")
        return cls(**named)

    @classmethod
    def named(cls, cell: Cell) -> dict[str, OptionValue]:
        """What a cell names; its path does not tell the text "1" from the number."""
        texts = cls._texts()
        return {name: str(value) if name in texts else value for name, value in cell.options}

    @classmethod
    @cache
    def _texts(cls) -> frozenset[str]:
        """Options that are texts, and nothing else."""
        return frozenset(name for name, kind in get_type_hints(cls).items() if kind is str)

    @classmethod
    @cache
    def defaults(cls) -> Mapping[str, OptionValue]:
        return {field.name: getattr(cls, field.name) for field in fields(cls)}

    @classmethod
    @cache
    def schemas(cls) -> Mapping[str, Mapping[str, Any]]:
        """The JSON schema of each option, by its name; ``examples`` are what ``tune`` tries."""
        schemas: dict[str, dict[str, Any]] = {}
        for base in reversed(cls.__mro__):  # each class has the texts of its own fields only
            if issubclass(base, Options):
                known = schema_of(base, inline=True).get("properties", {})
                schemas |= {name: known[name] for name in get_annotations(base) if name in known}
        return schemas


def options_fault(options: type[Options]) -> str | None:
    """What is wrong with the options of a strategy of another package; None if nothing is."""
    name = options.__name__
    written = [
        word for base in options.__mro__ if issubclass(base, Options)
        for word, kind in get_annotations(base).items() if "ClassVar" not in str(kind)
    ]  # fmt: skip
    known = {field.name: field.default for field in fields(options)}
    if lost := [word for word in written if word not in known]:
        return (
            f"its options {name} have no field {lost[0]}; write "
            f"@dataclass(frozen=True, kw_only=True) above class {name}"
        )
    for word, default in known.items():
        if default is MISSING:
            return f"its option {word} has no default; write {word}: int = 1, for instance"
        if not isinstance(default, get_args(OptionValue)):
            return (
                f"its option {word} has the default {shown(default)}; "
                "an option is a bool, int, float or str"
            )
    try:
        options.schemas()
    except Exception as error:  # pydantic's, of a type that no file can hold
        return (
            f"an option of {name} has a type that is not known "
            f"({first_line(error)}); an option is a bool, int, float or str, or a Literal"
        )
    return None


def _is_like(value: OptionValue, default: OptionValue) -> bool:
    """Whether a value is of the kind of the default; 5 may stand for a rule such as ``5+9``."""
    if isinstance(value, bool) or isinstance(default, bool):
        return type(value) is type(default)
    if isinstance(default, str):
        return isinstance(value, str | int)
    return isinstance(value, int | type(default))


class Tried:
    """Values of an option that ``ddlbench recommend tune`` tries beside its default."""

    def __init__(self, *values: OptionValue) -> None:
        self.values = values

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Any) -> dict[str, Any]:
        return {**handler(core_schema), "examples": list(self.values)}


class RuleText:
    """A rule as text, such as ``5+9``, or the number that YAML makes of ``5``."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Any) -> dict[str, Any]:
        return {"type": ["string", "integer"], "pattern": self.pattern, "minimum": 1}
