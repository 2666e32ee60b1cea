"""Recommendations scored against planted measurements."""

import math

import pandas as pd
import predict_factory as make
import pytest
from predict_results import only_row, row, write_cases, write_failed, write_ok

from ddlbench.predict.accuracy import ALL, errors
from ddlbench.predict.evaluate import predictions
from ddlbench.predict.recommend import recommend
from ddlbench.predict.recommender_score import (
    NOT_DISCRIMINATING,
    NOT_SCORED,
    judged,
    published_cases,
    table_8_1,
    table_8_2,
    with_choices,
)

SITE = make.site()


@pytest.fixture
def site(tmp_path):
    """Two cases of four strategies and their base; three repeats."""
    return tmp_path, write_cases(tmp_path)


def cases_of(root, rows):
    return table_8_1(predictions(rows, SITE, root), "cpu")


def test_table_8_1_names_the_cost_of_the_wrong_choice(site):
    table = cases_of(*site)
    rule = only_row(table, recommender="horovod-unless-oom", devices_per_node=4)
    assert (rule.recommended, rule.fastest, rule.candidates) == ("horovod", "ddp", 4)
    assert rule.extra_time == pytest.approx(0.25)
    assert rule.correct == 0
    assert rule.within_noise == 0  # 0.45 .. 0.55 against 0.36 .. 0.44
    assert rule.baseline
    fastest = only_row(table, recommender="data-extrapolation", devices_per_node=4)
    assert fastest.correct == 1
    assert fastest.extra_time == 0
    assert not only_row(table, recommender="carry-forward", devices_per_node=2).recommended


def test_epochs_are_compared_each_at_its_own_batch(tmp_path):
    """Thesis, Tables 8.1 and 8.2: Horovod with 32 images, GPipe with 128; time a sample decides."""
    make.write_site(tmp_path, make.profile(), make.links())
    rows = []
    for strategy, batch_size, step_s in (
        ("sequential", 32, 0.4), ("horovod", 32, 0.2), ("ddp", 32, 0.1), ("gpipe", 128, 0.5),
    ):  # fmt: skip
        cell = make.cell(strategy, "1x1" if strategy == "sequential" else "1x4", batch_size)
        write_ok(tmp_path, cell, step_s)
        rows.append(row(cell))
    frame = predictions(rows, SITE, tmp_path)
    assert set(table_8_1(frame, "cpu")["batch_size"]) == {32}  # GPipe is alone at its batch
    cases, rates = published_cases(frame, "cpu")
    rule = only_row(cases, recommender="horovod-unless-oom", kind=cases["kind"].iloc[-1])
    assert rule.kind == "epochs, each at its own batch, Horovod or GPipe"
    assert (rule.recommended, rule.fastest, rule.candidates) == ("horovod", "gpipe", 2)
    assert rule.extra_time == pytest.approx((0.2 / 32) / (0.5 / 128) - 1)
    every = only_row(
        cases,
        recommender="horovod-unless-oom",
        kind="epochs, each at its own batch, all strategies",
    )
    assert (every.fastest, every.candidates) == ("ddp", 3)
    assert set(rates["kind"]) == set(cases["kind"])


def test_a_pick_from_repeat_0_is_judged_by_the_other_repeats(site):
    """Horovod's repeat 0 was by far the fastest, and so is its median over that and one more."""
    root, rows = site
    rows = [entry for entry in rows if entry.cell.repeat < 2]
    for entry in rows:
        if entry.cell.strategy == "horovod":
            write_ok(root, entry.cell, 0.5 if entry.cell.repeat else 0.1)
    table = cases_of(root, rows)
    learnt = only_row(table, recommender="data-extrapolation", devices_per_node=4)
    assert (learnt.recommended, learnt.fastest) == ("horovod", "ddp")
    assert learnt.correct == 0
    assert learnt.extra_time == pytest.approx(0.25)  # of repeat 1: 0.5 against 0.4
    # Who did not learn from repeat 0 is judged by both: (0.1 + 0.5) / 2 against 0.38.
    rule = only_row(table, recommender="horovod-unless-oom", devices_per_node=4)
    assert (rule.recommended, rule.fastest, rule.correct) == ("horovod", "horovod", 1)


