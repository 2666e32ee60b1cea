"""JSON files that one stage writes and later stages read.

::

    dataclass  -- Form: its type hints -->  JSON value  -- Document -->  file

Files are only ever parsed, never unpickled or executed. They are validated when written and when
read. Writes are atomic: to a temporary file, flushed to disk, renamed.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Generic, TypeVar

from ddlbench.common.errors import file_fault, shown
from ddlbench.common.form import UnknownKey, WrongForm, adapter_of, read_form
from ddlbench.common.text import UnreadableJson, read_json

_Form = TypeVar("_Form")


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


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    """Rows as CSV, each of which ends in a line feed."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


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


class Document(Generic[_Form]):
    """One kind of file.

    Args:
        form: the dataclass or typed dictionary that it holds, with a ``schema_version``.
        version: that this checkout writes, and the newest that it reads.
        noun: name of the file in messages ("not a readable result").
        error: exception class for an invalid file.
        newer: exception class for a file of a newer version; ``error`` if left out.
        instead: what to do with a file of a newer version, if not to update the checkout.
    """

    def __init__(
        self,
        form: type[_Form],
        version: int,
        noun: str,
        error: type[Exception],
        *,
        newer: type[Exception] | None = None,
        instead: str = "move the file away to make it anew",
    ) -> None:
        self._form, self._version = form, version
        self._noun, self._error = noun, error
        self._newer, self._instead = newer or error, instead

    def parse(self, value: object, where: str) -> _Form:
        """Read the JSON form of the document.

        A higher version, or a key that is unknown where all else fits, is of a newer ddlbench.

        Raises:
            the document's error, with place and fault.
        """
        version = value.get("schema_version") if isinstance(value, dict) else None
        if isinstance(version, int | float) and version > self._version:
            raise self._of_newer(where, f"schema {shown(version)}; this checkout reads")
        try:
            read = read_form(self._form, value)
        except UnknownKey as error:
            raise self._of_newer(where, f"{error}; this checkout reads schema") from error
        except WrongForm as error:
            raise self._error(f"{where}: {error}") from error
        if type(version) is not int or version != self._version:
            given = "is missing" if version is None else f"{shown(version)} is not {self._version}"
            raise self._error(f"{where}: schema_version: {given}")
        return read

    def _of_newer(self, where: str, sign: str) -> Exception:
        return self._newer(
            f"{where}: written by a newer ddlbench ({sign} {self._version}); update this "
            f"checkout, or {self._instead}"
        )

    def write(self, path: Path, content: _Form) -> None:
        """Check and write atomically."""
        adapter = adapter_of(self._form)
        if _has_nan(adapter.dump_python(content, warnings=False)):  # JSON's form of it is null
            raise self._error(f"{path}: a number in it is NaN or infinite, which JSON has not")
        value = adapter.dump_python(content, mode="json", warnings=False)
        self.parse(value, str(path))
        write_json(path, value)

    def read(self, path: Path) -> _Form:
        """Read and check.

        Raises:
            the document's error: the file is unreadable, truncated, or not of its form.
        """
        try:
            value = read_json(path)
        except OSError as error:
            reason = (file_fault(error) or str(error)).removeprefix(f"{path}: ")
            raise self._error(f"{path}: not a readable {self._noun}: {reason}") from error
        except UnreadableJson as error:
            raise self._error(f"{path}: not a readable {self._noun}: {error}") from error
        return self.parse(value, str(path))


def _has_nan(value: Any) -> bool:
    if isinstance(value, Mapping):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return isinstance(value, float) and not math.isfinite(value)
    return any(map(_has_nan, value))


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
