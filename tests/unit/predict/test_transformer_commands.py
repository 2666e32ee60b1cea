"""The transformer oracle's scores, fits and advice, as the commands give them."""

import json

import numpy as np
import pandas as pd
import pytest
import yaml
from click.testing import CliRunner
from transformer_factory import table

from ddlbench.commands.oracle import oracle
from ddlbench.common.errors import ConfigError
from ddlbench.predict.platforms import Accelerators
from ddlbench.predict.transformer.runs import (
    MANY_NODES,
    MEGATRON,
    ONE_NODE,
    Runs,
    calibrate,
    choices,
    held_out_s,
    read_runs,
    scored,
)
from ddlbench.predict.transformer.step import steps

TRANSFORMER = ("--workload", "transformer")


def run(*arguments):
    result = CliRunner().invoke(oracle, list(map(str, arguments)))
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def told(*arguments):
    return json.loads(run(*arguments, "--json"))


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")


@pytest.fixture(scope="module")
def platform():
    return Accelerators.load("a100-80gb")


def test_a_score_has_mean_median_rows_and_parts():
    found = told("score", MANY_NODES, *TRANSFORMER, "--platform", "a100-80gb")
    assert found["rows"] == 80
    assert 0 < found["median_absolute_error"] < found["mean_absolute_error"] < 0.1
    assert found["by"]["tensor"]["8"]["rows"] > 20
    rows = [one["rows"] for one in found["by"]["data"].values()]
    assert sum(rows) == 80
    assert len(found["worst"]) == 10
    assert told("score", ONE_NODE, *TRANSFORMER)["rows"] == 1136


@pytest.mark.parametrize(
    ("table", "other", "by", "most"),
    [
        (MANY_NODES, ONE_NODE, "hidden_size", 0.066),
        (ONE_NODE, MANY_NODES, "hidden_size", 0.08),
        (ONE_NODE, MANY_NODES, "devices", 0.05),
        (ONE_NODE, MANY_NODES, "layers", 0.05),
    ],
)
@pytest.mark.slow
def test_held_out_runs_are_predicted_better_than_vtrain_does(table, other, by, most):
    """The published simulator, which profiled the kernels: 14.73 % on many nodes, 8.37 % on one."""
    found = told("score", table, *TRANSFORMER, "--hold-out", by, "--also", other)
    assert found["mean_absolute_error"] < most
    assert found["hold_out"] == by


def test_a_score_can_be_read():
    lines = run("score", MANY_NODES, *TRANSFORMER).splitlines()
    assert "80 runs" in lines[0]
    assert any("worst rows" in line for line in lines)
    assert "regret" in lines[-1]


def test_the_workload_may_stand_anywhere():
    first = run("score", *TRANSFORMER, MANY_NODES)
    assert first == run("score", MANY_NODES, "--workload=transformer")


def test_wrong_workloads_and_names_are_said():
    with pytest.raises(ConfigError, match="write cnn or transformer"):
        run("score", MANY_NODES, "--workload", "rnn")
    with pytest.raises(ConfigError, match="speaks of CNNs only"):
        run("explain", *TRANSFORMER)
    for name in ("best", "limits", "target"):
        with pytest.raises(ConfigError, match="ddlbench recommend --hardware .* gpt3-175b"):
            run(name, "gpt3-175b", "--devices", 64, "--batch-size", 64)
    with pytest.raises(ConfigError, match="describes a platform of the other oracle"):
        run("score", MANY_NODES, *TRANSFORMER, "--platform", "abci")
    with pytest.raises(ConfigError, match="--also adds rows"):
        run("score", MANY_NODES, *TRANSFORMER, "--also", ONE_NODE)


