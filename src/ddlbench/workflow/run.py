"""The experiment of one Snakemake process: its cells, their files, and what rules ask of them.

::

    Snakefile   Run(config, workflow)    parse, guard the run, look at what is there
    rules       inputs, threads, priority and resources of one path
    onstart     ready_to_measure
    onerror     report_what_is_there

A job that measures a cell reads the Snakefile too: what only draws or predicts is imported where it
is used.

What fails in a rule is in its log, and the user reads one sentence.

Snakemake's graph holds an object for each job, file and resource. Two things cost as much as it,
and are kept off here, so that it plans tens of thousands of cells in about a minute::

    functions of a job       Snakemake inspects the signature of each, up to three times a job
    garbage collection       each full collection walks all objects, and finds nothing to free
"""

from __future__ import annotations

import gc
import inspect
import json
import os
import shlex
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import cache
from os.path import relpath
from pathlib import Path
from typing import Any

from ddlbench.common.errors import ConfigError, file_fault
from ddlbench.common.owner import Writer
from ddlbench.common.quantities import counted
from ddlbench.common.screen import say_error
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.config import parse_experiment
from ddlbench.experiment.paths import (
    LOG_HEADING,
    check_results,
    dataset_file,
    figures_dir,
    html_report_file,
    prediction_figures_dir,
    predictions_file,
    profile_file,
    profile_id_of,
    profile_run_file,
    result_file,
    tables_dir,
)
from ddlbench.experiment.registry import BASE
from ddlbench.experiment.site import load_site
from ddlbench.interconnect.time_plan import links_plan, links_request, links_shape
from ddlbench.planning.budget import SchedulerRequest, faulty_inputs, request, same_for_all
from ddlbench.planning.expected_time import finished_of, put_aside_invalid
from ddlbench.planning.matrix import MatrixRow, cell_of, expand
from ddlbench.planning.planner import request_of
from ddlbench.planning.profiles import needs_of, profiles_of
from ddlbench.planning.strategy import strategy_of
from ddlbench.report import run_screen
from ddlbench.user_parts import try_user_parts
from ddlbench.workflow.guards import (
    begin,
    check_cluster,
    check_config_files,
    check_profile,
    hold_machine,
    holds_machine,
)


