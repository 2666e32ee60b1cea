"""Figures of predictions: readable in every case, and what they show is what the table says."""

import itertools

import numpy as np
import pandas as pd
import pytest
from figure_checks import assert_no_overlap, assert_readable, of
from predicted_factory import rows_of, write_inputs, write_predicted, write_spans
from report_factory import write_all

from ddlbench.common.errors import ConfigError
from ddlbench.report import published
from ddlbench.report.drawing import make_prediction_figures
from ddlbench.report.figures import accuracy
from ddlbench.report.figures.conditions import table_6_1
from ddlbench.report.figures.pipelines import shares
from ddlbench.report.footer import Context
from ddlbench.report.predicted import own_predictors, read_predicted, with_conditions
from ddlbench.report.registry import prediction_figure, prediction_figures_for
from ddlbench.report.style import new_figure, style

pytestmark = pytest.mark.slow

CASES = {
    "one": {"datasets": ["mnist"], "networks": ["vgg11"], "geometry": ["1x4"]},
    "many": {
        "networks": ["resnet18", "vgg11", "vgg16", "mobilenetv2"],
        "geometry": ["1x4", "4x1"],
        "chunks": [2, 4, 8],
    },
    "empty": {"networks": ["vgg11"], "chunks": [2, 4]},
}
NAMES = [
    "accuracy",
    "oracle",
    "gpipe_step",
    "deviation_sequential",
    "parts_sequential",
    "deviation_horovod",
    "parts_horovod",
    "deviation_gpipe",
    "parts_gpipe",
]
DRAWN = [*itertools.product(CASES, NAMES), ("many", "micro_batches"), ("empty", "micro_batches")]


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    """Every case's matrix and inputs of figures."""
    patch = pytest.MonkeyPatch()
    patch.setattr("ddlbench.planning.matrix._missing_package", lambda *_: None)
    by_name = {}
    for name, axes in CASES.items():
        root = tmp_path_factory.mktemp(name)
        rows = rows_of(**axes)
        write_inputs(root, rows)
        if name != "empty":
            write_all(root, rows, troubled=name == "many")
            write_spans(root, rows)
        by_name[name] = (rows, read_predicted(*write_predicted(root, rows), root))
    patch.undo()
    return by_name


@pytest.fixture(scope="module")
def drawn(cases):
    """Every figure of every case, drawn once."""
    figures = {}
    for case, name in DRAWN:
        predicted = cases[case][1]
        strategies = list(dict.fromkeys(predicted.predictions["strategy"]))
        chosen = prediction_figure(name, strategies)
        arguments = (chosen.strategy,) if chosen.strategy else ()
        drawing = chosen.entry.function()
        with style():
            figure, plotted = drawing(predicted, Context("this machine, CPU"), *arguments)
            figure.draw_without_rendering()
        figures[case, name] = (figure, plotted)
    return figures


@pytest.mark.parametrize("key", DRAWN, ids="-".join)
def test_predictions_are_drawn_readably(drawn, key):
    assert_readable(drawn[key][0])
    assert_no_overlap(drawn[key][0])


def test_figures_suit_the_matrix(cases):
    single, many = (prediction_figures_for(cases[name][0]) for name in ("one", "many"))
    assert set(NAMES) <= set(single)
    assert "micro_batches" not in single
    assert set(many) - set(single) == {"micro_batches"}
    alone = rows_of(datasets=["mnist"], networks=["vgg11"], strategies=["sequential"])
    names = ["accuracy", "deviation_sequential", "parts_sequential"]
    assert list(prediction_figures_for(alone)) == names


def test_a_deviation_is_the_signed_error_in_percent(drawn):
    figure, plotted = drawn["many", "deviation_horovod"]
    ours = plotted[plotted["source"] == "measured here"]
    heights = sorted(bar.get_height() for bar in of(figure, "bar"))
    assert heights == pytest.approx(sorted(100 * ours["signed_error"].dropna()))
    row = ours[ours["mark"] == ""].iloc[0]
    assert row.signed_error == pytest.approx(row.predicted_step_s / row.measured_step_s - 1)


