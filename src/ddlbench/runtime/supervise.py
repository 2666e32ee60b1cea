"""One cell from start to result: launch its ranks, watch them, gather what they report.

::

    plan.json -> launch -> lines of the ranks -> log.txt
                        -> first rank that fails: the others get a few seconds, then end
                        -> time limit: all end, the result is 'timeout'
    reports -> result.json (ok, out_of_memory, unsupported, timeout)
            -> failure.json and CellFailed: a crash is no result, the cell will run again
"""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ddlbench.experiment.atomic import write_json, write_text
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.result import SCHEMA_VERSION, write_result
from ddlbench.experiment.site import Site
from ddlbench.planning.data import request_of
from ddlbench.planning.plan import Plan, make_plan
from ddlbench.planning.strategy import strategy_of
from ddlbench.runtime import aggregate
from ddlbench.runtime.environment import driver_provenance
from ddlbench.runtime.job import Job, log_file, report_file
from ddlbench.runtime.launch import Launch, LocalLaunch, SrunLaunch
from ddlbench.runtime.network_address import address_of
from ddlbench.runtime.progress import MARK, Display
from ddlbench.runtime.rendezvous_port import listen

__all__ = ["CellFailed", "run_cell"]

_TAIL_LINES = 40
_FOLLOWERS_S = 5.0


class CellFailed(RuntimeError):  # noqa: N818 - what happened to the cell
    """The cell crashed: no result, it runs again next time."""


