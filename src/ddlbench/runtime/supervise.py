"""One cell from start to result: claim it, launch its ranks, watch them, gather their reports.

::

    claim -> plan.json -> launch -> watch -> reports -> result.json  ok, out_of_memory,
      |                                                              unsupported, timeout
      |                                              -> failure.json and CellFailed: a crash is no
      |                                                              result, the cell runs again
      '-> another job measures the cell: adopt its result
"""

from __future__ import annotations

import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from ddlbench.common.document import UnreadableJson, write_json, write_text
from ddlbench.common.errors import file_fault, signal_name
from ddlbench.common.owner import Owner, Writer
from ddlbench.experiment.cell import Cell, short_names
from ddlbench.experiment.result import Result, write_result
from ddlbench.experiment.site import Site
from ddlbench.experiment.status import FAILURE_FILE, Failure, Reason, Status, reason_of
from ddlbench.planning.data_parallel import data_parallel_placement
from ddlbench.planning.memory import why_too_large
from ddlbench.planning.pipeline_stages import TooFewBlocks
from ddlbench.planning.planner import StrategyPlan, make_plan, measured_digests, request_of
from ddlbench.planning.strategy import strategy_of
from ddlbench.runtime.checkpoint.store import Order, forget_checkpoints, restart_of
from ddlbench.runtime.fabric import Fabric, FabricUnfit, FabricUnsupported, fabric_up, fault_of
from ddlbench.runtime.job import Job, kept_folder, log_file, report_file, why_not_started
from ddlbench.runtime.launch import Step, device_variables, python_command
from ddlbench.runtime.lease import (
    Claim,
    claim,
    copy_kept,
    forget_queued,
    heartbeat,
    holds,
    keep,
    release,
    this_supervisor,
)
from ddlbench.runtime.rank_report import RankFailure, RankReport, cause_of, read_rank_report
from ddlbench.runtime.result import assemble, partitions_csv, steps_csv, trace_json
from ddlbench.runtime.watchdog import Outcome, watch
from ddlbench.slurm import jobs
from ddlbench.slurm.jobs import why_nodes_failed, words_of_tasks

# Ranks wait for each other longer than a cell may last, so that only the supervisor ends it.
_LONGER_S = 600.0

_Reports = Sequence[RankReport | RankFailure]


class CellFailed(RuntimeError):  # noqa: N818 - what happened to the cell
    """The cell crashed and has no result; it runs again next time."""


def run_cell(
    cell: Cell,
    site: Site,
    cell_folder: Path,
    staging: dict[str, Any] | None = None,
    attempt: int = 1,
) -> Result | None:
    """Measure a cell and write its result, unless another job does so or has just done so.

    Args:
        cell: what to measure.
        site: where.
        cell_folder: gets plan.json, log.txt, steps.csv; partitions.csv and trace.json if there is
            data for them; and, last, result.json.
        staging: report of :func:`~ddlbench.runtime.staging.stage_cell`.
        attempt: 2 or more if the workflow itself repeats a failed cell. Such a repeat measures
            only what the infrastructure broke, as a program that crashed would crash again.

    Returns:
        the result; None if another job has measured the cell with a newer ddlbench.

    Raises:
        CellFailed: a rank crashed; failure.json and log.txt say why.
    """
    run = _Run(cell, site, cell_folder, staging, Writer.here(attempt), this_supervisor())
    run.refuse_to_repeat()
    with _file_fault_named(cell, cell_folder), ExitStack() as at_end:
        at_end.callback(forget_queued, cell_folder, run.me)
        claimed = claim(cell_folder, run.me)
        if claimed.kind == "adopted":
            copy_kept(cell_folder)
            return claimed.result
        # The lease is released while the heart still beats: it counts as left over without.
        with heartbeat(cell_folder):
            try:
                return run.finish(claimed)
            except _Terminated as ended:
                run.fail(Reason("supervisor_ended", f"its supervisor was ended by {ended}"))
            finally:
                release(cell_folder, run.me)


class _Terminated(Exception):  # noqa: N818 - not an error
    """The supervisor got a signal, which is named, that asks it to end."""


