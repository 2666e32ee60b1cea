"""What a test bed started, kept on disk so that another process can end it."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .errors import TestBedError
from .layout import HOME
from .options import Options
from .processes import Identity, alive, identify

_FILE = HOME / "state.json"
_LOCK = Path("/run/lock/ddlbench-testbed")


@dataclass
class State:
    """Contents of the state file.

    Attributes:
        options: what was asked for.
        complete: whether ``up`` came to its end.
        owner: the process whose ``with`` block the bed belongs to; None: a person's, stays.
        processes: what was started, by name, in the order of starting.
        folders: folders made outside the bed's own.
        cgroups: roots of the bed's control groups.
    """

    options: Options
    complete: bool = False
    owner: Identity | None = None
    processes: dict[str, Identity] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)
    cgroups: list[str] = field(default_factory=list)

    @staticmethod
    def load() -> State | None:
        """The state of the bed of this machine, if there is one."""
        try:
            values: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        owner = values["owner"]
        values["options"] = Options(**values["options"])
        values["owner"] = None if owner is None else Identity(**owner)
        values["processes"] = {
            name: Identity(**fields) for name, fields in values["processes"].items()
        }
        return State(**values)

    def save(self) -> None:
        """Write it, whole or not at all."""
        HOME.mkdir(parents=True, exist_ok=True)
        new = _FILE.with_suffix(".new")
        new.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")
        new.replace(_FILE)

    @property
    def healthy(self) -> bool:
        """Complete, and everything that was started still runs."""
        return self.complete and all(alive(process) for process in self.processes.values())

    @property
    def orphaned(self) -> bool:
        """Whether the bed belonged to a process that is gone."""
        return self.owner is not None and not alive(self.owner)

    @property
    def someone_elses(self) -> bool:
        """Whether another living process holds the bed."""
        return self.owner is not None and alive(self.owner) and self.owner != identify(os.getpid())


@contextmanager
def only_one() -> Iterator[None]:
    """Let one process at a time raise or end the bed.

    Raises:
        TestBedError: another one is at it.
    """
    _LOCK.parent.mkdir(parents=True, exist_ok=True)
    with _LOCK.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise TestBedError(
                "another process is starting or stopping the test bed; try again when it is done"
            ) from None
        try:
            yield
        finally:
            _LOCK.unlink(missing_ok=True)
