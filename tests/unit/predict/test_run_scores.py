"""Scores of published trainings held out, and fits that find what was planted."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from decoder_factory import playbook

from ddlbench.common.errors import ConfigError
from ddlbench.predict.hardware import Software
from ddlbench.predict.run_tables import ScoreQuestion, kind_of_columns, score_file
from ddlbench.predict.transformer.decoder_fit import (
    FEW_CONSTANTS,
    fit_memory,
    fit_time,
    fitted_names,
    nearer_bytes,
    predicted_s,
    proposals,
)
from ddlbench.predict.transformer.decoder_time import CONSTANTS
from ddlbench.predict.transformer.run_scores import TERMS, calibrated, score, term_gains
from ddlbench.predict.transformer.training_runs import (
    PUBLISHED,
    TrainingRuns,
    cleaned_s,
    shipped,
    training_runs,
    without_repeats,
)

PLAYBOOK, FOUNDRY = PUBLISHED / "playbook.csv", PUBLISHED / "foundry.csv"
BELOW_512 = {"max_gpus": "256"}


def held_out(path, **kind):
    return score_file(path, ScoreQuestion("model", kind))


def test_memory_and_calls_held_out_by_model():
    values = held_out(PLAYBOOK)
    assert values["memory_mean_absolute_error"] <= 0.075
    assert values["by"]["tensor"]["1"]["memory_mean_absolute_error"] <= 0.05
    assert values["fit"]["survivors_refused"] <= 0.005
    assert values["fit"]["failures_refused_or_cannot_tell"] >= 0.85


def test_steps_without_pipelines_held_out_by_model():
    values = held_out(PLAYBOOK, pipeline="no", **BELOW_512)
    assert values["mean_absolute_error"] <= 0.10
    assert values["median_absolute_error"] <= 0.05
    assert values["choice"]["cases"] == 11
    assert values["choice"]["mean_regret"] <= 0.03
    assert values["choice"]["best_of_three_regret"] <= 0.015


def test_steps_of_small_tensor_groups_held_out_by_model():
    values = held_out(PLAYBOOK, pipeline="no", max_gpus="128", tensor_max="8")
    assert values["mean_absolute_error"] <= 0.055
    assert values["median_absolute_error"] <= 0.035


def test_pipelines_held_out_by_model():
    values = held_out(PLAYBOOK, pipeline="yes", **BELOW_512)
    assert values["mean_absolute_error"] <= 0.20
    assert values["median_absolute_error"] <= 0.13


def test_ten_rows_of_ones_own():
    kind = {"pipeline": "no", "max_gpus": "128", "tensor_max": "8", "own_rows": "10"}
    assert score_file(PLAYBOOK, ScoreQuestion(kind=kind))["mean_absolute_error"] <= 0.08


def test_fsdp_by_model_and_by_device():
    values = held_out(FOUNDRY)
    assert values["mean_absolute_error"] <= 0.06
    assert values["median_absolute_error"] <= 0.04
    other = score_file(FOUNDRY, ScoreQuestion("device"))
    assert other["mean_absolute_error"] <= 0.10


def test_a_fit_finds_planted_constants():
    runs = shipped("playbook")
    runs = runs.take(np.flatnonzero(runs.timed & (runs.decoders.devices <= 256))[::4])
    software = Software.load("nanotron")
    planted = {"product_efficiency": 0.55, "host_layer_s": 0.006, "node_latency_factor": 4.0}
    made = replace(runs, step_s=predicted_s(runs, software.with_constants(planted)))
    actual = fit_time(made, software, FEW_CONSTANTS).constants
    assert actual == pytest.approx(planted, rel=0.02)


def test_runs_of_one_configuration_count_as_one():
    """Whoever measures one configuration ten times knows one row, and not ten."""
    runs = shipped("foundry").take(slice(0, 5))
    again = runs.take([0] * 4)
    again = replace(again, step_s=again.step_s * [0.8, 0.9, 1.1, 50.0])
    merged = without_repeats(TrainingRuns.joined([runs, again]))
    assert merged.step_s == pytest.approx(runs.step_s)  # the median of its five
    assert merged.decoders.devices.tolist() == runs.decoders.devices.tolist()
    _, (fitted, *_) = calibrated(TrainingRuns.joined([runs, again]), Software.load("fsdp"), "x")
    assert fitted.rows == 5


def test_rows_of_one_network_alone_leave_an_interval():
    """They are one group, whose errors cancel at the best fit."""
    runs = shipped("playbook")
    names = ("hidden_size", "layers", "tensor", "pipeline", "sequence_length")
    keys = np.stack([runs.decoders[name] for name in names], axis=1)
    alike = runs.timed & (runs.decoders.devices <= 256)
    kinds, counts = np.unique(keys[alike], axis=0, return_counts=True)
    few = runs.take(np.flatnonzero(alike & (keys == kinds[counts.argmax()]).all(axis=1))[:8])
    errors = fit_time(few, Software.load("nanotron"), FEW_CONSTANTS).relative_errors
    assert all(error > 0.01 for error in errors.values())


def test_a_fit_of_memory_finds_planted_constants():
    runs = shipped("playbook")
    runs = runs.take(np.flatnonzero(runs.timed)[::3])
    software = Software.load("nanotron")
    planted = {"logit_bytes": 14.0, "gather_bytes": 10.0, "fragmentation": 1.1}
    planted["context_bytes"] = 0.4 * 2**30
    memory_bytes = nearer_bytes(runs, software.with_constants(planted))
    actual = fit_memory(replace(runs, memory_bytes=memory_bytes), software).constants
    assert actual == pytest.approx(planted, rel=0.05)


def test_constants_at_the_data_sheet_are_not_fitted():
    assert "attention_efficiency" not in fitted_names(Software.load("nanotron"), CONSTANTS)


def test_terms_are_taken_out_one_by_one():
    terms = tuple(term for term in TERMS if term.name in ("nothing", "flash attention", "hop_s"))
    rows = list(term_gains(pd.read_csv(FOUNDRY), ScoreQuestion(), terms))
    errors = {row["term"]: row["no_pipeline"]["mean_absolute_error"] for row in rows}
    assert errors["flash attention"] > errors["nothing"]


@pytest.mark.slow
def test_no_held_out_row_is_fitted():
    table = playbook(200)
    table = table[table["model"] != "1B"]
    wrong = table.assign(step_s=table["step_s"] * np.where(table["model"] == "3B", 3.0, 1.0))
    kind = {"cleaned": "no"}
    right_80 = score(table, ScoreQuestion("model", kind))["by"]["model"]["3B"]
    wrong_80 = score(wrong, ScoreQuestion("model", kind))["by"]["model"]["3B"]
    assert wrong_80["mean_absolute_error"] > 0.4 > right_80["mean_absolute_error"]


def test_steps_of_broken_slots_and_wrong_batches_are_dropped():
    runs = shipped("playbook")
    kept = np.isfinite(cleaned_s(runs))
    piped = runs.decoders["pipeline"] > 1
    assert (runs.timed & piped).sum() == 798 and (kept & piped).sum() == 642
    assert (kept & ~piped).sum() == (runs.timed & ~piped).sum()
    first = pd.read_csv(PLAYBOOK)
    assert not runs.timed[(first["batch_is_product"] == "no").to_numpy()].any()


def test_a_step_far_slower_than_its_twin_is_dropped():
    table = playbook(4).query("status == 'ran'").iloc[:1]
    twin = table.assign(zero_stage=1 - table["zero_stage"], step_s=table["step_s"] * 4)
    assert training_runs(pd.concat([table, twin])).timed.tolist() == [True, False]


def test_proposed_rows_are_bound_by_three_things():
    bounds = [proposal.bound_by for proposal in proposals(8, 8)]
    assert bounds.count("products") == 1 and bounds.count("host") == 2
    assert sum("nodes" in bound for bound in bounds) == 3
    for proposal in proposals(8, 8):
        layout = proposal.layout
        assert layout["tensor"] * layout["data"] * layout["pipeline"] == 64


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"step_s": -1.0}, "line 2: step_s is -1.0; write a number above 0"),
        ({"accelerator": "abacus"}, "accelerator is 'abacus', which no data sheet names"),
        ({"tensor": 3}, "write tensor x data x pipeline"),
        ({"status": "lost"}, "status is 'lost'; write ran or failed"),
    ],
)
def test_wrong_values_end_in_one_sentence(change, sentence):
    table = playbook(1)[:1].assign(**change)
    with pytest.raises(ConfigError, match=sentence):
        training_runs(table)


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ({"pipelines": "no"}, "'pipelines' is unknown"),
        ({"pipeline": "maybe"}, "no row has it; write no"),
        ({"max_gpus": "few"}, "write a whole number"),
        ({"max_gpus": "1"}, "no row of"),
    ],
)
def test_wrong_filters_end_in_one_sentence(kind, sentence):
    with pytest.raises(ConfigError, match=sentence):
        score(playbook(5), ScoreQuestion(kind=kind))


def test_tables_are_told_by_their_columns():
    assert kind_of_columns(["round", "submitter", "x"]).name == "mlperf"
    assert kind_of_columns(["model", "strategy", "gpus"]) is None


def test_a_table_without_one_of_its_columns_is_told_which(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("model,layers,tensor,pipeline,memory_gib\n1B,16,1,1,20\n")
    with pytest.raises(ConfigError, match="one like playbook also needs zero_stage; one like"):
        score_file(path, ScoreQuestion())


def test_another_name_of_a_device_does_not_teach_what_is_held_out():
    published = pd.read_csv(FOUNDRY)
    rows = published[published["accelerator"] == "A100-SXM-40GB"].reset_index(drop=True)
    renamed = rows.assign(accelerator="NVIDIA A100-SXM4-40GB")
    errors = [
        score(table, ScoreQuestion("device"))["mean_absolute_error"] for table in (rows, renamed)
    ]
    assert errors[1] == pytest.approx(errors[0])
