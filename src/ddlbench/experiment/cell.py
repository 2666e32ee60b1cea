"""A cell: one measurement of the experiment matrix, identified by a path.

The path is below ``results/<site>/cells/``::

    cifar10/resnet18/gpipe/1x4/batch_size=2048+chunks=32/rep0
    dataset network  strategy  |  only what differs      repeat
                            nodes x devices per node

Defaults are in the code, never in a configuration. So a value, an axis or a repeat that is added to
a matrix changes no other path.

A field of :class:`Cell` is the one declaration of a setting. Its schema is used where an experiment
file names it: in ``settings``, as an axis, in a condition, in a cell of ``include``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Lt

from ddlbench.common.errors import ConfigError, shown
from ddlbench.common.form import Count, Form, InFile, Natural, Positive, schema_of
from ddlbench.experiment.fabric import FOLDER_NAME

OptionValue = bool | int | float | str

_GEOMETRY = re.compile(r"([1-9][0-9]{0,8})x([1-9][0-9]{0,8})")
_SAFE = re.compile(r"[A-Za-z0-9_.:+@-]+")
_ARGUMENT = r"[A-Za-z_][A-Za-z0-9_]*=[A-Za-z0-9_.-]+"
_NAME = re.compile(
    rf"[A-Za-z0-9_][A-Za-z0-9_.-]*(:[A-Za-z0-9_.-]+(\?{_ARGUMENT}(,{_ARGUMENT})*)?)?"
)
# Pairs are separated by a plus, as Snakemake splits wildcards at commas. A value may contain a plus
# (a balance of 5+9), so only a plus before a name separates.
_BETWEEN_PAIRS = re.compile(r"\+(?=[A-Za-z_][A-Za-z0-9_]*=)")
_OPTION = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LONGEST_FOLDER_NAME = 255
_MOST_DIGITS = 60
_MOST = 10**9 - 1  # nine digits, as in a geometry: times and sizes that come of it stay finite
_MOST_SEED = 2**53 - 1  # torch takes 64 bits, to which a rank adds; every reader of JSON this many
_Natural = Annotated[Natural, Le(_MOST)]
_Count = Annotated[Count, Le(_MOST)]
Precision = Literal["fp32", "tf32", "bf16", "fp16"]
Optimizer = Literal["sgd", "adamw"]
OPTIMIZER_STATES: Mapping[str, int] = {"sgd": 1, "adamw": 2}
"""Tensors as large as the weights: SGD's momentum, AdamW's mean and mean square of gradients."""
# Fields with their own place in the path; others appear as name=value unless they have the default.
PLACED = ("dataset", "network", "strategy", "nodes", "devices_per_node", "repeat", "options")


class _AsMapping:
    """Has pydantic read and write pairs as a mapping."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema  # noqa: PLC0415 - slow to import

        def pairs(value: Any) -> Any:
            if isinstance(value, Mapping):
                return tuple(value.items())
            if not isinstance(value, tuple):
                raise ValueError("is no object")
            return value

        return core_schema.no_info_before_validator_function(
            pairs,
            handler(source),
            serialization=core_schema.plain_serializer_function_ser_schema(dict),
        )


def in_path(name: str) -> str:
    """A name as a folder: ``hf:llama?layers=4,heads=8`` is ``hf@llama~~layers=4~heads=8``."""
    return name.replace(":", "@").replace("?", "~~").replace(",", "~")


def from_path(folder: str) -> str:
    """The name that :func:`in_path` has written."""
    return folder.replace("~~", "?").replace("~", ",").replace("@", ":")


