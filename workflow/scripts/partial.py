"""Rule partial: the report of what is there."""

from ddlbench.planning.matrix import matrix_of
from ddlbench.report.products import make_report
from ddlbench.workflow.run import logged

with logged(snakemake.log[0]):
    make_report(*matrix_of(snakemake.config))
