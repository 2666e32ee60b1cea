"""Figures of the transformer oracle: readable, and true to their numbers."""

import pytest
from figure_checks import assert_no_overlap, assert_readable

from ddlbench.predict.hardware import Accelerators
from ddlbench.predict.transformer.runs import predicted_s
from ddlbench.predict.transformer.training_runs import PUBLISHED, gpts
from ddlbench.report.figures.transformer import draw_errors, draw_runs
from ddlbench.report.style import style


@pytest.fixture(scope="module")
def predicted():
    runs, platform = (
        gpts([PUBLISHED / "one_node.csv", PUBLISHED / "many_nodes.csv"]),
        Accelerators.load("megatron-a100"),
    )
    return runs, predicted_s(runs, platform)


def drawn(draw, *inputs):
    with style():
        figure, table = draw(*inputs)
        figure.draw_without_rendering()
    assert_readable(figure)
    assert_no_overlap(figure)
    return figure, table


@pytest.mark.parametrize("draw", [draw_runs, draw_errors])
def test_every_run_is_drawn_with_its_error(draw, predicted):
    runs, seconds = predicted
    figure, table = drawn(draw, runs, seconds, "Where.")
    assert len(table) == len(runs)
    assert table["error"].to_numpy() == pytest.approx(seconds / runs.step_s - 1)
    assert set(table["place"]) == {"one node", "many nodes"}
    assert len(figure.axes) == (2 if draw is draw_runs else 8)
