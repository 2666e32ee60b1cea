"""The experiment of this run, and where each of its files lies. No rules here."""

import sys

from ddlbench.experiment.paths import (
    cell_dir,
    dataset_file,
    links_file,
    profile_file,
    result_file,
)
from ddlbench.report.registry import caption_of, heading_of
from ddlbench.workflow.run import Run

RUN = Run(config, workflow)
EXPERIMENT, SITE = RUN.experiment, RUN.site
TITLE = f"{EXPERIMENT.name} on {SITE.name}"
TABLES, FIGURES = RUN.tables, RUN.figures
CELL = cell_dir(SITE.name, "{cell}")
DATASET = dataset_file(SITE.name, "{cell}")
LINKS = links_file(SITE.name, "{fabric}")


wildcard_constraints:
    cell=r"[^.].*/rep\d+",
    figure=r"[a-z0-9_]+",
    prediction=r"[a-z0-9_]+",
    fabric=r"[A-Za-z0-9_.-]+",
    profile=r"[^./][^/]*/[^/]+/[^/]+",
    measured=r"[^./][^/]*/[^/]+/[^/]+(/run-[1-9][0-9]*)?",
