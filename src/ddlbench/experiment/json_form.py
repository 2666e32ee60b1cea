"""Frozen dataclasses as JSON: what files hold, with the names and types of their fields.

A field's type is a number, text, bool or member of an enumeration, one of them or None, a mapping
that is kept as it is, another such dataclass, or a tuple of these; JSON has lists where Python has
tuples. Numbers are kept as they are, so that what is read is written back the same.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Self, Union, get_args, get_origin, get_type_hints

__all__ = ["OMIT_NONE", "JsonForm", "SameKeys", "key_of"]

# Metadata of a field that files lack where it is None.
OMIT_NONE: Mapping[str, Any] = {"omit_none": True}


def key_of(name: str) -> Mapping[str, Any]:
    """Metadata of a field that files call ``name``, which Python cannot."""
    return {"key": name}


@dataclass(frozen=True)
class JsonForm:
    """Base of dataclasses that are read from JSON and written to it."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read the JSON form; a key that is absent has the field's default.

        Raises:
            KeyError: a field without a default is absent.
        """
        found = {}
        for name, key, convert, required in _readers(cls):  # type: ignore[arg-type]  # classes are hashable
            if key in values:
                found[name] = convert(values[key])
            elif required:
                raise KeyError(key)
        return cls(**found)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, keys in the order of the fields."""
        found = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None or not field.metadata.get("omit_none"):
                found[field.metadata.get("key", field.name)] = _plain(value)
        return found


@dataclass(frozen=True)
class SameKeys(JsonForm):
    """A form that is written with the keys that it was read with, in their order.

    What an earlier version wrote stays as it was: a key that it lacks is not added.
    """

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read the JSON form and remember its keys; see :meth:`JsonForm.from_dict`."""
        found = super().from_dict(values)
        known = {key for _, key, _, _ in _readers(cls)}  # type: ignore[arg-type]
        object.__setattr__(found, "_keys", tuple(key for key in values if key in known))
        return found

    def to_dict(self) -> dict[str, Any]:
        """The JSON form; keys in the order of the fields where it was not read."""
        written = super().to_dict()
        keys = vars(self).get("_keys")
        return written if keys is None else {key: written.get(key) for key in keys}


@cache
def _readers(cls: type) -> tuple[tuple[str, str, Callable[[Any], Any], bool], ...]:
    """Name, key in files, conversion, and whether it is required, of every field."""
    hints = get_type_hints(cls)
    return tuple(
        (
            field.name,
            field.metadata.get("key", field.name),
            _reader(hints[field.name]),
            field.default is MISSING and field.default_factory is MISSING,
        )
        for field in fields(cls)
    )


def _reader(hint: Any) -> Callable[[Any], Any]:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        inner = next((one for one in map(_reader, arguments) if one is not _as_it_is), _as_it_is)
        if inner is _as_it_is:
            return _as_it_is
        return lambda value: None if value is None else inner(value)
    if origin is tuple:
        inner = _reader(arguments[0])
        return tuple if inner is _as_it_is else lambda values: tuple(map(inner, values))
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    if is_dataclass(hint):
        return hint.from_dict  # type: ignore[union-attr]
    return _as_it_is


def _as_it_is(value: Any) -> Any:
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, JsonForm):
        return value.to_dict()
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    return value
