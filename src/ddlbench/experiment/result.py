"""result.json: the one file a finished cell leaves, and its schema.

``ok``, ``out_of_memory``, ``unsupported`` and ``timeout`` are results: the cell is done, and a
figure shows why there is no bar. A crash is none: the job fails and only that cell runs again.
Results are JSON and are only ever parsed, never unpickled or executed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ddlbench.experiment.document import Document
from ddlbench.experiment.status import Status

__all__ = [
    "SCHEMA_VERSION",
    "STATUSES",
    "InvalidResult",
    "put_aside_if_broken",
    "read_result",
    "write_result",
]

SCHEMA_VERSION = 1
# What the schema lets a result.json say; a cell that failed has left a failure.json so far.
STATUSES = tuple(s for s in Status if s.is_result or s is Status.FAILED)


class InvalidResult(ValueError):  # noqa: N818 - a state of a file, shown as such
    """A result file that is truncated, of another version, or not what the schema says."""


_DOCUMENT = Document("result", "result", InvalidResult)


def write_result(path: Path, result: dict[str, Any]) -> None:
    """Validate and write a result atomically.

    Raises:
        InvalidResult: the result does not fit the schema.
    """
    _DOCUMENT.write(path, result)


def read_result(path: Path) -> dict[str, Any]:
    """Read and validate a result.

    Raises:
        InvalidResult: the file is no result of this schema version.
    """
    return _DOCUMENT.read(path)


def put_aside_if_broken(path: Path) -> bool:
    """Rename a result that is no whole JSON object to ``result.json.broken``.

    Results are written atomically, so only a failing disk or a hand truncates one. Its cell is
    then measured again, and the remains are kept. Cheap: the schema is checked by readers.
    """
    try:
        if isinstance(json.loads(path.read_bytes()), dict):
            return False
    except ValueError:
        pass
    except OSError:
        return False
    path.replace(path.with_name(f"{path.name}.broken"))
    return True
