"""Run a module once per device, for tools other than cells: link sweeps and layer profiles.

::

    run_rank_job(site, (nodes, devices), "package.module", settings)   in the job, on its first node
      '-> python -m package.module task.json     once a device, on every node
            rank_job_main(work)  ->  work(RankContext) -> report       rank<k>.json
      <- the reports of all ranks
"""

from __future__ import annotations

import faulthandler
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from ddlbench.common.document import read_json, write_json
from ddlbench.common.quantities import counted
from ddlbench.experiment.site import Site
from ddlbench.experiment.status import Status
from ddlbench.planning.plan import Process, a_worker_each
from ddlbench.planning.strategy import DeviceKind
from ddlbench.runtime.environment import end_process, use_short_socket_folder
from ddlbench.runtime.fabric import Fabric, SiteFabric
from ddlbench.runtime.job import log_file, report_file
from ddlbench.runtime.launch import Step, device_variables, own_process, python_command
from ddlbench.runtime.rank_guard import end_with_parent
from ddlbench.runtime.rank_report import classify
from ddlbench.runtime.watchdog import Shows, watch

# Within it a job that ran into its time limit has ended.
_LONGER_S = 600.0


class RankJobFailed(RuntimeError):  # noqa: N818 - what happened
    """A process crashed, ended without a report, or did not end in time."""


@dataclass(frozen=True)
class RankContext:
    """Input of one process."""

    process: Process  # its entry; it drives ``process.devices``
    world_size: int  # number of processes
    device_kind: DeviceKind  # what they compute on
    scratch: str  # the site's template
    interface: str | None  # None lets libraries choose
    host: str  # of the store that rank 0 serves; see ``rendezvous.join_store``
    port: int
    settings: dict[str, Any]  # argument of ``run_rank_job``


def run_rank_job(
    site: Site,
    geometry: tuple[int, int],
    module: str,
    settings: dict[str, Any],
    folder: Path,
    *,
    threads: int = 1,
    fabric: Fabric | None = None,
    display: Shows | None = None,
) -> list[dict[str, Any]]:
    """Run ``python -m module`` once per device and gather the reports of the processes.

    Args:
        site: where; on a cluster this process runs inside a job of that size.
        geometry: nodes, and devices of each.
        module: calls :func:`rank_job_main` when run.
        settings: JSON values for every process.
        folder: shared; gets log.txt.
        threads: CPU threads of each process.
        fabric: a network that is up; None for the site's own.
        display: shows what rank 0 tells of its progress; None shows its steps, if it counts any.

    Returns:
        the reports in the order of ranks, each with ``status`` ("ok", "out_of_memory") and, if
        not ok, ``reason``.

    Raises:
        RankJobFailed: a process crashed, hung, or ran into the site's time limit.
    """
    nodes, devices_per_node = geometry
    processes = a_worker_each(nodes, devices_per_node, devices_per_node)
    folder.mkdir(parents=True, exist_ok=True)
    _remove_left_over(folder, site.cell_timeout_s)
    run_dir = (folder / f".run-{time.time_ns()}").resolve()
    run_dir.mkdir()
    fabric = fabric or SiteFabric(site, nodes)
    rendezvous = fabric.rendezvous()
    task = {
        "processes": [process.to_dict() for process in processes],
        "device_kind": site.device,
        "scratch": site.scratch,
        "interface": rendezvous.interface,
        "host": rendezvous.host,
        "port": rendezvous.port,
        "settings": settings,
    }
    write_json(run_dir / "task.json", task)
    step = Step(
        command=tuple(python_command(site, "-m", module, str(run_dir / "task.json"))),
        processes=processes,
        nodes=nodes,
        devices_per_node=devices_per_node,
        threads=threads,
        interface=rendezvous.interface,
        variables=device_variables(site),
    )
    try:
        outcome = watch(
            fabric.launch(step, rendezvous),
            log_file(run_dir),
            module.rpartition(".")[2],
            timeout_s=site.cell_timeout_s,
            hang_timeout_s=site.cell_timeout_s,
            display=display,
        )
        paths = [report_file(run_dir, process.rank) for process in processes]
        reports = [read_json(path) for path in paths if path.is_file()]
    finally:
        if log_file(run_dir).is_file():
            shutil.copyfile(log_file(run_dir), folder / "log.txt")
        shutil.rmtree(run_dir, ignore_errors=True)
    failure = _failure(reports, len(processes), outcome.timed_out)
    if failure is not None:
        raise RankJobFailed(f"{failure}; see {folder / 'log.txt'}")
    return reports


def _remove_left_over(folder: Path, timeout_s: float) -> None:
    """Remove the folders of jobs that were killed: no job that still runs is as old."""
    for left_over in folder.glob(".run-*"):
        with suppress(FileNotFoundError):  # another job removes it, too
            if time.time() - left_over.stat().st_mtime > timeout_s + _LONGER_S:
                shutil.rmtree(left_over, ignore_errors=True)


def _failure(reports: list[dict[str, Any]], processes: int, timed_out: bool) -> str | None:
    for report in reports:
        if report["status"] == Status.FAILED:
            return f"rank {report['rank']}: {report['reason']}"
    if timed_out:
        return "not done within the site's cell_timeout_s"
    missing = processes - len(reports)
    return (
        f"{missing} of {counted(processes, 'process', 'processes')} ended without a report"
        if missing
        else None
    )


def rank_job_main(work: Callable[[RankContext], dict[str, Any]]) -> NoReturn:
    """Entry of one process: do ``work``, report its result or failure, and exit."""
    end_with_parent()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    path = Path(sys.argv[1])
    task = read_json(path)
    processes = [Process.from_dict(entry) for entry in task.pop("processes")]
    process = own_process(processes)
    own_report = report_file(path.parent, process.rank)
    exit_status = 0
    use_short_socket_folder()
    try:
        result = work(RankContext(process, len(processes), **task))
        write_json(own_report, {"rank": process.rank, "status": "ok", **result})
    except BaseException as error:
        traceback.print_exc()
        status, reason = classify(error)
        write_json(own_report, {"rank": process.rank, "status": status, "reason": reason})
        exit_status = 1
    end_process(exit_status)
