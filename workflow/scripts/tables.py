"""Rule tables: results to tidy tables."""

from pathlib import Path

from ddlbench.experiment.paths import RESULTS
from ddlbench.report import make_tables
from ddlbench.workflow import logged, matrix_of

with logged(snakemake.log[0]):
    experiment, site, rows = matrix_of(snakemake.config)
    make_tables(
        experiment.name,
        site.name,
        rows,
        RESULTS,
        Path(snakemake.output.measurements).parent,
    )
