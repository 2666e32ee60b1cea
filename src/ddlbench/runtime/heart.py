"""The heartbeat of a cell that is measured: other hosts see by it that its supervisor lives."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Self

from ddlbench.common.owner import HEARTBEAT

BEAT_S = 5.0


class Heart:
    """Touches the heartbeat of a cell's folder until the block ends.

    The lease must be released within the block: without a heartbeat it soon counts as left over.
    """

    def __init__(self, folder: Path, beat_s: float = BEAT_S) -> None:
        self._file, self._beat_s = folder / HEARTBEAT, beat_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._touch()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        with suppress(OSError):
            self._file.unlink(missing_ok=True)

    def _run(self) -> None:
        while not self._stop.wait(self._beat_s):
            self._touch()

    def _touch(self) -> None:
        with suppress(OSError):  # a full disk must not end a cell that would fit otherwise
            self._file.touch()
