"""Rule tables: results to tidy tables."""

from pathlib import Path

from ddlbench.experiment.paths import RESULTS
from ddlbench.planning.matrix import matrix_of
from ddlbench.report.measurements import make_tables
from ddlbench.workflow.run import logged

with logged(snakemake.log[0]):
    experiment, site, rows = matrix_of(snakemake.config)
    make_tables(
        experiment.name,
        site.name,
        rows,
        RESULTS,
        Path(snakemake.output.measurements).parent,
    )
