"""Errors and recommendations scored against planted measurements."""

import math

import pandas as pd
import predict_factory as make
import pytest
from predict_results import row, write_failed, write_ok

from ddlbench.experiment.errors import ConfigError
from ddlbench.planning.matrix import MatrixRow
from ddlbench.predict.accuracy import ALL, errors, read_predictions, write_predictions
from ddlbench.predict.choices import NOT_DISCRIMINATING, table_8_1, table_8_2, with_choices
from ddlbench.predict.measurements import measure
from ddlbench.predict.table import COLUMNS, predictions

STRATEGIES = ("horovod", "ddp", "gpipe", "model-parallel")


@pytest.fixture
def site(tmp_path):
    """Two cases of four strategies and their base; three repeats."""
    make.write_site(tmp_path, make.profile(), make.links())
    rows = []
    seconds = {"horovod": 0.5, "ddp": 0.4, "gpipe": 0.6, "model-parallel": 0.8}
    for repeat in range(3):
        base = make.cell("sequential", "1x1", 32, repeat=repeat)
        write_ok(tmp_path, base, 0.4 + 0.01 * repeat)
        rows.append(row(base, base))
        for geometry in ("1x2", "1x4"):
            for strategy, step_s in seconds.items():
                cell = make.cell(strategy, geometry, 32, repeat=repeat)
                write_ok(tmp_path, cell, step_s * (1 + 0.1 * (repeat - 1)))
                rows.append(row(cell, base))
    return tmp_path, rows


def one(frame, **wanted):
    for name, value in wanted.items():
        frame = frame[frame[name] == value]
    assert len(frame) == 1, frame
    return frame.iloc[0]


def test_a_row_a_predictor_and_configuration(site):
    root, rows = site
    frame = predictions(rows, "local", root)
    assert tuple(frame.columns) == COLUMNS
    assert not frame.duplicated(["predictor", "cell_id"]).any()
    told = one(frame, predictor="sequential")
    assert told.predicted_step_s == pytest.approx(0.42)
    assert told.measured_step_s == pytest.approx(0.41)
    assert told.signed_error == pytest.approx(0.01 / 0.41)
    assert told.repeats == 3
    assert told.repeat_spread == pytest.approx(0.02 / 0.41)
    assert (told.measured_low_s, told.measured_high_s) == pytest.approx((0.40, 0.42))
    horovod = one(frame, predictor="thesis-5.1-transport", nodes=1, devices_per_node=4)
    assert horovod.base_step_s == pytest.approx(0.41)
    assert horovod.predicted_memory_bytes > 0
    assert horovod.measured_memory_bytes > 0
    assert horovod.predicted_step_s == pytest.approx(
        horovod.compute_s + horovod.exposed_communication_s
    )


def test_who_learns_from_repeat_0_is_scored_on_the_others(site):
    root, rows = site
    told = predictions(rows, "local", root).query("predictor == 'data-extrapolation'")
    ddp = one(told, strategy="ddp", devices_per_node=4)
    assert ddp.repeats == 2
    assert ddp.measured_step_s == pytest.approx(0.4 * 1.05)  # repeats 1 and 2
    assert ddp.predicted_step_s == pytest.approx(0.4 * 0.9, rel=0.1)  # steps of repeat 0


def test_errors_by_predictor_and_strategy(site):
    root, rows = site
    table = errors(predictions(rows, "local", root))
    eq1 = one(table, predictor="ddlbench-eq1")
    assert (eq1.strategy, eq1.n) == ("horovod", 2)
    expected = [(0.21 + 2 * (1e-4 + 50e6 / 1e9)) / 0.5 - 1, (0.105 + 6 * (1e-4 + 0.025)) / 0.5 - 1]
    assert eq1.mean_absolute_error == pytest.approx(sum(map(abs, expected)) / 2)
    assert eq1.signed_error == pytest.approx(sum(expected) / 2)
    assert abs(eq1.worst_error) == pytest.approx(max(map(abs, expected)))
    assert "/horovod/1x4/" in eq1.worst_cell
    assert eq1.repeat_spread == pytest.approx(0.2)
    overall = one(table, predictor="linear", strategy=ALL)
    assert overall.n == 9
    assert overall.baseline


def test_cells_without_a_measurement_are_predicted_and_not_scored(site):
    root, rows = site
    further = make.cell("ddp", "1x4", 64)
    refused = MatrixRow(make.cell("gpipe", "2x2"), None, "cannot span 2")
    frame = predictions([*rows, row(further), refused], "local", root)
    told = one(frame, predictor="ddp-buckets", cell_id=further.id)
    assert told.status == "not run"
    assert told.predicted_step_s > 0
    assert math.isnan(told.measured_step_s)
    assert refused.cell.id not in set(frame["cell_id"])
    assert one(errors(frame), predictor="ddp-buckets").n == 2


def test_a_cell_that_cannot_be_predicted_says_why(site):
    root, rows = site
    other = make.cell("ddp", "1x4", fabric="slow")
    write_ok(root, other, 0.5)
    frame = predictions([*rows, row(other)], "local", root)
    told = one(frame, predictor="ddp-buckets", cell_id=other.id)
    assert math.isnan(told.predicted_step_s)
    assert "needs the links of this fabric" in told.notes
    assert one(errors(frame), predictor="ddp-buckets").not_predicted == 1


def test_without_any_profile_it_is_one_sentence(site, tmp_path):
    _, rows = site
    with pytest.raises(ConfigError, match="there is no profile of vgg11 on mnist"):
        predictions(rows, "local", tmp_path / "elsewhere")