def test_with_one_repeat_a_pick_from_it_is_not_scored(tmp_path):
    rows = write_cases(tmp_path, repeats=1)
    frame = predictions(rows, SITE, tmp_path)
    cases = table_8_1(frame, "cpu")
    for _, case in cases[cases["recommender"] == "data-extrapolation"].iterrows():
        assert case.recommended == "ddp"
        assert case.fastest == ""
        assert case[["correct", "within_noise", "extra_time"]].isna().all()
        assert NOT_SCORED in case.note
    rates = table_8_2(cases)
    learnt = only_row(rates, recommender="data-extrapolation")
    assert (learnt.n, learnt.correct, learnt.not_scored) == (0, 0, 2)
    assert math.isnan(learnt.top1)
    assert learnt.verdict == NOT_SCORED
    rule = only_row(rates, recommender="horovod-unless-oom")
    assert (rule.n, rule.not_scored) == (2, 0)
    scores = only_row(
        with_choices(errors(frame), rates), predictor="data-extrapolation", strategy=ALL
    )
    assert scores.n == 0
    assert math.isnan(scores.top1)
    assert math.isnan(scores.mean_regret)


def test_a_pick_without_a_repeat_of_its_own_is_not_scored(site):
    """DDP ran once, so what it took then can not show that it was rightly picked for it."""
    root, rows = site
    for entry in rows:
        if entry.cell.strategy == "ddp" and entry.cell.devices == 4 and entry.cell.repeat:
            write_failed(root, entry.cell, "timeout")
    table = cases_of(root, rows)
    learnt = only_row(table, recommender="data-extrapolation", devices_per_node=4)
    assert learnt.recommended == "ddp"
    assert math.isnan(learnt.correct)
    rates = only_row(table_8_2(table), recommender="data-extrapolation")
    assert (rates.n, rates.not_scored, rates.top1) == (1, 1, 1)


def test_a_tie_counts_as_its_expectation_whatever_the_order(site):
    root, rows = site
    for order in (rows, rows[::-1]):
        table = cases_of(root, order)
        tie = only_row(table, recommender="linear", devices_per_node=4)
        assert tie.tied == 4
        assert "tie of 4" in tie.note
        assert sorted(tie.recommended.split(" or ")) == [
            "ddp",
            "gpipe",
            "horovod",
            "model-parallel",
        ]
        assert tie.correct == pytest.approx(1 / 4)
        assert tie.extra_time == pytest.approx((0.25 + 0 + 0.5 + 1) / 4)
        rates = only_row(table_8_2(table), recommender="linear")
        assert (rates.n, rates.ties, rates.correct) == (2, 2, pytest.approx(1 / 2))
        assert rates.top1 == pytest.approx(1 / 4)
        assert rates.mean_regret == pytest.approx(1.75 / 4)


def test_of_a_tie_what_did_not_run_is_wrong_and_costs_nothing(site):
    root, rows = site
    for entry in rows:
        if entry.cell.strategy == "gpipe" and entry.cell.devices == 4:
            write_failed(root, entry.cell, "out_of_memory")
    table = cases_of(root, rows)
    tie = only_row(table, recommender="linear", devices_per_node=4)
    assert tie.correct == pytest.approx(1 / 4)
    assert tie.not_run == pytest.approx(1 / 4)
    assert tie.extra_time == pytest.approx((0.25 + 0 + 1) / 3)
    assert "1 of 4 did not run: out_of_memory" in tie.note
    assert only_row(table_8_2(table), recommender="linear").no_measurement == pytest.approx(1 / 4)


def test_overlapping_intervals_are_no_difference(tmp_path):
    make.write_site(tmp_path, make.profile(), make.links())
    rows = []
    for repeat in range(3):
        for strategy, step_s in (("horovod", 0.42), ("ddp", 0.4)):
            cell = make.cell(strategy, repeat=repeat)
            write_ok(tmp_path, cell, step_s * (1 + 0.1 * (repeat - 1)))
            rows.append(row(cell))
    table = cases_of(tmp_path, rows)
    rule = only_row(table, recommender="horovod-unless-oom")
    assert rule.correct == 0
    assert rule.within_noise == 1
    tie = only_row(table, recommender="linear")
    assert (tie.correct, tie.within_noise) == (0.5, 1)


