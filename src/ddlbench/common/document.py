"""Documents: JSON and YAML files, read, checked and written whole.

A JSON file is what one stage writes and later stages read::

    dataclass  -- Form: its type hints -->  JSON value  -- Document -->  file

Files are only ever parsed, never unpickled or executed. They are validated when written and when
read. Writes are atomic: to a temporary file, flushed to disk, renamed. What is wrong with a file is
one sentence.

YAML is what the user writes: a mistake that YAML takes in silence, as a key that is written twice,
is refused. JSON is what others hand in: a damaged or hostile result must not stop the reader of a
thousand others.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache, wraps
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import yaml

from ddlbench.common.errors import ConfigError, file_fault, placed, printable, shown, unplaced
from ddlbench.common.form import UnknownKey, WrongForm, adapter_of, read_form, required_keys

if TYPE_CHECKING:
    import pandas as pd

_Reader = TypeVar("_Reader", bound=Callable[..., Any])
MOST_BYTES = 256 * 2**20  # of a JSON file
_LONGEST_MESSAGE = 200
_MERGE = "tag:yaml.org,2002:merge"
_TEXT = "tag:yaml.org,2002:str"


def parse_yaml(text: str, where: str) -> Any:
    """The value of a YAML text; ``where`` is the file's name, for messages.

    Raises:
        ConfigError: it is no YAML, or a key is written twice or is no text.
    """
    try:
        value = _load(text)
    except yaml.YAMLError as error:
        mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
        line = f" line {mark.line + 1}" if mark else ""
        problem = str(problem or getattr(error, "reason", "cannot be read"))
        if not isinstance(error, _Misplaced):
            cure = next((text for words, text in _CURES.items() if words in problem), "")
            problem = f"not valid YAML: {problem[:_LONGEST_MESSAGE]}{cure}"
        raise ConfigError(f"{where}{line}: {problem[: 2 * _LONGEST_MESSAGE]}") from None
    except RecursionError:
        raise ConfigError(f"{where}: {_TOO_DEEP}") from None
    except (ValueError, OverflowError, TypeError, AttributeError, KeyError) as error:
        # A constructor's: of a date that is none, a tag that does not fit.
        raise ConfigError(
            f"{where}: a number, a date or a tag does not fit ({_in_one_line(error)}); write a "
            "text in quotes"
        ) from None
    check_keys(value, where)
    return value


_CURES = {
    r"'\t'": "; begin lines with spaces",
    "cannot start any token": "; write the text in quotes",
    "undefined alias": "; write a text that begins with * in quotes",
    "mapping values": "; write 'key: value' on a line each, and a text with ': ' in quotes",
    "block end": "; begin the lines of a group with as many spaces each",
    "expected ',' or": "; write a comma, or close the bracket",
    "end of stream": "; close the quote",
    "another document": "; keep one, without the line ---",
}
"""What to do, by words with which PyYAML says what is wrong; the first that fit hold."""


def check_keys(value: Any, where: str) -> None:
    """Refuse keys that are no text, as YAML and Snakemake take them.

    Raises:
        ConfigError: a key is no text, or a value contains itself.
    """
    try:
        _check_keys(value, where)
    except RecursionError:
        raise ConfigError(f"{where}: {_TOO_DEEP}") from None


_TOO_DEEP = (
    "lists and groups lie too deep in each other, or an anchor contains itself; write its values "
    "out"
)


def _check_keys(value: Any, where: str) -> None:
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ConfigError(f"{where}: the key {shown(key)} is no text; write it in quotes")
        value = value.values()
    elif not isinstance(value, list | tuple):
        return
    for inner in value:
        _check_keys(inner, where)


class _Misplaced(yaml.MarkedYAMLError):
    """A key that YAML takes, and we do not."""

    def __init__(self, node: yaml.Node, fault: str) -> None:
        super().__init__(problem=fault, problem_mark=node.start_mark)


class _Composer(yaml.composer.Composer):
    """Keys are texts, and each stands once."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _Misplaced(key, "a list or group cannot be a key; write a name")
            if key.tag not in (_TEXT, _MERGE):
                wrong = f"the key {shown(key.value)} is no text; write it in quotes"
                raise _Misplaced(key, wrong)
            if key.value in seen:
                wrong = f"{shown(key.value)} is written twice; keep one, as the last would win"
                raise _Misplaced(key, wrong)
            seen.add(key.value)
        return node


