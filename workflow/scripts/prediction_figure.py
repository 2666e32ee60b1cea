"""Rule prediction_figure: one figure of an experiment's predictions."""

from ddlbench.planning.matrix import matrix_of
from ddlbench.report.products import draw_predictions
from ddlbench.workflow.run import logged

with logged(snakemake.log[0]):
    draw_predictions(*matrix_of(snakemake.config), names=[snakemake.wildcards.prediction])
