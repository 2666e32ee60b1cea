"""``snakemake`` that keeps asking SLURM every second: for jobs that take less than a minute.

Its SLURM executor waits ten seconds longer after each question without news, which is polite on a
cluster; here a job of 17 s would be seen to have ended after 39 s. Nothing else is changed.
"""

from __future__ import annotations

import sys

from snakemake.cli import main
from snakemake_executor_plugin_slurm import Executor

_SECONDS = 1


def _always(executor: Executor) -> int:
    return _SECONDS


def _ignore(executor: Executor, seconds: int) -> None:
    """The interval does not grow."""


if __name__ == "__main__":
    Executor.next_seconds_between_status_checks = property(_always, _ignore)
    sys.exit(main())
