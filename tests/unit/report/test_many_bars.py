"""Figures of many strategies, long names and far apart values stay readable and on a page."""

from __future__ import annotations

import itertools
import math

import pandas as pd
import pytest
from answer_factory import answer, candidate
from figure_checks import assert_no_overlap, assert_readable, of
from matplotlib.lines import Line2D
from report_factory import SITE_NAME, experiment, failed, result, site, write

from ddlbench.experiment.result import DIVERGED
from ddlbench.planning.matrix import expand
from ddlbench.report.bars import (
    Bar,
    Group,
    draw_groups,
    parts_of_page,
    slots_width_mm,
    write_labels,
)
from ddlbench.report.figures.choice import draw as draw_choice
from ddlbench.report.figures.paradl import COLUMNS, SOURCES, draw_bars
from ddlbench.report.footer import Context
from ddlbench.report.labels import DatasetLook, condition_look
from ddlbench.report.measurements import make_tables
from ddlbench.report.registry import FIGURES
from ddlbench.report.style import MM, PAGE_MM, new_figure, style

MANY = [
    "sequential", "horovod", "ddp", "fsdp", "hsdp", "gpipe", "model-parallel",
    "model-parallel-p2p", "pipedream", "pipe-gpipe", "pipe-1f1b", "pipe-interleaved", "pipe-zb",
    "pipe-zbv", "filter", "channel", "data-filter", "data-tensor-pipe", "tensor-parallel",
    "data-tensor", "local-sgd", "parameter-server",
]  # fmt: skip


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """Draws a figure of a matrix whose cells have these results."""
    monkeypatch.setattr("ddlbench.planning.matrix._missing_package", lambda *_: None)

    def make(name, chosen, value=result):
        rows = expand(chosen, site())
        for row in rows:
            if row.unsupported is None:
                write(tmp_path, row.cell, value(row.cell))
        tables = make_tables("demo", SITE_NAME, rows, tmp_path, tmp_path / "tables")
        with style():
            figure, _ = FIGURES[name].function()(tables, Context("this machine, CPU"))
            figure.draw_without_rendering()
        return figure

    return make


def fast(cell):
    return result(cell, 1.0 if cell.strategy == "sequential" else 0.3)


def width_mm(figure) -> float:
    return figure.get_figwidth() / MM


@pytest.mark.parametrize(
    ("name", "networks"),
    [("speedup", 1), ("memory", 4), ("utilisation", 1), ("pipelines", 1)],
)
def test_many_strategies_fit_the_width_of_a_page(drawn, name, networks):
    names = ["resnet18", "vgg11", "mobilenetv2", "resnet50"][:networks]
    chosen = experiment(["cifar10"], names, MANY, ["1x4"])
    figure = drawn(name, chosen, fast)
    assert width_mm(figure) <= PAGE_MM + 0.1
    assert_readable(figure)
    assert_no_overlap(figure)


def test_variants_of_a_pipeline_fit_the_width_of_a_page_and_do_not_look_alike(drawn):
    chosen = experiment(["cifar10"], ["resnet18"], ["sequential", "gpipe", "pipe-1f1b"], ["1x4"])
    chosen.strategies["gpipe"] = {"chunks": [2, 4, 8], "checkpoint": ["never", "always"]}
    assert_readable(drawn("pipelines", chosen, fast))
    rows = drawn("memory", chosen, fast).legends
    patches = [patch for row in rows for patch in row.get_patches()]
    looks = [(patch.get_facecolor(), patch.get_hatch()) for patch in patches]
    assert len(set(looks)) == len(looks)


def test_bars_of_strategies_differ_without_their_colour(drawn):
    chosen = experiment(["cifar10"], ["resnet18"], MANY, ["1x4"])
    figure = drawn("memory", chosen, fast)
    lines = [line for row in figure.legends for line in row.findobj(Line2D)]
    markers = [line.get_marker() for line in lines if line.get_color() == "black"]
    assert len(set(markers)) == len(markers) == len(MANY)
    drawn_markers = [mark.get_marker() for mark in of(figure, "bar-marker")]
    assert len(drawn_markers) == 2 * len(of(figure, "bar"))
    assert set(drawn_markers) <= set(markers)


def test_groups_are_dealt_to_parts_of_a_page():
    parts = parts_of_page(list(range(7)), 25, 20.0)
    assert list(itertools.chain(*parts)) == list(range(7))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert slots_width_mm(max(map(len, parts)), 25) <= PAGE_MM
    assert parts_of_page(["one", "two"], 3, 20.0) == [["one", "two"]]