def test_a_table_without_a_column_is_refused_and_more_columns_are_fine(tmp_path):
    path = tmp_path / "runs.csv"
    table(step_s=1.0, note="x").to_csv(path, index=False)
    assert told("score", path, *TRANSFORMER)["rows"] == 1
    table(step_s=1.0).drop(columns="layers").to_csv(path, index=False)
    with pytest.raises(ConfigError, match="column 'layers' is missing"):
        run("score", path, *TRANSFORMER)
    table().to_csv(path, index=False)
    with pytest.raises(ConfigError, match="column 'step_s' is missing"):
        run("score", path, *TRANSFORMER)
    table(step_s=-1.0).to_csv(path, index=False)
    with pytest.raises(ConfigError, match="line 2: step_s is"):
        run("score", path, *TRANSFORMER)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text.replace(",", ";"), "';' stands between its columns"),
        (
            lambda text: text.replace(",", ";").replace("\n", ",\n"),
            "';' stands between its columns",
        ),
        (lambda text: text.replace(",", "\t"), r"'\\t' stands between its columns"),
        (lambda text: text.replace("\n", ",\n").replace(",\n", "\n", 1), "more values than"),
        (lambda text: text.replace("step_s", "step_s,step_s", 1), "'step_s' stands twice"),
    ],
)
def test_tables_of_other_programs_are_refused_in_a_sentence(tmp_path, change, says):
    path = tmp_path / "runs.csv"
    path.write_text(change(table(step_s=1.0).to_csv(index=False)))
    with pytest.raises(ConfigError, match=says):
        read_runs(path)


def planted(platform, **constants):
    """Some runs of both tables, as the model itself would measure them."""
    runs = read_runs(ONE_NODE, MANY_NODES)
    some = runs.take(np.arange(0, len(runs), 5))
    measured = steps(some.configurations, platform.with_constants(constants)).seconds
    return Runs(some.configurations, measured)


def test_a_fit_recovers_what_was_planted(platform):
    said = {"matmul_efficiency": 0.7, "memory_efficiency": 0.6, "host_layer_s": 0.0012}
    runs = planted(platform, **said)
    fit = calibrate(runs, platform)
    found = steps(runs.configurations, platform.with_constants(fit.constants)).seconds
    assert np.abs(found / runs.measured_s - 1).mean() < 0.01
    for name, value in said.items():
        assert fit.constants[name] == pytest.approx(value, rel=0.1)
        assert fit.intervals[name][0] <= fit.constants[name] <= fit.intervals[name][1]


@pytest.mark.slow
def test_held_out_runs_do_not_teach(platform):
    """Runs of one size that are ten times too long change no prediction of that size."""
    runs = planted(platform)
    strange = np.where(runs.column("hidden_size") == 2048, 10.0, 1.0) * runs.measured_s
    held = held_out_s(Runs(runs.configurations, strange), platform, "hidden_size")
    of_it = runs.column("hidden_size") == 2048
    assert np.abs(held / runs.measured_s - 1)[of_it].max() < 0.15


def test_a_choice_is_judged_by_what_was_measured():
    runs = read_runs(MANY_NODES)
    assert choices(runs, runs.measured_s)["best_chosen"] == 1
    assert choices(runs, runs.measured_s)["largest_regret"] == 0
    worst = choices(runs, 1 / runs.measured_s)
    assert worst["best_chosen"] == 0
    assert worst["groups"] == 3


def test_errors_are_those_of_the_numbers():
    runs = read_runs(MANY_NODES)
    found = scored(runs, runs.measured_s * np.where(runs.column("tensor") == 8, 1.1, 1.0))
    assert found["by"]["tensor"]["8"]["mean_absolute_error"] == pytest.approx(0.1)
    assert found["by"]["tensor"]["4"]["mean_absolute_error"] == pytest.approx(0)


def test_constants_are_possible(platform):
    for name, entry in platform.fitted.items():
        assert entry.value <= entry.limit, name
        assert entry.low <= entry.value <= entry.high, name
        assert (entry.at_most is not None) == name.endswith(("_efficiency", "_share")), name


def test_calibration_writes_a_platform_that_is_read_again(tmp_path):
    path = tmp_path / "mine.yaml"
    runs = tmp_path / "runs.csv"
    whole = pd.concat([pd.read_csv(ONE_NODE)[::9], pd.read_csv(MANY_NODES)[::2]])
    whole.to_csv(runs, index=False)
    found = told("calibrate", runs, *TRANSFORMER, "--output", path)
    assert found["written"] == str(path)
    values = yaml.safe_load(path.read_text())
    assert values["fitted"]["matmul_efficiency"]["value"] == pytest.approx(
        found["constants"]["matmul_efficiency"]["value"]
    )
    score = told("score", runs, *TRANSFORMER, "--platform", path)
    assert score["mean_absolute_error"] == pytest.approx(found["mean_absolute_error"])


def test_an_independent_table_is_predicted(platform):
    """Megatron-LM's weak scaling, 32 to 3,072 GPUs: never fitted."""
    runs = read_runs(MEGATRON)
    found = scored(runs, steps(runs.configurations, platform).seconds)
    assert found["rows"] == 10
    assert found["mean_absolute_error"] < 0.1
