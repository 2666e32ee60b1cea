"""Rule stage: the cell's dataset on the nodes of this job."""

from pathlib import Path

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.site import load_site
from ddlbench.runtime.staging import stage_cell
from ddlbench.workflow import logged, write_json

with logged(snakemake.log[0]):
    output = Path(snakemake.output[0])
    staged = stage_cell(
        Cell.from_id(snakemake.params.cell), load_site(snakemake.config.get("site", "local")), output.parent
    )
    write_json(output, staged)
