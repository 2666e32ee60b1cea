"""``ddlbench oracle score|calibrate|terms`` of tables that other people published."""

import json

import pytest
import yaml
from click.testing import CliRunner
from decoder_factory import playbook

from ddlbench.commands.oracle import oracle
from ddlbench.common.errors import ConfigError
from ddlbench.predict.transformer.runs import MANY_NODES
from ddlbench.predict.transformer.training_runs import PUBLISHED

FOUNDRY = PUBLISHED / "foundry.csv"


def run(*arguments):
    result = CliRunner().invoke(oracle, list(map(str, arguments)))
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


@pytest.fixture
def runs(tmp_path):
    path = tmp_path / "runs.csv"
    playbook(120).to_csv(path, index=False)
    return path


def test_score_gives_the_keys_of_run_tables(runs):
    values = json.loads(run("score", runs, "--json"))
    assert {
        "rows", "mean_absolute_error", "median_absolute_error", "within_20_percent",
        "memory_mean_absolute_error", "memory_median_absolute_error", "fit", "choice", "by",
    } <= set(values)  # fmt: skip
    assert set(values["fit"]) >= {"survivors_refused", "failures_refused_or_cannot_tell"}


def test_score_for_a_terminal_is_80_columns_wide(runs):
    lines = run("score", runs, "--hold-out", "model", "--kind", "pipeline=no").splitlines()
    assert lines[0].startswith("playbook: runs.csv")
    assert max(map(len, lines)) <= 80


def test_megatrons_runs_have_the_platform_that_was_fitted_to_them():
    values = json.loads(run("score", MANY_NODES, "--json"))
    assert values["mean_absolute_error"] <= 0.064
    sheets = json.loads(run("score", MANY_NODES, "--software", "megatron", "--json"))
    assert sheets["mean_absolute_error"] > values["mean_absolute_error"]


def test_few_rows_calibrate_three_constants(runs, tmp_path):
    few = tmp_path / "few.csv"
    table = playbook(120).query("status == 'ran' and devices <= 256 and step_s > 0")
    table[:8].to_csv(few, index=False)
    output = tmp_path / "mine.yaml"
    values = json.loads(run("calibrate", few, "--output", output, "--json"))
    assert set(values["constants"]) == {"product_efficiency", "host_layer_s", "node_latency_factor"}
    assert yaml.safe_load(output.read_text())["fitted_on"] == "8 steps of few.csv"


def test_calibrate_proposes_rows():
    values = json.loads(run("calibrate", "--geometry", "8x8", "--json"))
    assert len(values["proposed"]) == 6
    assert "latency of nodes" in run("calibrate", "--geometry", "8x8")


@pytest.mark.slow
def test_terms_are_listed_for_a_terminal():
    lines = run("terms", FOUNDRY).splitlines()
    assert any(line.startswith("flash attention") for line in lines)
    assert max(map(len, lines)) <= 80


def test_wrong_options_end_in_one_sentence(runs):
    with pytest.raises(ConfigError, match="has no value; write as pipeline=no"):
        run("score", runs, "--kind", "pipeline")
