"""``ddlbench oracle score|terms`` and ``calibrate`` of tables that other people published."""

import json
from pathlib import PurePath

import pandas as pd
import pytest
import yaml
from click.testing import CliRunner
from decoder_factory import playbook

from ddlbench.cli import commands
from ddlbench.common.errors import ConfigError
from ddlbench.predict import collective_points, horovod_scaling
from ddlbench.predict.hardware import Software
from ddlbench.predict.paradl.measured import PUBLISHED_MEASURED
from ddlbench.predict.transformer.training_runs import PUBLISHED

FOUNDRY = PUBLISHED / "foundry.csv"
MANY_NODES = PUBLISHED / "many_nodes.csv"


def run(*arguments):
    words = arguments if arguments[0] == "calibrate" else ("oracle", *arguments)
    result = CliRunner().invoke(commands, list(map(str, words)))
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
    assert "A100-SXM-80GB is taken; yours is --hardware" in run("score", MANY_NODES)
    faster = json.loads(run("score", MANY_NODES, "--hardware", "h100-sxm", "--json"))
    assert faster["measured_over_predicted"]["low"] > sheets["measured_over_predicted"]["low"]


def test_few_rows_calibrate_three_constants(runs, tmp_path):
    few = tmp_path / "few.csv"
    table = playbook(120).query("status == 'ran' and devices <= 256 and step_s > 0")
    table[:8].to_csv(few, index=False)
    output = tmp_path / "mine.yaml"
    assert f"use it: --software {output}" in run("calibrate", few, "--output", output)
    values = json.loads(run("calibrate", few, "--output", output, "--json"))
    assert set(values["constants"]) == {"product_efficiency", "host_layer_s", "node_latency_factor"}
    assert yaml.safe_load(output.read_text())["fitted_on"] == "8 steps of few.csv"
    assert values["mean_absolute_error"] < 0.2


@pytest.mark.slow
def test_shipped_constants_and_their_intervals_are_those_of_the_command():
    fitted = json.loads(run("calibrate", FOUNDRY, "--json"))["constants"]
    shipped = Software.load("fsdp").constants
    for name, each in fitted.items():
        ends = shipped[name].value, shipped[name].low, shipped[name].high
        assert ends == pytest.approx((each["value"], each["low"], each["high"]), rel=0.02), name


def test_steps_in_another_unit_show_in_the_error_of_a_calibration(tmp_path):
    path = tmp_path / "few.csv"
    table = playbook(120).query("status == 'ran' and devices <= 256 and step_s > 0")[:8]
    table.assign(step_s=table["step_s"] / 1000).to_csv(path, index=False)
    assert json.loads(run("calibrate", path, "--json"))["mean_absolute_error"] > 1
    assert "mean error on the same runs: " in run("calibrate", path)


@pytest.mark.parametrize("option", [("--hardware", "h100-sxm"), ("--fabric", "gigabit")])
def test_data_sheets_are_refused_for_runs_that_a_platform_describes(runs, option):
    for command in ("calibrate", "score"):
        with pytest.raises(ConfigError, match=f"leave out {option[0]}: no effect on"):
            run(command, PUBLISHED_MEASURED, *option)
    with pytest.raises(ConfigError, match=f"leave out {option[0]}: no effect on"):
        run("calibrate", MANY_NODES, "--platform", "megatron-a100", *option)
    with pytest.raises(ConfigError, match="leave out --predictor: no effect on other runs"):
        run("score", runs, "--predictor", "authors-code")


def test_what_no_row_depends_on_is_called_unknown(tmp_path):
    rows = playbook(120)
    path = tmp_path / "one_node.csv"
    rows[(rows["nodes"] == 1) & rows["step_s"].notna()].to_csv(path, index=False)
    values = json.loads(run("calibrate", path, "--json"))["constants"]
    assert [name for name in values if values[name].get("unknown")] == ["node_latency_factor"]
    node = values["node_latency_factor"]
    assert node["low"] < node["value"] < node["high"]
    assert "Unknown, as no row depends on it" in run("calibrate", path)


@pytest.mark.parametrize("option", [("--campaign", "main"), ("--hold-out", "network")])
def test_options_of_cnns_are_refused_for_decoders(runs, option):
    with pytest.raises(ConfigError, match=f"{option[0]}: only for a table of iterations of CNNs"):
        run("calibrate", runs, *option)


def test_rows_of_another_device_are_refused(tmp_path):
    path = tmp_path / "runs.csv"
    playbook().head(6).to_csv(path, index=False)
    with pytest.raises(ConfigError, match="runs.csv line 2: accelerator is 'H100.*another device"):
        run("calibrate", path, "--hardware", "a100-sxm-80gb")
    assert json.loads(run("calibrate", path, "--hardware", "h100-sxm", "--json"))["rows"] > 0