def test_published_values_stand_only_beside_the_same_figure(drawn):
    figure, plotted = drawn["many", "deviation_horovod"]
    printed = plotted[plotted["source"] == published.CITATION]
    assert set(printed["where"]) == {"Fig. 5.1"}  # 4x1 is no geometry of the thesis
    assert set(printed["predictor"]) == {"thesis-5.1-p2p"}
    shown = {line.get_ydata()[0] for line in of(figure, "published")}
    assert len(shown) == len(printed) == 8
    assert -25.412 in [pytest.approx(value, abs=1e-3) for value in shown]  # MobileNetV2, MNIST
    words = " ".join(text.get_text() for legend in figure.legends for text in legend.get_texts())
    assert "Jansen 2020, Fig. 5.1 (4 Titan RTX a node)" in words


def test_parts_stack_to_the_prediction(drawn):
    figure, plotted = drawn["one", "parts_gpipe"]
    predicted = plotted[plotted["predictor"] != "recorded"].iloc[-1]
    bars = [
        bar
        for name in ("compute_s", "exposed_communication_s", "bubble_s")
        for bar in of(figure, name)
    ]
    tops = {round(bar.get_x(), 6): 0.0 for bar in bars}
    for bar in bars:
        place = round(bar.get_x(), 6)
        tops[place] = max(tops[place], bar.get_y() + bar.get_height())
    assert max(tops) in tops
    assert tops[max(tops)] == pytest.approx(predicted.predicted_step_s)
    assert of(figure, "measured")[0].get_height() == pytest.approx(predicted.measured_step_s)
    base = of(figure, "base")[0].get_ydata()[0]
    assert base == pytest.approx(predicted.base_step_s / 4)


def test_a_recorded_step_stands_beside_the_predicted_parts(drawn):
    """Computing, sending and waiting of Figure 6.1 add up to the recorded step."""
    figure, plotted = drawn["one", "parts_gpipe"]
    (recorded,) = plotted[plotted["predictor"] == "recorded"].to_dict("records")
    names = ("compute_s", "exposed_communication_s", "bubble_s")
    assert sum(recorded[name] for name in names) == pytest.approx(recorded["predicted_step_s"])
    assert recorded["predicted_step_s"] == pytest.approx(1.0)  # of the made-up spans
    labels = [text.get_text() for text in figure.axes[0].get_xticklabels()]
    assert labels[:2] == ["measured", "recorded"]
    words = " ".join(text.get_text() for text in of(figure, "footer"))
    assert "one after the other" in words  # what torchgpipe does on CPUs
    assert "recorded" not in set(drawn["one", "parts_horovod"][1]["predictor"])


def test_no_interval_hides_a_cell():
    """Of a mean they lie in the lower half of its bar, cells in the upper one."""
    axes = new_figure(40, 20).add_subplot()
    errors = np.linspace(0.1, 0.3, 8)
    accuracy._draw_row(axes, 0, errors, "#56B4E9", accuracy._MODEL)
    (cells,), (whisker,) = (of(axes, name) for name in ("cells", "whisker"))
    assert max(cells.get_ydata()) < min(whisker.get_ydata())
    low, high = whisker.get_xdata()
    assert low < errors.mean() < high
    accuracy._draw_row(axes, 1, errors[:5], "#56B4E9", accuracy._MODEL)
    assert len(of(axes, "whisker")) == 1  # five values give no interval of 95 %


def test_accuracy_hatches_baselines_and_cuts_what_is_far_off(drawn):
    figure, plotted = drawn["many", "accuracy"]
    scored = plotted[plotted["n"] > 0]
    bars = of(figure, "bar")
    assert sum(bool(bar.get_hatch()) for bar in bars) == int(scored["baseline"].sum())
    expected = scored["mean_absolute_error"].clip(upper=2.0)
    assert sorted(bar.get_width() for bar in bars) == pytest.approx(sorted(expected))
    assert (scored["low"].dropna() <= scored["mean_absolute_error"][scored["low"].notna()]).all()


