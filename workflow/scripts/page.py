"""Rule page: the HTML report of the tables and figures."""

from ddlbench.planning.matrix import matrix_of
from ddlbench.report.products import make_page
from ddlbench.workflow.run import logged

with logged(snakemake.log[0]):
    make_page(*matrix_of(snakemake.config))
