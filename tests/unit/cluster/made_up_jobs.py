"""Jobs, rules and a scheduler that a test makes up."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

CELL = "mnist/vgg11/ddp/2x2/batch_size=8/rep0"
BEGAN_S = 1_000_000
POLICY = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"


class Resources(dict[str, Any]):
    __getattr__ = dict.get


class RuleJob:
    """What the executor asks of a job of one rule."""

    def __init__(self, rule: str, folder: Path, **resources: Any) -> None:
        self.rule = SimpleNamespace(name=rule)
        self.name, self.jobid, self.attempt, self.restart_times = rule, 7, 1, 1
        self.output = [str(folder / ("result.json" if rule == "cell" else "staged.json"))]
        self.log = [str(folder / f"{rule}.log")]
        self.wildcards = SimpleNamespace(cell=CELL)
        self.resources = Resources(mem_mb=1, runtime=1, **resources)
        self.errors: list[tuple[str | None, dict[str, Any]]] = []

    def is_group(self) -> bool:
        return False

    def register(self, external_jobid: str | None = None) -> None:
        pass

    def log_error(self, msg: str | None = None, **details: Any) -> None:
        self.errors.append((msg, details))


class Group:
    """A cell as a group of rules; it has no rule, as Snakemake's has none."""

    def __init__(self, folder: Path) -> None:
        self.jobs = [RuleJob("cell", folder)]
        self.name, self.jobid, self.attempt, self.restart_times = "cell_with_data", 8, 1, 1
        self.resources = Resources(mem_mb=1, runtime=1)
        self.errors: list[tuple[str | None, dict[str, Any]]] = []

    def __iter__(self) -> Iterator[RuleJob]:
        return iter(self.jobs)

    is_group = lambda self: True  # noqa: E731
    register = RuleJob.register
    log_error = RuleJob.log_error


class Scheduler:
    """Notes what became of each job."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self.failed: list[Any] = []

    def finish_callback(self, job: Any) -> None:
        self.done.append(job)

    def error_callback(self, job: Any) -> None:
        self.failed.append(job)

    def submit_callback(self, job: Any) -> None:
        pass


class Logger:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.infos: list[str] = []

    def warning(self, text: str) -> None:
        self.lines.append(text)

    def info(self, text: str) -> None:
        self.infos.append(text)

    def __getattr__(self, _level: str) -> Any:
        return lambda *_, **__: None


def submitted(executor, job: Any, job_id: str = "12") -> SubmittedJobInfo:
    """A job that SLURM has taken."""
    info = SubmittedJobInfo(job, job_id, {"slurm_logfile": executor.slurm_logdir / "12.log"})
    executor.report_job_submission(info)
    return info


def log_of(executor, text: str) -> None:
    executor.slurm_logdir.mkdir()
    (executor.slurm_logdir / "12.log").write_text(text)


def write_result(folder: Path, changed_s: float) -> None:
    (folder / "result.json").write_text("{}")
    os.utime(folder / "result.json", (changed_s, changed_s))