@pytest.mark.parametrize("width", [60.0, 40.0, 25.0])
def test_turned_labels_do_not_cross(width):
    labels = ["Model parallel (P2P)", "Data + tensor + pipe", "GPipe (torch)", "Interleaved 1F1B"]
    with style():
        figure = new_figure(120, 80)
        axes = figure.add_axes((40 / 120, 0.6, width / 120, 0.3))
        axes.set_xlim(0, 4)
        write_labels(axes, [0.5, 1.5, 2.5, 3.5], labels, width)
        figure.draw_without_rendering()
    texts = axes.get_xticklabels()
    degrees = texts[0].get_rotation()
    assert degrees > 0
    # Across the direction of the letters: the lines of a label against the next one's.
    apart = width / 4 * math.sin(math.radians(degrees))
    for text in texts[:-1]:
        assert apart >= 2.4 + 3.0 * text.get_text().count("\n")


def test_numbers_are_written_only_where_they_fit():
    look = DatasetLook(0.0, "")
    bars = [Bar(value, math.nan, math.nan, "#0072B2", look) for value in (0.525, 0.508, 0.527)]
    for number, written in ((lambda _: "0.527", 0), (lambda _: "0.5", 3)):
        with style():
            figure = new_figure(60, 40)
            axes = figure.add_axes((0.2, 0.2, 0.4, 0.6))
            draw_groups(axes, [Group("VGG-11", bars)], 24.0, number)
        assert len(of(figure, "number")) == written


def test_speedups_far_apart_are_on_a_logarithmic_axis_within_the_page(drawn):
    times = {"sequential": 1.0, "ddp": 0.0005, "horovod": 1.1, "gpipe": 90.0}
    chosen = experiment(["mnist"], ["resnet18", "vgg11"], list(times), ["1x2"])
    figure = drawn("speedup", chosen, lambda cell: result(cell, times[cell.strategy]))
    axes = figure.axes[0]
    assert axes.get_yscale() == "log"
    assert axes.get_ylabel() == "Speed-up (log)"
    low, high = axes.get_ylim()
    assert low < 1 / 90 < 2000 < high
    assert len(of(figure, "bar")) == 6
    assert_readable(figure)
    assert_no_overlap(figure)


def test_usual_speedups_are_on_a_linear_axis(drawn):
    chosen = experiment(["mnist"], ["resnet18"], ["sequential", "ddp"], ["1x2"])
    figure = drawn("speedup", chosen)
    assert figure.axes[0].get_yscale() == "linear"
    assert figure.axes[0].get_ylim()[0] == 0


def test_a_base_that_failed_says_why(drawn):
    def value(cell):
        base = cell.strategy == "sequential"
        return failed(cell, "timeout", "longer than 600 s") if base else result(cell)

    chosen = experiment(["mnist"], ["resnet18"], ["sequential", "ddp"], ["1x2"])
    words = " ".join(text.get_text() for text in of(drawn("speedup", chosen, value), "footer"))
    assert "no measurement (timeout)" in words
    assert "Whiskers" not in words


def test_a_base_that_others_have_not_is_named_with_its_reason(drawn):
    def value(cell):
        lacking = cell.strategy == "sequential" and cell.network == "vgg11"
        return failed(cell, "out_of_memory", "device 0 has 8 GiB") if lacking else result(cell)

    chosen = experiment(["mnist"], ["resnet18", "vgg11"], ["sequential", "ddp"], ["1x2"])
    words = " ".join(text.get_text() for text in of(drawn("speedup", chosen, value), "footer"))
    assert "MNIST: ResNet-18 " in words
    assert "No measurement: VGG-11 on MNIST (out of memory)." in words


def test_bases_of_one_network_that_differ_in_settings_are_a_range(drawn):
    chosen = experiment(["mnist"], ["resnet18"], ["sequential", "ddp"], ["1x2"])
    del chosen.settings["batch_size"]
    chosen.matrix["batch_size"] = [16, 32]
    words = " ".join(text.get_text() for text in of(drawn("speedup", chosen), "footer"))
    assert "samples/s (each in the table beside)" in words


def test_a_diverged_run_has_a_sign_that_the_footer_explains(drawn):
    def value(cell):
        note = f"{DIVERGED}: the loss is no number from step 3 of 8 on"
        return result(cell, notes=[note] if cell.strategy == "ddp" else [])

    chosen = experiment(["mnist"], ["resnet18", "vgg11"], ["sequential", "ddp", "gpipe"], ["1x2"])
    figure = drawn("speedup", chosen, value)
    assert sum("∞" in text.get_text() for text in of(figure, "number")) == 2
    words = " ".join(text.get_text() for text in of(figure, "footer"))
    assert "∞: training diverged" in words
    memory = drawn("memory", chosen, value)
    assert "∞" not in " ".join(text.get_text() for text in of(memory, "footer"))