class _Loader(_Composer, yaml.SafeLoader):
    """PyYAML's parser, which Snakemake uses, and whose messages we complete."""


_LIBYAML: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _QuickLoader(_Composer, _LIBYAML):
    """libyaml's parser, in a sixth of the time. It takes a tab where PyYAML's does not."""

    def __init__(self, text: str) -> None:
        _LIBYAML.__init__(self, text)
        _Composer.__init__(self)


def _load(text: str) -> Any:
    try:
        return yaml.load(text, _Loader if "\t" in text else _QuickLoader)
    except yaml.YAMLError:
        return yaml.load(text, _Loader)


class UnreadableJson(ValueError):  # noqa: N818 - a state of a file, shown as such
    """A text that is no JSON, or more than a reader should bear."""


def parse_json(text: str | bytes) -> Any:
    """The value of a text.

    Python's own parser reads NaN and infinity, and takes the last of two equal keys.

    Raises:
        UnreadableJson: it is no JSON, is too deep, writes a key twice, or has a whole number of
            over 64 bits, or another one over 1e100.
    """
    try:
        return json.loads(
            text,
            parse_constant=_not_finite,
            parse_int=_integer,
            parse_float=_number,
            object_pairs_hook=_object,
        )
    except UnreadableJson:
        raise
    except RecursionError:
        raise UnreadableJson("its lists and objects lie too deep in each other") from None
    except ValueError as error:
        what = "text in UTF-8" if isinstance(error, UnicodeDecodeError) else "JSON"
        raise UnreadableJson(f"it is no {what} ({_in_one_line(error)})") from None


_COMPRESSED = {
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "zip",
    b"\xfd7zXZ": "xz",
    b"(\xb5/\xfd": "zstd",
    b"BZh": "bzip2",
}
"""Programs, by the first bytes of what they write."""


def refuse_compressed(content: bytes, path: Path) -> None:
    """Refuse a file that was packed.

    Raises:
        ConfigError: its first bytes say so.
    """
    for mark, program in _COMPRESSED.items():
        if content.startswith(mark):
            raise ConfigError(f"{path} is compressed ({program}); unpack it")


def read_json(path: Path) -> Any:
    """The value in a file.

    Raises:
        OSError: the file cannot be read.
        UnreadableJson: as :func:`parse_json`, or the file is larger than any of ours.
    """
    status = path.stat()
    if status.st_size > MOST_BYTES:
        raise UnreadableJson(f"{status.st_size} bytes are more than {MOST_BYTES}")
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise UnreadableJson("it is a pipe or a device, which may never end")
    return parse_json(path.read_bytes())


def read_object(path: Path) -> dict[str, Any]:
    """The object in a file.

    Raises:
        OSError, UnreadableJson: as :func:`read_json`, or the file holds another value.
    """
    value = read_json(path)
    if not isinstance(value, dict):
        raise UnreadableJson(f"{shown(value)} is no object")
    return value


# Called for every number, so as short as can be.
def _integer(digits: str) -> int:
    value = int(digits)
    if -sys.maxsize <= value <= sys.maxsize:
        return value
    raise UnreadableJson(f"{shown(digits)} is too large a number")


_LARGEST = 1e100
"""Of numbers in files: a loss that diverges in 32 bits is far below, and sums and squares of such
numbers are finite."""


def _number(digits: str) -> float:
    value = float(digits)
    if -_LARGEST <= value <= _LARGEST:
        return value
    raise UnreadableJson(f"{shown(digits)} is too large a number")


