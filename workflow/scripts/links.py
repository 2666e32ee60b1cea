"""Rule links: how fast the devices of a site talk to each other.

python workflow/scripts/links.py SITE FABRIC LINKS_JSON LOG
"""

import sys
from pathlib import Path

from ddlbench.experiment.site import load_site
from ddlbench.interconnect.measure import measure_links
from ddlbench.report.drawing import make_links_figures
from ddlbench.workflow.run import logged

site_name, fabric, output, log = sys.argv[1:]
with logged(log):
    path = Path(output)
    make_links_figures(measure_links(load_site(site_name), fabric, path), path.parent)
