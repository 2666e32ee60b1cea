"""Rule cell: one measurement.

python workflow/scripts/run_cell.py SITE REAL_DATA CELL STAGED_JSON RESULT_JSON LOG ATTEMPT

REAL_DATA is JSON: dataset -> folder.
"""

import json
import sys
from pathlib import Path

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.site import load_site
from ddlbench.runtime.staging import StagingFailed, stage_cell, staged_by_this_job, unstage_cell
from ddlbench.runtime.supervise import CellFailed, run_cell
from ddlbench.workflow.run import logged

site_name, real_data, cell_id, staged, result, log, attempt = sys.argv[1:]
with logged(log, CellFailed, StagingFailed, attempt=int(attempt)):
    site = load_site(site_name, real_data=json.loads(real_data))
    cell, folder = Cell.from_id(cell_id), Path(result).parent
    try:
        staging = staged_by_this_job(Path(staged), int(attempt))
        if staging is None:
            staging = stage_cell(cell, site, folder, int(attempt))
        run_cell(cell, site, folder, staging, int(attempt))
    finally:
        if not site.keep_data:
            unstage_cell(cell, site, folder)