def run_cell(
    cell: Cell, site: Site, cell_folder: Path, staging: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Measure a cell and write its result.

    Args:
        cell: what to measure.
        site: where.
        cell_folder: gets plan.json, log.txt, steps.csv and, last, result.json.
        staging: what the staging of its dataset reported.

    Raises:
        CellFailed: a rank crashed; failure.json and log.txt say why.
    """
    started = time.monotonic()
    plan = make_plan(cell)
    cell_folder.mkdir(parents=True, exist_ok=True)
    (cell_folder / "failure.json").unlink(missing_ok=True)
    write_json(cell_folder / "plan.json", plan.to_dict())
    run_dir = cell_folder / f".run-{time.time_ns()}"
    run_dir.mkdir()
    try:
        outcome = _launch_and_watch(plan, site, run_dir)
        shutil.copyfile(log_file(run_dir), cell_folder / "log.txt")
        reports = _read_reports(plan, run_dir)
    finally:
        shutil.rmtree(run_dir, ignore_errors=True)
    status, reason = _judge(plan, reports, outcome)
    tail = [] if status == "ok" else outcome.tail
    if status == "failed":
        write_json(
            cell_folder / "failure.json",
            {"status": status, "reason": reason, "log_tail": tail, "cell_id": cell.id},
        )
        raise CellFailed(f"{cell.id}: {reason}; the log is {cell_folder / 'log.txt'}")
    result = _result(plan, site, status, reason, list(reports.values()), staging=staging)
    result["log_tail"] = tail
    result["elapsed_s"] = time.monotonic() - started
    if status == "ok":
        write_text(cell_folder / "steps.csv", aggregate.steps_csv(cell, list(reports.values())))
    write_result(cell_folder / "result.json", result)
    return result


class _Outcome:
    """How the processes ended."""

    def __init__(self) -> None:
        self.timed_out = False
        self.killed_for_memory = False
        self.killed_first: dict[int, int] = {}
        self.tail: list[str] = []


def _launch_and_watch(plan: Plan, site: Site, run_dir: Path) -> _Outcome:
    cell, outcome = plan.cell, _Outcome()
    address = "127.0.0.1" if site.launcher == "local" else address_of(site.interface)
    interface = "lo" if site.launcher == "local" else site.interface
    listener = listen(address)
    job = Job(
        plan=plan,
        device_kind=site.device,
        scratch=site.scratch,
        data=request_of(cell, site),
        interface=interface,
        rendezvous_host=address,
        rendezvous_port=listener.getsockname()[1],
        run_dir=run_dir.resolve(),
    )
    job_path = job.save()
    deadline = time.monotonic() + site.cell_timeout_s
    kills_before = _oom_kills()
    launch: Launch
    if site.launcher == "local" or cell.devices == 1:
        launch = LocalLaunch(plan, job_path, interface, listener)
        listener.close()
    else:
        listener.close()
        launch = SrunLaunch(plan, job_path, interface)
    try:
        _watch(launch, deadline, outcome, run_dir, f"{cell.id}")
    finally:
        launch.stop()
    outcome.killed_for_memory = (
        _oom_kills() > kills_before and -signal.SIGKILL in outcome.killed_first.values()
    )
    return outcome


def _watch(launch: Launch, deadline: float, outcome: _Outcome, run_dir: Path, title: str) -> None:
    display = Display(title)
    followers_until = float("inf")
    try:
        with log_file(run_dir).open("w", encoding="utf-8") as log:
            for line in launch.lines(deadline):
                now = time.monotonic()
                if line is not None:
                    _take(line, log.write, display, outcome)
                if now > deadline:
                    outcome.timed_out = True
                    break
                if followers_until == float("inf") and _note_failures(launch, outcome):
                    followers_until = now + _FOLLOWERS_S
                if now > followers_until:
                    break
        if followers_until == float("inf") and not outcome.timed_out:
            _note_ends(launch, outcome)
    finally:
        display.close()


def _note_failures(launch: Launch, outcome: _Outcome) -> bool:
    """Whether a rank has failed; remembers those that a signal killed before we stop the rest."""
    failed = {rank: code for rank, code in launch.exit_codes().items() if code}
    outcome.killed_first = {rank: code for rank, code in failed.items() if code < 0}
    return bool(failed)


def _note_ends(launch: Launch, outcome: _Outcome) -> None:
    """All ranks have closed their output: wait a moment for their exit codes."""
    limit = time.monotonic() + _FOLLOWERS_S
    while None in launch.exit_codes().values() and time.monotonic() < limit:
        time.sleep(0.01)
    _note_failures(launch, outcome)


def _take(line: str, write: Any, display: Display, outcome: _Outcome) -> None:
    before, mark, payload = line.partition(MARK)
    if mark:
        display.update(payload)
        return
    write(before + "\n")
    outcome.tail = [*outcome.tail[-_TAIL_LINES + 1 :], before]


def _read_reports(plan: Plan, run_dir: Path) -> dict[int, dict[str, Any]]:
    """Reports by rank, the earliest first; a rank that was killed has none."""
    paths = [report_file(run_dir, process.rank) for process in plan.processes]
    written = sorted((p for p in paths if p.is_file()), key=lambda p: p.stat().st_mtime_ns)
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in written]
    return {report["rank"]: report for report in reports}


def _judge(
    plan: Plan, reports: dict[int, dict[str, Any]], outcome: _Outcome
) -> tuple[str, str | None]:
    """Status and reason of the cell; what explains the end beats what follows from it."""
    for wanted in ("out_of_memory", "unsupported"):
        for report in reports.values():
            if report["status"] == wanted:
                return wanted, report["reason"]
    if outcome.killed_for_memory:
        return "out_of_memory", "the kernel killed a rank because memory ran out"
    if outcome.timed_out:
        return "timeout", "the cell ran into the site's cell_timeout_s"
    crash = _crash(plan, reports, outcome)
    return ("ok", None) if crash is None else ("failed", crash)


def _crash(plan: Plan, reports: dict[int, dict[str, Any]], outcome: _Outcome) -> str | None:
    for rank, code in outcome.killed_first.items():
        return f"rank {rank} was killed by signal {-code}"
    for report in reports.values():
        if report["status"] != "ok":
            return f"rank {report['rank']}: {report['reason']}"
    missing = sorted({p.rank for p in plan.processes} - set(reports))
    return f"rank {missing[0]} went away without a report" if missing else None


def _result(
    plan: Plan,
    site: Site,
    status: str,
    reason: str | None,
    reports: Sequence[dict[str, Any]],
    *,
    staging: dict[str, Any] | None,
) -> dict[str, Any]:
    cell, strategy = plan.cell, strategy_of(plan.cell.strategy)
    ok = sorted((r for r in reports if r["status"] == "ok"), key=lambda r: r["rank"])
    complete = status == "ok"
    loss = aggregate.losses(ok) if complete else []
    steps = ok[0]["steps_per_epoch"] if complete else 0
    provenance = driver_provenance(cell.seed)
    provenance["hosts"] = sorted({r["provenance"]["host"] for r in ok})
    if ok:
        first = dict(ok[0]["provenance"])
        first.pop("host")
        provenance.update(first)
    return {
        "schema_version": SCHEMA_VERSION,
        "status": status,
        "reason": reason,
        "site": site.name,
        "cell_id": cell.id,
        "cell": cell.to_dict(),
        "inputs": {
            "plan_digest": plan.digest,
            "dataset_digest": None if staging is None else staging.get("digest"),
            "links_digest": None,
            "profile_digest": None,
        },
        "processes": plan.world_size,
        "devices": cell.devices,
        "workers": sum(len(p.devices) for p in plan.processes if p.shard >= 0),
        "device_kind": site.device,
        "update_semantics": "synchronous" if strategy.synchronous else "stale",
        "notes": aggregate.notes(strategy, site.device),
        "plan_details": ok[0]["plan_details"] if complete else plan.details,
        "ranks": [aggregate.rank_entry(r) for r in ok],
        "timing": aggregate.timing(cell, ok, site.device) if complete else None,
        "staging": None
        if staging is None
        else {key: staging[key] for key in ("seconds", "reused", "bytes", "nodes")},
        "loss": {"first": loss[0], "last": loss[-1], "mean_last_epoch": _mean(loss[-steps:])}
        if loss
        else None,
        "communication": None,
        "log_tail": [],
        "elapsed_s": 0.0,
        "provenance": provenance,
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _oom_kills() -> int:
    """How often the kernel has killed a process for memory since it booted."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text(encoding="ascii").splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
