"""Dataclasses as JSON values, and back.

Dataclasses are frozen. A field is a number, text, bool, enumeration member, mapping, another such
dataclass, a tuple of these (a list in JSON), or None. Numbers are not converted, so a file that is
read and written again stays the same. A key that is no field is refused: what it says would be lost
in silence, and a file of a later version should be read by that version.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Literal, Self, Union, get_args, get_origin, get_type_hints

from ddlbench.experiment.errors import shown

# Metadata of a field that is left out of files if it is None.
OMIT_NONE: Mapping[str, Any] = {"omit_none": True}


def key_of(name: str) -> Mapping[str, Any]:
    """Metadata of a field with another name in files, as ``from``, which is a Python keyword."""
    return {"key": name}


class WrongForm(ValueError):  # noqa: N818 - what values are
    """Values that are not the JSON form of a dataclass.

    Args:
        what: is wrong.
        place: keys and indices that lead there, parted by dots.
    """

    def __init__(self, what: str, place: str = "") -> None:
        super().__init__(f"{place}: {what}" if place else what)
        self._what, self._place = what, place

    def within(self, key: object) -> WrongForm:
        """The same, seen from what holds the values under ``key``."""
        return type(self)(self._what, f"{key}.{self._place}" if self._place else str(key))


class UnknownKey(WrongForm):
    """A key that is no field of a dataclass, though all else may fit."""


@dataclass(frozen=True)
class JsonForm:
    """Base of dataclasses that are read from JSON and written to it."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read the JSON form; a key that is absent has the field's default.

        Raises:
            WrongForm: a field without a default is absent, a key is no field, or a value is not of
                its field's type.
        """
        return cls(**read_fields(cls, values))

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, keys in the order of the fields."""
        written = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None or not field.metadata.get("omit_none"):
                written[field.metadata.get("key", field.name)] = _plain(value)
        return written


@dataclass(frozen=True)
class SameKeys(JsonForm):
    """A form that is written with the keys with which it was read, in their order.

    So keys that are newer than a file are not added to it.
    """

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read the JSON form and remember its keys; see :meth:`JsonForm.from_dict`."""
        form = super().from_dict(values)
        object.__setattr__(form, "_keys", tuple(values))
        return form

    def to_dict(self) -> dict[str, Any]:
        written = super().to_dict()
        keys = vars(self).get("_keys")
        return written if keys is None else {key: written.get(key) for key in keys}


def read_fields(cls: type, values: Mapping[str, Any], *, others: bool = False) -> dict[str, Any]:
    """Arguments of a dataclass, read from JSON values and checked by its type hints.

    Args:
        cls: the dataclass.
        values: of its fields, by their keys.
        others: whether there may be further keys.

    Raises:
        WrongForm: as :meth:`JsonForm.from_dict`.
    """
    if not isinstance(values, Mapping):
        raise WrongForm(f"{shown(values)} is no object")
    arguments = {}
    for name, key, kinds, convert, required in _readers(cls):
        if key in values:
            value = values[key]
            if type(value) in kinds:  # most are, and there may be thousands of files
                arguments[name] = value
                continue
            try:
                arguments[name] = convert(value)
            except WrongForm as error:
                raise error.within(key) from None
        elif required:
            raise WrongForm(f"{key!r} is missing")
    if not (others or _keys(cls).issuperset(values)):
        unknown = next(key for key in values if key not in _keys(cls))
        raise UnknownKey(f"{shown(unknown)} is not a key here")
    return arguments


_Reader = Callable[[Any], Any]


@cache
def _keys(cls: type) -> frozenset[str]:
    return frozenset(key for _, key, *_ in _readers(cls))


@cache
def _readers(cls: type) -> tuple[tuple[str, str, frozenset[type], _Reader, bool], ...]:
    """Of every field: name, key, types that are taken as they are, conversion, if required."""
    hints = get_type_hints(cls)
    return tuple(
        (
            field.name,
            field.metadata.get("key", field.name),
            _kinds(hints[field.name]),
            _reader(hints[field.name]),
            field.default is MISSING and field.default_factory is MISSING,
        )
        for field in fields(cls)
    )


# Types of JSON's values for a hint; a whole number is a number, true is none.
_KINDS: dict[Any, frozenset[type]] = {
    int: frozenset({int}),
    float: frozenset({int, float}),
    str: frozenset({str}),
    bool: frozenset({bool}),
    types.NoneType: frozenset({types.NoneType}),
}


def _kinds(hint: Any) -> frozenset[type]:
    """Types of the values of a hint; empty if these are more than single values."""
    parts = [_KINDS.get(part, frozenset()) for part in _alternatives(hint)]
    return frozenset().union(*parts) if all(parts) else frozenset()


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _reader(hint: Any) -> _Reader:  # noqa: PLR0911 - one for each kind of hint
    kinds = _kinds(hint)
    if kinds:
        return lambda value: _single(value, kinds)
    several = _alternatives(hint)
    if types.NoneType in several:
        (inner,) = (_reader(one) for one in several if one is not types.NoneType)
        return lambda value: None if value is None else inner(value)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return _record_reader(arguments)
    if origin is tuple:
        return _tuple_reader(arguments[0])
    if origin is Literal:
        return lambda value: _one_of(value, arguments)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return lambda value: _member(value, hint)
    if is_dataclass(hint):
        return hint.from_dict  # type: ignore[union-attr]
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping
    return lambda value: value  # Any


def _tuple_reader(hint: Any) -> _Reader:
    inner, kinds = _reader(hint), _kinds(hint)

    def read(values: Any) -> tuple[Any, ...]:
        if not isinstance(values, list | tuple):
            raise WrongForm(f"{shown(values)} is not a list")
        if kinds and kinds.issuperset(map(type, values)):  # thousands of numbers at once
            return tuple(values)
        entries = []
        for number, value in enumerate(values):
            try:
                entries.append(inner(value))
            except WrongForm as error:
                raise error.within(number) from None
        return tuple(entries)

    return read


def _record_reader(hints: Sequence[Any]) -> _Reader:
    readers = [_reader(hint) for hint in hints]

    def read(values: Any) -> tuple[Any, ...]:
        if not isinstance(values, list | tuple) or len(values) != len(readers):
            raise WrongForm(f"{shown(values)} is not a list of {len(readers)} values")
        return tuple(inner(value) for inner, value in zip(readers, values, strict=True))

    return read


def _single(value: Any, kinds: frozenset[type]) -> Any:
    if type(value) in kinds:
        return value
    if isinstance(value, tuple(kinds)) and not isinstance(value, bool):
        return value  # of a type of its own, as a status is
    number = "a number" if float in kinds else "a whole number"
    names = {int: number, str: "a text", bool: "true or false"}
    wanted = " or ".join(name for kind, name in names.items() if kind in kinds)
    raise WrongForm(f"{shown(value)} is not {wanted}")


def _one_of(value: Any, known: Sequence[Any]) -> Any:
    if value not in known:
        raise WrongForm(f"{shown(value)} is none of {', '.join(map(str, known))}")
    return value


def _member(value: Any, kind: type[Enum]) -> Enum:
    try:
        return kind(value)
    except ValueError:
        raise WrongForm(f"{shown(value)} is none of {', '.join(m.value for m in kind)}") from None


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise WrongForm(f"{shown(value)} is no object")
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, JsonForm):
        return value.to_dict()
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return value
