"""Rule page: the HTML report of the tables and figures."""

from ddlbench.workflow import logged, make_page, matrix_of

with logged(snakemake.log[0]):
    make_page(*matrix_of(snakemake.config))