def test_out_of_memory_moves_the_rule_and_fails_a_pick(site):
    root, rows = site
    for entry in rows:
        if entry.cell.strategy == "horovod" and entry.cell.devices == 4:
            write_failed(root, entry.cell, "out_of_memory")
    frame = predictions(rows, SITE, root)
    table = table_8_1(frame, "cpu")
    rule = only_row(table, recommender="horovod-unless-oom", devices_per_node=4)
    assert rule.recommended == "gpipe"
    assert rule.extra_time == pytest.approx(0.5)
    thesis = frame[frame["strategy"].isin(["horovod", "gpipe"]) & (frame["devices_per_node"] == 4)]
    cheap = thesis.assign(
        predicted_step_s=thesis["predicted_step_s"].where(thesis["strategy"] != "horovod", 1e-6)
    )
    pair = pd.concat(
        [cheap, frame[(frame["strategy"] == "ddp") & (frame["devices_per_node"] == 4)]]
    )
    table = table_8_1(pair, "cpu")
    failed = only_row(table, recommender="thesis")
    assert failed.recommended == "horovod"
    assert math.isnan(failed.extra_time)
    assert failed.correct == 0
    assert "the pick did not run: out_of_memory" in failed.note
    assert only_row(table_8_2(table), recommender="thesis").no_measurement == 1


def test_table_8_2_counts_and_says_when_it_does_not_discriminate(site):
    root, rows = site
    frame = predictions(rows, SITE, root)
    table = table_8_2(table_8_1(frame, "cpu"))
    rule = only_row(table, recommender="horovod-unless-oom")
    assert (rule.dataset, rule.n, rule.correct, rule.top1) == ("mnist", 2, 0, 0)
    assert rule.mean_regret == pytest.approx(0.25)
    assert rule.verdict.startswith(NOT_DISCRIMINATING)
    assert rule.usual_winner == "ddp"
    carried = only_row(table, recommender="carry-forward")
    assert (carried.n, carried.correct, carried.no_recommendation) == (2, 1, 1)
    joined = with_choices(errors(frame), table)
    assert only_row(joined, predictor="carry-forward", strategy=ALL).top1 == pytest.approx(0.5)
    assert math.isnan(only_row(joined, predictor="ddlbench-eq1").top1)


def test_a_split_of_winners_discriminates(site):
    root, rows = site
    for entry in rows:
        if entry.cell.strategy == "gpipe" and entry.cell.devices == 2:
            write_ok(root, entry.cell, 0.1)
    table = table_8_2(cases_of(root, rows))
    assert only_row(table, recommender="thesis").verdict == ""


@pytest.mark.parametrize("says", ["profile", "site"])
def test_what_does_not_fit_is_not_picked(site, says):
    root, rows = site
    chosen_site = SITE
    if says == "profile":
        make.write_site(root, make.profile(device_memory_bytes=250_000_000), None)
    else:
        chosen_site = make.site(memory_per_device_mb=250)
    frame = predictions(rows, chosen_site, root)
    assert only_row(frame, predictor="ddlbench-eq1", devices_per_node=4).fits == False  # noqa: E712
    table = table_8_1(frame, "cpu")
    for name in ("thesis", "ddlbench", "measured-links"):
        picks = set(table[table["recommender"] == name]["recommended"])
        assert picks <= {"gpipe", "model-parallel", ""}


@pytest.mark.parametrize("memory_mb", [100, 250, 300, 10_000])
def test_tables_and_recommend_agree_on_what_fits(site, memory_mb):
    root, rows = site
    chosen_site = make.site(memory_per_device_mb=memory_mb)
    frame = predictions(rows, chosen_site, root)
    actual = recommend(make.question(), make.knowledge(root, site=chosen_site))
    fits = {candidate.strategy: candidate.fits for candidate in actual.candidates}
    shown = frame[(frame["devices_per_node"] == 4) & frame["predicted_step_s"].notna()]
    shown = shown[shown["predictor"] != "paradl-authors"]  # has a memory model of its own
    assert set(shown["strategy"]) == {"horovod", "ddp", "gpipe", "model-parallel"}
    for record in shown.to_dict("records"):
        assert record["fits"] is fits[record["strategy"]] is not None


def test_recommenders_that_say_the_same_are_judged_once():
    on_cpu, on_gpu = ([name for name, _ in judged(device)] for device in ("cpu", "cuda"))
    assert on_cpu[:2] == ["measured-links", "overlap"]
    assert on_gpu[0] == "measured-links"
    assert "overlap" not in on_gpu


def test_no_case_to_choose_in_gives_empty_tables(tmp_path):
    make.write_site(tmp_path, make.profile(), make.links())
    cell = make.cell("ddp")
    write_ok(tmp_path, cell, 0.4)
    frame = predictions([row(cell)], SITE, tmp_path)
    table = table_8_1(frame, "cpu")
    assert table.empty
    assert table_8_2(table).empty
    assert "top1" in with_choices(errors(frame), table_8_2(table)).columns
