"""Errors scored against planted measurements."""

import math

import pandas as pd
import predict_factory as make
import pytest
from predict_results import only_row, row, write_cases, write_ok

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.status import Failure, Reason
from ddlbench.planning.matrix import MatrixRow
from ddlbench.predict import evaluate
from ddlbench.predict.accuracy import ALL, errors, read_predictions, write_predictions
from ddlbench.predict.evaluate import COLUMNS, measure, predictions

SITE = make.site()


@pytest.fixture
def site(tmp_path):
    """Two cases of four strategies and their base; three repeats."""
    return tmp_path, write_cases(tmp_path)


def test_a_row_a_predictor_and_configuration(site):
    root, rows = site
    frame = predictions(rows, SITE, root)
    assert tuple(frame.columns) == COLUMNS
    assert not frame.duplicated(["predictor", "cell_id"]).any()
    sequential = only_row(frame, predictor="sequential")
    assert sequential.predicted_step_s == pytest.approx(0.42)
    assert sequential.measured_step_s == pytest.approx(0.41)
    assert sequential.signed_error == pytest.approx(0.01 / 0.41)
    assert sequential.repeats == 3
    assert sequential.repeat_spread == pytest.approx(0.02 / 0.41)
    assert (sequential.measured_low_s, sequential.measured_high_s) == pytest.approx((0.40, 0.42))
    horovod = only_row(frame, predictor="thesis-5.1-transport", nodes=1, devices_per_node=4)
    assert horovod.base_step_s == pytest.approx(0.41)
    assert horovod.predicted_memory_bytes > 0
    assert horovod.measured_memory_bytes > 0
    assert horovod.predicted_step_s == pytest.approx(
        horovod.compute_s + horovod.exposed_communication_s
    )


def test_who_learns_from_repeat_0_is_scored_on_the_others(site):
    root, rows = site
    extrapolated = predictions(rows, SITE, root).query("predictor == 'data-extrapolation'")
    ddp = only_row(extrapolated, strategy="ddp", devices_per_node=4)
    assert ddp.repeats == 2
    assert ddp.measured_step_s == pytest.approx(0.4 * 1.05)  # repeats 1 and 2
    assert ddp.predicted_step_s == pytest.approx(0.4 * 0.9, rel=0.1)  # steps of repeat 0


def test_errors_by_predictor_and_strategy(site):
    root, rows = site
    table = errors(predictions(rows, SITE, root))
    eq1 = only_row(table, predictor="ddlbench-eq1")
    assert (eq1.strategy, eq1.n) == ("horovod", 2)
    expected = [(0.26 + 2 * (1e-4 + 50e6 / 1e9)) / 0.5 - 1, (0.18 + 6 * (1e-4 + 0.025)) / 0.5 - 1]
    assert eq1.mean_absolute_error == pytest.approx(sum(map(abs, expected)) / 2)
    assert eq1.signed_error == pytest.approx(sum(expected) / 2)
    assert abs(eq1.worst_error) == pytest.approx(max(map(abs, expected)))
    assert "/horovod/1x4/" in eq1.worst_cell
    assert eq1.repeat_spread == pytest.approx(0.2)
    sigma = 0.2 / 1.693  # three draws of a normal distribution lie 1.693 sigma apart
    assert eq1.noise_floor == pytest.approx(math.sqrt(2 / math.pi * (1 + 1 / 3)) * sigma, rel=1e-3)
    frame = predictions(rows, SITE, root).assign(profile_runs=3)
    thrice = only_row(errors(frame), predictor="ddlbench-eq1")
    assert thrice.noise_floor == pytest.approx(math.sqrt(2 / math.pi * 2 / 3) * sigma, rel=1e-3)
    overall = only_row(table, predictor="linear", strategy=ALL)
    assert overall.n == 9
    assert overall.baseline


def test_cells_without_a_measurement_are_predicted_and_not_scored(site):
    root, rows = site
    further = make.cell("ddp", "1x4", 64)
    refused = MatrixRow(make.cell("gpipe", "2x2"), None, "cannot span 2")
    frame = predictions([*rows, row(further), refused], SITE, root)
    outcome = only_row(frame, predictor="ddp-buckets", cell_id=further.id)
    assert outcome.status == "not run"
    assert outcome.predicted_step_s > 0
    assert math.isnan(outcome.measured_step_s)
    assert refused.cell.id not in set(frame["cell_id"])
    assert only_row(errors(frame), predictor="ddp-buckets").n == 2


def test_a_cell_that_cannot_be_predicted_says_why(site):
    root, rows = site
    other = make.cell("ddp", "1x4", fabric="slow")
    write_ok(root, other, 0.5)
    frame = predictions([*rows, row(other)], SITE, root)
    outcome = only_row(frame, predictor="ddp-buckets", cell_id=other.id)
    assert math.isnan(outcome.predicted_step_s)
    assert "needs the links of this fabric" in outcome.notes
    assert only_row(errors(frame), predictor="ddp-buckets").not_predicted == 1


def test_without_any_profile_it_is_one_sentence(site, tmp_path):
    _, rows = site
    with pytest.raises(ConfigError, match="there is no profile of vgg11 on mnist"):
        predictions(rows, SITE, tmp_path / "elsewhere")


def test_predictions_are_a_checked_file(site, tmp_path):
    root, rows = site
    frame = predictions(rows, SITE, root)
    path = write_predictions(frame, "local", "demo", root)
    assert path == root / "local" / "demo" / "predictions.json"
    again = read_predictions(path)
    assert list(again["cell_id"]) == list(frame["cell_id"])
    pd.testing.assert_series_equal(
        again["predicted_step_s"].astype(float), frame["predicted_step_s"].reset_index(drop=True)
    )
    with pytest.raises(ConfigError, match="make it with `ddlbench predict accuracy`"):
        read_predictions(tmp_path / "none.json")


def test_a_result_of_another_cell_or_a_broken_one_is_not_measured(site):
    root, rows = site
    victim = rows[-1].cell
    path = root / "local" / "cells" / victim.id / "result.json"
    path.write_text("{")
    outcome = next(o for o in measure(rows, "local", root) if o.cell == victim.with_(repeat=0))
    assert sorted(outcome.step_s) == [0, 1]


def test_a_cell_that_crashed_is_failed_unless_another_repeat_has_a_result(site):
    root, rows = site
    victims = [
        row.cell for row in rows if row.cell.with_(repeat=0) == rows[-1].cell.with_(repeat=0)
    ]
    folders = [root / "local" / "cells" / cell.id for cell in victims]

    def status() -> str:
        return {o.cell: o.status for o in measure(rows, "local", root)}[victims[0].with_(repeat=0)]

    for folder in folders:
        Failure(victims[0].id, "program", Reason("crash", "it ended"), None).write(folder)
    assert status() == "ok"
    for folder in folders:
        (folder / "result.json").unlink()
    assert status() == "failed"
    for folder in folders:
        (folder / "failure.json").unlink()
    assert status() == "not run"


def test_results_that_cannot_be_read_are_named_once(tmp_path, caplog):
    path = tmp_path / "result.json"
    path.write_text("{}")
    evaluate._warn_of_unread.cache_clear()
    for _ in range(2):
        assert evaluate._result(path, "local", make.cell("ddp")) is None
    (record,) = caplog.records
    assert "site local has results that cannot be read" in record.getMessage()
