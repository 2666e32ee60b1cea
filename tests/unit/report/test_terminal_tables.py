"""The summary in a terminal of 80 columns, and the table of speed-ups that the page shares."""

from __future__ import annotations

import dataclasses

import pandas as pd
import pytest
from report_factory import SITE_NAME, example_seconds, experiment, failed, result, site, write

from ddlbench.common.errors import ConfigError
from ddlbench.common.quantities import ratio_text
from ddlbench.experiment.fabric import LinkCondition
from ddlbench.planning.matrix import expand
from ddlbench.report import terminal
from ddlbench.report.footer import interval_words
from ddlbench.report.measurements import make_tables
from ddlbench.report.terminal import speedup_table, summary_lines, telling_rows

IMAGE = {"datasets": ["cifar10"], "networks": ["resnet18"]}


@pytest.fixture
def summary_of(tmp_path, monkeypatch):
    """Measures every supported cell of a matrix; returns the summary, and the lines of it."""
    monkeypatch.setenv("COLUMNS", "80")

    def make(rows, value=result):
        for row in rows:
            if row.unsupported is None and (values := value(row.cell)) is not None:
                write(tmp_path, row.cell, values, steps=0)
        made = make_tables("demo", SITE_NAME, rows, tmp_path, tmp_path / "tables").summary
        return made, summary_lines(tmp_path / "tables", every_row=False)

    return make


def cells_of(summary: pd.DataFrame) -> list[dict[str, str]]:
    """The rows of the table of speed-ups, by heading."""
    columns, rows = speedup_table(*telling_rows(summary))
    names = [column.heading for column in columns]
    return [dict(zip(names, row, strict=True)) for row in rows]


def test_a_base_without_the_condition_of_its_cells_stands_beside_them(summary_of):
    chosen = experiment(**IMAGE, strategies=["sequential", "ddp"], geometry=["2x1"])
    fabrics = {"base": LinkCondition(0.001, 1e9, 0.0), "lat10": LinkCondition(0.010, 1e9, 0.0)}
    rows = []
    for chosen.settings["fabric"] in fabrics:
        rows += expand(chosen, site(fabrics=fabrics))
    summary, _ = summary_of(list({row.cell.id: row for row in rows}.values()))
    shown = cells_of(summary)
    assert [row["link"] for row in shown] == ["base", "lat10"]
    assert all(row["1 device"].endswith("/s") and float(row["DDP"]) > 0 for row in shown)


def test_a_base_of_one_devices_share_of_the_batch_stands_beside_its_cells(summary_of):
    chosen = experiment(**IMAGE, strategies=["sequential", "ddp"], geometry=["1x2", "1x4"])
    del chosen.settings["batch_size"]
    chosen.settings["batch_per_device"] = 4
    shown = cells_of(summary_of(expand(chosen, site()))[0])
    assert [row["batch"] for row in shown] == ["8", "16"]
    assert all(row["1 device"].endswith("/s") for row in shown)


def test_geometries_stand_in_the_order_of_the_matrix(summary_of):
    geometry = ["1x2", "2x4", "4x4", "1x1"]
    chosen = experiment(**IMAGE, strategies=["sequential", "ddp"], geometry=geometry)
    assert [row["devices"] for row in cells_of(summary_of(expand(chosen, site()))[0])] == geometry


def test_a_base_without_other_cells_has_a_row(summary_of):
    chosen = experiment(**IMAGE, strategies=["sequential"], geometry=["1x1"])
    (row,) = cells_of(summary_of(expand(chosen, site()))[0])
    assert row["1 device"].endswith("/s")


def test_nothing_explains_brackets_that_no_row_has(summary_of):
    chosen = experiment(**IMAGE, strategies=["sequential", "ddp", "horovod"], geometry=["1x2"])

    def alone(cell):
        lacking = cell.strategy != "sequential"
        return failed(cell, "timeout", "longer than 600 s") if lacking else result(cell)

    summary, lines = summary_of(expand(chosen, site()), alone)
    assert "In brackets" not in " ".join(lines)
    assert interval_words(summary, ratio=True) == ""


