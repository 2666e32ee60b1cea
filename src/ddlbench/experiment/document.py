"""JSON files that one stage writes and later stages read.

::

    dataclass  -- json_form -->  JSON value  -- Document: schema -->  file

Files are only ever parsed, never unpickled or executed. They are validated when written and when
read. Writes are atomic: to a temporary file, flushed to disk, renamed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ddlbench.experiment.errors import file_fault, printable, shown
from ddlbench.experiment.json_form import JsonForm, UnknownKey, WrongForm
from ddlbench.experiment.text import UnreadableJson, read_json

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator, ValidationError

_LONGEST_MESSAGE = 200
_Form = TypeVar("_Form", bound=JsonForm)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a temporary path that is renamed to ``path`` when the block ends.

    The folder is made first. If the block raises, ``path`` is unchanged; an OSError names it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}")
    try:
        yield beside
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        # A full disk shows in writes, which name no file; the temporary name helps nobody.
        if error.filename is None or str(error.filename) == str(beside):
            error.filename = str(path)
        raise
    finally:
        with suppress(OSError):  # the first error counts
            beside.unlink()


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` atomically.

    A name of a file that is no UTF-8 is half of a character to Python; it is written escaped.
    """
    with whole_file(path) as beside:
        beside.write_text(text, encoding="utf-8", errors="backslashreplace")


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
        newer: exception class for a file of a newer version; ``error`` if left out.
        instead: what to do with a file of a newer version, if not to update the checkout.
    """

    def __init__(
        self,
        schema: str,
        noun: str,
        error: type[Exception],
        *,
        newer: type[Exception] | None = None,
        instead: str = "move the file away to make it anew",
    ) -> None:
        self._schema, self._noun, self._error = schema, noun, error
        self._newer, self._instead = newer or error, instead

    @cached_property
    def _rules(self) -> dict[str, Any]:
        schema = files("ddlbench.experiment").joinpath(f"{self._schema}.schema.json")
        rules: dict[str, Any] = json.loads(schema.read_text("utf-8"))
        return rules

    @property
    def _version(self) -> int:
        """The version that this checkout writes, and the newest that it reads."""
        version: int = self._rules["properties"]["schema_version"]["const"]
        return version

    @cached_property
    def _validator(self) -> Draft202012Validator:
        from jsonschema import Draft202012Validator  # noqa: PLC0415 - slow to import

        return Draft202012Validator(self._rules)

    @cached_property
    def _fits_but_for_keys(self) -> Callable[[Any], bool]:
        """Whether a value fits the schema if unknown keys are no fault."""
        from jsonschema import Draft202012Validator  # noqa: PLC0415 - slow to import

        return Draft202012Validator(_opened(self._rules)).is_valid

    @cached_property
    def _compiled(self) -> Callable[[Any], Any]:
        """A hundred times faster, but its messages do not say what to write instead."""
        import fastjsonschema  # noqa: PLC0415 - slow to import

        compiled: Callable[[Any], Any] = fastjsonschema.compile(
            self._rules, use_formats=False, use_default=False
        )
        return compiled

    def fits(self, value: Any) -> bool:
        """Whether ``value`` fits the schema, as far as the fast check can tell."""
        from fastjsonschema import JsonSchemaException  # noqa: PLC0415 - slow to import

        try:
            self._compiled(value)
        except JsonSchemaException:
            return False
        return True

    def check(self, value: Any, where: str) -> None:
        """Raise the document's error, with place and fault, unless ``value`` fits the schema.

        A higher version, or a key that is unknown where all else fits, is of a newer ddlbench.
        """
        if self.fits(value):
            return
        version = value.get("schema_version") if isinstance(value, dict) else None
        if isinstance(version, int | float) and version > self._version:
            raise self._of_newer(where, f"schema {shown(version)}; this checkout reads")
        from jsonschema.exceptions import best_match  # noqa: PLC0415 - slow to import

        errors = list(self._validator.iter_errors(value))
        if errors and self._fits_but_for_keys(value):
            key = next(filter(None, map(_unknown_key, _with_causes(errors))), "a key")
            raise self._of_newer(where, f"{key} is not known here; this checkout reads schema")
        worst = best_match(errors)
        if worst is not None:
            place = _place(worst.absolute_path)
            raise self._error(f"{where}: {place or 'the file'}: {_fault(worst)}")

    def _of_newer(self, where: str, sign: str) -> Exception:
        return self._newer(
            f"{where}: written by a newer ddlbench ({sign} {self._version}); update this "
            f"checkout, or {self._instead}"
        )

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
            value: dict[str, Any] = read_json(path)
        except OSError as error:
            reason = (file_fault(error) or str(error)).removeprefix(f"{path}: ")
            raise self._error(f"{path}: not a readable {self._noun}: {reason}") from error
        except UnreadableJson as error:
            raise self._error(f"{path}: not a readable {self._noun}: {error}") from error
        self.check(value, str(path))
        return value

    def read_as(self, form: type[_Form], path: Path) -> _Form:
        """Read, check, and make the dataclass of it.

        Raises:
            the document's error: as :meth:`read`, or a value is not of its field's type. To the
                schema 2.0 is a whole number.
        """
        values = self.read(path)
        try:
            return form.from_dict(values)
        except UnknownKey as error:
            raise self._of_newer(
                str(path), f"{printable(str(error))}; this checkout reads schema"
            ) from error
        except WrongForm as error:
            raise self._error(f"{path}: {printable(str(error))}") from error


def put_aside(path: Path) -> Path:
    """Rename a file to ``<name>.broken``, so that it is made again; return its new path.

    One that lies there already is kept: the name gets a number.
    """
    aside = path.with_name(f"{path.name}.broken")
    for number in count(2):
        if not aside.exists():
            break
        aside = path.with_name(f"{path.name}.broken-{number}")
    path.rename(aside)
    return aside


def _opened(schema: Any) -> Any:
    """A schema that takes unknown keys."""
    if isinstance(schema, dict):
        closed = {"additionalProperties": False}.items()
        return {key: _opened(rule) for key, rule in schema.items() if (key, rule) not in closed}
    return [_opened(rule) for rule in schema] if isinstance(schema, list) else schema


def _with_causes(errors: Iterable[ValidationError]) -> Iterator[ValidationError]:
    """Errors, and those of the alternatives that an ``anyOf`` tried."""
    for error in errors:
        yield error
        yield from _with_causes(error.context)


def _place(keys: Iterable[object]) -> str:
    return ".".join(printable(str(key))[:_LONGEST_MESSAGE] for key in keys)


def _unknown_key(error: ValidationError) -> str | None:
    """Where the key stands that an error complains of; None of an error of another kind."""
    if error.validator != "additionalProperties":
        return None
    schema: Any = error.schema
    values: Any = error.instance
    known = schema.get("properties", {})
    return _place([*error.absolute_path, next(key for key in values if key not in known)])


def _fault(error: ValidationError) -> str:
    """What jsonschema says, without the whole of a large value."""
    if len(error.message) <= _LONGEST_MESSAGE:
        return printable(error.message)
    return f"{shown(error.instance)} does not fit {error.validator} {shown(error.validator_value)}"
