"""Choosing by measuring: the likeliest first, nothing twice, an end with a reason."""

from __future__ import annotations

import json

import predict_factory as make
import pytest

from ddlbench.commands.recommend_display import recommendation_lines
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.result import Glance
from ddlbench.experiment.status import Status
from ddlbench.predict.choose import (
    Limits,
    choice_file,
    choose,
    likeliest_of,
    short_cell,
    write_choice,
)
from ddlbench.predict.inputs import Inputs
from ddlbench.predict.prediction import Measured
from ddlbench.predict.recommend import PredictionRequest, recommend
from ddlbench.report.labels import strategy_label
from ddlbench.report.registry import FIGURES

SITE = make.site()
REQUEST = PredictionRequest(
    network="vgg11", dataset="mnist", nodes=1, devices_per_node=4, batch_size=32,
    settings={}, options={},
)  # fmt: skip


class Bed:
    """A site whose cells take what ``steps`` says; others as predicted."""

    def __init__(self, folder, **steps: float | Status) -> None:
        make.write_site(folder, make.profile(), make.links(make.pair([0] * 4)))
        self._inputs, self._steps = Inputs("local", folder), steps
        self.finished: dict[str, Glance] = {}
        self.measured: list[str] = []

    def rank(self):
        history = tuple(
            Measured(one.cell, one.step_s) for one in self.finished.values() if one.step_s
        )
        return recommend(REQUEST, SITE, self._inputs, history=history)

    def measure(self, cell: Cell) -> Glance:
        self.measured.append(cell.strategy)
        predicted = next(c for c in self.rank().ranking if c.cell.strategy == cell.strategy)
        takes = self._steps.get(cell.strategy.replace("-", "_"), predicted.step_s)
        step_s = None if isinstance(takes, Status) else takes
        status = takes if isinstance(takes, Status) else Status.OK
        self.finished[cell.id] = Glance(cell, status, 10 + 12 * (step_s or 0), step_s, 10)
        return self.finished[cell.id]

    def choose(self, cells: int = 3, device_s: float | None = None):
        limits = Limits(cells, device_s)
        return choose(self.rank, self.measure, limits, lambda cell: self.finished.get(cell.id))


def test_the_likeliest_is_measured_first_and_a_limit_ends_it(tmp_path) -> None:
    bed = Bed(tmp_path)
    likeliest = likeliest_of(bed.rank()).cell.strategy
    choice = bed.choose(cells=1)
    assert bed.measured == [likeliest]
    assert choice.stopped == "1 measured, as many as asked for"
    choice = bed.choose(cells=9)
    assert choice.stopped == "all candidates with a chance are measured"


def test_a_sure_choice_ends_it(tmp_path) -> None:
    bed = Bed(tmp_path)
    first = likeliest_of(bed.rank()).cell.strategy
    bed = Bed(tmp_path, **{first.replace("-", "_"): 1e-4})
    choice = bed.choose(cells=9)
    assert bed.measured == [first]
    assert choice.stopped == f"{strategy_label(first)} is the fastest with a chance of 100%"
    assert choice.ranking.best.cell.strategy == first


def test_a_disappointment_gives_way_to_the_next(tmp_path) -> None:
    bed = Bed(tmp_path)
    first = likeliest_of(bed.rank()).cell.strategy
    bed = Bed(tmp_path, **{first.replace("-", "_"): 99.0})
    choice = bed.choose(cells=2)
    assert bed.measured[0] == first
    assert choice.ranking.best.cell.strategy != first


def test_what_runs_out_of_memory_is_out(tmp_path) -> None:
    bed = Bed(tmp_path)
    first = likeliest_of(bed.rank()).cell.strategy
    bed = Bed(tmp_path, **{first.replace("-", "_"): Status.OUT_OF_MEMORY})
    choice = bed.choose(cells=2)
    out = next(c for c in choice.ranking.ranking if c.cell.strategy == first)
    assert not out.ranked
    lines = recommendation_lines(REQUEST, SITE, choice.ranking, errors={}, why=False)
    assert f"{strategy_label(first)}: failed here" in " ".join(" ".join(lines).split())
    assert choice.trials[0].status == "out_of_memory"
    assert sum(c.fastest for c in choice.ranking.ranking if c.ranked) == pytest.approx(1)


def test_a_budget_ends_it(tmp_path) -> None:
    choice = Bed(tmp_path).choose(cells=9, device_s=1.0)
    assert len(choice.trials) == 1
    assert "device-hours are spent" in choice.stopped


def test_started_again_it_measures_nothing_twice(tmp_path) -> None:
    bed = Bed(tmp_path)
    before = bed.choose(cells=1)
    again = bed.choose(cells=2)
    assert again.trials[0] == before.trials[0]
    assert len(bed.measured) == len(set(bed.measured)) == 2


def test_a_choice_says_what_it_saved(tmp_path) -> None:
    bed = Bed(tmp_path)
    choice = bed.choose(cells=2)
    assert choice.device_s == sum(4 * one.elapsed_s for one in bed.finished.values())
    ranked = [c for c in choice.ranking.ranking if c.ranked]
    others = [c for c in ranked if c.belief.basis == "predicted"]
    expected = choice.device_s + sum(4 * (10 + 12 * c.step_s) for c in others)
    assert choice.device_s_all() == pytest.approx(expected)
    path = choice_file("local", "a/b", tmp_path)
    write_choice(choice, "local", {"network": "vgg11"}, path)
    told = json.loads(path.read_text())
    assert told["recommended"] == "sequential"  # nothing is surely faster than one device
    assert [trial["strategy"] for trial in told["trials"]] == bed.measured


def test_the_figure_marks_the_winner(tmp_path) -> None:
    bed = Bed(tmp_path)
    case = {"network": "vgg11", "dataset": "mnist", "nodes": 1, "devices_per_node": 4}
    choice = bed.choose(cells=2)
    content = choice.to_dict("local", {**case, "batch_size": 32})
    figure, plotted = FIGURES["choice"].function()(content)
    (axes,) = figure.axes
    bold = [t.get_text() for t in axes.get_yticklabels() if t.get_fontweight() == "bold"]
    assert bold == [strategy_label(content["recommended"])]
    assert set(plotted.query("basis == 'measured'")["strategy"]) == set(bed.measured)
    assert plotted["recommended"].sum() == 1


def test_what_was_measured_before_is_drawn_as_measured(tmp_path) -> None:
    bed = Bed(tmp_path)
    earlier = REQUEST.cell("ddp")
    bed.finished[earlier.id] = Glance(earlier, Status.OK, 20.0, 0.5, 10.0)
    content = bed.choose(cells=1).to_dict("local", {})
    assert "ddp" in content["measured"]
    assert "ddp" in content["predicted"]
    assert "ddp" not in [trial["strategy"] for trial in content["trials"]]


def test_a_short_cell_does_the_same_work_a_step() -> None:
    cell = REQUEST.cell("ddp")
    short = short_cell(cell)
    assert (short.batch_size, short.strategy, short.devices) == (32, "ddp", 4)
    assert (short.warmup_steps, short.max_steps, short.data_scale) == (2, 10, 0.007)
