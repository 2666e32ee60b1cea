"""Rule stage: the cell's dataset on the nodes of this job.

python workflow/scripts/stage.py SITE CELL STAGED_JSON LOG
"""

import sys
from pathlib import Path

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.document import write_json
from ddlbench.experiment.site import load_site
from ddlbench.runtime.staging import StagingFailed, stage_cell
from ddlbench.workflow import logged

site_name, cell_id, output, log = sys.argv[1:]
with logged(log, StagingFailed):
    report_dir = Path(output).parent
    write_json(Path(output), stage_cell(Cell.from_id(cell_id), load_site(site_name), report_dir))
