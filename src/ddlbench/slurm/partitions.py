"""What SLURM says of a site: kinds of node of its partitions, limits; accounts and QOS of the user.

What sinfo prints is parsed in :mod:`ddlbench.slurm.node_kinds`, so that tests can use the output of
other clusters.
"""

from __future__ import annotations

import os
import pwd
import re

from ddlbench.slurm.commands import SlurmError, ask
from ddlbench.slurm.node_kinds import NodeKind, parse_kinds

_SINFO = "%R|%D|%c|%m|%G|%l|%a|%f|%T"


def node_kinds() -> list[NodeKind]:
    """Kinds of node of every partition, as sinfo lists them.

    Raises:
        SlurmError: there is no SLURM here, or it does not answer.
    """
    try:
        marked = ask(["sinfo", "--all", "--noheader", "--format=%P"])
        # Without --exact, nodes that differ would be one row with the least of each number.
        text = ask(["sinfo", "--all", "--noheader", "--exact", f"--format={_SINFO}"])
    except SlurmError as error:
        raise SlurmError(f"{_NO_SLURM} ({error})", error.words) from None
    default = re.search(r"^(\S+)\*$", marked, re.MULTILINE)
    return parse_kinds(text, default[1] if default else None)


_NO_SLURM = (
    "no SLURM answers here; run this on a login node, or copy config/sites/slurm-example.yaml"
)


def accounts() -> list[str]:
    """Accounts that this user may charge; empty if the site has no accounting."""
    # Not getpass, which believes LOGNAME: it is another user's after su.
    user = f"user={pwd.getpwuid(os.getuid()).pw_name}"
    return _accounting("associations", user, "format=account")


def qos_names() -> list[str]:
    """Every QOS of the site; empty if it has no accounting."""
    return _accounting("qos", "format=name")


def enforced_limits() -> list[str]:
    """What SLURM refuses jobs for: associations, limits, qos, ...; empty if it does not tell."""
    try:
        text = ask(["scontrol", "show", "config"])
    except SlurmError:
        return []
    enforced = re.search(r"^AccountingStorageEnforce\s*=\s*(\S+)", text, re.MULTILINE)
    return enforced[1].lower().split(",") if enforced else []


def _accounting(*what: str) -> list[str]:
    try:
        text = ask(["sacctmgr", "--noheader", "--parsable2", "show", *what])
    except SlurmError:
        return []
    names = (line.strip().rstrip("|") for line in text.splitlines())
    return sorted({name for name in names if name})