@dataclass(frozen=True, eq=False, slots=True)
class Cell(Form):
    """Everything that defines a measurement. Cells are equal if their paths are.

    Raises:
        ConfigError: a value cannot be part of a path, or would not be read back from it.
    """

    dataset: str
    """A name in the registry."""
    network: str
    """A name in the registry, or package.module:callable of your own."""
    strategy: str
    """A name in the registry."""
    batch_size: _Count
    """Samples of one optimiser step over all workers; the baseline takes as many on one device."""
    nodes: _Count = 1
    """Nodes of the geometry."""
    devices_per_node: _Count = 1
    """Devices on each node."""
    repeat: _Natural = 0
    """Index of the repetition; repetitions are separate jobs."""
    epochs: _Count = 3
    """Measured epochs."""
    warmup_steps: _Natural = 5
    """Steps run before the first measured epoch and dropped."""
    max_steps: _Count | None = None
    """At most so many steps an epoch; empty runs whole epochs."""
    data_scale: Annotated[float, Gt(0), Le(1)] = 1.0
    """Share of the dataset's images that is made."""
    data_format: Literal["native", "raw"] = "native"
    """The dataset's own files, or memory-mapped raw shards."""
    data_source: Literal["synthetic", "real"] = "synthetic"
    """Generated data, or the copy that `real_data` names, here or in the site file."""
    loader_workers: _Natural = 0
    """Data-loading processes for each worker; 0 loads inside the worker."""
    precision: Precision = "fp32"
    """Arithmetic of the network: `bf16` and `fp16` by autocast, `fp16` with a loss that is scaled;
    `tf32` exists on GPUs only."""
    cudnn_benchmark: bool = True
    """Let cuDNN search for its fastest kernels."""
    threads_per_device: _Count = 1
    """CPU threads of one CPU device, the baseline included."""
    fabric: str = "default"
    """Link condition: `default` is the site's own network, a name in the site's `fabrics` is
    emulated, any other is one that you make (letters, digits, dots, dashes, underscores; neither a
    dash nor a dot first)."""
    optimizer: Optimizer = "sgd"
    """SGD, or AdamW with torch's other defaults; AdamW keeps two values a weight, SGD its
    momentum."""
    learning_rate: Positive = 0.01
    """Of the optimiser; AdamW usually takes a tenth of SGD's, or less."""
    momentum: Annotated[float, Ge(0), Lt(1)] = 0.9
    """Of SGD; AdamW does not read it."""
    weight_decay: Annotated[float, Ge(0)] = 0.0
    """Of all weights: SGD adds it to the gradient, AdamW shrinks the weights by it."""
    seed: Annotated[Natural, Le(_MOST_SEED)] = 0
    """Of weights, data and order."""
    checkpoint_every_steps: _Natural = 0
    """Measured steps from one checkpoint to the next; a cell that was killed goes on from the last;
    0 writes none ([docs/failures.md](../docs/failures.md#checkpoints))."""
    deterministic: bool = False
    """Take only kernels that give the same bits in every run; on GPUs such a cell is slower, and
    cuDNN does not search."""
    validate: bool = False
    """Classify the validation images after every measured epoch, outside of the timed steps
    ([docs/networks.md](../docs/networks.md#accuracy))."""
    compile: bool = False
    """Have torch.compile make kernels of the network, before warm-up; the seconds that it takes are
    a figure of their own, and strategies that cannot are `unsupported`
    ([docs/measurement.md](../docs/measurement.md))."""
    learning_rate_warmup_steps: _Natural = 0
    """First steps of a cell, unmeasured ones included, over which the learning rate rises linearly
    to its value; 0 starts with it; it changes no time."""
    options: Annotated[tuple[tuple[str, OptionValue], ...], _AsMapping()] = ()
    """Options of the strategy that differ from their defaults, sorted by name."""

    def __post_init__(self) -> None:
        """Normalise values, so that equal cells have equal paths, plans and digests."""
        for name in ("dataset", "network", "strategy"):
            if not _NAME.fullmatch(getattr(self, name)):
                raise ConfigError(
                    f"{name} {shown(getattr(self, name))} cannot stand in a path: use letters, "
                    "digits and the signs _ . - only, or package.module:attribute, or "
                    "library:name?argument=value,argument=value"
                )
        for name in _FLOATS:
            object.__setattr__(self, name, float(getattr(self, name)))
        if self.optimizer != "sgd":
            object.__setattr__(self, "momentum", _VARIED_DEFAULTS["momentum"])
        for name, _ in self.options:
            if name in _FIELDS or not _OPTION.fullmatch(name):
                raise ConfigError(
                    f"strategy {self.strategy} cannot have an option {shown(name)}: use letters, "
                    "digits and _ only, and no name that a cell's own field has"
                )
        options = sorted((name, _read_option(setting_text(value))) for name, value in self.options)
        object.__setattr__(self, "options", tuple(options))
        if len(self.variant) > _LONGEST_FOLDER_NAME:
            raise ConfigError(
                f"{shown(self.variant)} is longer than the {_LONGEST_FOLDER_NAME} characters that "
                "a folder's name can have; change fewer settings at once"
            )

    def __eq__(self, other: object) -> bool:
        """By path, as to Python an option of 1 equals one of true."""
        return isinstance(other, Cell) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def devices(self) -> int:
        return self.nodes * self.devices_per_node

    @property
    def geometry(self) -> str:
        """``<nodes>x<devices per node>``."""
        return f"{self.nodes}x{self.devices_per_node}"

    @property
    def optimizer_states(self) -> int:
        """Tensors as large as the weights that the optimiser keeps."""
        return OPTIMIZER_STATES[self.optimizer] if self.momentum > 0 else 0

    @property
    def variant_pairs(self) -> tuple[tuple[str, str], ...]:
        """Non-default fields, then options, as (name, value) texts."""
        pairs = [
            (name, setting_text(getattr(self, name)))
            for name, default in _VARIED_DEFAULTS.items()
            if getattr(self, name) != default
        ]
        return (*pairs, *((name, setting_text(value)) for name, value in self.options))

    @property
    def variant(self) -> str:
        """What :attr:`variant_pairs` holds, as one folder name ``name=value+name=value``."""
        return self.id.split("/")[-2]

    @cached_property
    def id(self) -> str:
        """The cell's path below ``results/<site>/cells/``."""
        network, strategy = in_path(self.network), in_path(self.strategy)
        head = f"{self.dataset}/{network}/{strategy}/{self.geometry}"
        variant = "+".join(f"{name}={value}" for name, value in self.variant_pairs)
        return f"{head}/{variant}/rep{self.repeat}"

    @classmethod
    def from_id(cls, cell_id: str) -> Cell:
        """Read a cell back from its path.

        Raises:
            ConfigError: the path is not one that :attr:`id` writes.
        """
        parts = cell_id.strip("/").split("/")
        if len(parts) != 6 or not re.fullmatch(r"rep[0-9]{1,9}", parts[5]):
            raise ConfigError(
                f"{cell_id!r} is not a cell: write "
                "dataset/network/strategy/NxD/batch_size=...+.../repK"
            )
        nodes, devices_per_node = parse_geometry(parts[3], where=cell_id)
        values: dict[str, Any] = {}
        options: dict[str, OptionValue] = {}
        for pair in _BETWEEN_PAIRS.split(parts[4]):
            name, equals, text = pair.partition("=")
            if not equals:
                raise ConfigError(f"{cell_id!r} is not a cell: {pair!r} is not name=value")
            if name in _VARIED:
                values[name] = _read_field(name, text, cell_id)
            else:
                options[name] = _read_option(text)
        if "batch_size" not in values:
            raise ConfigError(f"{cell_id!r} is not a cell: batch_size=... is missing")
        cell = cls(
            dataset=parts[0],
            network=from_path(parts[1]),
            strategy=from_path(parts[2]),
            nodes=nodes,
            devices_per_node=devices_per_node,
            repeat=int(parts[5].removeprefix("rep")),
            options=tuple(options.items()),
            **values,
        )
        if cell.id != cell_id.strip("/"):
            raise ConfigError(f"{cell_id!r} is not how this cell is written: use {cell.id!r}")
        return cell

    def option(self, name: str, default: Any = None) -> Any:
        """The cell's value of a strategy option, else ``default``."""
        return dict(self.options).get(name, default)

    def with_(self, **changes: Any) -> Cell:
        return replace(self, **changes)

    def again(self, repeat: int) -> Cell:
        """The same cell, repeated; nothing that was checked is checked again."""
        other = object.__new__(Cell)
        folder, _, _ = self.id.rpartition("/")
        for name in _FIELDS:
            object.__setattr__(other, name, getattr(self, name))
        object.__setattr__(other, "repeat", repeat)
        vars(other)["id"] = f"{folder}/rep{repeat}"
        return other