@contextmanager
def _terminable(me: Owner) -> Iterator[None]:
    """SIGTERM, or a closed terminal, ends the ranks and the cell, in this order.

    Not in a SLURM job: there SLURM says why it ended the job, and the lease stays to be judged.
    """
    if me.job_id is not None or threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _frame: object) -> NoReturn:
        raise _Terminated(signal.Signals(number).name)

    # What is ignored stays so: `nohup` ignores SIGHUP.
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    changed = [number for number, handler in before.items() if handler == signal.SIG_DFL]
    for number in changed:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in changed:
            signal.signal(number, before[number])


@contextmanager
def _file_fault_named(cell: Cell, cell_folder: Path) -> Iterator[None]:
    """Raise CellFailed where the disk is full, or a file cannot be written or read."""
    try:
        yield
    except OSError as error:
        sentence = file_fault(error, cell_folder)
        if sentence is None:
            raise
        raise CellFailed(f"{cell.id}: {sentence}") from error


@dataclass(frozen=True)
class _Run:
    """One run of a cell; ``me`` holds its lease while it measures."""

    cell: Cell
    site: Site
    folder: Path
    staging: dict[str, Any] | None
    writer: Writer
    me: Owner

    def finish(self, claimed: Claim) -> Result:
        """Make and keep the result of the cell."""
        with _terminable(self.me):
            if claimed.kind == "concluded":  # its supervisor was ended together with its job
                assert claimed.status is not None
                plan = make_plan(self.cell, self.site.name, self.site.accelerator)
                result = self._result(plan, claimed.status, claimed.reason)
            else:
                try:
                    result = self.measure()
                except TooFewBlocks as error:  # no profile existed when the matrix was read
                    strategy = strategy_of(self.cell.strategy, self.site.accelerator)
                    plan = StrategyPlan(self.cell, data_parallel_placement(self.cell), {}, strategy)
                    few = Reason("too_few_blocks", str(error))
                    result = self._result(plan, Status.UNSUPPORTED, few)
            keep(self.folder, result)
            write_result(self.folder / "result.json", result)
            forget_checkpoints(self.cell, self.site, self.folder, result.status)
        return result

    def _result(
        self,
        plan: StrategyPlan,
        status: Status,
        reason: Reason | str | None,
        reports: _Reports = (),
        **further: Any,
    ) -> Result:
        given = {"reports": reports, "staging": self.staging, **further}
        return assemble(plan, self.site, status, reason, **given)

    def measure(self) -> Result:
        """Measure the cell, once more from its start if a checkpoint cannot be used."""
        while True:
            result = self._measure_once()
            if result is not None:
                return result

    def _measure_once(self) -> Result | None:
        """The result; None if a rank refused its checkpoint, of which none is left then."""
        started = time.monotonic()
        cell, site = self.cell, self.site
        measured = measured_digests(cell, site.name)
        plan = make_plan(cell, site.name, site.accelerator)
        (self.folder / FAILURE_FILE).unlink(missing_ok=True)
        write_json(self.folder / "plan.json", plan.to_dict())
        too_large = why_too_large(plan, site)
        if too_large is not None:  # the profile did not exist yet when the matrix was read
            return self._result(plan, Status.UNSUPPORTED, too_large)
        if (broken := why_not_started(plan)) is not None:
            self.fail(broken)
        for left_over in self.folder.glob(".run-*"):
            shutil.rmtree(left_over, ignore_errors=True)
        run_dir = self.folder / f".run-{time.time_ns()}"
        run_dir.mkdir()
        digest = None if self.staging is None else self.staging["digest"]
        restart = restart_of(plan, site, self.folder, digest, run_dir.name.removeprefix(".run-"))
        outcome = Outcome()
        reports: list[RankReport | RankFailure] = []
        link: dict[str, Any] | None = None
        reason: Reason | None
        try:
            with fabric_up(site, cell.fabric, (cell.nodes, cell.devices_per_node)) as fabric:
                outcome = _launch_and_watch(plan, site, run_dir, fabric, restart.order)
                link = fabric.report()
            reports = _read_reports(plan, run_dir)
            status, reason = _judge(plan, reports, outcome, link)
            if fault_of(link) is not None:  # the checkpoints hold steps over the unfit link
                forget_checkpoints(cell, site, self.folder, Status.FAILED)
        except FabricUnsupported as error:
            status, reason = Status.UNSUPPORTED, reason_of(error, "emulation_unavailable")
        except FabricUnfit as error:
            status, reason = Status.FAILED, reason_of(error, "link_unfit")
        finally:
            if holds(self.folder, self.me):
                self._keep_files(run_dir)
            shutil.rmtree(run_dir, ignore_errors=True)
        if not holds(self.folder, self.me):  # this machine slept, or its file system did not answer
            raise CellFailed(
                f"{cell.id}: this run gave no sign of life for too long, and another one measures "
                "the cell now; run again to adopt its result"
            )
        if restart.was_refused(reports):
            return None
        tail = () if status == Status.OK else tuple(outcome.tail)
        if status == Status.FAILED:
            assert reason is not None
            self.fail(reason, reports, tail=tail, link=link)
        result = self._result(
            plan,
            status,
            reason,
            reports,
            link=link,
            earlier=restart.earlier,
            measured=measured,
            suspended=jobs.description(self.me.job_id),
        )
        if status == Status.OK:
            self._write_tables(reports)
        return replace(result, log_tail=tail, elapsed_s=time.monotonic() - started)

    def _keep_files(self, run_dir: Path) -> None:
        """Copy the log, and what the strategy wrote for readers, beside the result."""
        written = [log_file(run_dir), *kept_folder(run_dir).glob("*")]
        for path in filter(Path.is_file, written):
            shutil.copyfile(path, self.folder / path.name)

    def _write_tables(self, reports: _Reports) -> None:
        done = [report for report in reports if isinstance(report, RankReport)]
        write_text(self.folder / "steps.csv", steps_csv(done))
        tables = {"partitions.csv": partitions_csv(done), "trace.json": trace_json(done)}
        for name, text in tables.items():
            if text:
                write_text(self.folder / name, text)

    def fail(
        self,
        reason: Reason,
        reports: _Reports = (),
        *,
        tail: Sequence[str] = (),
        link: dict[str, Any] | None = None,
    ) -> NoReturn:
        """Write failure.json and end the run."""
        cause = cause_of([r for r in _failures(reports) if r.status == Status.FAILED])
        Failure(self.cell.id, cause, reason, self.writer, log_tail=tail, link=link).write(
            self.folder
        )
        log = self.folder / "log.txt"
        place = f"; the log is {log}" if log.is_file() else ""
        raise CellFailed(f"{self.cell.id}: {reason}{place}")

    def refuse_to_repeat(self) -> None:
        """End a repeat of what a program broke; an earlier run's failure is none of ours."""
        try:
            failure = Failure.read(self.folder)
        except UnreadableJson:  # it says nothing
            return
        if failure is None or not self.writer.comes_after(failure.writer):
            return
        if failure.cause == "program":
            sentence = f"{failure.reason.removesuffix(_NO_REPEAT)}{_NO_REPEAT}"
            reason = Reason(failure.reason.code, sentence)
            replace(failure, reason=reason, writer=self.writer).write(self.folder)
            raise CellFailed(f"{self.cell.id}: {reason}")


