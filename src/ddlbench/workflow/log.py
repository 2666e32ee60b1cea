"""The log of a rule: what failed, and the sentence that the user reads."""

from __future__ import annotations

import socket
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

from ddlbench.common.errors import ConfigError
from ddlbench.common.run_id import Writer
from ddlbench.common.screen import say_error
from ddlbench.experiment.paths import LOG_HEADING


@contextmanager
def logged(path: str, *explained: type[Exception], attempt: int = 1) -> Iterator[None]:
    """Keep the traceback of what fails in the rule's log, and tell the user one sentence.

    The first line of the log names the job and its attempt, as an earlier job's log may lie there.

    Args:
        path: the rule's log.
        explained: exceptions whose sentence says all; our own traceback would only hide it.
        attempt: of this job.
    """
    log = Path(path)
    now = datetime.now().isoformat(" ", "seconds")
    heading = f"{LOG_HEADING}{Writer.here(attempt)}, {socket.gethostname()}, {now}\n"
    _write_log(log, heading)
    try:
        yield
    except KeyboardInterrupt:
        _write_log(log, f"{heading}stopped by Ctrl-C\n")
        print("ddlbench: stopped by Ctrl-C", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        one_sentence = isinstance(error, (ConfigError, *explained))
        text = f"{error}\n" if one_sentence else traceback.format_exc()
        _write_log(log, heading + text)
        say_error(error)
        sys.exit(1)


def _write_log(log: Path, text: str) -> None:
    with suppress(OSError):  # a full disk must not hide what went wrong
        log.parent.mkdir(parents=True, exist_ok=True)
        # A file's name that is no UTF-8 may stand in it.
        log.write_text(text, encoding="utf-8", errors="backslashreplace")