def parse_geometry(text: str, where: str) -> tuple[int, int]:
    """Nodes and devices per node from ``"2x4"``.

    Raises:
        ConfigError: the text is not of that form.
    """
    match = _GEOMETRY.fullmatch(str(text))
    if match is None:
        raise ConfigError(
            f"{where}: geometry {shown(text)} is not <nodes>x<devices per node>; write for "
            "example 2x4"
        )
    return int(match[1]), int(match[2])


def _kinds(hint: Any) -> tuple[type, ...]:
    """Types of a field's values: of a choice those of its words, of None its type."""
    choices = get_args(hint)
    if get_origin(hint) is Literal:
        return tuple({type(choice) for choice in choices})
    return choices or (hint,)


_HINTS = get_type_hints(Cell)
_FIELDS = {field.name: _kinds(_HINTS[field.name]) for field in fields(Cell)}
_VARIED = {name: kinds for name, kinds in _FIELDS.items() if name not in PLACED}
_VARIED_DEFAULTS = {field.name: field.default for field in fields(Cell) if field.name in _VARIED}
_OF_THE_RUN = frozenset(
    {
        *("repeat", "epochs", "warmup_steps", "max_steps", "data_scale", "seed", "validate"),
        *("checkpoint_every_steps", "learning_rate", "learning_rate_warmup_steps"),
    }
)
OF_A_STEP = tuple(name for name in _FIELDS if name not in _OF_THE_RUN)
"""Fields that decide how long a step takes. The others decide how many steps there are, and what
they learn."""
_FLOATS = tuple(name for name, kinds in _FIELDS.items() if kinds == (float,))


