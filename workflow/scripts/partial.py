"""Rule partial: the report of what is there."""

from ddlbench.workflow import logged, make_report, matrix_of

with logged(snakemake.log[0]):
    make_report(*matrix_of(snakemake.config))
