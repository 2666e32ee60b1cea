"""result.json: the one file a finished cell leaves, and its schema.

``ok``, ``out_of_memory``, ``unsupported`` and ``timeout`` are results: the cell is done, and a
figure shows why there is no bar. A crash is none: the job fails and only that cell runs again.
Results are JSON and are only ever parsed, never unpickled or executed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddlbench.experiment.document import Document
from ddlbench.experiment.json_form import SameKeys
from ddlbench.experiment.result_parts import (
    Checkpointing,
    Communication,
    InputDigests,
    Link,
    Loss,
    Provenance,
    RankEntry,
    Staging,
    Timing,
)
from ddlbench.experiment.status import Status

__all__ = [
    "SCHEMA_VERSION",
    "STATUSES",
    "InvalidResult",
    "Result",
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


@dataclass(frozen=True, kw_only=True)
class Result(SameKeys):
    """The content of result.json.

    Args:
        status: ok, out_of_memory, unsupported, timeout or failed.
        reason: why it is not ok; None where it is.
        reason_code: its code; None also in results of earlier versions.
        cell: all fields of the cell; see :meth:`ddlbench.experiment.cell.Cell.from_dict`.
        plan_details: what the strategy tells of its plan; each strategy has its own.
        ranks: of those that left a report.
        timing, loss: None where the cell is not ok.
        communication: None where not every rank counted its bytes.
        link: None where the network was the site's own.
        checkpointing: None for a cell without checkpoints.
    """

    schema_version: int = SCHEMA_VERSION
    status: Status
    reason: str | None
    reason_code: str | None = None
    site: str
    cell_id: str
    cell: Mapping[str, Any]
    inputs: InputDigests
    processes: int
    devices: int
    workers: int
    device_kind: str
    update_semantics: str
    notes: tuple[str, ...]
    plan_details: Mapping[str, Any]
    ranks: tuple[RankEntry, ...]
    timing: Timing | None
    staging: Staging | None
    loss: Loss | None
    communication: Communication | None
    link: Link | None = None
    checkpointing: Checkpointing | None = None
    log_tail: tuple[str, ...]
    elapsed_s: float
    provenance: Provenance


def write_result(path: Path, result: Result) -> None:
    """Validate and write a result atomically.

    Raises:
        InvalidResult: the result does not fit the schema.
    """
    _DOCUMENT.write(path, result.to_dict())


def read_result(path: Path) -> Result:
    """Read and validate a result.

    Raises:
        InvalidResult: the file is no result of this schema version.
    """
    return Result.from_dict(_DOCUMENT.read(path))


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
