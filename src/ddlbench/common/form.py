"""Dataclasses as JSON values, and back: the type hints are the one declaration of a document.

pydantic checks them. A hint is a number, text, bool, enumeration, mapping, another such dataclass,
or a tuple of these (a list in JSON), with limits where a type below says so. The text below a field
describes it. Values are not converted: "1" is no number, and 1.5 no
count. A key that is no field is refused, as what it says would be lost in silence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar

from annotated_types import Ge, Gt, Le, Len, MinLen

from ddlbench.common.errors import ConfigError, placed, printable, shown

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError
    from pydantic_core import ErrorDetails

_Form = TypeVar("_Form")

Natural = Annotated[int, Ge(0)]
Count = Annotated[int, Ge(1)]
Amount = Annotated[float, Ge(0)]
Positive = Annotated[float, Gt(0)]
Seconds = Annotated[float, Ge(1e-9), Le(1e9)]
"""From the resolution of a clock to 30 years: ratios of such times are finite."""
Share = Annotated[float, Ge(0), Le(1)]
Name = Annotated[str, MinLen(1)]
Interval = Annotated[tuple[float, ...], Len(2, 2)]


class WrongForm(ValueError):  # noqa: N818 - what values are
    """Values that are not the JSON form of a dataclass."""


class UnknownKey(WrongForm):
    """A key that is no field of a dataclass, while all else fits."""


_CONFIG: dict[str, Any] = {
    "strict": True,
    "extra": "forbid",
    "allow_inf_nan": False,
    "ser_json_inf_nan": "constants",  # so that a fault is seen, and not written as nothing
}


_OPEN: dict[str, Any] = {**_CONFIG, "extra": "allow"}


def typed(kind: _Form) -> _Form:
    """Mark a typed dictionary as one that is read as strictly as a :class:`Form`."""
    kind.__pydantic_config__ = _CONFIG  # type: ignore[attr-defined]
    return kind


def typed_open(kind: _Form) -> _Form:
    """Mark a typed dictionary likewise, but let further keys stand in it."""
    kind.__pydantic_config__ = _OPEN  # type: ignore[attr-defined]
    return kind


@dataclass(frozen=True)
class Form:
    """Base of dataclasses that are read from JSON and written to it."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = _CONFIG

    @classmethod
    def from_dict(cls, values: object) -> Self:
        """Read the JSON form; a key that is absent has the field's default.

        Raises:
            WrongForm: a field without a default is absent, a key is no field, or a value is not of
                its field's type.
        """
        return read_form(cls, values)

    def to_dict(self, *, without_defaults: bool = False) -> dict[str, Any]:
        """The JSON form, keys in the order of the fields; on demand only those that are needed."""
        written: dict[str, Any] = adapter_of(type(self)).dump_python(
            self, mode="json", warnings=False, exclude_defaults=without_defaults
        )
        return written


def adapter_of(kind: Any) -> TypeAdapter[Any]:
    """Return pydantic's reader and writer of a dataclass or typed dictionary."""
    return _adapter(kind)


@cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter  # noqa: PLC0415 - slow to import

    return TypeAdapter(kind)


def schema_of(kind: Any, *, inline: bool = False) -> dict[str, Any]:
    """The JSON schema of a dataclass or typed dictionary, with the text below each field.

    ``inline`` writes parts where they are used, as messages on the files of users need it.
    """
    from pydantic import TypeAdapter  # noqa: PLC0415 - slow to import

    # All forms share a dictionary. Reading the texts takes longer than reading a thousand files.
    configs: tuple[dict[str, Any], ...] = (_CONFIG, _OPEN, kind.__pydantic_config__)
    for config in configs:
        config["use_attribute_docstrings"] = True
    try:
        schema = TypeAdapter(kind).json_schema()
    finally:
        for config in configs:
            config.pop("use_attribute_docstrings", None)
    if inline:
        schema = _inlined(schema, schema.pop("$defs", {}))
    tidy: dict[str, Any] = _tidied(schema)
    return tidy


def _inlined(schema: Any, parts: Mapping[str, Any]) -> Any:
    """A schema with the part in place of each reference to one; a list of words has no type.

    Alternatives of different types become one schema, as each rule is for values of one type.
    """
    if isinstance(schema, list):
        return [_inlined(part, parts) for part in schema]
    if not isinstance(schema, dict):
        return schema
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    if name in parts:  # what is said of the field goes before what is said of its type
        schema = {**parts[name], **{key: part for key, part in schema.items() if key != "$ref"}}
    without = {"type"} if "enum" in schema else set()
    whole = {key: _inlined(part, parts) for key, part in schema.items() if key not in without}
    match whole.get("anyOf"):
        case [{"enum": [*words]}, {"type": "null"}]:
            del whole["anyOf"]
            whole["enum"] = [*words, None]
        case [{"type": str()}, *_] as kinds if _differ(kinds):
            del whole["anyOf"]
            rules = {key: rule for part in kinds for key, rule in part.items()}
            whole = {**rules, **whole, "type": [part["type"] for part in kinds]}
    return whole


