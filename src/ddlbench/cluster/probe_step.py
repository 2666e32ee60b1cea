"""First node's part of `ddlbench doctor`: start the check on every node, as staging is started."""

from __future__ import annotations

import json
import subprocess
import sys

from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.site import load_site
from ddlbench.runtime.command import python_command
from ddlbench.runtime.srun import srun_command

__all__ = ["main"]


def main(site_name: str, nodes: int, reports: str) -> int:
    """Run ``node_check`` once a node; srun's exit status.

    Args:
        site_name: of the site.
        nodes: of the job.
        reports: shared folder for what they report.

    Raises:
        ConfigError: the site's container is no path on this node.
    """
    site = load_site(site_name)
    wanted = {
        "reports": reports,
        "nodes": nodes,
        "interface": site.interface,
        "device": site.device,
        "scratch": site.scratch,
    }
    command = [
        *srun_command(site, nodes=nodes, tasks=nodes, per_node=1, devices=site.devices_per_node),
        *python_command(site, "-m", "ddlbench.cluster.node_check", json.dumps(wanted)),
    ]
    return subprocess.run(command, check=False, stdin=subprocess.DEVNULL).returncode


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
    except ConfigError as error:
        sys.exit(str(error))
