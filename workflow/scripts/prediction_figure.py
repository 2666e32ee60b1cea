"""Rule prediction_figure: one figure of an experiment's predictions."""

from ddlbench.workflow import draw_predictions, logged, matrix_of

with logged(snakemake.log[0]):
    draw_predictions(*matrix_of(snakemake.config), names=[snakemake.wildcards.prediction])
