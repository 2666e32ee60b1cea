"""What a machine needs for a test bed, and installing it."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess

from .cgroups import Cgroups
from .errors import TestBedError
from .options import Options
from .shell import SYSTEM_PATH

_PACKAGES = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "srun": "slurm-client",
    "munged": "munge",
    "mungekey": "munge",
    "ip": "iproute2",
    "tc": "iproute2",
    "ping": "iputils-ping",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "setpriv": "util-linux",
}
_ACCOUNTING = {
    "slurmdbd": "slurmdbd",
    "mariadbd": "mariadb-server-core",
    "mariadb-install-db": "mariadb-server-core",
    "mariadb": "mariadb-client-core",
}
# nftables makes lossy links (see docs/failures.md).
_INSTALLED = [
    *("slurm-wlm", "slurmctld", "slurmd", "munge"),
    *("iproute2", "nftables", "iputils-ping", "util-linux"),
]
_INSTALLED_FOR_ACCOUNTING = ["slurmdbd", "mariadb-server-core", "mariadb-client-core"]


def missing(options: Options | None = None) -> str | None:
    """Why no test bed can run here, in one sentence; None when one can."""
    try:
        check(options or Options())
    except TestBedError as error:
        return str(error)
    return None


def check(options: Options) -> None:
    """Look for everything that ``options`` need, before anything is changed.

    Raises:
        TestBedError: what is missing and what to do.
    """
    if platform.system() != "Linux":
        raise TestBedError("a test bed needs Linux: its nodes are network namespaces")
    if os.geteuid() != 0:
        raise TestBedError(
            "a test bed needs root, for network namespaces and cgroups; run it with sudo"
        )
    wanted = {**_PACKAGES, **(_ACCOUNTING if options.accounting else {})}
    absent = sorted(
        {
            package
            for tool, package in wanted.items()
            if shutil.which(tool, path=SYSTEM_PATH) is None
        }
    )
    if absent:
        extra = " --accounting" if options.accounting else ""
        raise TestBedError(
            f"packages are missing: {' '.join(absent)}; run `testbed install{extra}` as root"
        )
    if subprocess.run(
        ["unshare", "--net", "--uts", "--mount", "true"], check=False, capture_output=True
    ).returncode:
        raise TestBedError(
            "this machine forbids new network and mount namespaces; in a container, start it with "
            "--privileged"
        )
    if options.limited:
        Cgroups.find()


def install(accounting: bool) -> None:
    """Install the packages with apt-get.

    Raises:
        TestBedError: not root, no apt-get, or it failed.
    """
    if os.geteuid() != 0:
        raise TestBedError("installing packages needs root; run it with sudo")
    packages = [*_INSTALLED, *(_INSTALLED_FOR_ACCOUNTING if accounting else [])]
    if shutil.which("apt-get") is None:
        raise TestBedError(
            f"there is no apt-get here; install what your system calls {' '.join(packages)}"
        )
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "update", "-q"],
        ["apt-get", "install", "-qy", "--no-install-recommends", *packages],
    ):
        if subprocess.run(command, check=False, env=environment).returncode:
            raise TestBedError(f"`{' '.join(command)}` failed; its last lines above say why")
