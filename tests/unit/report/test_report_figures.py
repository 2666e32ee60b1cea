import itertools

import pandas as pd
import pytest
from figure_checks import assert_no_overlap, assert_readable, of
from matplotlib.figure import Figure
from report_factory import (
    DATASETS,
    NETWORKS,
    SITE_NAME,
    experiment,
    matrix,
    result,
    site,
    write,
    write_all,
)

from ddlbench.common.errors import ConfigError
from ddlbench.planning.matrix import expand
from ddlbench.report.drawing import make_figure
from ddlbench.report.figures.speedup import _draw_published
from ddlbench.report.footer import Context
from ddlbench.report.measurements import make_tables
from ddlbench.report.registry import FIGURES, figures_for
from ddlbench.report.style import style

pytestmark = pytest.mark.slow

CASES = {
    "demo": {},
    "repeated": {"repeats": 3},
    "big": {
        "datasets": DATASETS,
        "networks": NETWORKS,
        "strategies": ["sequential", "horovod", "gpipe", "model-parallel"],
        "geometry": ["1x4"],
    },
    "geometries": {"geometry": ["1x2", "1x4", "2x4"]},
    "one": {"datasets": ["mnist"], "networks": ["resnet18"], "strategies": ["sequential", "ddp"]},
}
DRAWN = [
    *itertools.product(CASES, ["speedup", "memory", "traffic", "utilisation", "steps"]),
    ("geometries", "scaling"),
    ("variants", "speedup"),
    ("variants", "memory"),
    ("empty", "speedup"),
    ("empty", "memory"),
    ("empty", "steps"),
]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Every figure of every case, drawn once."""
    patch = pytest.MonkeyPatch()
    figures = {}
    cases = {name: matrix(patch, **axes) for name, axes in CASES.items()}
    cases["empty"] = cases["demo"]
    chosen = experiment(strategies=["sequential", "gpipe", "ddp"], geometry=["1x4"])
    chosen.strategies["gpipe"] = {"chunks": [2, 4, 8]}
    cases["variants"] = expand(chosen, site())
    for case, rows in cases.items():
        root = tmp_path_factory.mktemp(case)
        if case != "empty":
            write_all(root, rows)
        tables = make_tables("demo", SITE_NAME, rows, root, root / "tables")
        for figure_case, name in DRAWN:
            if figure_case == case:
                with style():
                    figure, plotted = FIGURES[name].function()(tables, Context("this machine, CPU"))
                    figure.draw_without_rendering()
                figures[case, name] = (figure, plotted)
    patch.undo()
    return figures


@pytest.mark.parametrize("key", DRAWN, ids="-".join)
def test_no_text_is_too_small_or_outside(drawn, key):
    assert_readable(drawn[key][0])


@pytest.mark.parametrize("key", DRAWN, ids="-".join)
def test_no_texts_overlap(drawn, key):
    assert_no_overlap(drawn[key][0])


@pytest.mark.parametrize("case", [*CASES, "variants", "empty"])
def test_every_cell_is_a_bar_or_has_a_mark(drawn, case):
    figure, table = drawn[case, "speedup"]
    plotted = table[table["mark"].notna()]  # without the published values beside ours
    assert len(of(figure, "bar")) == int((plotted["mark"] == "").sum())
    written = {text.get_text() for text in of(figure, "mark")}
    written |= {text.get_text().split(":")[0] for text in of(figure, "message")}
    assert written == set(plotted["mark"]) - {""}


def test_the_demo_shows_what_the_table_says(drawn):
    figure, plotted = drawn["demo", "speedup"]
    assert len(plotted) == 2 * 3 * 4
    assert [text.get_text() for text in of(figure, "panel")] == [
        "Horovod",
        "DDP",
        "GPipe",
        "Model parallel",
    ]
    marks = sorted(text.get_text() for text in of(figure, "mark"))
    assert marks == ["OOM", "not run", "timeout"]
    heights = sorted(bar.get_height() for bar in of(figure, "bar"))
    assert heights == pytest.approx(sorted(plotted["speedup"].dropna()))
    assert of(figure, "title")[0].get_text() == "Speed-up on 2 workers"
    assert len(of(figure, "linear")) == 4
    words = " ".join(text.get_text() for text in figure.texts)
    for text in ("Base: sequential", "samples/s", "over the steps", "commit 0123456", "2031-04-05"):
        assert text in words
    notes = " ".join(text.get_text() for text in of(figure, "note"))
    assert notes.count("torchgpipe runs its CPU partitions") == 2


def test_with_one_network_strategies_are_on_x(drawn):
    figure, plotted = drawn["one", "speedup"]
    assert [text.get_text() for text in of(figure, "panel")] == ["ResNet-18"]
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["DDP"]
    assert len(plotted) == 1


def test_a_panel_with_one_reason_says_it_once(drawn):
    figure, _ = drawn["geometries", "speedup"]
    messages = [text.get_text().replace("\n", " ") for text in of(figure, "message")]
    assert len(messages) == 2
    assert all(text.startswith("unsupported: torchgpipe drives") for text in messages)


def test_variants_of_a_strategy_have_panels_of_their_own(drawn):
    figure, _ = drawn["variants", "speedup"]
    titles = [text.get_text() for text in of(figure, "panel")]
    assert titles == ["GPipe (chunks 2)", "GPipe (chunks 4)", "GPipe (chunks 8)", "DDP"]


def test_memory_shows_the_base_beside_the_others(drawn):
    figure, plotted = drawn["demo", "memory"]
    assert len(of(figure, "bar")) == int((plotted["mark"] == "").sum()) == 27
    assert set(plotted["strategy"]) >= {"sequential", "ddp"}


def test_utilisation_is_a_share_and_traffic_leaves_the_base_out(drawn):
    figure, plotted = drawn["demo", "utilisation"]
    assert len(of(figure, "bar")) == int((plotted["mark"] == "").sum()) == 27
    assert {patch.get_height() for patch in of(figure, "bar")} == {25.0}
    figure, plotted = drawn["demo", "traffic"]
    assert len(of(figure, "bar")) == int((plotted["mark"] == "").sum())
    assert "sequential" not in set(plotted["strategy"])


def test_steps_have_a_box_each_and_their_table(drawn):
    figure, plotted = drawn["demo", "steps"]
    assert len(of(figure, "box")) == int((plotted["mark"] == "").sum()) == 27
    assert set(plotted["steps"]) == {0, 24}


def test_no_step_lies_below_the_text_at_the_right_of_its_row(tmp_path, monkeypatch):
    rows = matrix(monkeypatch, datasets=["mnist"], networks=["vgg11"])
    for row in rows:
        values = result(row.cell, epoch_s=10.0)
        values["timing"]["load_s"] = 10.0
        write(tmp_path, row.cell, values)
    tables = make_tables("demo", SITE_NAME, rows, tmp_path, tmp_path / "tables")
    with style():
        figure, _ = FIGURES["steps"].function()(tables, Context("this machine, CPU"))
        figure.draw_without_rendering()
    texts = of(figure, "number")
    assert {text.get_text().partition(":")[0] for text in texts} == {"input-bound"}
    boxes = [text.get_window_extent(figure.canvas.get_renderer()) for text in texts]
    for drawn_steps in of(figure, "steps"):
        points = drawn_steps.get_transform().transform(drawn_steps.get_xydata())
        assert not any(box.contains(*point) for point in points for box in boxes)


def test_scaling_draws_points_and_crosses(drawn):
    figure, table = drawn["geometries", "scaling"]
    plotted = table[table["mark"].notna()]
    assert len(of(figure, "published")) == len(table) - len(plotted) > 0
    assert len(of(figure, "point")) == int((plotted["mark"] == "").sum())
    assert len(of(figure, "mark")) == int((plotted["mark"] != "").sum())


def test_scaling_leaves_the_panel_of_a_network_without_the_dataset_empty():
    axes = Figure().add_subplot()
    _draw_published(axes, pd.DataFrame(), pd.DataFrame())
    assert not axes.lines


def test_figures_are_chosen_before_anything_runs(monkeypatch):
    always = {"memory", "utilisation", "steps"}
    of_strategies = {"speedup", "traffic", "loss", "timelines"}
    usual = figures_for(matrix(monkeypatch)).keys()
    assert usual >= always | of_strategies
    assert "scaling" not in usual
    assert "scaling" in figures_for(matrix(monkeypatch, geometry=["1x2", "1x4"]))
    alone = figures_for(matrix(monkeypatch, strategies=["sequential"])).keys()
    assert alone >= always
    assert not alone & of_strategies
    without_base = matrix(monkeypatch, strategies=["ddp"])
    assert "speedup" not in figures_for(without_base)


def test_a_figure_is_three_files_that_are_the_same_twice(tmp_path, monkeypatch):
    rows = matrix(monkeypatch, datasets=["mnist"], networks=["vgg11"])
    write_all(tmp_path, rows)
    make_tables("demo", SITE_NAME, rows, tmp_path, tmp_path / "tables")
    for folder in ("one", "two"):
        make_figure("speedup", tmp_path / "tables", tmp_path / folder / "speedup.png", "a site")
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == ["speedup.csv", "speedup.pdf", "speedup.png"]
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_an_unknown_figure_is_named():
    with pytest.raises(ConfigError, match="unknown figure 'nothing'; known: speedup"):
        make_figure("nothing", None, None)
