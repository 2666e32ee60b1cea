"""Progress of a measurement of links: a line every ten seconds, and whenever a tool begins.

::

    rank 0        a marked line for each part     what it does, and the seconds that its tool needs
    rule links    a line every ten seconds        links default: FSDP of 2x4, 3 of 25   left   80 s

The lines go to the terminal of a run on this machine, and to the log of a SLURM job.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import TextIO

from ddlbench.common.quantities import duration_text
from ddlbench.common.screen import paragraph, shortened
from ddlbench.runtime.watchdog import MARK

_EVERY_S = 9.0  # the clock is looked at every half second, and a line must come within ten
_INDENT = " " * 8  # under the names of the run's table
_COLUMNS = 80
_LEFT = "   left "


def tell(doing: str, left_s: float) -> None:
    """Say what this process, rank 0 of a tool, does now, and the seconds until the tool ends."""
    print(MARK + json.dumps({"doing": doing, "left_s": left_s}), flush=True)


class LinksDisplay:
    """Shows what the tools tell, on standard error if no stream is given."""

    def __init__(
        self,
        title: str,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._title, self._stream, self._clock = title, stream or sys.stderr, clock
        self._doing, self._tool_s, self._later_s = "", 0.0, 0.0
        self._tool_seen_s, self._shown_s = clock(), 0.0

    def begin(self, doing: str, tool_s: float, later_s: float) -> None:
        """A tool begins, which takes ``tool_s``; what comes after it takes ``later_s``."""
        self._later_s = later_s
        self._now(doing, tool_s)
        self._show()

    def update(self, payload: str) -> None:
        """Take the content of a marked line; a malformed one is ignored."""
        try:
            state = json.loads(payload)
            self._now(str(state["doing"]), float(state["left_s"]))
        except (ValueError, KeyError, TypeError):
            return
        self.tick()

    def tick(self) -> None:
        if self._clock() - self._shown_s >= _EVERY_S:
            self._show()

    def say(self, sentence: str) -> None:
        """Show what the user should know at once."""
        lines = paragraph(f"{self._title}: {sentence}", indent=_INDENT)
        print("\n".join(lines), file=self._stream, flush=True)

    def close(self) -> None:
        """A tool has ended; the next may begin."""

    def _now(self, doing: str, tool_s: float) -> None:
        self._doing, self._tool_s, self._tool_seen_s = doing, tool_s, self._clock()

    def _show(self) -> None:
        self._shown_s = self._clock()
        tool_s = max(self._tool_s - (self._shown_s - self._tool_seen_s), 0.0)
        left = f"{_LEFT}{duration_text(round(tool_s + self._later_s)):>7}"
        room = _COLUMNS - len(_INDENT) - len(left)
        name = shortened(f"{self._title}: {self._doing}", room)
        print(f"{_INDENT}{name:{room}}{left}", file=self._stream, flush=True)