_NO_REPEAT = " (not tried again: it would crash again)"


def _launch_and_watch(
    plan: StrategyPlan, site: Site, run_dir: Path, fabric: Fabric, checkpoints: Order | None
) -> Outcome:
    cell = plan.cell
    rendezvous = fabric.rendezvous()
    job = Job(
        plan=plan,
        device_kind=site.device,
        scratch=site.scratch,
        data=request_of(cell, site),
        interface=rendezvous.interface,
        rendezvous_host=rendezvous.host,
        rendezvous_port=rendezvous.port,
        run_dir=run_dir.resolve(),
        patience_s=site.cell_timeout_s + _LONGER_S,
        checkpoints=checkpoints,
    )
    job_path = job.save()
    step = Step(
        command=tuple(python_command(site, "-m", "ddlbench.runtime.rank_guard", str(job_path))),
        processes=plan.processes,
        nodes=cell.nodes,
        devices_per_node=cell.devices_per_node,
        threads=cell.threads_per_device,
        interface=rendezvous.interface,
        variables=device_variables(site),
        starter=_starter(site, str(job_path)),
    )
    return watch(
        fabric.launch(step, rendezvous),
        log_file(run_dir),
        # On a cluster each log is of one cell, and its reader looks for the path.
        cell.id if site.launcher == "slurm" else short_names([cell])[0],
        timeout_s=site.cell_timeout_s,
        hang_timeout_s=site.hang_timeout_s,
    )


