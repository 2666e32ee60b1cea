"""The matrix of this experiment, and where each of its files lies. No rules here."""

import json
import sys
from os.path import relpath
from pathlib import Path

from ddlbench.experiment.config import parse_experiment
from ddlbench.experiment.errors import ConfigError, file_fault
from ddlbench.experiment.paths import (
    cell_dir,
    check_results,
    figures_dir,
    html_report_file,
    result_file,
    tables_dir,
)
from ddlbench.experiment.registry import BASE
from ddlbench.experiment.site import load_site
from ddlbench.interconnect.time_plan import links_plan
from ddlbench.own_parts import try_own_parts
from ddlbench.planning.budget import faulty_inputs
from ddlbench.planning.finished import finished_of, put_aside_invalid
from ddlbench.planning.matrix import cell_of
from ddlbench.planning.matrix import expand as expand_matrix
from ddlbench.planning.resources import request
from ddlbench.planning.strategy import strategy_of
from ddlbench.report import run_screen
from ddlbench.workflow import (
    begin,
    check_cluster,
    check_profile,
    hold_machine,
    holds_machine,
    make_report,
)

CONFIG_FILES = [relpath(file) for file in workflow.configfiles]

try:
    EXPERIMENT = parse_experiment(
        config, ", ".join(CONFIG_FILES) or "the configuration"
    )
    SITE = load_site(EXPERIMENT.site, real_data=EXPERIMENT.real_data)
    check_results(SITE.name)
    if workflow.is_main_process:
        check_profile(SITE, sys.argv[1:])
    ROWS = expand_matrix(EXPERIMENT, SITE)
    if workflow.is_main_process:
        own = try_own_parts(SITE, ROWS)
        for remark in (*own.data, *own.remarks):
            print(f"ddlbench: {remark}", file=sys.stderr)
except (ConfigError, OSError) as error:
    sys.exit(f"ddlbench: {file_fault(error) or error}")

CELLS = {row.cell.id: row.cell for row in ROWS if row.unsupported is None}
# The folders of the user's own data: jobs read the site's file, but not the experiment's.
REAL_DATA = json.dumps(EXPERIMENT.real_data)
RESULTS = [str(result_file(SITE.name, cell)) for cell in CELLS]
TABLES = tables_dir(SITE.name, EXPERIMENT.name)
FIGURES = figures_dir(SITE.name, EXPERIMENT.name)
PAGE = html_report_file(SITE.name, EXPERIMENT.name)

run_screen.follow(
    EXPERIMENT.name,
    SITE.name,
    ROWS,
    [links_plan(SITE, f).expected_s for f in {cell.fabric for cell in CELLS.values()}],
)
# Not in the jobs that measure: one process looks after the results.
if workflow.is_main_process:
    try:
        check_results(
            SITE.name, [TABLES / "any", FIGURES / "any", PAGE, *map(Path, RESULTS)]
        )
        begin(SITE, CELLS)
        finished = finished_of(CELLS, SITE.name)
        for remark in (
            *finished.left_remarks(),
            *faulty_inputs([CELLS[id] for id in finished.waiting(CELLS)], SITE),
            *put_aside_invalid(finished, SITE.name),
        ):
            print(f"ddlbench: {remark}", file=sys.stderr)
    except (ConfigError, OSError) as error:
        sys.exit(f"ddlbench: {file_fault(error) or error}")


wildcard_constraints:
    cell=r"[^.].*/rep\d+",
    figure=r"[a-z0-9_]+",


def results(wildcards):
    """Results that this experiment asks for."""
    return RESULTS


def existing_results(wildcards):
    """Results that are there already."""
    return [file for file in RESULTS if exists(file)]


def lost_results(wildcards):
    """Results that the tables were made without, or that were deleted since: Snakemake would not
    ask for them again while tables and figures are there."""
    if not (TABLES / "measurements.csv").exists():
        return []
    return [file for file in RESULTS if not exists(file)]