class Run:
    """An experiment as one Snakemake process sees it."""

    def __init__(self, config: Mapping[str, Any], workflow: Any) -> None:
        self._workflow = workflow
        self._request = cache(lambda nodes, devices: request(nodes, devices, self.site))
        self.config_files = [relpath(file) for file in workflow.configfiles]
        with _ending_in_a_sentence():
            check_config_files(self.config_files)
            where = ", ".join(self.config_files) or "the configuration"
            self.experiment = parse_experiment(config, where)
            self.site = load_site(self.experiment.site, real_data=self.experiment.real_data)
            check_results(self.site.name)
            if workflow.is_main_process:
                plan_quickly()
                check_profile(self.site, sys.argv[1:])
            self.rows = expand(self.experiment, self.site)
        experiment, site = self.experiment.name, self.site.name
        self.tables = tables_dir(site, experiment)
        self.figures = figures_dir(site, experiment)
        self.prediction_figures = prediction_figures_dir(site, experiment)
        self.predictions = str(predictions_file(site, experiment))
        self.page = html_report_file(site, experiment)
        self.cells = {row.cell.id: row.cell for row in self.rows if row.unsupported is None}
        self.fabrics = sorted({cell.fabric for cell in self.cells.values()})
        self.profiles = [str(profile_file(site, key.id)) for key in profiles_of(self.rows)]
        # The folders of the user's own data: jobs read the site's file, but not the experiment's.
        self.real_data = json.dumps(self.experiment.real_data)
        links_s = [links_plan(self.site, fabric).expected_s for fabric in self.fabrics]
        run_screen.follow(experiment, site, self.rows, links_s)
        if workflow.is_main_process:  # not in the jobs that measure
            with _ending_in_a_sentence():
                self._begin()

    def _begin(self) -> None:
        """Guard the run, and say what is left of earlier ones or is not as it should be."""
        site = self.site
        written = [self.tables / "any", self.figures / "any", self.page]
        check_results(site.name, [*written, *map(Path, self.results())])
        _remark(*nothing_runs(self.rows))
        parts = try_user_parts(site, self.rows)
        _remark(*parts.data, *parts.remarks, *parts.unsupported_remarks())
        from ddlbench.report.registry import faulty_figures  # noqa: PLC0415 - see above

        _remark(*faulty_figures())
        begin(site)
        finished = finished_of(self.cells, site.name)
        waiting = [self.cells[cell_id] for cell_id in finished.waiting(self.cells)]
        _remark(*finished.left_remarks())
        _remark(*faulty_inputs(waiting, site))
        _remark(*put_aside_invalid(finished, site.name))

    def ready_to_measure(self) -> None:
        """Take this machine for one run; on a cluster, check that jobs can run as they ask."""
        planned()
        _tell_screen_of_sigterm()
        jobs = [job for job in self._workflow.dag.needrun_jobs() if not job.is_local]
        cells = [self._cell(job.wildcards) for job in jobs if job.rule.name in ("cell", "dataset")]
        with _ending_in_a_sentence():
            hold_machine(self.site)
            if jobs:
                arrays = getattr(self._workflow.executor_settings, "array_jobs", None)
                cells = cells or list(self.cells.values())
                fabrics = [j.wildcards.fabric for j in jobs if j.rule.name == "links_of_fabric"]
                shapes = [links_shape(self.site, fabric) for fabric in fabrics]
                check_cluster(self.site, cells, arrays, shapes)

    def report_what_is_there(self) -> None:
        """Make tables and figures of the cells that are there; Ctrl-C skips them."""
        if not holds_machine(self.site):
            return
        there, cells = len(self.existing_results()), len(self.results())
        _say(f"drawing what is there ({there} of {counted(cells, 'cell')}); Ctrl-C skips this")
        try:
            from ddlbench.report.products import make_report  # noqa: PLC0415 - see above

            make_report(self.experiment, self.site, self.rows)
        except ConfigError as error:  # a figure that is left out; the rest is made
            for sentence in str(error).splitlines():
                _say(f"ddlbench: {sentence}")
        except (KeyboardInterrupt, OSError) as error:
            why = f" ({file_fault(error) or error})" if isinstance(error, OSError) else ""
            _say(f"tables and figures are as they were{why}; make them with: ddlbench report")

    # What rules take as input. Snakemake hands over wildcards.

    def results(self, _wildcards: Any = None) -> list[str]:
        # Not kept: a path is long, and cells are many.
        cells = (row.cell for row in self.rows if row.unsupported is None)
        return [str(result_file(self.site.name, cell.id)) for cell in cells]

    def datasets(self, _wildcards: Any) -> list[str]:
        """A report of each dataset, made on the nodes of the largest cell that reads it."""
        by_nodes = sorted(self.cells.values(), key=lambda cell: cell.nodes)
        largest = {request_of(cell, self.site): cell for cell in by_nodes}
        return [str(dataset_file(self.site.name, cell.id)) for cell in largest.values()]

    def existing_results(self, _wildcards: Any = None) -> list[str]:
        return [file for file in self.results() if Path(file).exists()]

    def lost_results(self, _wildcards: Any) -> list[str]:
        """Results that the tables were made without, or that were deleted since.

        Snakemake would not ask for them again while tables and figures are there.
        """
        if not (self.tables / "measurements.csv").exists():
            return []
        return [file for file in self.results() if not Path(file).exists()]

    def figure_files(self, _wildcards: Any) -> list[str]:
        """Figures that suit this matrix."""
        from ddlbench.report.registry import figures_for  # noqa: PLC0415 - see above

        return [str(self.figures / f"{name}.png") for name in figures_for(self.rows)]

    def prediction_files(self, _wildcards: Any) -> list[str]:
        """Predictions, and the figures of them that suit this matrix."""
        from ddlbench.report.registry import prediction_figures_for  # noqa: PLC0415 - see above

        names = prediction_figures_for(self.rows)
        return [self.predictions, *(str(self.prediction_figures / f"{n}.png") for n in names)]

    def predictions_if_wanted(self, wildcards: Any) -> list[str]:
        """Predictions and their figures where the experiment says `predict: true`."""
        return self.prediction_files(wildcards) if self.experiment.predict else []

    def measured_inputs(self, wildcards: Any) -> list[str]:
        """Profile and links that the cell's plan is made from, so that they are made before it.

        A wrong path on the command line ends here, before any job runs.
        """
        cell = self._cell(wildcards)
        return [*map(str, strategy_of(cell.strategy).measured_inputs(cell, self.site.name))]

    def profile_runs(self, wildcards: Any) -> list[Path]:
        runs = range(1, self.experiment.profile.runs + 1)
        return [profile_run_file(self.site.name, wildcards.profile, run) for run in runs]

    # What a path asks of Snakemake and of the scheduler.

    def base_first(self, wildcards: Any) -> int:
        """Priority: bases are measured first, so that each later cell has a speed-up at once."""
        return int(self._cell(wildcards).strategy == BASE)

    def cell_request(self, wildcards: Any) -> SchedulerRequest:
        return self._request(*self.site.held_geometry(self._cell(wildcards)))

    def profile_request(self, wildcards: Any) -> SchedulerRequest:
        """All devices of one node, as replicas share it without talking; its data and the rest."""
        self.profile_needs(wildcards)  # a wrong path is one sentence
        return request(1, self.site.devices_per_node, self.site)

    def links_request(self, wildcards: Any) -> SchedulerRequest:
        return links_request(self.site, wildcards.fabric)

    def profile_needs(self, wildcards: Any) -> str:
        """Batch sizes and settings of a profile, as JSON."""
        key = profile_id_of(wildcards.measured)
        with _ending_in_a_sentence():
            needs = needs_of(key, self.rows, self.experiment.profile, self.site)
        return json.dumps(needs.to_dict())

    def threads(self) -> int | Callable[[Any], int]:
        """All cores of this machine, so that nothing runs beside a measurement.

        On a cluster, what one task of a job needs.
        """
        if self.site.launcher != "local":
            return self.site.cpus_per_device
        return lambda _wildcards: int(self._workflow.cores or 1)

    def resources(self, request_for: Callable[[Any], SchedulerRequest]) -> dict[str, Any]:
        """Snakemake's resources of a rule.

        What no geometry changes is a constant: Snakemake inspects and calls each function for each
        job.
        """
        constant, absent = same_for_all(self.site), object()
        resources: dict[str, Any] = {}
        for name, field in _RESOURCES.items():
            value = constant.get(field, absent)
            if value is absent:
                resources[name] = _field_of(request_for, field)
            elif value is not None:
                resources[name] = value
        return resources

    def program(self, script: str) -> str:
        """The beginning of a job's command: Python, a script, the site, and folders of data."""
        path = f"workflow/scripts/{script}"
        return shlex.join([sys.executable, "-P", path, self.experiment.site, self.real_data])

    # What Snakemake's own report says.

    def title(self) -> str:
        return f"{self.experiment.name} on {self.site.name}, {counted(len(self.rows), 'cell')}"

    def origin(self) -> str:
        """Site, date and commit."""
        from ddlbench.report.footer import Context, origin  # noqa: PLC0415 - see above
        from ddlbench.report.tables import read_tables  # noqa: PLC0415

        return origin(read_tables(self.tables).summary, Context(self.site.description))

    def report_figures(self) -> list[str]:
        """Names of the figures, in the order in which they are read."""
        from ddlbench.report.registry import (  # noqa: PLC0415 - see above
            figures_for,
            prediction_figures_for,
        )

        return [*figures_for(self.rows), *prediction_figures_for(self.rows)]

    def figure_labels(self, wildcards: Any) -> dict[str, str]:
        """The row of a figure in the list of figures."""
        from ddlbench.report.registry import heading_of  # noqa: PLC0415 - see above

        (name,) = wildcards
        return {"figure": name, "shows": heading_of(name)}

    def _cell(self, wildcards: Any) -> Cell:
        """The cell of a path; one that no matrix made is checked as an entry of `include` is."""
        if wildcards.cell not in self.cells:
            with _ending_in_a_sentence():
                self.cells[wildcards.cell] = cell_of(wildcards.cell, self.site)
        return self.cells[wildcards.cell]


