"""Rule cell: one measurement."""

import json
from pathlib import Path

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.site import load_site
from ddlbench.runtime.supervise import run_cell
from ddlbench.workflow import logged

with logged(snakemake.log[0]):
    run_cell(
        Cell.from_id(snakemake.params.cell),
        load_site(snakemake.config.get("site", "local")),
        Path(snakemake.output.result).parent,
        json.loads(Path(snakemake.input.staged).read_text(encoding="utf-8")),
    )
