"""Published values: beside a figure's cells stand those of the prints that its file names."""

from __future__ import annotations

import math

import pandas as pd
import pytest
from figure_checks import assert_no_overlap, assert_readable, of
from predicted_factory import write_inputs, write_predicted
from report_factory import SITE_NAME, experiment, failed, result, site, timing, write, write_all

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.config import Paper, read_papers
from ddlbench.experiment.fabric import LinkCondition
from ddlbench.planning.matrix import expand
from ddlbench.report import predicted, published
from ddlbench.report.bars import Bar, Beside, Group, draw_beside, draw_groups
from ddlbench.report.figures import accuracy, networking, speedup
from ddlbench.report.figures.paradl import PRINTED, bars_of_runs
from ddlbench.report.footer import Context
from ddlbench.report.labels import DatasetLook, printed_name
from ddlbench.report.measurements import make_tables
from ddlbench.report.predicted import gap_over_forward, idle_of, parts_of, read_predicted
from ddlbench.report.style import new_figure, style

PAPERS = {file.paper.figure: file.paper for file in read_papers()}
# Prints of the same values: DDLBench shows again what is in the thesis, and was read off there.
SAME = {"ddlbench/fig4": "thesis/fig3.1", "ddlbench/fig5": "thesis/fig3.2"}


def sources() -> dict[str, pd.DataFrame]:
    tables = ("speedups", "deviations", "micro_batches", "choices")
    frames = {name: published._rows(name) for name in tables}
    return frames | {"throughput": published.throughputs(), "loss": published.loss_shares()}


def test_every_value_names_the_figure_that_it_was_printed_in() -> None:
    for name, rows in sources().items():
        figures = set(rows["figure"]) - {""}
        assert figures <= PAPERS.keys(), name
        for row in rows[rows["figure"] != ""].itertuples():  # "Fig. 3.1a" of thesis/fig3.1
            number = row.figure.partition("/")[2].removeprefix("fig").removeprefix("table")
            assert number in row.where, (name, row)


@pytest.mark.parametrize("figure", [name for name, entry in PAPERS.items() if entry.published])
def test_a_figure_names_itself_or_the_same_print(figure: str) -> None:
    assert PAPERS[figure].published == (SAME.get(figure, figure),)
    known = {name for rows in sources().values() for name in rows["figure"]} | {
        "paradl/fig1", "thesis/table8.2",
    }  # fmt: skip
    assert set(PAPERS[figure].published) <= known
    for rows in sources().values():
        assert set(published.chosen(rows, PAPERS[figure])["figure"]) <= set(
            PAPERS[figure].published
        )


def test_figures_3_1_and_3_2_differ_where_they_show_the_same_bar() -> None:
    """Read off twice: a mark of the one stands beside no figure of the other."""
    rows = published.speedups()
    assert Counted(rows, "thesis/fig3.1") == 3 * 24
    assert Counted(rows, "thesis/fig3.2") == 2 * 9
    vgg = rows[(rows["network"] == "vgg16") & (rows["strategy"] == "horovod")]
    printed = vgg[(vgg["dataset"] == "imagenet") & (vgg["geometry"] == "1x4")]
    values = dict(zip(printed["figure"], printed["speedup"], strict=True))
    assert values == {"thesis/fig3.1": 3.43, "thesis/fig3.2": 3.431}


