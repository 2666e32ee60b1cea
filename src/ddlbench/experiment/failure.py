"""``failure.json`` of a cell: why it has no result, and who wrote that.

A failure is no result: the cell runs again. It is written by the cell's supervisor, by its staging,
or on the login node if the job broke before either could.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ddlbench.common.document import write_json
from ddlbench.common.run_id import Writer
from ddlbench.common.text import read_object
from ddlbench.experiment.status import Reason, Status

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
        """Write it into the cell's folder, in place of an earlier one."""
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
