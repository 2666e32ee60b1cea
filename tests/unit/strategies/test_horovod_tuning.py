"""Horovod's autotuner: which variables it leaves to tune, its log, and what a result says of it."""

from __future__ import annotations

import os

import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.cell import Cell
from ddlbench.planning.planner import make_plan
from ddlbench.strategies.horovod.descriptor import Horovod
from ddlbench.strategies.horovod.executor import TuningLog, set_tuning

CELL = Cell("mnist", "resnet18", "horovod", 16, devices_per_node=2)
VARIABLES = ("HOROVOD_FUSION_THRESHOLD", "HOROVOD_CYCLE_TIME")


def _plan(**options):
    return make_plan(CELL.with_(options=tuple(options.items())))


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch):
    for name in (*VARIABLES, "HOROVOD_AUTOTUNE_LOG"):
        monkeypatch.setenv(name, "of the user")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["134217728", "1.0"]),
        ({"cycle_time_s": 0.005}, ["134217728", "5.0"]),
        ({"autotune": True}, [None, None]),
        ({"autotune": True, "cycle_time_s": 0.005}, [None, "5.0"]),
        ({"autotune": True, "fusion_threshold_bytes": 0}, ["0", None]),
    ],
)
def test_horovod_tunes_what_the_cell_does_not_set(options, expected):
    set_tuning(_plan(**options))
    assert [os.environ.get(name) for name in VARIABLES] == expected


def test_rows_are_counted_before_and_in_the_measured_steps(tmp_path):
    log = TuningLog(tmp_path / "kept")
    file = tmp_path / "kept" / "autotune.csv"
    assert os.environ["HOROVOD_AUTOTUNE_LOG"] == str(file)
    log.end_warmup()
    assert log.details()["autotune_samples"] == {"before": 0, "measured": 0}
    file.write_text("cycle_time_ms,score\n5,1.0\n")
    log.end_warmup()
    file.write_text("cycle_time_ms,score\n5,1.0\n10,2.0\n7,2.5\n")
    assert log.details() == {
        "autotune_log": "autotune.csv",
        "autotune_samples": {"before": 1, "measured": 2},
    }


@pytest.mark.parametrize(
    ("before", "measured", "words"),
    [(0, 0, "tried nothing"), (3, 2, "2 settings in the measured steps, after 3"), (9, 0, None)],
)
def test_a_result_says_when_horovod_was_still_trying(before, measured, words):
    tried = {"before": before, "measured": measured}
    details = {"autotune_log": "autotune.csv", "autotune_samples": tried}
    remarks = Horovod().remarks(CELL, details)
    assert len(remarks) == (0 if words is None else 1)
    assert words is None or words in remarks[0]
    assert Horovod().remarks(CELL, {}) == ()


def test_no_predictor_knows_what_horovod_will_choose():
    with pytest.raises(ConfigError, match="autotuner"):
        Horovod().step(None, _plan(autotune=True))
