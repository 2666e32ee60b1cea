"""Accuracies in the tables, and over training time in the figure."""

from __future__ import annotations

import pytest
from figure_checks import assert_no_overlap, assert_readable, of
from report_factory import SITE_NAME, experiment, matrix, result, site, write

from ddlbench.planning.matrix import expand
from ddlbench.report.figures.loss import accuracy_curves, chance, draw_time_to_accuracy
from ddlbench.report.footer import Context
from ddlbench.report.measurements import make_tables
from ddlbench.report.registry import figures_for
from ddlbench.report.style import style
from ddlbench.report.tables import read_tables

CORRECT = (20, 60, 90)  # of a hundred, after each epoch
STEP = {"sequential": 4.0, "ddp": 2.0, "pipedream": 1.0}


def validation(seconds: float, better: int = 0) -> list[dict]:
    return [
        {
            "epoch": epoch,
            "training_s": epoch * seconds,
            "samples": 100,
            "correct": correct + better,
            "accuracy": (correct + better) / 100,
            "loss": 1.0 / epoch,
        }
        for epoch, correct in enumerate(CORRECT, 1)
    ]


@pytest.fixture
def rows(monkeypatch):
    monkeypatch.setattr("ddlbench.planning.matrix._missing_package", lambda *_: None)
    chosen = experiment(
        datasets=["mnist", "imagenet"],
        networks=["resnet18", "vgg11"],
        strategies=list(STEP),
        geometry=["1x2", "1x4"],
        repeats=3,
        settings={"batch_size": 16, "data_scale": 0.01, "validate": True},
    )
    return expand(chosen, site())


@pytest.fixture
def tables(tmp_path, rows):
    """Repeat 0 is 5 images better and a second slower; repeat 2 of VGG-11 is missing."""
    for row in rows:
        cell = row.cell
        if cell.network == "vgg11" and cell.repeat == 2:
            continue
        seconds = STEP[cell.strategy] * 2 / cell.devices + (cell.repeat == 0)
        part = validation(seconds, 5 if cell.repeat == 0 else 0)
        write(tmp_path, cell, result(cell, 1.0, validation=part), steps=0)
    return make_tables("demo", SITE_NAME, rows, tmp_path, tmp_path / "tables")


def test_every_epoch_of_every_repeat_is_a_row_and_the_last_one_is_the_cells(tables, tmp_path):
    cells = len(tables.measurements.query("status == 'ok'"))
    assert len(tables.validation) == 3 * cells
    ddp_rows = tables.validation.query(
        "strategy == 'ddp' and dataset == 'mnist' and network == 'vgg11' and geometry == '1x4'"
    )
    assert ddp_rows["correct"].tolist() == [25, 65, 95, 20, 60, 90]
    assert ddp_rows["training_s"].tolist() == [2.0, 4.0, 6.0, 1.0, 2.0, 3.0]
    assert ddp_rows["repeat"].tolist() == [0, 0, 0, 1, 1, 1]
    measured = tables.measurements.set_index("cell_id")["accuracy"]
    assert measured[ddp_rows["cell_id"].iloc[0]] == 0.95
    assert set(tables.summary.query("network == 'vgg11'")["accuracy"]) == {0.925}
    assert set(tables.summary.query("network == 'resnet18'")["accuracy"]) == {0.9}
    assert read_tables(tmp_path / "tables").validation.equals(tables.validation)


def test_a_point_is_the_median_over_repeats(tables):
    curves = accuracy_curves(tables.validation)
    (name,) = (n for n in curves if n.startswith("mnist/resnet18/pipedream/1x2/"))
    curve = curves[name]
    assert curve["training_s"].tolist() == [1.0, 2.0, 3.0]
    assert curve["accuracy"].tolist() == [0.2, 0.6, 0.9]
    assert curve["n"].tolist() == [3, 3, 3]


def test_guessing_is_one_over_the_classes():
    assert (chance("mnist"), chance("imagenet")) == (0.1, 0.001)


def test_a_line_is_a_strategy_in_a_panel_of_a_dataset_and_network(tables):
    with style():
        figure, plotted = draw_time_to_accuracy(tables, Context("this machine, CPU"))
        figure.draw_without_rendering()
    assert_readable(figure)
    assert_no_overlap(figure)
    assert [text.get_text() for text in of(figure, "panel")] == [
        "ResNet-18, MNIST", "VGG-11, MNIST", "ResNet-18, ImageNet-1000", "VGG-11, ImageNet-1000",
    ]  # fmt: skip
    lines = of(figure, "line")
    assert len(lines) == plotted.groupby(["dataset", "network", "strategy", "geometry"]).ngroups
    assert len(of(figure, "chance")) == 4
    named = [text.get_text() for row in of(figure, "legend") for text in row.get_texts()]
    assert named[-1] == "chance: one over the number of classes"
    assert named[1:3] == ["DDP (1x2)", "DDP (1x4)"]
    drawn = plotted.query("dataset == 'imagenet' and strategy == 'ddp' and geometry == '1x2'")
    assert set(drawn["chance"]) == {0.001}
    resnet_rows = drawn.query("network == 'resnet18'")
    assert resnet_rows["training_s"].tolist() == [2.0, 4.0, 6.0]


def test_only_an_experiment_with_validation_has_the_figure(rows, monkeypatch, tmp_path):
    assert "time_to_accuracy" in figures_for(rows)
    without = matrix(monkeypatch)
    assert "time_to_accuracy" not in figures_for(without)
    tables = make_tables("demo", SITE_NAME, rows, tmp_path, tmp_path / "tables")
    with style():
        figure, plotted = draw_time_to_accuracy(tables, Context("this machine"))
        figure.draw_without_rendering()
    assert_readable(figure)
    assert plotted.empty
    assert "No run with validation yet." in [text.get_text() for text in figure.texts]
