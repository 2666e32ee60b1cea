"""Figures of what is advised, for one size and for several; and why a speed-up is not advised."""

from __future__ import annotations

import math

import pandas as pd
import pytest
from answer_factory import answer, candidate, size
from figure_checks import assert_no_overlap, assert_readable, of, texts_of

from ddlbench.predict.recommend import answers_dict, write_choice
from ddlbench.report.choice_tables import not_advised
from ddlbench.report.figures.choice import draw as draw_choice
from ddlbench.report.figures.sizes import draw as draw_sizes
from ddlbench.report.page_tables import PageInputs, advised
from ddlbench.report.style import style
from ddlbench.report.tables import Tables

NOISE = "it computes on one device at a time, so this is noise"


def vgg(**case):
    candidates = [
        candidate("pipe-zb", 0.18, 1.32),
        candidate("ddp", 0.22, 1.14, basis="measured"),
        candidate("sequential", 0.25, 1.0, basis="measured"),
        candidate("model-parallel", 0.24, 1.2, basis="measured"),
    ]
    why_not = {"pipe-zb": "only predicted", "model-parallel": NOISE}
    return answer(candidates, "ddp", why_not, **case)


def drawn(draw, content):
    with style():
        figure, plotted = draw(content)
        figure.draw_without_rendering()
    assert_readable(figure)
    assert_no_overlap(figure)
    return figure, plotted, " ".join(" ".join(t.get_text() for t in texts_of(figure)).split())


def footer(figure):
    return " ".join(text.get_text() for text in of(figure, "footer"))


def test_a_choice_has_a_row_a_candidate_and_the_reasons_beside():
    figure, plotted, text = drawn(draw_choice, answers_dict("local", [vgg()]))
    (axes,) = figure.axes
    labels = axes.get_yticklabels()
    assert [label.get_text() for label in labels] == [
        "Zero bubble", "DDP", "Sequential", "Model parallel"
    ]  # fmt: skip
    assert [label.get_text() for label in labels if label.get_fontweight() == "bold"] == ["DDP"]
    assert "1.32x not advised: only predicted 1.14x 1.00x" in text
    assert NOISE in text
    assert footer(figure) == "Train with ddp. Measured: 1 run per strategy. Site local."
    assert list(plotted["recommended"]) == [False, True, False, False]
    assert list(plotted["basis"]) == ["predicted", *["measured"] * 3]
    assert plotted["why_not"].iloc[0] == "only predicted"


def test_what_was_predicted_is_grey_and_what_was_measured_beside_it():
    figure, plotted, _ = drawn(draw_choice, answers_dict("local", [vgg()]))
    (axes,) = figure.axes
    lines = [tuple(line.get_xdata()) for line in axes.lines]
    predicted = list(zip(plotted["predicted_low_s"], plotted["predicted_high_s"], strict=True))
    assert set(predicted) <= set(lines)
    measured = plotted[plotted["basis"] == "measured"]
    assert {(step,) for step in measured["step_s"]} <= set(lines)
    assert {(step,) for step in plotted["predicted_s"]} <= set(lines)
    assert len(lines) == 2 * 4 + 2 * 3


def test_a_prediction_is_drawn_as_measured_steps_have_corrected_it():
    corrected = candidate("ddp", 0.2, 1.1, predicted_step_s=0.1, predicted_interval_s=[0.08, 0.13])
    _, plotted, _ = drawn(draw_choice, answers_dict("local", [answer([corrected], "ddp")]))
    assert plotted["predicted_s"].tolist() == plotted["step_s"].tolist() == [0.2]


@pytest.mark.parametrize(("slowest_s", "scale"), [(0.5, "linear"), (50.0, "log")])
def test_steps_of_candidates_far_apart_are_on_a_logarithmic_axis(slowest_s, scale):
    rows = [candidate("ddp", 0.1, 1.5), candidate("model-parallel", slowest_s, 0.1)]
    figure, _, _ = drawn(draw_choice, answers_dict("local", [answer(rows, "ddp")]))
    (axes,) = figure.axes
    assert axes.get_xscale() == scale
    low_s, high_s = axes.get_xlim()
    assert low_s < min(rows[0]["interval_s"]) < max(rows[1]["interval_s"]) < high_s


def test_a_choice_by_measuring_says_what_it_cost():
    content = answers_dict("local", [vgg()])
    content |= {"trials": [{}], "stopped": "enough", "device_s": 900.0, "device_s_all": 3600.0}
    figure, *_ = drawn(draw_choice, content)
    rest = "0.25 device-hours of 1 for all candidates. Stopped: enough."
    assert footer(figure).startswith(f"Train with ddp. {rest} Measured: 1 run")


def test_a_panel_an_answer_and_six_at_most():
    answers = [vgg(batch_size=16 * place) for place in range(1, 9)]
    figure, plotted, text = drawn(draw_choice, answers_dict("local", answers[:2]))
    assert len(figure.axes) == 2
    assert "VGG-11, MNIST, 1x2, batch 32" in text
    assert footer(figure) == "2 cases. Bold: recommended. Measured: 1 run per strategy. Site local."
    assert plotted["case"].nunique() == 2
    figure, plotted, _ = drawn(draw_choice, answers_dict("local", answers))
    assert len(figure.axes) == 6
    assert footer(figure).startswith("The first 6 of 8 cases.")
    assert plotted["case"].nunique() == 6


