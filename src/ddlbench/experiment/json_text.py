"""The one reader of JSON files: what a damaged or hostile file holds is one kind of error.

Python's own parser reads NaN and infinity, which JSON has not, makes infinity of 1e999, takes the
last of two equal keys, and ends in other errors for lists within lists by the thousand and for
numbers of thousands of digits.
"""

from __future__ import annotations

import json
import math
import stat
from pathlib import Path
from typing import Any

from ddlbench.experiment.errors import printable, shown

MOST_BYTES = 256 * 2**20
MOST_DEPTH = 50
MOST_DIGITS = 60
_LONGEST_MESSAGE = 200
_CONTAINERS = (dict, list)
_INFINITE = (math.inf, -math.inf)


class UnreadableJson(ValueError):  # noqa: N818 - a state of a file, shown as such
    """A text that is no JSON, or more than a reader should bear."""


def parse_json(text: str | bytes) -> Any:
    """The value of a text.

    Raises:
        UnreadableJson: it is no JSON, is too deep, writes a key twice, or has NaN, infinity or a
            number of more than :data:`MOST_DIGITS` characters.
    """
    try:
        value = json.loads(
            text,
            parse_constant=_not_finite,
            parse_int=_integer,
            parse_float=_number,
            object_pairs_hook=_object,
        )
    except UnreadableJson:
        raise
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:  # no JSON, or no UTF-8
        raise UnreadableJson(_in_one_line(error)) from None
    if _openings(text) > MOST_DEPTH and _depth(value) > MOST_DEPTH:
        raise _too_deep()
    return value


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
    if len(digits) > MOST_DIGITS:
        raise _too_long(digits)
    return int(digits)


def _number(digits: str) -> float:
    if len(digits) > MOST_DIGITS:
        raise _too_long(digits)
    value = float(digits)
    if value in _INFINITE:
        raise UnreadableJson(f"{digits} is larger than any number")
    return value


def _too_long(digits: str) -> UnreadableJson:
    return UnreadableJson(f"a number of {len(digits)} characters is longer than {MOST_DIGITS}")


def _not_finite(name: str) -> Any:
    raise UnreadableJson(f"{name} is no number of JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise UnreadableJson(f"the key {shown(twice)} is written twice")
    return value


def _openings(text: str | bytes) -> int:
    """At least as many as its levels, and soon counted."""
    if isinstance(text, str):
        return text.count("{") + text.count("[")
    return text.count(b"{") + text.count(b"[")


def _depth(value: Any) -> int:
    """Levels of lists and objects in each other; stops counting where there are too many."""
    depth, level = 0, [value] if isinstance(value, _CONTAINERS) else []
    while level and depth <= MOST_DEPTH:
        depth += 1
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, _CONTAINERS)
        ]
    return depth


def _too_deep() -> UnreadableJson:
    return UnreadableJson(f"its lists and objects lie more than {MOST_DEPTH} deep in each other")


def _in_one_line(error: ValueError) -> str:
    lines = printable(str(error)).splitlines()
    return lines[0][:_LONGEST_MESSAGE] if lines else type(error).__name__