def Counted(rows: pd.DataFrame, figure: str) -> int:  # noqa: N802 - reads as a number
    return int((rows["figure"] == figure).sum())


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Horovod and PipeDream on ImageNet, 1x4 and 2x4, as in Figures 4 and 5."""
    folder = tmp_path_factory.mktemp("speedups")
    patch = pytest.MonkeyPatch()
    patch.setattr("ddlbench.planning.matrix._missing_package", lambda *_: None)
    chosen = experiment(
        datasets=["imagenet"], networks=["resnet50", "vgg16"],
        strategies=["sequential", "horovod", "pipedream"], geometry=["1x4", "2x4"],
    )  # fmt: skip
    rows = expand(chosen, site())
    for row in rows:
        old = "stale" if row.cell.strategy == "pipedream" else "synchronous"
        write(folder, row.cell, result(row.cell, update_semantics=old))
    made = make_tables("demo", SITE_NAME, rows, folder, folder / "tables")
    patch.undo()
    return made


def legend_of(figure) -> str:
    return " ".join(text.get_text() for legend in figure.legends for text in legend.get_texts())


@pytest.mark.parametrize(
    ("draw", "paper", "prints", "says"),
    [
        (
            speedup.draw_scaling,
            "ddlbench/fig5",
            {"thesis/fig3.2"},
            "DDLBench, Fig. 5, read off Jansen 2020",
        ),
        (speedup.draw_scaling, "ddlbench/fig6", set(), ""),
        (
            speedup.draw,
            "ddlbench/fig4",
            {"thesis/fig3.1"},
            "DDLBench, Fig. 4, read off Jansen 2020",
        ),
        (speedup.draw, "", {"thesis/fig3.1", "thesis/fig3.2"}, "Jansen 2020, Fig. 3.1a"),
        (speedup.draw_scaling, "", {"thesis/fig3.2"}, "Jansen 2020, Fig. 3.2a"),
    ],
)
def test_marks_are_of_the_print_that_the_file_names(tables, draw, paper, prints, says) -> None:
    with style():
        figure, table = draw(tables, Context("", paper=PAPERS.get(paper)))
        figure.draw_without_rendering()
    theirs = table[table["source"] == published.CITATION]
    assert set(theirs["figure"]) == prints
    assert len(of(figure, "published")) == len(theirs)
    assert says in legend_of(figure)
    assert ("Jansen" in legend_of(figure)) == bool(prints)
    assert_readable(figure)
    assert_no_overlap(figure)


def test_figure_5_has_its_four_gpus_too(tables) -> None:
    with style():
        figure, table = speedup.draw_scaling(tables, Context("", paper=PAPERS["ddlbench/fig5"]))
    theirs = table[table["source"] == published.CITATION]
    assert sorted(set(theirs["workers"])) == [4, 8]
    marks = {float(line.get_ydata()[0]) for line in of(figure, "published")}
    assert {3.654, 7.311, 0.328, 0.401} <= marks  # ResNet-50 on 4 and 8 GPUs


def test_older_weights_are_said_once_at_the_name(tables) -> None:
    for draw in (speedup.draw_scaling, speedup.draw):
        with style():
            figure, _ = draw(tables, Context(""))
        words = [text.get_text() for axes in figure.axes for text in axes.texts]
        titles = [text.get_text() for axes in figure.axes for text in of_panel(axes)]
        at_numbers = [word for word in words if "‡" in word and word not in titles]
        assert at_numbers == []
        assert "PipeDream ‡" in [*titles, *legend_words(figure)]


def of_panel(axes):
    return [text for text in axes.texts if text.get_gid() == "panel"]


def legend_words(figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


@pytest.mark.parametrize("paper", ["thesis/fig5.1", "thesis/fig5.2"])
def test_deviations_are_of_their_own_figure(tmp_path, paper) -> None:
    chosen = experiment(
        datasets=["imagenet"], networks=["resnet50", "vgg16"],
        strategies=["sequential", "horovod"], geometry=["1x4", "2x4"],
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ddlbench.planning.matrix._missing_package", lambda *_: None)
        rows = expand(chosen, site())
        write_inputs(tmp_path, rows)
        write_all(tmp_path, rows)
        predicted = read_predicted(*write_predicted(tmp_path, rows), tmp_path)
    with style():
        figure, table = accuracy.draw_deviation(
            predicted, Context("", paper=PAPERS[paper]), "horovod"
        )
        figure.draw_without_rendering()
    theirs = table[table["source"] == published.CITATION]
    assert set(theirs["figure"]) == {paper}
    assert set(theirs["where"]) == {f"Fig. {paper[-3:]}"}
    if paper == "thesis/fig5.2":  # each of its geometries; 5.1 has one, which stands for any
        assert sorted(set(theirs["geometry"])) == ["1x4", "2x4"]
        values = {round(float(line.get_ydata()[0]), 3) for line in of(figure, "published")}
        assert values == {2.041, 5.700, -7.125, -51.132}
    panels = len(figure.axes)
    assert panels == table["predictor"].nunique()  # geometries are bars of a panel, as in print
    assert_readable(figure)
    assert_no_overlap(figure)


@pytest.mark.parametrize(
    ("bar", "mark", "foot"),
    [
        ((2.0, math.nan, math.nan), 4.0, 2.0),  # far from it
        ((2.0, math.nan, math.nan), 2.3, 0.0),  # within its bar
        ((0.3, math.nan, math.nan), 0.5, 0.85),  # too low for that
        ((-2.0, math.nan, math.nan), -2.3, 0.0),  # on the other side of zero
        ((-2.0, -4.0, 1.0), -4.2, 1.0),  # beyond its whisker there
        ((-0.1, math.nan, math.nan), -0.2, 0.15),
    ],
)
def test_a_number_never_lies_under_a_mark(bar, mark, foot) -> None:
    with style():
        figure = new_figure(85.0, 60.0)
        axes = figure.add_axes((0.1, 0.1, 0.85, 0.85))
        beside = Beside({(0, 0): mark}, 10.0)
        bars = [Bar(*bar, "#0072B2", DatasetLook(0.0, ""))]
        draw_groups(axes, [Group("a", bars)], 70.0, "{:.1f}".format, beside)
        draw_beside(axes, beside, 1)
        axes.set_ylim(-5, 5)
        figure.draw_without_rendering()
    (number,), (line,) = of(figure, "number"), of(figure, "published")
    assert float(number.xy[1]) == pytest.approx(foot)
    assert not line.get_window_extent().overlaps(number.get_window_extent())


# The networking study ----------------------------------------------------------------------------

FABRICS = {
    "base": LinkCondition(0.001, 1e9, 0.0),
    "loss1": LinkCondition(0.001, 1e9, 0.01),
    "loss10": LinkCondition(0.001, 1e9, 0.1),
}


@pytest.fixture
def lossy(tmp_path):
    rows = []
    for fabric in FABRICS:
        chosen = experiment(
            datasets=["mnist"], networks=["mobilenetv2", "resnet50"],
            strategies=["parameter-server"], geometry=["2x1"],
        )  # fmt: skip
        chosen.settings["fabric"] = fabric
        rows += expand(chosen, site(fabrics=FABRICS))
    for row in rows:
        late = row.cell.fabric == "loss10" and row.cell.network == "resnet50"
        timeout = failed(row.cell, "timeout", "still in its first step")
        seconds = 1.0 + 100 * row.condition.loss
        good = result(row.cell, timing=timing(8 * seconds, seconds, 0.01))
        write(tmp_path, row.cell, timeout if late else good)
    return make_tables("demo", SITE_NAME, rows, tmp_path, tmp_path / "tables")


def test_the_printed_share_of_loss_is_of_our_own_rate(lossy) -> None:
    with style():
        figure, table = networking.draw_loss(lossy, Context("", paper=PAPERS["networking/fig8"]))
        figure.draw_without_rendering()
    base = table[(table["fabric"] == "base") & (table["network"] == "mobilenetv2")]["samples_per_s"]
    marks = [float(line.get_ydata()[0]) for line in of(figure, "published")]
    assert any(math.isclose(mark, 0.9 * float(base.iloc[0])) for mark in marks)
    assert len(marks) == 2  # of both networks
    assert "Sec. 4.3 (Fig. 8)" in legend_of(figure)
    assert set(table.loc[table["source"] != "measured here", "figure"]) == {"networking/fig8"}


def test_a_figure_without_printed_values_has_no_marks(lossy) -> None:
    with style():
        figure, table = networking.draw_loss(lossy, Context("", paper=PAPERS["networking/fig9"]))
    assert of(figure, "published") == []
    assert set(table["source"]) == {"measured here"}


def test_what_did_not_end_is_the_studys_red_cross(lossy) -> None:
    with style():
        figure, _ = networking.draw_loss(lossy, Context(""))
        figure.draw_without_rendering()
    (cross,) = of(figure, "mark")
    assert cross.get_color() == networking.NOT_ENDED
    assert "did not end in its time" in legend_of(figure)
    assert_no_overlap(figure)


# ParaDL, and the recorded step -------------------------------------------------------------------


def test_a_printed_bar_stands_beside_the_same_cell() -> None:
    row = {
        "cell_id": "x/rep0", "strategy": "filter", "variant": "", "network": "resnet50",
        "dataset": "imagenet", "geometry": "1x4", "workers": 4, "nodes": 1, "mark": "",
        "status": "ok", "predictor": "paradl-corrected", "compute_s": 0.1, "bubble_s": 0.0,
        "communication_s": 0.1, "predicted_step_s": 0.2, "measured_step_s": 0.25,
        "measured_low_s": math.nan, "measured_high_s": math.nan, "signed_error": -0.2,
        "measured_wait_s": 0.1,
    }  # fmt: skip
    bars = bars_of_runs(pd.DataFrame([row]))
    (printed,) = bars[bars["source"] == PRINTED].to_dict("records")
    assert printed["step_s"] == pytest.approx(0.324171)  # ResNet-50, filter, 4 GPUs
    assert PRINTED not in set(bars_of_runs(pd.DataFrame([row]), with_printed=False)["source"])
    other = {**row, "network": "resnet18"}
    assert PRINTED not in set(bars_of_runs(pd.DataFrame([other]))["source"])


SPANS = pd.DataFrame(
    [
        (0, "forward", 0, 0.0, 1.0), (0, "forward", 1, 1.0, 2.0),
        (1, "forward", 0, 1.5, 2.5), (1, "forward", 1, 3.0, 4.0),  # each sent for half a second
        (1, "backward", 1, 4.0, 6.0), (0, "backward", 1, 6.0, 8.0),
        (1, "backward", 0, 6.0, 8.0), (0, "backward", 0, 9.0, 11.0),
    ],
    columns=["partition", "kind", "micro_batch", "start_s", "end_s"],
)  # fmt: skip


def test_idle_time_is_sending_or_waiting() -> None:
    idle = idle_of(SPANS)
    actual = [(r.partition, r.kind, r.micro_batch, r.start_s, r.end_s) for r in idle.itertuples()]
    assert actual == [
        (0, "waiting", 1, 2.0, 6.0),  # for the gradient of the second micro-batch
        (0, "sending", 0, 8.0, 9.0),
        (1, "waiting", 0, 0.0, 1.0),
        (1, "sending", 0, 1.0, 1.5),
        (1, "sending", 1, 2.5, 3.0),
        (1, "waiting", 0, 8.0, 11.0),  # done before the first partition
    ]
    parts = parts_of(SPANS)
    assert parts == pytest.approx(
        {"compute_s": 6.0, "exposed_communication_s": 1.0, "bubble_s": 4.0}
    )
    assert sum(parts.values()) == pytest.approx(11.0)
    assert gap_over_forward(SPANS) == pytest.approx(0.25)  # gaps of 0 and 0.5
    assert math.isnan(gap_over_forward(SPANS.iloc[:1]))


@pytest.mark.parametrize(
    ("figure", "name"),
    [
        ("ddlbench/fig4", "DDLBench, Fig. 4"),
        ("thesis/table8.1", "Jansen 2020, Table 8.1"),
        ("networking/fig10", "Cheng et al., Fig. 10"),
    ],
)
def test_figures_are_cited_by_name(figure: str, name: str) -> None:
    assert printed_name(figure) == name


def test_without_a_file_any_print_may_stand_beside() -> None:
    paper: Paper | None = None
    assert published.is_of(paper, "paradl/fig1")
    assert not published.is_of(PAPERS["ddlbench/fig4"], "paradl/fig1")


@pytest.mark.parametrize(
    "text", ["", "partition,kind\n", SPANS.to_csv(index=False)[:-5], "a,b\n1,2\n"]
)
def test_a_damaged_recording_of_passes_is_one_sentence(tmp_path, text):
    path = tmp_path / "partitions.csv"
    path.write_text(SPANS.to_csv(index=False))
    assert len(predicted._read_spans(path)) == len(SPANS)
    path.write_text(text)
    with pytest.raises(ConfigError, match="partitions.csv cannot be read"):
        predicted._read_spans(path)
