"""Rule recommend: what to train each network of the experiment with."""

from ddlbench.workflow import logged, make_recommendations, matrix_of

with logged(snakemake.log[0]):
    make_recommendations(*matrix_of(snakemake.config))
