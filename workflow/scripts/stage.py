"""Rule stage: the cell's dataset on the nodes of this job."""

from pathlib import Path

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.site import load_site
from ddlbench.runtime.staging import stage_cell
from ddlbench.workflow import logged, write_json

with logged(snakemake.log[0]):
    cell = Cell.from_id(snakemake.wildcards.cell)
    site = load_site(snakemake.config.get("site", "local"))
    output = Path(snakemake.output[0])
    write_json(output, stage_cell(cell, site, output.parent))