def _differ(kinds: Iterable[Mapping[str, Any]]) -> bool:
    types = [kind.get("type") for kind in kinds]
    return all(isinstance(kind, str) for kind in types) and len(set(types)) == len(types)


class InFile:
    """What a file says of a field that holds another thing once the file is read."""

    def __init__(self, schema: Mapping[str, Any] | Callable[[], Mapping[str, Any]]) -> None:
        self.schema = schema

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Any) -> dict[str, Any]:
        return dict(self.schema() if callable(self.schema) else self.schema)


def _tidied(schema: Any) -> Any:
    """Without titles and line breaks; a value or nothing has a list of two types."""
    if isinstance(schema, list):
        return [_tidied(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    tidy = {
        key: _tidied(part)
        for key, part in schema.items()
        if key != "title" or isinstance(part, dict)  # a field of that name
    }
    if isinstance(tidy.get("description"), str):
        tidy["description"] = " ".join(tidy["description"].split())
    match tidy.get("anyOf"):
        case [{"type": str(kind)} as known, {"type": "null"}]:
            del tidy["anyOf"]
            return {**known, **tidy, "type": [kind, "null"]}
    return tidy


def required_keys(kind: type) -> list[str]:
    """Keys that the JSON form of a dataclass or typed dictionary must have."""
    if is_dataclass(kind):
        return [
            field.name
            for field in fields(kind)
            if field.default is MISSING and field.default_factory is MISSING
        ]
    return sorted(getattr(kind, "__required_keys__", ()))


def read_form(kind: type[_Form], values: object, *, checked: bool = False) -> _Form:
    """Read the JSON form of a dataclass or typed dictionary.

    Args:
        kind: the dataclass or typed dictionary.
        values: its JSON form.
        checked: its schema allows the values. What may be of any type stays as it is, then, even
            if JSON has no such value, as a date.

    Raises:
        WrongForm: as :meth:`Form.from_dict`.
    """
    from pydantic import ValidationError  # noqa: PLC0415 - slow to import

    read: _Form
    try:
        if checked:
            read = adapter_of(kind).validate_python(values, strict=False)
            return read
        # As text, because only there is a list a tuple, and a word a member of an enumeration. A
        # name of a file that is no UTF-8 is half of a character to Python.
        text = json.dumps(values, allow_nan=False, ensure_ascii=False).encode("utf-8", "replace")
        read = adapter_of(kind).validate_json(text)
    except ValidationError as error:
        raise _fault(error) from None
    except ValueError:
        raise WrongForm("a number in it is NaN or infinite, which JSON has not") from None
    return read


_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
_MEMBER = re.compile(r"<[\w.]+: ('[^']*')>")
# What a value is not, by the beginning of pydantic's name of the fault; and what to write.
_NOT = {
    "int": "a whole number",
    "float": "a number",
    "string_type": "a text",
    "bool": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "an object",
    "mapping_type": "an object",
    "dataclass_type": "an object",
}
_WRITE = {
    "greater_than_equal": "is too small; write at least {ge}",
    "greater_than": "is too small; write more than {gt}",
    "less_than_equal": "is too large; write at most {le}",
    "less_than": "is too large; write less than {lt}",
    "too_short": "has too few values; write {min_length} at least",
    "too_long": "has too many values; write {max_length} at most",
    "string_too_short": "must not be empty",
}
# Alternatives of a value, as pydantic adds them to its place.
_ALTERNATIVES = ("bool", "int", "float", "str")


def _fault(error: ValidationError) -> ValueError:
    """One sentence on the outermost fault; unknown keys count only where all else fits."""
    faults = error.errors(include_url=False)
    others = [fault for fault in faults if fault["type"] not in _UNKNOWN]
    # A list whose entries are at fault is also too short to pydantic.
    fault = min(
        others or faults,
        key=lambda fault_of_kind: (fault_of_kind["type"] == "too_short", len(fault_of_kind["loc"])),
    )
    cause = fault.get("ctx", {}).get("error")
    if isinstance(cause, ConfigError):  # of a dataclass that checks itself
        return cause
    keys, sentence = fault["loc"], _sentence(fault)
    if keys and keys[-1] in _ALTERNATIVES:
        keys, sentence = keys[:-1], f"{shown(fault['input'])} is no number, text, true or false"
    place = ".".join(printable(str(key)) for key in keys)
    if not others:
        return UnknownKey(f"{place} is not known here")
    return WrongForm(placed(place, sentence) if place else sentence)


def _sentence(fault: ErrorDetails) -> str:
    kind = fault["type"]
    if kind == "missing":
        return "is missing"
    value = shown(fault["input"])
    for begins, what in _NOT.items():
        if kind.startswith(begins):
            return f"{value} is not {what}"
    if kind in _WRITE:
        return f"{value} {_WRITE[kind].format(**fault['ctx'])}"
    if kind in ("literal_error", "enum"):
        words = _MEMBER.sub(r"\1", fault["ctx"]["expected"])
        return f"{value} is not allowed; write {words}"
    return f"{value} {fault['msg'].removeprefix('Value error, ')}"
