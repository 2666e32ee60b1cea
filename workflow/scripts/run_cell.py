"""Rule cell: one measurement."""

import json
from pathlib import Path

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.site import load_site
from ddlbench.runtime.staging import unstage_cell
from ddlbench.runtime.supervise import run_cell
from ddlbench.workflow import logged

with logged(snakemake.log[0]):
    cell = Cell.from_id(snakemake.wildcards.cell)
    site = load_site(snakemake.config.get("site", "local"))
    folder = Path(snakemake.output.result).parent
    staged = json.loads(Path(snakemake.input.staged).read_text(encoding="utf-8"))
    try:
        run_cell(cell, site, folder, staged)
    finally:
        if not site.keep_data:
            unstage_cell(cell, site, folder)
