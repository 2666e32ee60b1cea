"""What sbatch says of the job of a cell, before one is submitted.

::

    options of the site --> sbatch --test-only -- taken --> nothing to say
                              ^                '- refused -> which key is it? name it, take it out
                              '-----------------------------------'

So one mistake does not hide the next. Where sbatch only says that no node fits, each option is
added alone to what it takes.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ddlbench.experiment.site import Site
from ddlbench.planning.resources import job_minutes, request
from ddlbench.slurm import refusals
from ddlbench.slurm.commands import SlurmError, ask

_TEST_S = 20.0


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Args:
        what: was looked at.
        ok: nothing has to change.
        says: what it is, and, if it is wrong, what to write instead.
        doubtful: jobs may run as it is, but it is perhaps not what the user means.
    """

    what: str
    ok: bool
    says: str
    doubtful: bool = False


@dataclass(frozen=True)
class Option:
    """An option of sbatch that a key of the site file decides.

    Args:
        key: of the site file.
        text: ``--partition=gpu``.
    """

    key: str
    text: str


def options_of(site: Site, nodes: int, devices_per_node: int) -> list[Option]:
    """What the job of a cell asks sbatch for, with the key that decides each part."""
    wanted = request(nodes, devices_per_node, site)
    options = {
        "slurm.account": ("account", wanted.account),
        "slurm.partition": ("partition", wanted.partition),
        "slurm.qos": ("qos", wanted.qos),
        "slurm.constraint": ("constraint", wanted.constraint),
        "slurm.gpu_type" if site.slurm.gpu_type else "slurm.gres": ("gres", wanted.gres),
        "memory_per_device_mb": ("mem", wanted.mem_mb or None),
        "cell_timeout_s": ("time", job_minutes(site)),
        "cpus_per_device": ("cpus-per-task", wanted.cpus_per_task),
        "devices_per_node": ("ntasks-per-node", devices_per_node),
        "nodes": ("nodes", wanted.nodes),
    }
    listed = [
        Option(key, f"--{name}={value}")
        for key, (name, value) in options.items()
        if value is not None
    ]
    with suppress(ValueError):
        extra = shlex.split(site.slurm.extra)
        listed += [Option("slurm.extra", text) for text in extra]
    if site.slurm.exclusive:
        listed.append(Option("slurm.exclusive", "--exclusive"))
    return listed


def sbatch_refuses(options: Sequence[str]) -> str:
    """What sbatch says against a job with these options; empty if it would take it.

    Raises:
        SlurmError: it does not answer.
    """
    try:
        ask(["sbatch", "--test-only", *options, "--wrap=true"], patience_s=_TEST_S)
    except SlurmError as error:
        if not error.words:
            raise
        return error.words
    return ""


def judge_request(
    options: Sequence[Option], refuses: Callable[[Sequence[str]], str], seen: set[str]
) -> list[Finding]:
    """What sbatch refuses, one finding a key.

    Args:
        options: of the job.
        refuses: see :func:`sbatch_refuses`.
        seen: names of findings that sinfo told already; sbatch would only repeat them.
    """
    left = list(options)
    findings: list[Finding] = []
    while left:
        named = seen | {finding.what for finding in findings}
        try:
            words = refuses([option.text for option in left])
            unfit = refusals.fits_no_node(words)
            keys = _unfit_keys(left, refuses, named) if unfit else _keys_of(words)
        except SlurmError as error:
            return [*findings, Finding("sbatch", True, str(error), doubtful=True)]
        if not words:
            break
        if refusals.lacks_nodes(words):
            says = f"{words}; cells on so many nodes wait until they are back"
            return [*findings, Finding("nodes now", True, says, doubtful=True)]
        if refusals.limits_jobs(words):
            later = refusals.may_pass(words)
            says = f"{words}" + ("; jobs are submitted as others end" if later else "")
            return [*findings, Finding("limit", later, says, doubtful=later)]
        guilty = [option for option in left if option.key in keys]
        if not guilty:
            # It follows from a mistake that is named already, or nobody knows whose it is: the
            # submission itself will tell.
            if not named:
                says = f"it refuses the job: {words}"
                findings.append(Finding("sbatch", True, says, doubtful=True))
            return findings
        left = [option for option in left if option not in guilty]
        for key in dict.fromkeys(option.key for option in guilty):
            what = _WHAT.get(key, key.removeprefix("slurm."))
            if what not in named:
                refused = " ".join(option.text for option in guilty if option.key == key)
                findings.append(Finding(what, False, f"{refused}: {words}; change {key}"))
    return findings


# Names that judge_partition gives to what keys decide.
_WHAT = {"slurm.gres": "GRES", "slurm.gpu_type": "GRES", "cell_timeout_s": "time limit"}
# A wrong number of devices asks for wrong amounts of these.
_OF_DEVICES = ("memory_per_device_mb", "devices_per_node", "cpus_per_device")
# What a node must have, from the plainest mistake to those that may follow from others.
_OF_A_NODE = ("nodes", "slurm.constraint", "slurm.gres", "slurm.gpu_type", *_OF_DEVICES)


def _unfit_keys(
    options: Sequence[Option], refuses: Callable[[Sequence[str]], str], named: set[str]
) -> set[str]:
    """Keys that no node satisfies: each is added to those that a node does satisfy.

    Args:
        options: that no node satisfies together.
        refuses: see :func:`sbatch_refuses`.
        named: names of findings; what follows from them is left out.
    """
    if "partition" in named:  # without it sbatch looks at the nodes of another one
        return set()
    taken = [option.text for option in options if option.key not in _OF_A_NODE]
    if refusals.fits_no_node(refuses(taken)):
        return {"slurm.extra"}
    unfit = set()
    for key in _OF_A_NODE:
        added = [option.text for option in options if option.key == key]
        if added and refusals.fits_no_node(refuses([*taken, *added])):
            unfit.add(key)
        else:
            taken += added
    return unfit - set(_OF_DEVICES) if "GRES" in named else unfit


def _keys_of(words: str) -> set[str]:
    key = refusals.key_of(words)
    return {"slurm.gres", "slurm.gpu_type"} if key == "slurm.gres" else {key} if key else set()