def test_strategies_that_do_not_fit_beside_each_other_are_in_further_tables(summary_of):
    strategies = ["sequential", "horovod", "ddp", "gpipe", "model-parallel", "pipedream"]
    chosen = experiment(
        networks=["resnet18", "vgg11", "mobilenetv2"], strategies=strategies,
        geometry=["1x2", "1x4", "2x2", "2x4"],
    )  # fmt: skip
    summary, lines = summary_of(expand(chosen, site()))
    headings = [line for line in lines if line.startswith("dataset")]
    assert len(headings) == 2
    assert all("1 device" in line for line in headings)
    assert max(map(len, lines)) <= 80
    assert len(lines) < len(summary)


def test_a_common_dataset_is_in_the_heading_where_lines_would_be_broken(summary_of):
    chosen = experiment(**IMAGE, strategies=["sequential", "gpipe"], geometry=["1x2"])
    chosen.strategies["gpipe"] = {"chunks": [2, 8], "checkpoint": ["never", "always"]}
    _, lines = summary_of(expand(chosen, site()))
    assert lines[0] == "Speed-up over sequential training, CIFAR-10"
    names = [line for line in lines if "GPipe" in line]
    assert len({line.split("1x2")[0] for line in names}) == 4
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(1000.0, "1000.00"), (0.05, "0.05"), (0.00999, "0.01"), (0.0042, "0.0042"), (1e-9, "<0.001")],
)
def test_a_small_speedup_is_not_written_as_nothing(ratio, text):
    assert ratio_text(ratio) == text


def test_a_small_speedup_is_readable_in_the_table(summary_of):
    chosen = experiment(**IMAGE, strategies=["sequential", "ddp"], geometry=["1x2"])

    def slow(cell):
        factor = 1.0 if cell.strategy == "sequential" else 1000.0
        return result(cell, example_seconds(cell) * factor)

    (row,) = cells_of(summary_of(expand(chosen, site()), slow)[0])
    assert 0 < float(row["DDP"]) < 0.01


_RATES_TABLE = """recommender,dataset,n,correct,top1_within_noise
ddlbench,mnist,2,1,1.0
ddlbench,cifar10,2,2,1.0
ddlbench,all,4,3,1.0
"""


@pytest.mark.parametrize(
    "text",
    [
        "",
        _RATES_TABLE.partition("ddlbench,all")[0],
        _RATES_TABLE[: _RATES_TABLE.index("all,")],
        _RATES_TABLE.replace("4,3", "many,3"),
        _RATES_TABLE.replace("correct", "right"),
    ],
)
def test_a_damaged_table_of_recommendations_is_one_sentence(tmp_path, text):
    path = tmp_path / "table_8_2.csv"
    path.write_text(_RATES_TABLE)
    assert "in 3 of 4 cases" in terminal._checked(tmp_path)[0]
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"table_8_2.csv cannot be read: .*predict accuracy"):
        terminal._checked(tmp_path)


@pytest.mark.parametrize("width", [40, 60, 80])
def test_rows_that_many_settings_tell_apart_fit_the_terminal(tmp_path, monkeypatch, width):
    monkeypatch.setattr("ddlbench.planning.matrix._missing_package", lambda *_: None)
    monkeypatch.setenv("COLUMNS", str(width))
    chosen = experiment(
        ["mnist"], ["mobilenetv2"], ["sequential", "data-tensor-pipe"], ["1x4", "2x4"], repeats=3
    )
    chosen = dataclasses.replace(
        chosen,
        matrix={**chosen.matrix, "fabric": ["default", "lat100"], "precision": ["fp32", "bf16"]},
    )
    for row in (rows := expand(chosen, site())):
        if row.unsupported is None:
            write(tmp_path, row.cell, result(row.cell, 123.4))
    make_tables("demo", SITE_NAME, rows, tmp_path, tmp_path / "tables")
    lines = summary_lines(tmp_path / "tables")
    assert max(map(len, lines)) <= width
    assert all(word in " ".join(lines) for word in ("samples/s", "speed-up"))
