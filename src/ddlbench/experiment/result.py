"""result.json: the one file a finished cell leaves, and its schema.

``ok``, ``out_of_memory``, ``unsupported`` and ``timeout`` are results: the cell is done, and a
figure shows why there is no bar. A crash is none: the job fails and only that cell runs again.
Results are JSON and are only ever parsed, never unpickled or executed.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from ddlbench.experiment.atomic import write_json

__all__ = ["SCHEMA_VERSION", "STATUSES", "InvalidResult", "read_result", "write_result"]

SCHEMA_VERSION = 1
STATUSES = ("ok", "out_of_memory", "unsupported", "timeout", "failed")


class InvalidResult(ValueError):  # noqa: N818 - a state of a file, shown as such
    """A result file that is truncated, of another version, or not what the schema says."""


@cache
def _validator() -> Draft202012Validator:
    text = files("ddlbench.experiment").joinpath("result.schema.json").read_text("utf-8")
    return Draft202012Validator(json.loads(text))


def _check(result: Any, where: str) -> None:
    error = best_match(_validator().iter_errors(result))
    if error is not None:
        place = ".".join(str(part) for part in error.absolute_path) or "the file"
        raise InvalidResult(f"{where}: {place}: {error.message}")


def write_result(path: Path, result: dict[str, Any]) -> None:
    """Validate and write a result atomically.

    Raises:
        InvalidResult: the result does not fit the schema.
    """
    _check(result, str(path))
    write_json(path, result)


def read_result(path: Path) -> dict[str, Any]:
    """Read and validate a result.

    Raises:
        InvalidResult: the file is no result of this schema version.
    """
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InvalidResult(f"{path}: not a readable result: {error}") from error
    _check(result, str(path))
    return result
