"""Scores, fits and advice, as the commands give them."""

import json

import pandas as pd
import pytest
import yaml
from click.testing import CliRunner

from ddlbench.cli import commands
from ddlbench.common.errors import ConfigError
from ddlbench.experiment.paths import project_root
from ddlbench.predict.hardware import Platform
from ddlbench.predict.paradl.measured import PUBLISHED_MEASURED

MEASURED = str(PUBLISHED_MEASURED)


def run(*arguments):
    arguments = arguments if arguments[0] == "calibrate" else ("oracle", *arguments)
    result = CliRunner().invoke(commands, list(arguments))
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def json_of(*arguments):
    return json.loads(run(*arguments, "--json"))


def table(folder, **columns):
    usual = {
        "model": ["vgg16"],
        "strategy": ["data"],
        "gpus": [16],
        "batch_per_gpu": [32],
        "seconds_per_iteration": [0.46],
    }
    path = folder / "measured.csv"
    chosen = {name: value for name, value in {**usual, **columns}.items() if value is not None}
    pd.DataFrame(chosen).to_csv(path, index=False)
    return str(path)


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")


def test_accuracy_on_the_published_measurements():
    actual = json_of("score", MEASURED)
    assert actual["campaign"] == "report"
    assert actual["cells_scored"] == 38
    assert actual["mean_accuracy"] >= 0.80
    assert min(score["accuracy"] for score in actual["strategies"].values()) >= 0.60
    means = [score["accuracy"] for score in actual["strategies"].values()]
    assert actual["mean_accuracy"] == pytest.approx(sum(means) / len(means))
    assert set(actual["networks"]) == {"resnet50", "vgg16"}
    assert set(actual["campaigns"]) == {"logs_2020_01"}
    assert actual["baselines"]["paradl-projected"] == pytest.approx(0.657, abs=0.001)
    assert actual["mean_accuracy"] > max(actual["baselines"].values())
    published = json_of("score", MEASURED, "--predictor", "authors-code")
    assert 0.60 < published["mean_accuracy"] < 0.72


@pytest.mark.slow
def test_held_out_networks_and_sizes():
    for by in ("network", "size"):
        actual = json_of("calibrate", MEASURED, "--hold-out", by)["hold_out"]
        assert actual["mean_accuracy"] >= 0.72
        assert min(actual["strategies"].values()) >= 0.60


@pytest.mark.slow
def test_calibrated_constants_are_those_of_the_shipped_platform(tmp_path):
    output = tmp_path / "fitted.yaml"
    actual = json_of("calibrate", MEASURED, "--output", str(output))
    shipped, written = Platform.load("abci"), Platform.load(str(output))
    assert set(actual["constants"]) == set(shipped.constants)
    for name, constant in actual["constants"].items():
        assert constant["meaning"]
        assert constant["value"] == pytest.approx(shipped.constant(name), rel=0.01)
        assert written.constant(name) == pytest.approx(constant["value"])
    assert "38 rows fit 5 constants" in run("calibrate", MEASURED)


def test_carry_forward_does_not_score_itself(tmp_path):
    path = table(
        tmp_path, gpus=[16, 32], model=["vgg16"] * 2, strategy=["data"] * 2,
        batch_per_gpu=[32] * 2, seconds_per_iteration=[0.4, 0.5],
    )  # fmt: skip
    actual = json_of("score", path, "--predictor", "carry-forward")
    assert actual["cells_scored"] == 1
    assert actual["mean_accuracy"] == pytest.approx(0.8)


def test_unreliable_rows_are_left_out(tmp_path):
    path = table(
        tmp_path, gpus=[16, 32], model=["vgg16"] * 2, strategy=["data"] * 2,
        batch_per_gpu=[32] * 2, seconds_per_iteration=[0.4, 9.0],
        reliability=["ok: checked", "unreliable: one iteration"],
    )  # fmt: skip
    actual = json_of("score", path)
    assert actual["cells_scored"] == 1
    assert actual["left_out"] == [{"cell": "vgg16/data/p32", "why": "unreliable: one iteration"}]
    assert "left out" in run("score", path)


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"gpus": None}, "one like cnn also needs gpus"),
        ({"strategy": ["dato"]}, "line 2: unknown strategy 'dato'; did you mean 'data'"),
        ({"model": ["vgg61"]}, "line 2: there is no workload of 'vgg61'"),
        ({"gpus": ["many"]}, "line 2: gpus is 'many'"),
        ({"seconds_per_iteration": [-1]}, "write a number above 0"),
        ({"batch_per_gpu": None}, "no batch; fill column batch_per_gpu"),
        ({"gpus": [9999]}, "more than the platform's largest ring"),
        ({"reliability": ["doubtful"]}, "no row to score"),
    ],
)
def test_tables_that_cannot_be_scored(tmp_path, columns, says):
    with pytest.raises(ConfigError, match=says):
        run("score", table(tmp_path, **columns))