def _not_finite(name: str) -> Any:
    raise UnreadableJson(f"{name} is no number of JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise UnreadableJson(f"the key {shown(twice)} is written twice")
    return value


def _in_one_line(error: Exception) -> str:
    lines = printable(str(error)).splitlines()
    return lines[0][:_LONGEST_MESSAGE] if lines else type(error).__name__


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


def read_once(most: int | None) -> Callable[[_Reader], _Reader]:
    """Let a reader of a path, and of further arguments, read a file that has not changed once.

    Args:
        most: files that are remembered; None for all.
    """

    def decorate(read: _Reader) -> _Reader:
        @lru_cache(maxsize=most)
        def kept(_state: tuple[object, ...], *arguments: Any) -> Any:
            return read(*arguments)

        @wraps(read)
        def reading(path: Path, *further: Any) -> Any:
            try:
                about = path.stat()
            except OSError:
                return read(path, *further)  # which says what is wrong
            return kept((path.absolute(), about.st_mtime_ns, about.st_size), path, *further)

        return cast(_Reader, reading)

    return decorate


def csv_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file by the columns of its first line."""
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


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


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows of a table as JSON values; an unknown number is None."""
    known = frame.astype(object).where(frame.notna(), None)  # only objects' columns can hold None
    return cast("list[dict[str, Any]]", known.to_dict("records"))


def digest_of(value: Any) -> str:
    """A short digest of a JSON value; it does not depend on the order of keys."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(canonical.encode(), digest_size=8).hexdigest()


_FEW_KEYS = 3


class Document(Generic[_Form]):
    """One kind of file.

    Args:
        form: the dataclass or typed dictionary that it holds, with a ``schema_version``.
        version: that this checkout writes, and the newest that it reads.
        noun: name of the file in messages ("not a readable result").
        error: exception class for an invalid file.
        newer: exception class for a file of a newer version; ``error`` if left out.
        instead: what to do with a file that cannot be read, or with one of a newer version if not
            to update the checkout; or a function that says so of a place.
        remade: a file that cannot be read is made anew without that.
    """

    def __init__(
        self,
        form: type[_Form],
        version: int,
        noun: str,
        error: type[Exception],
        *,
        newer: type[Exception] | None = None,
        instead: str | Callable[[str], str] = "move the file away to make it anew",
        remade: bool = False,
    ) -> None:
        self._form, self._version = form, version
        self._noun, self._error = noun, error
        self._newer, self._instead, self._remade = newer or error, instead, remade

    def _cure(self, where: str) -> str:
        return "" if self._remade else f"; {self._what_instead(where)}"

    def _what_instead(self, where: str) -> str:
        return self._instead if isinstance(self._instead, str) else self._instead(where)

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
            fault = self._of_other_kind(value) or str(error)
            raise self._error(f"{placed(where, fault)}{self._cure(where)}") from error
        if type(version) is not int or version != self._version:
            given = "is missing" if version is None else f"{shown(version)} is not {self._version}"
            fault = f"{where}: {placed('schema_version', given)}"
            raise self._error(f"{fault}{self._cure(where)}")
        return read

    def _of_other_kind(self, value: object) -> str:
        """What a file lacks that is of another kind; empty if it has all keys but one or two."""
        needed = required_keys(self._form)
        missing = [key for key in needed if not isinstance(value, dict) or key not in value]
        if len(missing) < _FEW_KEYS:
            return ""
        return f"is no {self._noun}, as {', '.join(missing[:_FEW_KEYS])} are missing"

    def _of_newer(self, where: str, sign: str) -> Exception:
        return self._newer(
            f"{where}: written by a newer ddlbench ({sign} {self._version}); update this "
            f"checkout, or {self._what_instead(where)}"
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
            reason = unplaced(path, file_fault(error) or str(error))  # with its cure
            raise self._error(f"{path}: not a readable {self._noun}: {reason}") from error
        except UnreadableJson as error:
            fault = f"not a readable {self._noun}: {error}{self._cure(str(path))}"
            raise self._error(f"{path}: {fault}") from error
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
