"""Snakemake's logger plugin ``ddlbench``: one line for each cell instead of eight.

Snakemake finds it by its name (``logger: ddlbench`` in a profile). Its full log is unchanged and
lies in ``.snakemake/log``. What the lines say is decided by :mod:`ddlbench.report.run_screen`.
"""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from snakemake.logging import DefaultFilter, DefaultFormatter
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

from ddlbench.report import run_screen
from ddlbench.report.run_screen import RunScreen

_CTRL_C = "Terminating processes on user request"
_SIGTERM = "Will exit after finishing currently running jobs"
# What Snakemake says of itself between jobs.
_CHATTER = (
    "--keep-incomplete mode is set",
    "Assuming unrestricted shared filesystem usage",
    "Building DAG of jobs",
    "Complete log",
    "Conda environments",
    "Elapsed time",
    "Exception in run_job",
    "Execute ",
    "Exiting because a job execution failed",
    "Failed because ",
    "host: ",
    "Job failed, going on with independent jobs",
    "Removing output files of failed job",
    "Removing temporary output",
    "Select jobs to execute",
    "No job memory information",
    "SLURM run ID",
    "Shutting down, this might take some time",
    "Submitted ",
    _CTRL_C,
    "Trying to restart job",
    "Using profile",
    "Using shell",
    "Would remove temporary output",
)
_CHATTER_WITHIN = ("\nCalledProcessError in file", "has been submitted with SLURM jobid")


def _reason_in(values: Mapping[str, Any]) -> dict[str, str | None]:
    """Why a submitted job failed, and where more of it stands; see cluster/executor.py."""
    return {"reason": values.get("reason"), "log": values.get("reason_log")}


class LogHandler(LogHandlerBase):
    """Writes a run's events to the screen."""

    @property
    def writes_to_stream(self) -> bool:  # instead of Snakemake's own screen
        return True

    @property
    def writes_to_file(self) -> bool:
        return False

    @property
    def has_filter(self) -> bool:
        return True

    @property
    def has_formatter(self) -> bool:
        return True

    @property
    def needs_rulegraph(self) -> bool:
        return False

    @cached_property
    def _screen(self) -> RunScreen:
        return RunScreen(shutil.get_terminal_size().columns, dry_run=self.common_settings.dryrun)

    @cached_property
    def _filter(self) -> DefaultFilter:
        settings = self.common_settings
        return DefaultFilter(
            settings.quiet,
            getattr(settings, "debug_dag", False),
            settings.verbose,
            settings.dryrun,
            settings.printshellcmds,
        )

    def emit(self, record: logging.LogRecord) -> None:
        """Print what a record comes to; most come to nothing."""
        try:
            lines = self._lines(record)
        except Exception:
            self.handleError(record)
            return
        for line in lines:
            # Written at once: another thread may write between a line and its end.
            stream = sys.stdout if self.common_settings.stdout else sys.stderr
            print(f"{line}\n", end="", file=stream, flush=True)

    def _lines(self, record: logging.LogRecord) -> list[str]:
        screen, values = self._screen, vars(record)
        lines: list[str] = []
        match values.get("event"):
            case LogEvent.RUN_INFO:
                lines = screen.planned(values["stats"], str(record.msg))
            case LogEvent.JOB_INFO:
                lines = screen.started(values, record.created)
            case LogEvent.JOB_FINISHED:
                lines = screen.finished(values["job_id"], record.created)
            case LogEvent.JOB_ERROR:
                lines = screen.failed([values], **_reason_in(values.get("aux") or {}))
            case LogEvent.GROUP_ERROR:
                lines = screen.failed(values["job_error_info"], **_reason_in(values))
            case None | LogEvent.SHELLCMD | LogEvent.ERROR:
                lines = self._plain(record)
        return lines

    def _plain(self, record: logging.LogRecord) -> list[str]:
        """A message without an event, as Snakemake writes it, unless it is chatter."""
        text = DefaultFormatter(self.common_settings.quiet).format(record)
        if text.startswith(_CTRL_C):
            run_screen.stop("Ctrl-C")
        if text.startswith(_SIGTERM):
            return self._screen.waits()
        # The event of the failed job follows, and says it in a sentence.
        chatter = text.startswith(_CHATTER) or any(words in text for words in _CHATTER_WITHIN)
        wanted = self.common_settings.verbose or not chatter
        if text.strip().endswith("At least one job did not complete successfully."):
            text = run_screen.ending()
        return [text] if wanted and text.strip() and self._filter.filter(record) else []
