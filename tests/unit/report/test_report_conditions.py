"""Predicted beside measured under every link condition: which cells, in which order, readable."""

from __future__ import annotations

import pytest
from figure_checks import assert_no_overlap, assert_readable, of
from predicted_factory import write_inputs, write_predicted
from report_factory import experiment, failed, result, site, timing, write

from ddlbench.experiment.fabric import LinkCondition
from ddlbench.planning.matrix import expand
from ddlbench.report.figures.conditions import draw, in_condition_order
from ddlbench.report.figures.networking import NOT_ENDED
from ddlbench.report.footer import Context
from ddlbench.report.predicted import read_predicted
from ddlbench.report.registry import prediction_figures_for
from ddlbench.report.style import style

FABRICS = {
    "lossy": LinkCondition(0.001, 1e9, 0.01),
    "bw250": LinkCondition(0.001, 250e6, 0.0),
    "lat100": LinkCondition(0.100, 1e9, 0.0),
    "base": LinkCondition(0.001, 1e9, 0.0),
}


def rows_over(fabrics):
    rows = []
    for fabric in fabrics:
        chosen = experiment(
            datasets=["mnist"],
            networks=["vgg11", "mobilenetv2"],
            strategies=["sequential", "ddp", "horovod"],
            geometry=["4x1"],
        )
        chosen.settings["fabric"] = fabric
        rows += expand(chosen, site(fabrics=FABRICS))
    return rows


@pytest.fixture
def predicted(tmp_path, monkeypatch):
    monkeypatch.setattr("ddlbench.planning.matrix._missing_package", lambda *_: None)
    monkeypatch.setattr("ddlbench.predict.inputs.load_site", lambda _: site(fabrics=FABRICS))
    rows = rows_over(FABRICS)
    write_inputs(tmp_path, rows)
    for row in rows:
        delay_s = row.condition.latency_s if row.condition else 0.0
        late = row.cell.fabric == "lat100" and row.cell.strategy == "horovod"
        values = failed(row.cell, "timeout", "too slow") if late else None
        seconds = 1 + 10 * delay_s
        write(
            tmp_path,
            row.cell,
            values or result(row.cell, timing=timing(8 * seconds, seconds, 0.01)),
        )
    return read_predicted(*write_predicted(tmp_path, rows), tmp_path)


def test_conditions_go_from_gentle_to_harsh_and_texts_do_not_meet(predicted):
    with style():
        figure, plotted = draw(predicted, Context("this machine, CPU"))
        figure.draw_without_rendering()
    assert_readable(figure)
    assert_no_overlap(figure)
    assert in_condition_order(plotted) == ["base", "bw250", "lat100", "lossy"]
    assert set(plotted["strategy"]) == {"ddp", "horovod"}
    measured = of(figure, "measured")
    assert len(measured) == 2 * 2 * 4 - 2  # networks x strategies x conditions, two timeouts
    assert [text.get_text() for text in of(figure, "status")] == ["timeout"] * 2
    assert [cross.get_color() for cross in of(figure, "mark")] == [NOT_ENDED] * 2
    assert len(of(figure, "predicted")) == plotted["predicted_step_s"].notna().sum()


def test_links_that_nobody_measured_are_told(predicted):
    with style():
        figure, plotted = draw(predicted, Context(""))
    words = " ".join(text.get_text() for text in of(figure, "footer"))
    computed = plotted[plotted["computed_links"]]
    assert len(computed) > 0
    assert "were not measured: they are computed" in words


def test_only_experiments_with_several_conditions_have_it(monkeypatch):
    monkeypatch.setattr("ddlbench.planning.matrix._missing_package", lambda *_: None)
    assert "conditions" in prediction_figures_for(rows_over(FABRICS))
    assert "conditions" not in prediction_figures_for(rows_over(["base"]))
