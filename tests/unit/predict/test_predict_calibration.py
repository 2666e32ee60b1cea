"""Calibration: planted constants come back, nothing is scored on what it learnt from."""

from __future__ import annotations

import itertools
import random

import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.predict.calibration import (
    Calibration,
    CalibrationCell,
    Constants,
    calibrate,
    calibrated,
    calibration_file,
    choose,
    fit,
    held_out,
    ratio_of,
    read_calibration,
    scores,
    write_calibration,
)
from ddlbench.predict.prediction import Prediction

NETWORKS = ("resnet18", "vgg11", "vgg16", "mobilenetv2")
GEOMETRIES = ("1x2", "1x4", "2x2")


def cells(work=0.0, communication=0.0, step_s=0.0, noise=0.0, strategy="ddp"):
    """Twelve cells whose measured steps depart from predictions by these constants."""
    draw = random.Random(1)
    calibration_cells = []
    for network, geometry in itertools.product(NETWORKS, GEOMETRIES):
        work_s, sent_s = draw.uniform(0.1, 1.0), draw.uniform(0.0, 0.5)
        predicted_s = work_s + 0.5 * sent_s
        measured_s = predicted_s + work * work_s + communication * sent_s + step_s
        calibration_cells.append(
            CalibrationCell(
                f"mnist/{network}/{strategy}/{geometry}/rep0",
                strategy,
                network,
                geometry,
                work_s,
                sent_s,
                predicted_s,
                measured_s * draw.gauss(1, noise),
            )
        )
    return calibration_cells


@pytest.mark.parametrize(
    "planted", [{"work": 0.15}, {"communication": 0.6}, {"work": 0.1, "communication": 0.4}]
)
def test_planted_constants_come_back(planted):
    actual = fit("ddp", cells(**planted))
    assert actual.work == pytest.approx(planted.get("work", 0), abs=0.03)
    assert actual.communication == pytest.approx(planted.get("communication", 0), abs=0.06)
    assert abs(actual.step_s) < 0.02
    assert len(actual.cells) == 12


def test_without_an_error_nothing_is_changed():
    actual = fit("ddp", cells())
    assert (actual.work, actual.communication, actual.step_s) == pytest.approx((0, 0, 0), abs=1e-9)


def test_one_cell_changes_less_than_twelve():
    planted = cells(work=0.2)
    assert 0 < fit("ddp", planted[:1]).work < fit("ddp", planted).work


def test_a_network_is_held_out_of_its_own_prediction():
    planted = cells(work=0.1)
    odd = [
        CalibrationCell(**{**vars(cell), "measured_s": 5 * cell.measured_s})
        if cell.network == "vgg16"
        else cell
        for cell in planted
    ]
    actual = held_out(odd, lambda cell: cell.network)
    for cell in odd:
        if cell.network == "vgg16":  # the others know nothing of its factor
            assert actual[cell.cell_id] == pytest.approx(cell.measured_s / 5, rel=0.05)
    assert held_out(planted[:3], lambda cell: cell.network) == {}


def test_constants_that_help_no_other_network_are_not_used():
    """Each network departs in a way of its own, so the others teach it what is wrong."""
    draw = {"resnet18": 1.2, "vgg11": 0.8, "vgg16": 1.25, "mobilenetv2": 0.85}
    odd = [
        CalibrationCell(**{**vars(cell), "measured_s": cell.predicted_s * draw[cell.network]})
        for cell in cells()
    ]
    actual = calibrate("local", odd).of("ddp")
    assert (actual.work, actual.communication, actual.step_s, actual.teaches) == (0, 0, 0, False)
    assert actual.ratio == pytest.approx(1.25)  # of the predictions as they are
    assert len(actual.cells) == 12
    (row,) = scores(odd).to_dict("records")
    assert row["networks_held_out"] == pytest.approx(row["as_predicted"])
    assert calibrate("local", cells(work=0.2)).of("ddp").teaches


def test_errors_with_networks_and_geometries_held_out():
    (row,) = scores(cells(work=0.2, noise=0.01)).to_dict("records")
    assert row["n"] == 12
    assert row["as_predicted"] > 0.08
    assert row["networks_held_out"] < 0.02
    assert row["geometries_held_out"] < 0.02


def test_intervals_cover_nine_in_ten():
    rows = []
    for seed in range(20):
        draw = random.Random(seed)
        noisy = [
            CalibrationCell(**{**vars(cell), "measured_s": cell.measured_s * draw.gauss(1, 0.05)})
            for cell in cells(work=0.1)
        ]
        rows += scores(noisy).to_dict("records")
    assert 0.85 <= sum(row["covered"] for row in rows) / len(rows) <= 1.0


def test_the_ratio_is_that_of_the_worst_of_few():
    planted = cells(work=0.3, noise=0.05)[:6]
    actual = held_out(planted, lambda cell: cell.network)
    worst = max(
        max(actual[c.cell_id] / c.measured_s, c.measured_s / actual[c.cell_id]) for c in planted
    )
    assert ratio_of(planted) == pytest.approx(worst)


def test_strategies_of_a_family_share_their_interval():
    steady, noisy = cells(), cells(noise=0.2, strategy="horovod")
    pipeline = cells(noise=0.05, strategy="pipe-gpipe")
    ratios = {
        entry.strategy: entry.ratio
        for entry in calibrate("local", steady + noisy + pipeline).strategies
    }
    assert ratios["ddp"] == ratios["horovod"] == ratio_of(steady + noisy)
    assert ratios["pipe-gpipe"] == ratio_of(pipeline)
    row, _ = scores(steady + noisy).to_dict("records")
    assert row["covered"] == 1.0


def test_cells_that_differ_most_are_chosen():
    planted = cells()
    computes = CalibrationCell("a", "ddp", "mlp", "1x2", 1.0, 0.0, 1.0)
    sends = CalibrationCell("b", "ddp", "mlp", "2x1", 0.1, 5.0, 1.0)
    first = choose([*planted, computes, sends], 2)
    assert sends in first
    assert len(choose(planted, 50)) == 12


def test_a_strategy_needs_three_cells():
    actual = calibrate("local", [*cells()[:2], *cells(strategy="horovod")])
    assert [entry.strategy for entry in actual.strategies] == ["horovod"]


def test_a_prediction_takes_the_constants_of_its_strategy():
    constants = Constants("ddp", 0.1, 0.5, 0.02, 1.1, ("a", "b", "c"))
    prediction = Prediction("ddlbench", 1.0, 0.4, 0.2, bubble_s=0.5)
    actual = calibrated(prediction, "ddp", Calibration("local", (constants,)))
    assert actual.compute_s == pytest.approx(1.1)
    assert actual.bubble_s == pytest.approx(0.55)
    assert actual.exposed_communication_s == pytest.approx(0.2 + 0.2 + 0.02)
    assert actual.interval_s == pytest.approx((actual.step_s / 1.1, actual.step_s * 1.1))
    assert "calibrated by 3 cells measured here" in actual.notes
    assert calibrated(prediction, "horovod", Calibration("local", (constants,))) == prediction
    assert calibrated(prediction, "ddp", None) == prediction


def test_the_file_is_checked(tmp_path):
    written = calibrate("local", cells(work=0.1))
    write_calibration(written, tmp_path)
    assert read_calibration("local", tmp_path) == written
    assert read_calibration("elsewhere", tmp_path) is None
    calibration_file("local", tmp_path).write_text('{"schema_version": 1}')
    with pytest.raises(ConfigError, match=r"calibration.json"):
        read_calibration("local", tmp_path)
