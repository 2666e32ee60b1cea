"""Rule dataset: the data of a cell on the nodes of this job.

python workflow/scripts/stage.py SITE REAL_DATA CELL STAGED_JSON LOG ATTEMPT

REAL_DATA is JSON: dataset -> folder.
"""

import json
import sys
from pathlib import Path

from ddlbench.common.document import write_json
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.site import load_site
from ddlbench.runtime.staging import StagingFailed, stage_cell
from ddlbench.workflow.run import logged

site_name, real_data, cell_id, output, log, attempt = sys.argv[1:]
with logged(log, StagingFailed, attempt=int(attempt)):
    site = load_site(site_name, real_data=json.loads(real_data))
    folder = Path(output).parent
    write_json(Path(output), stage_cell(Cell.from_id(cell_id), site, folder, int(attempt)))