@pytest.mark.parametrize("path", [horovod_scaling.PUBLISHED, collective_points.PUBLISHED])
def test_calibrate_finds_the_shipped_constants(path, tmp_path):
    output = tmp_path / "mine.yaml"
    fitted = json.loads(run("calibrate", path, "--output", output, "--json"))
    written = yaml.safe_load(output.read_text())["constants"]
    for name, values in fitted["constants"].items():
        assert written[name]["value"] == pytest.approx(values["value"])
        assert values["low"] <= values["value"] <= values["high"]
    assert "fitted" in run("calibrate", path)


def test_tables_of_two_kinds_are_not_fitted_together():
    with pytest.raises(ConfigError, match="different kinds, foundry, nccl"):
        run("calibrate", FOUNDRY, collective_points.PUBLISHED)


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
    with pytest.raises(ConfigError, match="--platform is of iterations of CNNs, and of GPTs"):
        run("score", runs, "--platform", "megatron-a100")


KEYS = {
    "rows", "mean_absolute_error", "median_absolute_error", "within_20_percent",
    "memory_mean_absolute_error", "fit", "choice", "by",
}  # fmt: skip
KINDS = ["playbook.csv", "foundry.csv", MANY_NODES]
KINDS += [*(network.published for network in horovod_scaling.NETWORKS.values())]
KINDS += [collective_points.PUBLISHED, PUBLISHED_MEASURED]


@pytest.mark.parametrize("path", KINDS, ids=lambda path: PurePath(path).name)
def test_every_kind_of_table_has_the_same_keys(path):
    values = json.loads(run("score", PUBLISHED / path, "--json"))
    assert set(values) >= KEYS
    assert set(values["fit"]) >= {"survivors_refused", "failures_refused_or_cannot_tell"}
    assert set(values["choice"]) >= {"cases", "mean_regret", "best_of_three_regret"}


@pytest.mark.parametrize("chosen", ["own_rows=3", "max_gpus=8"])
def test_every_question_has_the_same_keys(chosen):
    values = json.loads(run("score", FOUNDRY, "--kind", chosen, "--json"))
    assert set(values) >= KEYS


def test_only_failures_are_scored(tmp_path):
    failed = tmp_path / "failed.csv"
    playbook(400).query("status == 'failed'").to_csv(failed, index=False)
    values = json.loads(run("score", failed, "--json"))
    assert set(values) >= KEYS
    assert values["mean_absolute_error"] is None
    assert values["fit"]["failures_refused_or_cannot_tell"] is not None


@pytest.mark.parametrize("column", ["model", "accelerator"])
def test_an_empty_name_is_refused_with_the_file_and_line(column, tmp_path):
    path = tmp_path / "runs.csv"
    table = pd.read_csv(FOUNDRY)
    table.loc[3, column] = None
    table.to_csv(path, index=False)
    with pytest.raises(ConfigError, match=f"runs.csv line 5: {column} is empty"):
        run("score", path)


@pytest.mark.parametrize("path", KINDS, ids=lambda path: PurePath(path).name)
def test_an_empty_table_is_refused_by_its_name(path, tmp_path):
    empty = tmp_path / "empty.csv"
    pd.read_csv(PUBLISHED / path)[:0].to_csv(empty, index=False)
    with pytest.raises(ConfigError, match="empty.csv has no row"):
        run("score", empty)


def test_a_missing_mark_is_named(tmp_path):
    path = tmp_path / "runs.csv"
    pd.read_csv(FOUNDRY).drop(columns="sharding").to_csv(path, index=False)
    with pytest.raises(ConfigError, match="runs.csv: .* one like foundry also needs sharding"):
        run("score", path)


@pytest.mark.parametrize(("chosen", "rows"), [("status == 'failed'", 0), ("step_s > 0", 1)])
def test_own_rows_need_rows_with_a_step(chosen, rows, tmp_path):
    path = tmp_path / "runs.csv"
    playbook(400).query(chosen)[: rows or 20].to_csv(path, index=False)
    with pytest.raises(ConfigError, match=f"has {rows} rows with a step; give 2 or more"):
        run("score", path, "--kind", "own_rows=3")


def test_a_sweep_of_one_rank_is_refused(tmp_path):
    path = tmp_path / "sweep.txt"
    path.write_text(
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 8\n"
        "# Rank  0 Group  0 Pid  1 on host0 device  0 [0x00] NVIDIA H100 80GB HBM3\n"
        "#       size         count      type   redop    root     time   algbw   busbw #wrong\n"
        "    33554432       8388608     float     sum      -1    200.1  167.69  0.00      0"
        "    199.1  168.53  0.00      0\n"
    )
    words = ["links", "compare", str(path), "--operation", "all_reduce", "--hardware", "h100-sxm"]
    result = CliRunner().invoke(commands, words)
    assert isinstance(result.exception, ConfigError)
    assert "one rank sends nothing" in str(result.exception)