def test_a_case_without_candidates_and_no_case_are_figures_too():
    figure, plotted, text = drawn(draw_choice, answers_dict("local", [vgg(), answer([], None)]))
    assert len(figure.axes) == 2
    assert "Train with None." in text
    assert len(plotted) == 4
    _, plotted, text = drawn(draw_choice, answers_dict("local", []))
    assert "There is no answer" in text
    assert plotted.empty


def test_a_candidate_that_was_only_measured_has_no_grey_line():
    only = candidate("ddp", 0.2, 1.1, basis="measured", predicted_interval_s=None)
    figure, plotted, text = drawn(draw_choice, answers_dict("local", [answer([only], "ddp")]))
    assert len(figure.axes[0].lines) == 2
    assert plotted["predicted_s"].isna().all()
    assert "predicted" not in text


SIZES = [
    size("1x2", "ddp", 1.9, "measured"),
    size("2x4", "pipe-zb", 4.4),
    size("1x8", "model-parallel-p2p", 5.0),
    size("8x4", None, None),
]


def sizes(geometries, enough):
    return {"geometries": geometries, "advice": ["More do not pay."], "enough": enough}


def test_sizes_say_what_more_devices_bring():
    figure, plotted, text = drawn(draw_sizes, sizes(SIZES, "1x2"))
    assert footer(figure) == "More do not pay."
    assert "1x2 DDP 1.90x" in text
    assert "8x4 no answer" in text
    assert list(plotted["geometry"]) == ["1x2", "2x4", "1x8", "8x4"]
    assert list(plotted["enough"]) == [True, False, False, False]
    first = plotted.iloc[0]
    assert first["speedup_low"] == pytest.approx(1.9 / 1.05)
    assert first["speedup_high"] == pytest.approx(1.9 * 1.05)
    assert math.isnan(plotted["speedup"].iloc[3])
    for axes in figure.axes:
        assert list(axes.get_xticks()) == [0, 1, 2, 3]  # equal devices, too, have their own place
        assert len(axes.patches) == 1


def test_predicted_sizes_are_hollow():
    figure, *_ = drawn(draw_sizes, sizes(SIZES, None))
    marks = [line for line in figure.axes[1].lines if line.get_linestyle() == "None"]
    assert [mark.get_markerfacecolor() == "white" for mark in marks] == [False, True, True]
    assert not figure.axes[1].patches


@pytest.mark.parametrize("count", [1, 9])
def test_few_and_many_sizes_fit(count):
    names = ["ddp", "pipe-interleaved", "model-parallel-p2p", "fsdp", "sequential"]
    each = [size(f"{2**n}x4", names[n % 5], 1.0 + n, "measured") for n in range(count)]
    figure, plotted, _ = drawn(draw_sizes, sizes(each, "2x4"))
    assert len(figure.axes) == 2
    assert len(plotted) == count


def test_one_device_has_no_interval_of_its_speedup():
    _, plotted, _ = drawn(draw_sizes, sizes([size("1x2", "sequential", 1.0)], None))
    assert plotted["speedup_low"].iloc[0] == plotted["speedup_high"].iloc[0] == 1.0


def summary(*speedups, geometry="1x2"):
    return pd.DataFrame(
        {
            "configuration": f"mnist/vgg11/{name}/{geometry}/batch_size=16",
            "strategy": name,
            "speedup": speedup,
        }
        for name, speedup in speedups
    )


def test_the_highest_speedup_that_is_not_advised_has_its_reason():
    rows = [("horovod", 1.2), ("ddp", 1.1), ("sequential", 1.0), ("gpipe", math.nan)]
    no = {"horovod": "one device may be as fast", "ddp": "one device may be as fast"}
    (sentence,) = not_advised([answer([], "sequential", no)], summary(*rows))
    assert sentence == (
        "Horovod has the highest speed-up for VGG-11 and is not advised: one device may be as fast."
    )
    assert not_advised([answer([], "horovod")], summary(*rows)) == []
    assert not_advised([answer([], "ddp")], summary(*rows)) == []  # nothing is said against it
    assert not_advised([answer([], None, no)], summary(*rows)) == []
    assert not_advised([], summary(*rows)) == []


def test_a_strategy_that_is_left_out_has_its_reason_too():
    (sentence,) = not_advised([answer([], "ddp")], summary(("pipedream", 1.5), ("ddp", 1.1)))
    assert sentence.endswith("and is not advised: updates with old weights; a remark.")


def test_a_reason_is_of_its_own_case():
    no = {"horovod": "only predicted"}
    answers = [
        answer([], "ddp", no, devices_per_node=4),
        answer([], "ddp", no, settings={"precision": "bf16"}),
        answer([], "ddp", no, settings={"precision": "fp32"}),
    ]
    (sentence,) = not_advised(answers, summary(("horovod", 1.5), ("ddp", 1.1)))
    assert "for VGG-11, 1x2, precision fp32 and" in sentence
    assert not_advised(answers, summary(("horovod", 1.5), geometry="2x2")) == []


def test_the_pages_table_tells_cases_of_other_settings_apart(tmp_path):
    cases = [vgg(settings={"fabric": fabric}) for fabric in ("default", "lat10", "lat100")]
    write_choice(answers_dict("local", cases), tmp_path / "advice.json")
    nothing = Tables(*[pd.DataFrame()] * 4)
    table = advised(PageInputs(tmp_path, tmp_path, nothing))
    assert [column.heading for column in table.columns][:2] == ["Setting", "Train with"]
    assert [row[0] for row in table.rows] == ["", "fabric lat10", "fabric lat100"]