def test_table_8_1_names_the_cost_of_the_wrong_choice(site):
    root, rows = site
    table = table_8_1(predictions(rows, "local", root))
    rule = one(table, recommender="horovod-unless-oom", devices_per_node=4)
    assert (rule.recommended, rule.fastest, rule.candidates) == ("horovod", "ddp", 4)
    assert rule.extra_time == pytest.approx(0.25)
    assert not rule.correct
    assert not rule.within_noise  # 0.45 .. 0.55 against 0.36 .. 0.44
    assert rule.baseline
    fastest = one(table, recommender="data-extrapolation", devices_per_node=4)
    assert fastest.correct
    assert fastest.extra_time == 0
    assert not one(table, recommender="carry-forward", devices_per_node=2).recommended
    assert "tie of 4" in one(table, recommender="linear", devices_per_node=4).note


def test_overlapping_intervals_are_no_difference(tmp_path):
    make.write_site(tmp_path, make.profile(), make.links())
    rows = []
    for repeat in range(3):
        for strategy, step_s in (("horovod", 0.42), ("ddp", 0.4)):
            cell = make.cell(strategy, repeat=repeat)
            write_ok(tmp_path, cell, step_s * (1 + 0.1 * (repeat - 1)))
            rows.append(row(cell))
    table = table_8_1(predictions(rows, "local", tmp_path))
    rule = one(table, recommender="horovod-unless-oom")
    assert not rule.correct
    assert rule.within_noise


def test_out_of_memory_moves_the_rule_and_fails_a_pick(site):
    root, rows = site
    for entry in rows:
        if entry.cell.strategy == "horovod" and entry.cell.devices == 4:
            write_failed(root, entry.cell, "out_of_memory")
    frame = predictions(rows, "local", root)
    table = table_8_1(frame)
    rule = one(table, recommender="horovod-unless-oom", devices_per_node=4)
    assert rule.recommended == "gpipe"
    assert rule.extra_time == pytest.approx(0.5)
    thesis = frame[frame["strategy"].isin(["horovod", "gpipe"]) & (frame["devices_per_node"] == 4)]
    cheap = thesis.assign(
        predicted_step_s=thesis["predicted_step_s"].where(thesis["strategy"] != "horovod", 1e-6)
    )
    pair = pd.concat(
        [cheap, frame[(frame["strategy"] == "ddp") & (frame["devices_per_node"] == 4)]]
    )
    failed = one(table_8_1(pair), recommender="thesis")
    assert failed.recommended == "horovod"
    assert math.isnan(failed.extra_time)
    assert not failed.correct
    assert "did not run: out_of_memory" in failed.note
    assert one(table_8_2(table_8_1(pair)), recommender="thesis").no_measurement == 1


def test_table_8_2_counts_and_says_when_it_does_not_discriminate(site):
    root, rows = site
    frame = predictions(rows, "local", root)
    table = table_8_2(table_8_1(frame))
    rule = one(table, recommender="horovod-unless-oom")
    assert (rule.dataset, rule.n, rule.correct, rule.top1) == ("mnist", 2, 0, 0)
    assert rule.mean_regret == pytest.approx(0.25)
    assert rule.verdict.startswith(NOT_DISCRIMINATING)
    assert rule.usual_winner == "ddp"
    carried = one(table, recommender="carry-forward")
    assert (carried.n, carried.correct, carried.no_recommendation) == (2, 1, 1)
    joined = with_choices(errors(frame), table)
    assert one(joined, predictor="carry-forward", strategy=ALL).top1 == pytest.approx(0.5)
    assert math.isnan(one(joined, predictor="ddlbench-eq1").top1)


def test_a_split_of_winners_discriminates(site):
    root, rows = site
    for entry in rows:
        if entry.cell.strategy == "gpipe" and entry.cell.devices == 2:
            write_ok(root, entry.cell, 0.1)
    table = table_8_2(table_8_1(predictions(rows, "local", root)))
    assert one(table, recommender="thesis").verdict == ""


def test_what_does_not_fit_is_not_picked(site):
    root, rows = site
    values = make.profile(device_memory_bytes=250_000_000)
    make.write_site(root, values, None)
    frame = predictions(rows, "local", root)
    assert one(frame, predictor="ddlbench-eq1", devices_per_node=4).fits == False  # noqa: E712
    table = table_8_1(frame)
    for name in ("thesis", "ddlbench", "measured-links"):
        picks = set(table[table["recommender"] == name]["recommended"])
        assert picks <= {"gpipe", "model-parallel", ""}


def test_no_case_to_choose_in_gives_empty_tables(tmp_path):
    make.write_site(tmp_path, make.profile(), make.links())
    cell = make.cell("ddp")
    write_ok(tmp_path, cell, 0.4)
    frame = predictions([row(cell)], "local", tmp_path)
    table = table_8_1(frame)
    assert table.empty
    assert table_8_2(table).empty
    assert "top1" in with_choices(errors(frame), table_8_2(table)).columns


def test_predictions_are_a_checked_file(site, tmp_path):
    root, rows = site
    frame = predictions(rows, "local", root)
    path = write_predictions(frame, "local", "demo", root)
    assert path == root / "local" / "demo" / "predictions.json"
    again = read_predictions(path)
    assert list(again["cell_id"]) == list(frame["cell_id"])
    pd.testing.assert_series_equal(
        again["predicted_step_s"].astype(float), frame["predicted_step_s"].reset_index(drop=True)
    )
    with pytest.raises(ConfigError, match="make it with `ddlbench accuracy`"):
        read_predictions(tmp_path / "none.json")


def test_a_result_of_another_cell_or_a_broken_one_is_not_measured(site):
    root, rows = site
    victim = rows[-1].cell
    path = root / "local" / "cells" / victim.id / "result.json"
    path.write_text("{")
    outcome = next(o for o in measure(rows, "local", root) if o.cell == victim.with_(repeat=0))
    assert sorted(outcome.step_s) == [0, 1]
