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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ddlbench.experiment.errors import printable, shown
from ddlbench.experiment.json_form import JsonForm, WrongForm
from ddlbench.experiment.json_text import UnreadableJson, read_json, read_object

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
        if error.filename is None:  # a full disk shows in writes, which name no file
            error.filename = str(path)
        raise
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
    def _rules(self) -> dict[str, Any]:
        schema = files("ddlbench.experiment").joinpath(f"{self._schema}.schema.json")
        rules: dict[str, Any] = json.loads(schema.read_text("utf-8"))
        return rules

    @cached_property
    def _validator(self) -> Draft202012Validator:
        from jsonschema import Draft202012Validator  # noqa: PLC0415 - slow to import

        return Draft202012Validator(self._rules)

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
        """Raise the document's error, with place and fault, unless ``value`` fits the schema."""
        if self.fits(value):
            return
        from jsonschema.exceptions import best_match  # noqa: PLC0415 - slow to import

        error = best_match(self._validator.iter_errors(value))
        if error is not None:
            parts = (printable(str(part))[:_LONGEST_MESSAGE] for part in error.absolute_path)
            place = ".".join(parts)
            raise self._error(f"{where}: {place or 'the file'}: {_fault(error)}")

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
            reason = error.strerror or type(error).__name__
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
        except WrongForm as error:
            raise self._error(f"{path}: {printable(str(error))}") from error


def put_aside_if_broken(path: Path) -> str | None:
    """Rename a file that holds no complete JSON object to ``<name>.broken``.

    So it is made again. This is a cheap check; readers validate the schema.

    Returns:
        what was wrong with it; None if nothing was, or if there is no such file.
    """
    try:
        read_object(path)
    except UnreadableJson as error:
        path.replace(path.with_name(f"{path.name}.broken"))
        return str(error)
    except OSError:
        return None
    return None


def _fault(error: ValidationError) -> str:
    """What jsonschema says, without the whole of a large value."""
    if len(error.message) <= _LONGEST_MESSAGE:
        return printable(error.message)
    return f"{shown(error.instance)} does not fit {error.validator} {shown(error.validator_value)}"
