"""Rule cell: the cell's data on the nodes of this job, then one measurement.

python workflow/scripts/run_cell.py SITE REAL_DATA CELL RESULT_JSON LOG ATTEMPT

REAL_DATA is JSON: dataset -> folder. LOG is of the measurement; staging has its own beside it, so
that whoever reads them knows how far the job came.
"""

import json
import sys
from pathlib import Path

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.paths import STAGE_LOG
from ddlbench.experiment.site import load_site
from ddlbench.runtime.staging import StagingFailed, stage_cell, unstage_cell
from ddlbench.runtime.supervise import CellFailed, run_cell
from ddlbench.workflow.run import logged

site_name, real_data, cell_id, result, log, attempt_text = sys.argv[1:]
folder, attempt = Path(result).parent, int(attempt_text)
with logged(str(folder / STAGE_LOG), StagingFailed, attempt=attempt):
    site = load_site(site_name, real_data=json.loads(real_data))
    cell = Cell.from_id(cell_id)
    staging = stage_cell(cell, site, folder, attempt)
with logged(log, CellFailed, attempt=attempt):
    try:
        run_cell(cell, site, folder, staging, attempt)
    finally:
        if not site.keep_data:
            unstage_cell(cell, site, folder)