def test_other_wrong_words(tmp_path):
    with pytest.raises(ConfigError, match="unknown predictor 'corected'; did you mean 'corrected'"):
        run("score", MEASURED, "--predictor", "corected")
    with pytest.raises(ConfigError, match="cannot be read as a CSV table"):
        run("score", str(tmp_path / "none.csv"))
    with pytest.raises(ConfigError, match="cannot fit 5 constants"):
        run("calibrate", table(tmp_path))
    with pytest.raises(ConfigError, match="it has: report"):
        run("calibrate", table(tmp_path), "--campaign", "mine")
    with pytest.raises(ConfigError, match="platform 'abcd' has no file"):
        run("best", "vgg16", "--devices", "4", "--batch-size", "32", "--platform", "abcd")
    with pytest.raises(ConfigError, match="--hold-out and --kind are of runs of transformers"):
        run("score", MEASURED, "--hold-out", "model")
    with pytest.raises(ConfigError, match="--choose: only for cells"):
        run("calibrate", MEASURED, "--choose", "3")
    with pytest.raises(ConfigError, match="--output: only for RUNS"):
        run("calibrate", "--output", "mine.yaml")
    for name in ("best", "limits", "target"):
        with pytest.raises(ConfigError, match="ddlbench recommend --hardware .* gpt3-175b"):
            run(name, "gpt3-175b", "--batch-size", "64")


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        (("levels", 0, "bandwidth_bytes_per_s"), -1.0, "write more than 0"),
        (("levels", 0, "largest_ring"), 100, "each level larger than the one before"),
        (("constants", "contention"), None, "contention"),
        (("speed",), 1, "'speed' is not a key here"),
    ],
)
def test_platforms_that_cannot_be(tmp_path, place, value, says):
    shipped = project_root() / "config" / "platforms" / "abci.yaml"
    values = yaml.safe_load(shipped.read_text("utf-8"))
    *way, last = place
    inside = values
    for key in way:
        inside = inside[key]
    inside[last] = value
    path = tmp_path / "broken.yaml"
    path.write_text(yaml.safe_dump(values))
    with pytest.raises(ConfigError, match=says):
        run("score", MEASURED, "--platform", str(path))


def test_best_ranks_what_can_run_first():
    actual = json_of("best", "resnet50", "--devices", "64", "--batch-size", "2048")
    assert actual["best"] == actual["ranking"][0]["strategy"] == "data"
    runs = [candidate["runs"] for candidate in actual["ranking"]]
    assert runs == sorted(runs, reverse=True)
    refused = {
        candidate["strategy"]: candidate["why"]
        for candidate in actual["ranking"]
        if not candidate["runs"]
    }
    assert "limited by" in refused["spatial"]
    assert "GB a device" in refused["filter"]
    assert "best: data" in run("best", "resnet50", "--devices", "64", "--batch-size", "2048")


def test_limits_say_where_a_strategy_ends_and_what_bounds_it():
    (actual,) = json_of("limits", "vgg16", "--batch-size", "32", "--strategy", "filter")
    assert "limited by conv1_1" in actual["stops"]
    assert actual["regimes"][0]["from_devices"] == 2
    assert actual["communication_outweighs_from"] == 2
    (data,) = json_of("limits", "vgg16", "--batch-size", "32", "--strategy", "data")
    assert [regime["term"] for regime in data["regimes"]] == ["layers", "gradients"]
    assert "longest term" in run("limits", "vgg16", "--batch-size", "32")


def test_target_gives_the_fewest_devices():
    arguments = ("resnet50", "--batch-size", "64", "--epoch-s", "120")
    actual = json_of("target", *arguments)["strategies"]
    assert actual["data"]["epoch_s"] <= 120
    fewest = actual["data"]["devices"]
    assert fewest & (fewest - 1)  # no power of two
    for devices, in_time in ((fewest, True), (fewest - 1, False)):
        batch = str(64 * devices)
        ranking = json_of("best", "resnet50", "--devices", str(devices), "--batch-size", batch)
        (data,) = (each for each in ranking["ranking"] if each["strategy"] == "data")
        assert (data["epoch_s"] <= 120) == in_time
    assert actual["data+filter"]["devices"] % 4 == 0  # whole nodes
    assert "at best, on 2 devices" in actual["filter"]["why"]
    assert "Not in time" in run("target", *arguments)
    with pytest.raises(ConfigError, match="write a time above 0"):
        run("target", "resnet50", "--batch-size", "64", "--epoch-s", "0")


@pytest.mark.slow
def test_a_variant_answers_for_the_strategies_that_it_has():
    arguments = ("resnet50", "--batch-size", "64", "--variant", "printed-table")
    ranked = json_of("best", *arguments, "--devices", "4")["ranking"]
    assert {answer["strategy"] for answer in ranked} == {
        "data", "spatial", "filter", "channel", "data+filter", "pipeline",
    }  # fmt: skip
    assert "data+spatial" not in json_of("target", *arguments, "--epoch-s", "60")["strategies"]


def test_a_strategy_that_the_variant_lacks_is_a_sentence():
    words = ("resnet50", "--batch-size", "64", "--variant", "printed-table")
    with pytest.raises(ConfigError, match=r"printed-table has no row for data\+spatial; it has"):
        run("limits", *words, "--strategy", "data+spatial")


def test_what_ends_the_scaling():
    """The option, the first size that does not fit, or the platform."""
    arguments = ("limits", "resnet50", "--strategy", "data", "--batch-size")
    assert json_of(*arguments, "32", "--max-devices", "3")[0]["stops"] == "--max-devices: 3 devices"
    assert json_of(*arguments, "3200000")[0]["stops"].startswith("2 devices: needs")
    assert json_of(*arguments, "32")[0]["stops"] == "the platform: 4,352 devices"


def test_a_network_without_a_workload_points_to_the_command_that_knows_it():
    words = ["oracle", "best", "resnet18", "--devices", "4", "--batch-size", "64"]
    with pytest.raises(ConfigError, match="recommend --hardware .* --network resnet18"):
        CliRunner().invoke(commands, words, catch_exceptions=False)
