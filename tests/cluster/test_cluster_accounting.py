"""With accounting, sacct says ``CANCELLED by <uid>``: the workflow must not wait for ever."""

from __future__ import annotations

import subprocess

import pytest
from test_cluster_faults import FaultyRun
from testbed import Options, TestBed, missing

BED = Options(nodes=2, devices=2, accounting=True)
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(bool(missing(BED)), reason=f"no test bed here: {missing(BED)}"),
]


@pytest.fixture(scope="module")
def bed():
    with TestBed(BED) as bed:
        yield bed


def test_a_job_that_somebody_cancelled_ends(bed, tmp_path):
    faulty = FaultyRun(tmp_path, bed, status_command="sacct")
    run, job = faulty.start("--retries", "0")
    faulty.broken()
    faulty.bed.cancel(job)
    faulty.wait_until_gone(job)
    assert run.wait(timeout=120) != 0
    asked = ["sacct", "-X", "--noheader", "--parsable2", "--jobs", str(job), "--format=State"]
    said = subprocess.run(asked, check=True, capture_output=True, text=True).stdout
    assert said.startswith("CANCELLED by "), said
    assert faulty.result() is None
    faulty.hurry()
    assert faulty.run_again()["status"] == "ok"
    faulty.report("sacct says CANCELLED by <uid>", "not run, the workflow ends", "ok")