def figure_files(wildcards):
    """Figures that suit this matrix."""
    # Here, because a job that measures a cell reads this file too and draws nothing.
    from ddlbench.report import figures_for

    return [str(FIGURES / f"{name}.png") for name in figures_for(ROWS)]


REPORT_TITLE = f"{EXPERIMENT.name} on {SITE.name}, {len(ROWS)} cells"


def report_origin():
    """Site, date and commit, for the landing page of Snakemake's report."""
    from ddlbench.report.footer import Context, origin
    from ddlbench.report.tables import read_tables

    return origin(read_tables(TABLES).summary, Context(SITE.description))


def report_figures():
    """Names of the figures, in the order in which they are read."""
    from ddlbench.report.registry import figures_for, prediction_figures_for

    return [*figures_for(ROWS), *prediction_figures_for(ROWS)]


def figure_caption(name):
    """What the HTML report says of a figure."""
    from ddlbench.report.registry import caption_of

    return caption_of(name)


def figure_heading(name):
    """The first sentence of what the HTML report says of a figure."""
    from ddlbench.report.registry import heading_of

    return heading_of(name)


def figure_labels(wildcards):
    """The row of a figure in the list of Snakemake's report."""
    (name,) = wildcards
    return {"figure": name, "shows": figure_heading(name)}


def known_cell(wildcards):
    """The cell of a path; one that no matrix made is checked as an entry of `include` is."""
    if wildcards.cell not in CELLS:
        try:
            CELLS[wildcards.cell] = cell_of(wildcards.cell, SITE)
        except ConfigError as error:
            sys.exit(f"ddlbench: {error}")
    return CELLS[wildcards.cell]


def checked(wildcards):
    """No input: a wrong path on the command line ends here, before any job runs."""
    known_cell(wildcards)
    return []


def measured_inputs(wildcards):
    """Profile and links that the cell's plan is made from, so that they are made before it."""
    cell = known_cell(wildcards)
    found = strategy_of(cell.strategy).measured_inputs(cell, SITE.name)
    return [str(path) for path in found]


def base_first(wildcards):
    """Bases are measured first, so that each cell after them has a speed-up at once."""
    return int(known_cell(wildcards).strategy == BASE)


def cell_request(wildcards):
    """What the cell asks of the scheduler."""
    return request(*SITE.held_geometry(known_cell(wildcards)), SITE)


def cell_threads(wildcards):
    """All cores of this machine, so that nothing else runs beside a measurement; on a cluster,
    what one task needs."""
    if SITE.launcher == "local":
        return workflow.cores or 1
    return cell_request(wildcards).cpus_per_task


def ready_to_measure():
    """One run at a time measures on this machine; a cluster takes jobs as the site asks for them."""
    submitted = [job for job in workflow.dag.needrun_jobs() if not job.is_local]
    cells = [known_cell(job.wildcards) for job in submitted if job.rule.name == "cell"]
    try:
        hold_machine(SITE)
        if submitted:
            arrays = getattr(workflow.executor_settings, "array_jobs", None)
            check_cluster(SITE, cells or list(CELLS.values()), arrays)
    except (ConfigError, OSError) as error:
        sys.exit(f"ddlbench: {file_fault(error) or error}")


def partial_report():
    """Tables and figures of what is there; Ctrl-C skips them."""
    if not holds_machine(SITE):
        return
    there = sum(map(exists, RESULTS))
    print(
        f"drawing what is there ({there} of {len(RESULTS)} cells); Ctrl-C skips this",
        file=sys.stderr,
    )
    try:
        make_report(EXPERIMENT, SITE, ROWS)
    except (KeyboardInterrupt, OSError) as error:
        why = f" ({file_fault(error) or error})" if isinstance(error, OSError) else ""
        print(
            f"tables and figures are as they were{why}; make them with: ddlbench report",
            file=sys.stderr,
        )