def test_a_long_case_does_not_reach_the_heading_beside_its_rows():
    networks = ["resnet18", "torchvision:wide_resnet101_2"]
    rows = [candidate("ddp", 0.1, 1.5), candidate("sequential", 0.15, 1.0)]
    settings = {"precision": "bf16", "fabric": "a-condition-of-the-links-with-a-long-name"}
    answers = [answer(rows, "ddp", network=name, settings=settings) for name in networks]
    with style():
        figure, _ = draw_choice(
            {"answers": answers, "site": "local", "trials": [], "stopped": "", "device_s": 0.0}
        )
        figure.draw_without_rendering()
    assert_readable(figure)
    assert_no_overlap(figure)


def test_conditions_of_deviations_do_not_look_alike():
    assert len({condition_look(place) for place in range(10)}) == 10


def test_bars_of_many_places_have_the_width_that_they_need():
    names = [f"DDP, fabric of a long name {number}" for number in range(14)]
    rows = [
        {"row": "ResNet-18", "strategy": name, "place": "4", "order": 4, "source": source}
        for name, source in itertools.product(names, SOURCES)
    ]
    bars = pd.DataFrame(rows).assign(compute_s=0.1, communication_s=0.1, step_s=0.2, mark="")
    bars = bars.reindex(columns=list(dict.fromkeys([*bars.columns, *COLUMNS])))
    with style():
        figure = draw_bars("Projections", bars, "Devices", [])
    axes = figure.axes[0]
    assert axes.get_position().width * width_mm(figure) >= 2.3 * len(names) * len(SOURCES)
    assert width_mm(figure) <= PAGE_MM + 0.1


@pytest.mark.parametrize(("slowest", "scale"), [(20.0, "linear"), (2000.0, "log")])
def test_steps_far_apart_are_on_a_logarithmic_axis(drawn, slowest, scale):
    times = {"sequential": 1.0, "ddp": 0.5, "pipedream": 0.5 * slowest}
    chosen = experiment(["mnist"], ["resnet18"], list(times), ["1x2"])
    figure = drawn("steps", chosen, lambda cell: result(cell, times[cell.strategy]))
    (axes,) = figure.axes
    assert axes.get_xscale() == scale
    assert ("log" in axes.get_xlabel()) == (scale == "log")
    low, high = axes.get_xlim()
    steps = [x for line in of(figure, "steps") for x in line.get_xdata()]
    assert low < min(steps) < max(steps) < high
    assert_readable(figure)
    assert_no_overlap(figure)


def test_missing_points_of_many_strategies_leave_the_lines_free(drawn):
    def value(cell):
        lacking = cell.strategy != "sequential" and (cell.devices == 4 or cell.strategy != "ddp")
        none = dict.fromkeys(("timing", "loss", "communication", "efficiency"))
        ended = {"status": "timeout", "reason": "longer than 600 s", "ranks": [], **none}
        return {**fast(cell), **(ended if lacking else {})}

    chosen = experiment(["mnist"], ["resnet18"], MANY[:12], ["1x2", "1x4"])
    figure = drawn("scaling", chosen, value)
    heights = [line.get_ydata()[0] for line in of(figure, "mark") if hasattr(line, "get_ydata")]
    assert len(heights) == 6
    assert max(heights) < 0.25
    assert [text.get_text() for text in of(figure, "mark") if hasattr(text, "get_text")] == [
        "+7",
        "+8",
    ]
    words = " ".join(text.get_text() for text in of(figure, "footer"))
    assert "FSDP on 2 and 4" in words
    assert_readable(figure)


def test_variants_of_a_pipeline_have_different_marks_over_geometries(drawn):
    chosen = experiment(["mnist"], ["resnet18"], ["sequential", "gpipe", "pipe-1f1b"],
                        ["1x2", "1x4"])  # fmt: skip
    chosen.strategies["gpipe"] = {"chunks": [2, 4, 8]}
    rows = drawn("pipelines", chosen, fast).legends
    lines = [line for row in rows for line in row.get_lines()]
    looks = [(line.get_marker(), line.get_color(), line.get_fillstyle()) for line in lines]
    assert len(set(looks)) == len(looks) == 4
