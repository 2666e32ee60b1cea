"""ParaDL's figure, and the pictures of who holds what: readable, and true to their numbers."""

import math

import pandas as pd
import pytest
from click.testing import CliRunner
from figure_checks import assert_no_overlap, assert_readable, of
from matplotlib.colors import to_hex

from ddlbench.commands.oracle import oracle
from ddlbench.predict.hardware import Platform
from ddlbench.predict.paradl.measured import PUBLISHED_MEASURED, reliable_rows, score
from ddlbench.predict.run_tables import ScoreQuestion
from ddlbench.report.figures import sharding
from ddlbench.report.figures.paradl import bars_of_runs, bars_of_table, draw_published
from ddlbench.report.figures.sharding import ALL, DEVICES, PICTURES, SAMPLES, SIDE
from ddlbench.report.style import style


@pytest.fixture(scope="module")
def published():
    rows, platform = reliable_rows(PUBLISHED_MEASURED, "report"), Platform.load("abci")
    with style():
        figure, bars = draw_published(rows, platform, "Where.")
        figure.draw_without_rendering()
    return rows, platform, figure, bars


def test_published_measurements_are_drawn_readably(published):
    assert_readable(published[2])
    assert_no_overlap(published[2])


def test_every_bar_is_a_row_and_every_accuracy_is_that_of_the_score(published):
    rows, _, figure, bars = published
    assert len(bars) == 3 * len(rows)
    assert len(of(figure, "compute")) == len(bars)
    assert len(of(figure, "communication")) == len(bars)
    scored = score(rows, ScoreQuestion())["cells"]
    corrected = bars[bars["source"] == "corrected"]["accuracy"]
    assert sorted(corrected) == pytest.approx(sorted(cell["accuracy"] for cell in scored))


def test_rows_are_networks_and_columns_strategies_in_paradls_order(published):
    bars = published[3]
    assert list(dict.fromkeys(bars["row"])) == ["ResNet-50", "VGG-16"]
    names = list(dict.fromkeys(bars["strategy"]))
    assert names == ["data", "filter", "channel", "data+filter", "data+spatial"]


def test_batches_are_named_where_there_are_several():
    rows = reliable_rows(PUBLISHED_MEASURED, "logs_2020_01")
    places = bars_of_table(rows, Platform.load("abci"))["place"]
    assert "64\nb=256" in set(places)


def test_our_runs_without_parts_or_prediction():
    row = {
        "cell_id": "x/rep0", "strategy": "ddp", "variant": "", "network": "resnet18",
        "dataset": "cifar10", "geometry": "1x2", "workers": 2, "nodes": 1, "mark": "",
        "status": "ok", "measured_step_s": 1.0, "measured_low_s": math.nan,
        "measured_high_s": math.nan, "measured_wait_s": math.nan, "compute_s": 0.5,
        "communication_s": 0.1, "bubble_s": 0.0, "predicted_step_s": 0.6, "signed_error": -0.4,
    }  # fmt: skip
    silent = {**row, "predicted_step_s": math.nan, "signed_error": math.nan}
    frame = pd.DataFrame(
        [{**row, "predictor": "paradl-corrected"}, {**silent, "predictor": "paradl-authors"}]
    )
    bars = bars_of_runs(frame).set_index("source")
    assert math.isnan(bars.loc["measured", "communication_s"])
    assert bars.loc["corrected", "accuracy"] == pytest.approx(0.6)
    assert bars.loc["corrected", "departs"]
    assert bars.loc["authors-code", "mark"] == "no prediction"


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_readable(name):
    with style():
        figure = sharding.draw(name)
        figure.draw_without_rendering()
    assert_readable(figure)
    assert_no_overlap(figure)


def held(picture, device):
    """Shares of inputs, weights and outputs that a device computes with or has."""
    cells = [(n, r, c) for n in range(SAMPLES) for r in range(SIDE) for c in range(SIDE)]
    return [
        sum(device in owners(*cell) for cell in cells) / len(cells)
        for owners in (picture.inputs, picture.weights, picture.outputs)
    ]


@pytest.mark.parametrize(
    ("name", "shares"),
    [
        ("data", [1 / 4, 1, 1 / 4]),
        ("spatial", [1 / 4, 1, 1 / 4]),
        ("filter", [1, 1 / 4, 1 / 4]),
        ("channel", [1 / 4, 1 / 4, 1]),
        ("data+filter", [1 / 2, 1 / 2, 1 / 4]),
        ("data+spatial", [1 / 4, 1, 1 / 4]),
    ],
)
def test_shares_are_those_of_paradl(name, shares):
    for device in range(DEVICES):
        assert held(PICTURES[name], device) == shares


def test_a_picture_shows_who_holds_what():
    with style():
        figure = sharding.draw("filter")
    faces = {to_hex(patch.get_facecolor()) for patch in figure.axes[0].patches}
    assert {colour.lower() for colour in sharding._COLOURS} <= faces
    assert PICTURES["filter"].inputs(0, 0, 0) == ALL


@pytest.mark.slow
def test_commands_write_what_they_say(tmp_path):
    ended = CliRunner().invoke(
        oracle, ["figure", str(PUBLISHED_MEASURED), "--out", str(tmp_path)], catch_exceptions=False
    )
    assert ended.exit_code == 0
    assert {path.name for path in tmp_path.iterdir()} == {"oracle.png", "oracle.pdf", "oracle.csv"}
    ended = CliRunner().invoke(
        oracle, ["explain", "data+filter", "--out", str(tmp_path / "new")], catch_exceptions=False
    )
    assert "split-data-filter.png" in ended.output
    assert (tmp_path / "new" / "split-data-filter.pdf").is_file()
