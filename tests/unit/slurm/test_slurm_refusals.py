"""What sbatch's own sentences mean: a key of the site's file, a limit, nodes that are down."""

from __future__ import annotations

import os

import pytest

from ddlbench.slurm import partitions
from ddlbench.slurm.jobs import SlurmError
from ddlbench.slurm.partitions import fits_no_node, is_busy, key_of, lacks_nodes, limits_jobs

POLICY = (
    "Batch job submission failed: Job violates accounting/QOS policy "
    "(job submit limit, user's size and/or time limits)"
)
FAILED = "Batch job submission failed: "


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("Invalid account or account/partition combination specified", "slurm.account"),
        ("invalid partition specified: gpuu: Invalid partition name specified", "slurm.partition"),
        ("User's group not permitted to use this partition", "slurm.partition"),
        (f"{FAILED}No partition specified or system default partition", "slurm.partition"),
        ("Invalid qos specification", "slurm.qos"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "cell_timeout_s"),
        ("Invalid generic resource (gres) specification", "slurm.gres"),
        ("Invalid feature specification", "slurm.constraint"),
        ("Node count specification invalid", "nodes"),
        ("Memory specification can not be satisfied", "memory_per_device_mb"),
        ("More processors requested than permitted", "cpus_per_device"),
        ("CPU count per node can not be satisfied", "cpus_per_device"),
        ("Requested reservation is invalid", "slurm.extra"),
        ("Invalid license specification", "slurm.extra"),
        ("Invalid node name specified", "slurm.exclude or slurm.extra"),
        ("unrecognized option '--frobnicate': Try \"sbatch --help\"", "slurm.extra"),
        (f"QOSMaxWallDurationPerJobLimit: {POLICY}", "cell_timeout_s"),
        (f"AssocMaxWallDurationPerJobLimit: {POLICY}", "cell_timeout_s"),
        (f"QOSMaxNodePerJobLimit: {POLICY}", "nodes"),
        (f"QOSMaxCpuPerJobLimit: {POLICY}", "cpus_per_device"),
        (f"QOSMaxMemoryPerJob: {POLICY}", "memory_per_device_mb"),
        (f"QOSMaxGRESPerJob: {POLICY}", "slurm.gres"),
        (f"QOSGrpJobsLimit: {POLICY}", "slurm.qos"),
        (f"AssocGrpJobsLimit: {POLICY}", "slurm.account"),
        ("Requested node configuration is not available", None),  # many keys decide it
        ("the site's filter does not like it", None),
    ],
)
def test_a_refusal_names_the_key_to_change(words, key):
    assert key_of(words) == key


@pytest.mark.parametrize(
    ("words", "waits"),
    [
        (f"QOSMaxSubmitJobPerUserLimit: {POLICY}", True),
        (f"AssocMaxSubmitJobLimit: {POLICY}", True),
        (f"AssocGrpSubmitJobsLimit: {POLICY}", True),
        (POLICY, True),
        (f"QOSMaxWallDurationPerJobLimit: {POLICY}", False),
        (f"QOSMaxCpuPerNode: {POLICY}", False),
        ("Invalid qos specification", False),
    ],
)
def test_a_limit_on_jobs_is_not_a_limit_on_their_size(words, waits):
    assert limits_jobs(words) == waits


@pytest.mark.parametrize(
    "words",
    [
        f"{FAILED}Resource temporarily unavailable",
        f"{FAILED}Unable to contact slurm controller (connect failure)",
        f"{FAILED}Socket timed out on send/recv operation",
        f"{FAILED}Slurm temporarily unable to accept job, sleeping and retrying",
        f"{FAILED}Zero Bytes were transmitted or received",
    ],
)
def test_a_busy_controller_takes_the_job_later(words):
    assert is_busy(words)
    assert not limits_jobs(words)


def test_a_wrong_request_stays_wrong():
    assert not is_busy("Invalid account or account/partition combination specified")


def test_nodes_that_are_down_come_back():
    assert lacks_nodes("Required node not available (down, drained or reserved)")
    assert not lacks_nodes("Requested node configuration is not available")
    assert fits_no_node("Requested node configuration is not available")


@pytest.mark.parametrize(("queue", "some"), [("12\n13", True), ("", False)])
def test_whether_jobs_of_this_user_make_room(queue, some, monkeypatch):
    monkeypatch.setattr(partitions, "ask", lambda _command: queue)
    assert partitions.has_jobs() == some


@pytest.mark.parametrize(
    ("prints", "unknown"),
    [
        ("echo 'NodeName=n1 Arch=x86_64'", []),
        ("printf 'NodeName=n1\\nNode n9 not found\\nNode m7 not found\\n'; exit 1", ["n9", "m7"]),
        ("echo 'unable to parse node list n[1-4],n9' >&2; exit 1", ["n[1-4],n9"]),
        ("echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1", []),
    ],
)
def test_nodes_that_slurm_does_not_know_are_named(prints, unknown, tmp_path, monkeypatch):
    """As scontrol 22.05 prints it: nodes that are not found on its standard output."""
    program = tmp_path / "scontrol"
    program.write_text(f"#!/bin/sh\n{prints}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert partitions.unknown_nodes("n[1-4],n9") == unknown


def test_where_squeue_does_not_answer_there_may_be_jobs(monkeypatch):
    def silent(_command):
        raise SlurmError("no answer")

    monkeypatch.setattr(partitions, "ask", silent)
    assert partitions.has_jobs()
