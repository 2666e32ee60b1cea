"""Rule figure: one figure from the tables."""

from pathlib import Path

from ddlbench.experiment.config import parse_experiment
from ddlbench.report.drawing import make_figure
from ddlbench.workflow.run import logged

with logged(snakemake.log[0]):
    make_figure(
        snakemake.wildcards.figure,
        Path(snakemake.input[0]).parent,
        Path(snakemake.output.png),
        snakemake.params.site,
        parse_experiment(snakemake.config).paper,
    )
