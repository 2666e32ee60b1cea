"""JSON files that one stage writes and later stages read.

::

    dataclass  -- JsonForm, SameKeys -->  JSON value  -- Document: schema -->  file

Files are only ever parsed, never unpickled or executed. They are validated when written and when
read. Writes are atomic: to a temporary file, flushed to disk, renamed.

Dataclasses are frozen. A field is a number, text, bool, enumeration member, mapping, another such
dataclass, a tuple of these (a list in JSON), or None. Numbers are not converted, so a file that is
read and written again stays the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Union, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a temporary path that is renamed to ``path`` when the block ends.

    The folder is made first. If the block raises, ``path`` is unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}")
    try:
        yield beside
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` atomically."""
    with whole_file(path) as beside:
        beside.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as :func:`json_text`, atomically."""
    write_text(path, json_text(value))


def json_text(value: Any) -> str:
    """``value`` as indented JSON; NaN raises ValueError, as JSON has none."""
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


def digest_of(value: Any) -> str:
    """A short digest of a JSON value; it does not depend on the order of keys."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(canonical.encode(), digest_size=8).hexdigest()


class Document:
    """One kind of file.

    Args:
        schema: name of the schema beside this module, ``<schema>.schema.json``.
        noun: name of the file in messages ("not a readable result").
        error: exception class for an invalid file.
    """

    def __init__(self, schema: str, noun: str, error: type[Exception]) -> None:
        self._schema, self._noun, self._error = schema, noun, error

    @cached_property
    def _validator(self) -> Draft202012Validator:
        from jsonschema import Draft202012Validator  # noqa: PLC0415 - slow to import

        schema = files("ddlbench.experiment").joinpath(f"{self._schema}.schema.json")
        return Draft202012Validator(json.loads(schema.read_text("utf-8")))

    def check(self, value: Any, where: str) -> None:
        """Raise the document's error, with place and fault, unless ``value`` fits the schema."""
        from jsonschema.exceptions import best_match  # noqa: PLC0415 - slow to import

        error = best_match(self._validator.iter_errors(value))
        if error is not None:
            place = ".".join(str(part) for part in error.absolute_path) or "the file"
            raise self._error(f"{where}: {place}: {error.message}")

    def write(self, path: Path, value: dict[str, Any]) -> None:
        """Check and write atomically."""
        self.check(value, str(path))
        write_json(path, value)

    def read(self, path: Path) -> dict[str, Any]:
        """Read and check.

        Raises:
            the document's error: the file is unreadable, truncated, or does not fit its schema.
        """
        try:
            value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise self._error(f"{path}: not a readable {self._noun}: {error}") from error
        self.check(value, str(path))
        return value


# Metadata of a field that is left out of files if it is None.
OMIT_NONE: Mapping[str, Any] = {"omit_none": True}


def key_of(name: str) -> Mapping[str, Any]:
    """Metadata of a field with another name in files, as ``from``, which is a Python keyword."""
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
        arguments = {}
        for name, key, convert, required in _readers(cls):  # type: ignore[arg-type]  # classes are hashable
            if key in values:
                arguments[name] = convert(values[key])
            elif required:
                raise KeyError(key)
        return cls(**arguments)

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
        known = {key for _, key, _, _ in _readers(cls)}  # type: ignore[arg-type]
        object.__setattr__(form, "_keys", tuple(key for key in values if key in known))
        return form

    def to_dict(self) -> dict[str, Any]:
        written = super().to_dict()
        keys = vars(self).get("_keys")
        return written if keys is None else {key: written.get(key) for key in keys}


@cache
def _readers(cls: type) -> tuple[tuple[str, str, Callable[[Any], Any], bool], ...]:
    """Of every field: name, key in files, conversion, and whether it is required."""
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
