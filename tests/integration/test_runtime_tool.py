"""Tools beside cells: one process a device, all reports or one sentence."""

import dataclasses

import pytest

from ddlbench.experiment.site import load_site
from ddlbench.runtime.rank_job import RankJobFailed, run_rank_job


@pytest.fixture
def site():
    return dataclasses.replace(load_site("local"), cell_timeout_s=600)


def run(site, folder, mode):
    return run_rank_job(site, (1, 2), "tool_samples", {"mode": mode}, folder, threads=1)


def test_every_device_reports(site, tmp_path):
    reports = run(site, tmp_path, "report")
    assert [report["rank"] for report in reports] == [0, 1]
    assert {(r["status"], r["world_size"], r["threads"]) for r in reports} == {("ok", 2, "1")}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.txt"]


@pytest.mark.parametrize(
    ("mode", "sentence"),
    [
        ("crash", "rank 1: ValueError: rank 1 had enough"),
        ("unwritable", "rank 0: ValueError: Out of range float values are not JSON compliant"),
        ("vanish", "1 of 2 processes ended without a report"),
    ],
)
def test_what_went_wrong_is_one_sentence(site, tmp_path, mode, sentence):
    with pytest.raises(RankJobFailed, match=sentence):
        run(site, tmp_path, mode)
    assert (tmp_path / "log.txt").is_file()


def test_a_tool_that_hangs_is_ended(site, tmp_path, hang_begins_limits):
    hang_begins_limits(ranks=2)
    with pytest.raises(RankJobFailed, match="cell_timeout_s"):
        run(site, tmp_path, "hang")
