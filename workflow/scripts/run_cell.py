"""Rule cell: one measurement.

python workflow/scripts/run_cell.py SITE CELL STAGED_JSON RESULT_JSON LOG ATTEMPT
"""

import json
import sys
from pathlib import Path

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.site import load_site
from ddlbench.runtime.staging import unstage_cell
from ddlbench.runtime.supervise import CellFailed, run_cell
from ddlbench.workflow import logged

site_name, cell_id, staged, result, log, attempt = sys.argv[1:]
with logged(log, CellFailed):
    cell, site, folder = Cell.from_id(cell_id), load_site(site_name), Path(result).parent
    try:
        staging = json.loads(Path(staged).read_text(encoding="utf-8"))
        run_cell(cell, site, folder, staging, int(attempt))
    finally:
        if not site.keep_data:
            unstage_cell(cell, site, folder)
