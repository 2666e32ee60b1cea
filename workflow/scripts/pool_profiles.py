"""Rule pooled_profile: one profile of several runs.

python -P workflow/scripts/pool_profiles.py PROFILE_JSON LOG RUN_JSON...
"""

import sys
from pathlib import Path

from ddlbench.experiment.profile import read_profile, write_profile
from ddlbench.profiling.profile import pooled
from ddlbench.workflow.run import logged

output, log, *runs = sys.argv[1:]
with logged(log):
    write_profile(Path(output), pooled([read_profile(Path(run)) for run in runs]))
