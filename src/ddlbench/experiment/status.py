"""The status of a cell, and its reason: a sentence for people with a code for statistics.

::

    result.json    ok, out_of_memory, unsupported, timeout      the cell is done
    failure.json   failed                                       the cell runs again
    neither        not run; queued: a SLURM job waits for nodes; running; interrupted: its run is
                   gone; invalid: the file cannot be read; newer: a newer ddlbench wrote it

A failure is no result: the cell runs again. Its file says why, and who wrote that: the cell's
supervisor, its staging, or the login node if the job broke before either could.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from ddlbench.common.document import read_object, write_json
from ddlbench.common.errors import printable
from ddlbench.common.owner import Writer


class Status(StrEnum):
    """State of a cell; the first of several states is the gravest."""

    OUT_OF_MEMORY = "out_of_memory"
    TIMEOUT = "timeout"
    FAILED = "failed"
    INVALID = "invalid"
    NEWER = "newer"
    UNSUPPORTED = "unsupported"
    INTERRUPTED = "interrupted"
    RUNNING = "running"
    QUEUED = "queued"
    NOT_RUN = "not run"
    OK = "ok"

    @property
    def is_result(self) -> bool:
        """Whether a cell in this state is done and leaves a result.json."""
        return self in (Status.OK, Status.OUT_OF_MEMORY, Status.UNSUPPORTED, Status.TIMEOUT)


class Reason(str):
    """Why a cell is in its state: a sentence with its code.

    docs/reference/reasons.csv lists the codes; a strategy of another package may have others. The
    sentence is :func:`printable`, as it may name a file of the user.
    """

    __slots__ = ("code",)
    code: str

    def __new__(cls, code: str, sentence: str) -> Reason:
        reason = super().__new__(cls, printable(sentence))
        reason.code = code
        return reason

    def __reduce__(self) -> tuple[type[Reason], tuple[str, str]]:
        return Reason, (self.code, str(self))


def code_of(reason: str | None) -> str:
    """The code of a reason: "unsupported" for a plain sentence, and empty without a reason."""
    if not reason:
        return ""
    return reason.code if isinstance(reason, Reason) else "unsupported"


def reason_code(reason: str | None, status: str) -> str | None:
    """The code of a reason; None when ok, the status itself for a plain sentence."""
    if status == Status.OK:
        return None
    return reason.code if isinstance(reason, Reason) else str(status)


def reason_of(error: BaseException, default_code: str) -> Reason:
    """The Reason of an exception, else its text with the default code."""
    if error.args and isinstance(error.args[0], Reason):
        return error.args[0]
    return Reason(default_code, str(error))


FAILURE_FILE = "failure.json"

Cause = Literal["program", "infrastructure"]


@dataclass(frozen=True)
class Failure:
    """Why a cell failed.

    Args:
        cause: a program that crashed would crash again; what the infrastructure broke is repeated.
        reason: sentence with its code.
        writer: the job that failed.
        log_tail: last lines of its output.
        link: report of an emulated fabric.
    """

    cell_id: str
    cause: Cause
    reason: Reason
    writer: Writer | None
    log_tail: Sequence[str] = ()
    link: dict[str, Any] | None = None

    def write(self, cell_folder: Path) -> None:
        document = {
            "status": Status.FAILED,
            "cause": self.cause,
            "reason": self.reason,
            "reason_code": self.reason.code,
            "log_tail": list(self.log_tail),
            "cell_id": self.cell_id,
            "link": self.link,
            "writer": None if self.writer is None else self.writer.to_dict(),
        }
        write_json(cell_folder / FAILURE_FILE, document)

    @classmethod
    def read(cls, cell_folder: Path) -> Failure | None:
        """The failure in a cell's folder; None without one.

        Raises:
            UnreadableJson: the file is damaged.
        """
        try:
            document = read_object(cell_folder / FAILURE_FILE)
        except OSError:
            return None
        code = str(document.get("reason_code", Status.FAILED))
        tail, link = document.get("log_tail"), document.get("link")
        return cls(
            cell_id=str(document.get("cell_id", "")),
            cause="program" if document.get("cause") == "program" else "infrastructure",
            reason=Reason(code, str(document.get("reason", "gives no reason"))),
            writer=Writer.of(document),
            log_tail=[str(line) for line in tail] if isinstance(tail, list) else (),
            link=link if isinstance(link, dict) else None,
        )