def _starter(site: Site, job_path: str) -> tuple[str, ...]:
    """The command that forks the ranks of a node; none where forks may fail.

    CUDA was not tried with them, a container may number its processes in its own way, and commands
    of a site may depend on the rank.
    """
    plain = site.device == "cpu" and site.container is None and not site.setup
    if not (plain and sys.platform.startswith("linux")):
        return ()
    return tuple(python_command(site, "-m", "ddlbench.runtime.node_starter", job_path))


def _read_reports(plan: StrategyPlan, run_dir: Path) -> list[RankReport | RankFailure]:
    """Reports of the ranks, the earliest first; a rank whose node was lost has none."""
    paths = [report_file(run_dir, process.rank) for process in plan.processes]
    written = sorted((p for p in paths if p.is_file()), key=lambda p: p.stat().st_mtime_ns)
    return [read_rank_report(path) for path in written]


def _judge(
    plan: StrategyPlan, reports: _Reports, outcome: Outcome, link: dict[str, Any] | None
) -> tuple[Status, Reason | None]:
    """Status and reason of the cell; a measurement over an unfit link is a failure."""
    status, reason = _ending(plan, reports, outcome)
    fault = fault_of(link)
    if fault is not None and status in (Status.OK, Status.TIMEOUT):
        return Status.FAILED, fault
    return status, reason


def _ending(
    plan: StrategyPlan, reports: _Reports, outcome: Outcome
) -> tuple[Status, Reason | None]:
    """Whether all ranks finished, and if not, why; a cause goes before its consequences."""
    failures = _failures(reports)
    if len(reports) - len(failures) == plan.world_size:
        return Status.OK, None  # the measurement is complete, however the ranks ended after it
    for wanted in (Status.OUT_OF_MEMORY, Status.UNSUPPORTED):
        for failure in failures:
            if failure.status == wanted:
                return wanted, failure.of_cell()
    if outcome.timed_out:
        return Status.TIMEOUT, Reason("time_limit", "the cell ran into the site's cell_timeout_s")
    if outcome.hung_s is not None:
        return Status.FAILED, Reason(
            "hang",
            f"no step finished for {outcome.hung_s:.0f} s (hang_timeout_s); "
            "log.txt shows where every rank was",
        )
    missing = {p.rank for p in plan.processes} - {report.rank for report in reports}
    return Status.FAILED, _first_cause(failures, missing, outcome)


def _first_cause(failures: list[RankFailure], missing: set[int], outcome: Outcome) -> Reason:
    """What broke first: a killed rank breaks the others' connections, also if they report first.

    Failures are in the order of their reports. ``outcome`` tells who had reported before we ended
    the ranks that were left over by SIGTERM.
    """
    killed = [failure for failure in failures if failure.signal is not None]
    for failure in killed:
        if failure.signal != signal.SIGTERM or failure.rank in outcome.reported:
            return failure.of_cell()
    erred = [failure for failure in failures if failure.signal is None]
    causes = [failure for failure in erred if failure.reason_code != "connection_lost"]
    if missing and not causes:
        return _lost(min(missing), outcome)
    return (causes or erred or failures)[0].of_cell()


def _lost(rank: int, outcome: Outcome) -> Reason:
    """How its guard ended, and what srun and the rank wrote last, be it the cause or not."""
    code, log = outcome.guards_ended.get(rank), "\n".join(outcome.tail)
    lost = f"rank {rank} ended without a report"
    if code is not None and code < 0:
        name = signal_name(-code)
        return Reason("rank_lost", f"{lost}: signal {-code} ({name}) ended its guard")
    if code is not None:
        lost += f" (exit code {code})"
    words = words_of_tasks(log.replace(f"[{rank}] ", f"{rank}: "))
    last = why_nodes_failed(log) or words.get(rank, "")
    return Reason("rank_lost", lost + (f"; it wrote last: {last}" if last else ""))


def _failures(reports: _Reports) -> list[RankFailure]:
    return [report for report in reports if isinstance(report, RankFailure)]
