"""Runs that depart from a projection are named, with the part that is off."""

import json
import math

import pandas as pd
import pytest
from click.testing import CliRunner

from ddlbench.commands.oracle import oracle
from ddlbench.common.errors import ConfigError
from ddlbench.predict.accuracy import anomalies, departs, from_predictions
from ddlbench.predict.paradl.measured import PUBLISHED_MEASURED

NAN = math.nan


@pytest.mark.parametrize(
    ("measured", "low", "high", "direction"),
    [
        (1.0, NAN, NAN, ""),
        (1.24, NAN, NAN, ""),
        (1.3, NAN, NAN, "longer"),
        (1.3, 1.2, 1.4, ""),  # its interval reaches into the limit
        (0.81, NAN, NAN, ""),
        (0.7, NAN, NAN, "shorter"),
        (0.7, 0.6, 0.85, ""),
    ],
)
def test_a_run_departs_when_its_whole_interval_does(measured, low, high, direction):
    assert departs(measured, low, high, 1.0, 0.25) == direction


def run_of(**values):
    usual = {
        "run": "a", "measured_s": 2.0, "low_s": NAN, "high_s": NAN, "projected_s": 1.0,
        "measured_compute_s": 0.6, "projected_compute_s": 0.5,
        "measured_communication_s": 1.4, "projected_communication_s": 0.5, "why": "",
    }  # fmt: skip
    return pd.DataFrame([{**usual, **values}])


def test_the_part_that_is_off_by_more_is_named():
    row = anomalies(run_of()).iloc[0]
    assert (row["departs"], row["part"], row["ratio"]) == ("longer", "communication", 2.0)
    assert (row["part_measured_s"], row["part_projected_s"]) == (1.4, 0.5)
    slow = anomalies(run_of(measured_compute_s=1.9, measured_communication_s=0.1)).iloc[0]
    assert slow["part"] == "computation"
    assert anomalies(run_of(measured_compute_s=NAN)).iloc[0]["part"] == ""


def test_runs_without_numbers():
    assert anomalies(run_of(measured_s=NAN)).empty
    silent = anomalies(run_of(projected_s=NAN, why="no links")).iloc[0]
    assert (silent["departs"], silent["why_unknown"]) == ("", "no links")


def test_predictions_become_runs():
    rows = pd.DataFrame(
        [
            {
                "predictor": name, "cell_id": "a/b/rep0", "measured_step_s": 2.0,
                "measured_low_s": None, "measured_high_s": None, "predicted_step_s": 1.0,
                "measured_wait_s": 0.5, "compute_s": 0.7, "communication_s": 0.3, "bubble_s": 0.0,
                "notes": "",
            }
            for name in ("paradl-corrected", "linear")
        ]
    )  # fmt: skip
    runs = from_predictions(rows, "paradl-corrected")
    assert list(runs["run"]) == ["a/b"]
    assert runs["measured_compute_s"].iloc[0] == pytest.approx(1.5)
    assert anomalies(runs)["part"].iloc[0] == "computation"


def test_the_command_flags_published_runs(monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    words = ["anomalies", str(PUBLISHED_MEASURED)]
    ended = CliRunner().invoke(oracle, [*words, "--json"])
    assert ended.exit_code == 1  # some depart
    runs = json.loads(ended.output)["runs"]
    assert len(runs) == 38
    flagged = [row for row in runs if row["departs"]]
    assert 0 < len(flagged) < 20
    assert all(abs(math.log(row["ratio"])) > math.log(1.25) for row in flagged)
    shown = CliRunner().invoke(oracle, words).output
    assert f"{len(flagged)} of 38 runs depart" in shown
    assert all(row["run"] in shown for row in flagged)
    assert CliRunner().invoke(oracle, [*words, "--limit", "9"]).exit_code == 0


def test_a_campaign_that_is_not_there():
    with pytest.raises(ConfigError, match="no reliable row of campaign 'may'; it has: report"):
        CliRunner().invoke(
            oracle,
            ["anomalies", str(PUBLISHED_MEASURED), "--campaign", "may"],
            catch_exceptions=False,
        )


def test_nothing_to_judge_is_no_all_clear(monkeypatch, tmp_path):
    rows = pd.DataFrame(
        [
            {
                "predictor": "ddlbench", "cell_id": "a/b/rep0", "measured_step_s": None,
                "predicted_step_s": 1.0, "notes": "",
            }
        ]
    )  # fmt: skip
    monkeypatch.setattr("ddlbench.commands.oracle.read_predictions", lambda _: rows)
    with pytest.raises(ConfigError, match="no run could be judged"):
        CliRunner().invoke(
            oracle, ["anomalies", str(tmp_path / "predictions.json")], catch_exceptions=False
        )
