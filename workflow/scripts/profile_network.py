"""Rule profile: times and bytes of one network's layers.

python -P workflow/scripts/profile_network.py SITE REAL_DATA NEEDS PROFILE_JSON LOG

REAL_DATA (dataset -> folder) and NEEDS are JSON.

-P, as torch imports the standard library's own module `profile` and must not find this one.
"""

import json
import sys
from pathlib import Path

from ddlbench.experiment.site import load_site
from ddlbench.planning.profiles import ProfileNeeds
from ddlbench.profiling.profile import make_profile
from ddlbench.runtime.rank_job import RankJobFailed
from ddlbench.workflow.run import logged

site_name, real_data, needs, output, log = sys.argv[1:]
with logged(log, RankJobFailed):
    site = load_site(site_name, real_data=json.loads(real_data))
    make_profile(ProfileNeeds.from_dict(json.loads(needs)), site, Path(output))