# Snakemake's name of a resource, and the field of a request.
_RESOURCES = {
    "nodes": "nodes",
    "mpi": "mpi",
    "tasks": "tasks",
    "tasks_per_node": "tasks_per_node",
    "tasks_per_gpu": "tasks_per_gpu",
    "gres": "gres",
    "mem_mb": "mem_mb",
    "runtime": "runtime_min",
    "slurm_account": "account",
    "slurm_partition": "partition",
    "qos": "qos",
    "constraint": "constraint",
    "slurm_extra": "extra",
}


_STDOUT, _STDERR = 1, 2


def _field_of(request_for: Callable[[Any], SchedulerRequest], field: str) -> Callable[[Any], Any]:
    return inspected(lambda wildcards: getattr(request_for(wildcards), field))


def inspected(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with its parameters where Snakemake looks for them before it inspects it."""
    with suppress(ImportError):  # an older Snakemake inspects it
        from snakemake.common import (  # noqa: PLC0415 - slow; rules run where it is loaded
            overwrite_function_params,
        )

        overwrite_function_params(function, inspect.signature(function).parameters)
    return function


def plan_quickly() -> None:
    """Prepare this process to plan a large graph; call :func:`planned` once jobs run."""
    with suppress(ImportError, AttributeError):
        from snakemake.common import overwrite_function_params  # noqa: PLC0415 - as above
        from snakemake.resources import Resource  # noqa: PLC0415

        bound = inspect.signature(Resource("nodes", 1).evaluate).parameters
        overwrite_function_params(Resource.evaluate, bound)
        of_wildcards = inspect.signature(lambda wildcards: wildcards).parameters
        for function in (Run.measured_inputs, Run.base_first):
            overwrite_function_params(function, of_wildcards)
    gc.disable()


def planned() -> None:
    """Collect garbage again: a run lasts for days. The graph itself is left out."""
    gc.freeze()
    gc.enable()


@contextmanager
def _ending_in_a_sentence() -> Iterator[None]:
    try:
        yield
    except (ConfigError, OSError) as error:
        sys.exit(f"ddlbench: {file_fault(error) or error}")


def _tell_screen_of_sigterm() -> None:
    """Have the screen know of SIGTERM before it hears of jobs that the same signal ends."""
    before = signal.getsignal(signal.SIGTERM)
    if not callable(before):  # no scheduler waits for it
        return

    def end(number: int, frame: Any) -> None:
        run_screen.stop("SIGTERM")
        before(number, frame)

    signal.signal(signal.SIGTERM, end)


def _say(text: str) -> None:
    # Written at once: the screen's thread may write between a line and its end.
    print(f"{text}\n", end="", file=sys.stderr, flush=True)


def nothing_runs(rows: Sequence[MatrixRow]) -> Iterator[str]:
    """A sentence where no cell can run: Snakemake would say that all is there."""
    reasons = [row.unsupported for row in rows if row.unsupported is not None]
    if reasons and len(reasons) == len(rows):
        yield f"no cell can run ({reasons[0]}); ddlbench plan says more"


def _remark(*remarks: str) -> None:
    for remark in remarks:
        _say(f"ddlbench: {remark}")


@contextmanager
def logged(path: str, *explained: type[Exception], attempt: int = 1) -> Iterator[None]:
    """Keep the traceback of what fails in the rule's log, and tell the user one sentence.

    The first line of the log names the job and its attempt, as an earlier job's log may lie there.

    Args:
        path: the rule's log.
        explained: exceptions whose sentence says all; our own traceback would only hide it.
        attempt: of this job.
    """
    _open_standard_streams()
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


def _open_standard_streams() -> None:
    """Open the standard streams that a shell closed (``<&-``).

    Else the next socket or file gets such a number, and each child has a stream there instead.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        os.set_inheritable(number, True)
    os.close(number)
    for name, number in (("stdout", _STDOUT), ("stderr", _STDERR)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115 - it stays


def _write_log(log: Path, text: str) -> None:
    with suppress(OSError):  # a full disk must not hide what went wrong
        log.parent.mkdir(parents=True, exist_ok=True)
        # A file's name that is no UTF-8 may stand in it.
        log.write_text(text, encoding="utf-8", errors="backslashreplace")
