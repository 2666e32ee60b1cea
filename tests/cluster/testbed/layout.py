"""Every name and path that a test bed uses, so that a later one can find what a crash left."""

from pathlib import Path

PREFIX = "ddlbench-"  # of network namespaces
HOME = Path("/var/lib/ddlbench-testbed")
LOGS = HOME / "log"
DEVICES = HOME / "devices"
HOSTS = Path("/etc/hosts")
# Jobs that Snakemake submits lose SLURM_CONF, so the configuration lies where SLURM looks.
CONFIG = Path("/etc/slurm")
CONFIG_FILES = ("slurm.conf", "gres.conf", "cgroup.conf", "slurmdbd.conf")
MARKER = "# Written by the test bed of ddlbench; `testbed down` removes it."
SCRATCH = Path("/scratch")
CONTROLLER = "controller"
SWITCH = f"{PREFIX}switch"
HOST_LINK = "ddlbench0"


def namespace(node: str) -> str:
    """Name of the node's network namespace."""
    return PREFIX + node


def node_home(node: str) -> Path:
    """Folder of what belongs to one node: scratch, spool."""
    return HOME / "nodes" / node
