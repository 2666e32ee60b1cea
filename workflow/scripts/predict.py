"""Rule predict: what every predictor says of every cell, beside what was measured."""

from ddlbench.workflow import logged, make_predictions, matrix_of

with logged(snakemake.log[0]):
    make_predictions(*matrix_of(snakemake.config))