def test_shares_of_a_recorded_step():
    serial = pd.DataFrame(
        [(0, "forward", 0, 0.0, 1.0), (1, "forward", 0, 1.0, 2.0), (1, "backward", 0, 2.0, 4.0)],
        columns=["partition", "kind", "micro_batch", "start_s", "end_s"],
    )
    parts = shares(serial, 2)
    assert parts["forward"] == pytest.approx(0.25)
    assert parts["backward"] == pytest.approx(0.25)
    assert parts["gaps"] == pytest.approx(0.5)
    assert parts["at_once"] == pytest.approx(1.0)


def test_a_step_shows_each_piece_of_work(drawn):
    figure, plotted = drawn["one", "gpipe_step"]
    for kind in ("forward", "recompute", "backward"):
        assert len(of(figure, kind)) == int((plotted["kind"] == kind).sum()) > 0
    texts = " ".join(text.get_text() for axes in figure.axes for text in axes.texts)
    assert "partitions compute at a time" in texts
    missing = drawn["empty", "gpipe_step"][0]
    assert "no cell has recorded" in of(missing, "message")[0].get_text()


def test_table_6_1_has_ours_above_the_printed_rows(cases):
    table = table_6_1(cases["many"][1].predictions)
    ours = table[table["source"] == "measured here"]
    assert set(ours["chunks"]) == {2, 4, 8}
    paradl = {"paradl-authors", "paradl-corrected"}
    models = {"ddlbench", "ddlbench-eq2", "thesis-6", "torchgpipe-turns"}
    assert set(ours["predictor"]) == models | paradl
    first = ours[(ours["chunks"] == 8) & (ours["predictor"] == "thesis-6")].iloc[0]
    assert first.ideal_factor == pytest.approx(11 / 32)
    printed = table[table["source"] != "measured here"]
    assert len(printed) == 15
    column_a = printed[(printed["network"] == "resnet18") & (printed["micro_batch"] == 24)].iloc[0]
    assert column_a.ideal_factor == pytest.approx(15 / 48)
    assert column_a.measured_samples_per_s == pytest.approx(1_281_167 / 1206.34)


def test_models_of_a_strategy_are_not_the_rules_for_all(cases):
    frame = cases["many"][1].predictions
    assert own_predictors(frame, "horovod") == [
        "ddlbench",
        "ddlbench-eq1",
        "thesis-5.1-p2p",
        "thesis-5.1-transport",
        "horovod-serial",
        "paradl-authors",
        "paradl-corrected",
    ]
    assert own_predictors(frame, "sequential") == ["ddlbench", "sequential"]


def test_an_unknown_figure_of_predictions_is_named():
    with pytest.raises(ConfigError, match="unknown figure of predictions 'parts_nothing'; known"):
        prediction_figure("parts_nothing", ["horovod"])


def test_a_figure_of_predictions_is_three_files(tmp_path, monkeypatch):
    monkeypatch.setattr("ddlbench.planning.matrix._missing_package", lambda *_: None)
    rows = rows_of(datasets=["mnist"], networks=["vgg11"], strategies=["sequential", "ddp"])
    write_inputs(tmp_path, rows)
    write_all(tmp_path, rows, troubled=False)
    files = write_predicted(tmp_path, rows)
    made = make_prediction_figures(["deviation_ddp"], *files, tmp_path / "out", results=tmp_path)
    assert made == [tmp_path / "out" / "deviation_ddp.png"]
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"deviation_ddp.csv", "deviation_ddp.pdf", "deviation_ddp.png"}


def test_conditions_say_what_a_cell_ran_as():
    cell = "mnist/vgg11/pipedream/1x2/batch_size=16/rep0"
    frame = pd.DataFrame(
        [
            {
                "cell_id": cell,
                "dataset": "mnist",
                "network": "vgg11",
                "strategy": "pipedream",
                "nodes": 1,
                "devices_per_node": 2,
                "status": "ok",
                "predicted_step_s": 1.0,
                "measured_step_s": 1.0,
                "signed_error": 0.0,
                "notes": "",
            }
        ]
    )
    flags = {"stale": False, "noisy": False, "unsteady": False}
    flags |= {"ran_as": "data parallel, 32 samples an update"}
    summary = pd.DataFrame([{"configuration": cell.removesuffix("/rep0"), **flags}])
    assert list(with_conditions(frame, summary)["variant"]) == [flags["ran_as"]]
