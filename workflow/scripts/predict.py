"""Rule predict: what every predictor says of every cell, beside what was measured."""

from ddlbench.planning.matrix import matrix_of
from ddlbench.report.products import make_predictions
from ddlbench.workflow.run import logged

with logged(snakemake.log[0]):
    make_predictions(*matrix_of(snakemake.config))
