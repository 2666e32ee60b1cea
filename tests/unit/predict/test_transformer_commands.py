"""The transformer oracle's scores, fits and advice, as the commands give them."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from click.testing import CliRunner
from transformer_factory import table

from ddlbench.cli import commands
from ddlbench.common.errors import ConfigError
from ddlbench.predict.hardware import Accelerators, Software
from ddlbench.predict.run_tables import ScoreQuestion
from ddlbench.predict.transformer.run_scores import choices, predictions, scored_values
from ddlbench.predict.transformer.runs import (
    MEGATRON,
    calibrate,
    held_out_s,
    predicted_s,
)
from ddlbench.predict.transformer.training_runs import PUBLISHED, gpts, training_runs

ONE_NODE, MANY_NODES = PUBLISHED / "one_node.csv", PUBLISHED / "many_nodes.csv"


def run(*arguments):
    words = arguments if arguments[0] == "calibrate" else ("oracle", *arguments)
    result = CliRunner().invoke(commands, list(map(str, words)))
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def json_of(*arguments):
    return json.loads(run(*arguments, "--json"))


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")


@pytest.fixture(scope="module")
def platform():
    return Accelerators.load("megatron-a100")


def test_errors_are_those_of_the_numbers():
    runs = gpts([MANY_NODES])
    longer = runs.step_s * np.where(runs.decoders["tensor"] == 8, 1.1, 1.0)
    predicted = replace(predictions(runs, Software.load("megatron")), seconds=longer)
    by_tensor = scored_values(runs, predicted)["by"]["tensor"]
    assert by_tensor["8"]["mean_absolute_error"] == pytest.approx(0.1)
    assert by_tensor["4"]["mean_absolute_error"] == pytest.approx(0)


def test_a_score_has_mean_median_rows_and_parts():
    actual = json_of("score", MANY_NODES, "--platform", "megatron-a100")
    assert actual["rows"] == 80
    assert 0 < actual["median_absolute_error"] < actual["mean_absolute_error"] < 0.1
    assert actual["by"]["tensor"]["8"]["rows"] > 20
    rows = [group["rows"] for group in actual["by"]["data"].values()]
    assert sum(rows) == 80
    assert len(actual["worst"]) == 10
    assert abs(actual["worst"][0]["error"]) == max(abs(row["error"]) for row in actual["worst"])
    assert json_of("score", ONE_NODE)["timed_rows"] == 1136


@pytest.mark.parametrize(
    ("table", "by", "most"),
    [
        (MANY_NODES, "model", 0.066),
        (ONE_NODE, "model", 0.08),
        (ONE_NODE, "gpus", 0.05),
        (ONE_NODE, "layers", 0.05),
    ],
)
@pytest.mark.slow
def test_held_out_runs_are_predicted_better_than_vtrain_does(table, by, most):
    """The published simulator, which profiled the kernels: 14.73 % on many nodes, 8.37 % on one."""
    actual = json_of("score", table, "--hold-out", by)
    assert actual["mean_absolute_error"] < most


def test_a_score_can_be_read():
    lines = run("score", MANY_NODES).splitlines()
    assert "80 rows" in lines[0]
    assert any("worst rows" in line for line in lines)
    assert any("regret" in line for line in lines)


def test_wrong_names_are_said():
    with pytest.raises(ConfigError, match="platform of transformers 'abci' has no file"):
        run("score", MANY_NODES, "--platform", "abci")
    with pytest.raises(ConfigError, match="--hold-out submitter: the table has no such column"):
        run("score", MANY_NODES, "--hold-out", "submitter")


def test_a_table_without_a_column_is_refused_and_more_columns_are_fine(tmp_path):
    path = tmp_path / "runs.csv"
    table(step_s=1.0, note="x").to_csv(path, index=False)
    assert json_of("score", path)["rows"] == 1
    table(step_s=1.0).drop(columns="layers").to_csv(path, index=False)
    with pytest.raises(ConfigError, match="column 'layers' is missing"):
        run("score", path)
    table().to_csv(path, index=False)
    with pytest.raises(ConfigError, match="column 'step_s' is missing"):
        run("score", path)
    table(step_s=-1.0).to_csv(path, index=False)
    with pytest.raises(ConfigError, match="line 2: step_s is"):
        run("score", path)


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
        run("score", path)


def planted(platform, **constants):
    """Some runs of both tables, as the model itself would measure them."""
    runs = gpts([ONE_NODE, MANY_NODES])
    some = runs.take(np.arange(0, len(runs), 5))
    return replace(some, step_s=predicted_s(some, platform.with_constants(constants)))


def test_a_fit_recovers_what_was_planted(platform):
    constants = {"matmul_efficiency": 0.7, "memory_efficiency": 0.6, "host_layer_s": 0.0012}
    runs = planted(platform, **constants)
    fit = calibrate(runs, platform)
    actual = predicted_s(runs, platform.fitted_to(fit))
    assert np.abs(actual / runs.step_s - 1).mean() < 0.01
    for name, value in constants.items():
        assert fit.constants[name] == pytest.approx(value, rel=0.1)
        assert fit.intervals[name][0] <= fit.constants[name] <= fit.intervals[name][1]


@pytest.mark.slow
def test_held_out_runs_do_not_teach(platform):
    """Runs of one size that are ten times too long change no prediction of that size."""
    runs = planted(platform)
    of_it = runs.decoders["hidden_size"] == 2048
    strange = replace(runs, step_s=np.where(of_it, 10.0, 1.0) * runs.step_s)
    held = held_out_s(strange, strange, platform, "model")
    assert np.abs(held / runs.step_s - 1)[of_it].max() < 0.15


def test_a_choice_is_judged_by_what_was_measured():
    runs = training_runs(pd.read_csv(MANY_NODES))
    assert choices(runs, runs.step_s)["best_chosen"] == 1
    assert choices(runs, runs.step_s)["largest_regret"] == 0
    worst = choices(runs, 1 / runs.step_s)
    assert worst["best_chosen"] == 0
    assert worst["cases"] == 3


def test_constants_are_possible(platform):
    for name, entry in platform.constants.items():
        assert entry.value <= entry.limit, name
        assert entry.low <= entry.value <= entry.high, name
        assert (entry.at_most is not None) == name.endswith(("_efficiency", "_share")), name


@pytest.mark.slow
def test_calibration_writes_a_platform_that_is_read_again(tmp_path):
    path = tmp_path / "mine.yaml"
    runs = tmp_path / "runs.csv"
    whole = pd.concat([pd.read_csv(ONE_NODE)[::9], pd.read_csv(MANY_NODES)[::2]])
    whole.to_csv(runs, index=False)
    actual = json_of("calibrate", runs, "--platform", "megatron-a100", "--output", path)
    assert actual["written"] == str(path)
    values = yaml.safe_load(path.read_text())
    assert values["constants"]["matmul_efficiency"]["value"] == pytest.approx(
        actual["constants"]["matmul_efficiency"]["value"]
    )
    score = json_of("score", runs, "--platform", path)
    assert score["mean_absolute_error"] == pytest.approx(actual["mean_absolute_error"])


@pytest.mark.slow
def test_runs_of_which_no_kind_can_be_held_out_give_an_interval_all_the_same(tmp_path):
    """Two sizes of a model, of which each leaves too few runs for the constants."""
    path = tmp_path / "mine.yaml"
    runs = Path(__file__).parents[3] / "docs/validation/transformers/emulated/runs.csv"
    run("calibrate", runs, "--platform", "one-core", "--output", path)
    assert Accelerators.load(str(path)).interval.source.endswith("the same that were fitted")


def test_an_independent_table_is_predicted():
    """Megatron-LM's weak scaling, 32 to 3,072 GPUs: never fitted."""
    actual = json_of("score", MEGATRON)
    assert actual["rows"] == 10
    assert actual["mean_absolute_error"] < 0.063


def test_runs_are_named_by_the_hardware_that_stands_for_the_tables():
    runs = training_runs(pd.read_csv(MANY_NODES), ScoreQuestion(device="h100-sxm"))
    assert set(runs.accelerators) == {"h100-sxm"}