def setting_text(value: OptionValue | None) -> str:
    """A value as a cell's path has it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    text = str(value)
    if not _SAFE.fullmatch(text):
        raise ConfigError(
            f"{shown(text)} cannot stand in a path: use letters, digits and the signs "
            "_ . : + @ - only"
        )
    return text


def _number(text: str) -> int | float | None:
    """The finite number that :func:`setting_text` writes as ``text``, if there is one."""
    if len(text) > _MOST_DIGITS:  # Python refuses to read numbers of thousands of digits
        return None
    for read in (int, float):
        try:
            value = read(text)
        except ValueError:
            continue
        if math.isfinite(value) and setting_text(value) == text:
            return value
    return None


def _read_option(text: str) -> OptionValue:
    """Read an option as a bool or number if it looks like one, else as a text."""
    if text in ("true", "false"):
        return text == "true"
    number = _number(text)
    return text if number is None else number


def _read_field(name: str, text: str, cell_id: str) -> OptionValue | None:
    kinds = _VARIED[name]
    if kinds == (str,):
        return text
    if bool in kinds and text in ("true", "false"):
        return text == "true"
    if NoneType in kinds and text == "none":
        return None
    number = _number(text)
    if number is not None and (float in kinds or (int in kinds and isinstance(number, int))):
        return number
    named = " or ".join(kind.__name__ for kind in kinds)
    raise ConfigError(f"{cell_id!r} is not a cell: {name}={text} is not of type {named}")


def short_names(cells: Sequence[Cell]) -> list[str]:
    """``mnist vgg11 ddp 1x2 rep1``: what tells cells apart; what they share is left out."""
    return [*map(naming_among(cells), cells)]


def naming_among(cells: Iterable[Cell]) -> Callable[[Cell], str]:
    """What gives one of these cells its short name."""
    shared: set[tuple[str, str]] | None = None
    repeats = set()
    for cell in cells:
        pairs = cell.variant_pairs
        shared = set(pairs) if shared is None else shared.intersection(pairs)
        repeats.add(cell.repeat)

    def name_of(cell: Cell) -> str:
        words = [cell.dataset, cell.network, cell.strategy, cell.geometry]
        words += ["=".join(pair) for pair in cell.variant_pairs if pair not in (shared or ())]
        return " ".join([*words, *([f"rep{cell.repeat}"] if len(repeats) > 1 else [])])

    return name_of


NAMED = ("dataset", "network", "strategy", "geometry")
"""Axes that every matrix has."""
_Schemas = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class _Point(Form):
    """What an experiment file may say of a cell, besides fields of the cell."""

    dataset: str
    """A dataset: mnist, cifar10, imagenet, highres, cosmoflow, or one of your own."""
    network: str
    """A network by name, or package.module:callable of your own."""
    strategy: str
    """A way to parallelise; include sequential, the base of every speed-up."""
    geometry: str
    """<nodes>x<devices per node>, for example 1x4 or 2x4. The sequential baseline is always 1x1."""
    batch_per_device: Count
    """Samples of one optimiser step for each device that trains; the baseline takes one device's
    share."""
    options: Mapping[str, OptionValue]
    """Options of the strategy, under their own names."""


@cache
def settings() -> _Schemas:
    """The schema of every setting by its name."""
    of_cell = schema_of(Cell)["properties"]
    schemas = {name: schema for name, schema in of_cell.items() if name not in PLACED}
    schemas["fabric"] = FOLDER_NAME | schemas["fabric"]
    for schema in schemas.values():
        schema.pop("default", None)  # a setting that is not written is not one
    return {"batch_size": schemas.pop("batch_size"), **_point("batch_per_device"), **schemas}


@cache
def axes() -> _Schemas:
    """The schema of one value of every axis by its name."""
    return {**_point(*NAMED), **settings()}


def _point(*names: str) -> _Schemas:
    known = schema_of(_Point, inline=True)["properties"]
    return {name: known[name] for name in names}


def _group(keys: _Schemas, required: Iterable[str] = ()) -> dict[str, Any]:
    closed = {"type": "object", "additionalProperties": False}
    return {**closed, "properties": dict(keys), "required": list(required)}


def _matrix() -> Mapping[str, Any]:
    lists = {
        name: {"description": value["description"], "type": "array", "minItems": 1, "items": value}
        for name, value in axes().items()
    }
    return _group(lists, NAMED)


def _condition() -> Mapping[str, Any]:
    texts = {name: {"description": value["description"]} for name, value in axes().items()}
    return {**_group(texts), "minProperties": 1}  # values are checked one by one


Matrix = Annotated[Mapping[str, list[Any]], InFile(_matrix)]
Condition = Annotated[Mapping[str, Any], InFile(_condition)]
Settings = Annotated[Mapping[str, Any], InFile(lambda: _group({**settings(), **_point("options")}))]
WrittenCell = Annotated[
    Mapping[str, Any], InFile(lambda: _group({**axes(), **_point("options")}, NAMED))
]
