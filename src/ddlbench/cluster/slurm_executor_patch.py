"""Work around a bug of Snakemake's SLURM executor.

For a cancelled job sacct writes ``CANCELLED by 1000``. The executor (seen in 2.8.0) knows only
``CANCELLED`` and would wait for such a job forever.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Any

_EXECUTOR = "snakemake_executor_plugin_slurm"
_Answer = tuple[dict[str, str] | None, float | None]


def mend_slurm_executor() -> None:
    """Have the executor read job states as single words; does nothing if it is not loaded."""
    executor = sys.modules.get(_EXECUTOR)
    query = getattr(executor, "query_job_status", None)
    if executor is None or query is None or getattr(query, "one_word", False):
        return
    executor.query_job_status = one_word_states(query)  # type: ignore[attr-defined]


def one_word_states(
    query: Callable[..., Awaitable[_Answer]],
) -> Callable[..., Awaitable[_Answer]]:
    """``query`` with states cut after their first word."""

    async def query_job_status(*arguments: Any) -> _Answer:
        states, seconds = await query(*arguments)
        if states is not None:
            states = {job: state.split(" ", 1)[0] for job, state in states.items()}
        return states, seconds

    query_job_status.one_word = True  # type: ignore[attr-defined]
    return query_job_status
