"""The options of a strategy: fields of a dataclass with defaults, described by the text below each.

::

    @dataclass(frozen=True, kw_only=True)
    class DdpOptions(Options):
        accumulate: Count = 1
        \"\"\"Micro-batches of a rank's share of a mini-batch.\"\"\"

    DdpOptions.schemas()                 of each option: what a file may say, and the documents
    DdpOptions.of_cell(cell).accumulate  what the cell names, else the default
    DdpOptions.of(plan).accumulate       what the plan fixes
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from inspect import get_annotations
from typing import Any, Self

from ddlbench.common.errors import ConfigError, shown
from ddlbench.common.form import schema_of
from ddlbench.experiment.cell import Cell, OptionValue
from ddlbench.planning.plan import PlanDetails


@dataclass(frozen=True, kw_only=True)
class Options(PlanDetails):
    """Base of the options of a strategy; a strategy without options uses this class."""

    @classmethod
    def of_cell(cls, cell: Cell) -> Self:
        """What a cell names of these options, and defaults for the others.

        Raises:
            ConfigError: an option is not of the kind of its default, as in a path that was edited.
        """
        defaults = cls.defaults()
        named = {name: value for name, value in cell.options if name in defaults}
        for name, value in named.items():
            if not _is_like(value, defaults[name]):
                raise ConfigError(f"{cell.strategy}: option {name} cannot be {shown(value)}")
        return cls(**named)

    @classmethod
    def defaults(cls) -> dict[str, OptionValue]:
        options: Any = cls  # a class has a hash, which mypy does not know of dataclasses
        return dict(_defaults(options))

    @classmethod
    def schemas(cls) -> Mapping[str, Mapping[str, Any]]:
        """The JSON schema of each option, by its name; ``examples`` are what ``tune`` tries."""
        options: Any = cls  # a class has a hash, which mypy does not know of dataclasses
        return _schemas(options)


@cache
def _defaults(options: Any) -> Mapping[str, OptionValue]:
    return {field.name: getattr(options, field.name) for field in fields(options)}


@cache
def _schemas(options: Any) -> Mapping[str, Mapping[str, Any]]:
    schemas: dict[str, dict[str, Any]] = {}
    for base in reversed(options.__mro__):  # each class has the texts of its own fields only
        if issubclass(base, Options):
            known = schema_of(base, inline=True).get("properties", {})
            schemas |= {name: known[name] for name in get_annotations(base) if name in known}
    return schemas


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
