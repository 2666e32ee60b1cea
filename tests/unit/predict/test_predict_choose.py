"""Choosing by measuring: the likeliest first, nothing twice, an end with a reason."""

from __future__ import annotations

import json

import predict_factory as make
import pytest

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.result import Glance
from ddlbench.experiment.status import Status
from ddlbench.planning.labels import strategy_label
from ddlbench.predict.advice import advise, answer_dict
from ddlbench.predict.prediction import Measured, same_step
from ddlbench.predict.recommend import (
    NOT_MEASURED,
    Limits,
    choice_file,
    choose,
    likeliest_of,
    read_choice,
    recommend,
    short_cell,
    write_choice,
)
from ddlbench.report.registry import FIGURES

QUESTION = make.question()


class Bed:
    """A site whose cells take what ``steps`` says; others as predicted; None leaves no result."""

    def __init__(self, folder, **steps: float | Status | None) -> None:
        make.write_site(folder, make.profile(), make.links(make.pair([0] * 4)))
        self._folder = folder
        self._steps = {name.replace("_", "-"): takes for name, takes in steps.items()}
        self.finished: dict[str, Glance] = {}
        self.measured: list[str] = []

    @property
    def known(self):
        history = tuple(
            Measured(glance.cell, glance.step_s)
            for glance in self.finished.values()
            if glance.step_s
        )
        return make.knowledge(self._folder, history=history)

    def rank(self):
        return recommend(QUESTION, self.known)

    def measure(self, cell: Cell) -> Glance | None:
        self.measured.append(cell.strategy)
        predicted = next(c for c in self.rank().candidates if c.strategy == cell.strategy)
        takes = self._steps.get(cell.strategy, predicted.predicted_s)
        if takes is None:
            return None
        step_s = None if isinstance(takes, Status) else takes
        status = takes if isinstance(takes, Status) else Status.OK
        self.finished[cell.id] = Glance(cell, status, 10 + 12 * (step_s or 0), step_s, 10)
        return self.finished[cell.id]

    def choose(self, cells: int = 3, device_s: float | None = None):
        limits = Limits(cells, device_s)
        return choose(self.rank, self.measure, limits, lambda cell: self.finished.get(cell.id))

    def content(self, choice):
        advice = advise(QUESTION, choice.ranking, self.known)
        return choice.to_dict("local", answer_dict(QUESTION, choice.ranking, advice))


def first_of(folder) -> str:
    """The strategy that is measured first."""
    return likeliest_of(Bed(folder).rank()).strategy


def test_the_likeliest_is_measured_first_and_a_limit_ends_it(tmp_path) -> None:
    bed = Bed(tmp_path)
    likeliest = likeliest_of(bed.rank()).strategy
    choice = bed.choose(cells=1)
    assert bed.measured == [likeliest]
    assert choice.stopped == "1 cell tried, now or before, of at most 1"
    choice = bed.choose(cells=9)
    assert choice.stopped == "no other candidate has a chance of half a percent"
    assert len(bed.measured) < len(choice.ranking.ranked)


def test_a_sure_choice_ends_it(tmp_path) -> None:
    first = first_of(tmp_path)
    bed = Bed(tmp_path, **{first: 1e-4})
    choice = bed.choose(cells=9)
    assert bed.measured == [first]
    assert choice.stopped == f"{strategy_label(first)} is the fastest with a chance of 100%"
    assert choice.ranking.best.strategy == first


def test_a_disappointment_gives_way_to_the_next(tmp_path) -> None:
    first = first_of(tmp_path)
    bed = Bed(tmp_path, **{first: 99.0})
    choice = bed.choose(cells=2)
    assert bed.measured[0] == first
    assert choice.ranking.best.strategy != first


def test_what_runs_out_of_memory_is_out(tmp_path) -> None:
    first = first_of(tmp_path)
    choice = Bed(tmp_path, **{first: Status.OUT_OF_MEMORY}).choose(cells=2)
    out = next(c for c in choice.ranking.candidates if c.strategy == first)
    assert not out.ranked
    assert (out.code, out.chance) == ("no_step", None)
    assert choice.trials[0].status == "out_of_memory"
    assert sum(c.chance for c in choice.ranking.ranked) == pytest.approx(1)


def test_a_cell_without_a_result_ends_its_candidate_only(tmp_path) -> None:
    """The next candidate follows, and the choice has an answer."""
    first = first_of(tmp_path)
    bed = Bed(tmp_path, **{first: None})
    choice = bed.choose(cells=2)
    assert bed.measured[0] == first
    assert len(bed.measured) == len(set(bed.measured)) == 2
    failed, second = choice.trials
    assert (failed.strategy, failed.status, failed.step_s, failed.device_s) == (
        first, NOT_MEASURED, None, 0.0,
    )  # fmt: skip
    assert second.status == "ok"
    assert choice.ranking.best.strategy != first
    path = choice_file("local", "a/b", tmp_path)
    write_choice(bed.content(choice), path)
    content = read_choice(path)
    assert content["answers"][0]["recommended"] is not None
    assert first in [candidate["strategy"] for candidate in content["answers"][0]["not_ranked"]]


def test_where_no_cell_leaves_a_result_there_is_still_an_answer(tmp_path) -> None:
    names = [c.strategy for c in Bed(tmp_path).rank().ranked]
    choice = Bed(tmp_path, **dict.fromkeys(names)).choose(cells=9)
    assert {trial.status for trial in choice.trials} == {NOT_MEASURED}
    assert choice.ranking.best.strategy == "sequential"
    assert choice.stopped
    assert choice.device_s == 0


def test_without_any_candidate_it_says_so(tmp_path) -> None:
    bed = Bed(tmp_path)
    tiny = make.knowledge(tmp_path, device_memory_bytes=1)
    choice = choose(lambda: recommend(QUESTION, tiny), bed.measure, Limits(3), lambda _cell: None)
    assert (choice.stopped, choice.trials) == ("no candidate can run", [])


def test_what_the_site_is_too_small_for_is_not_measured(tmp_path) -> None:
    bed = Bed(tmp_path)
    here = make.knowledge(tmp_path, site=make.site(launcher="slurm", nodes=1, devices_per_node=2))
    ranking = recommend(QUESTION, here)
    assert any(c.beyond for c in ranking.ranked)
    choice = choose(lambda: ranking, bed.measure, Limits(3), lambda _cell: None)
    assert bed.measured == []
    assert choice.stopped == "the site is too small to measure the others"


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
    assert choice.device_s == sum(4 * glance.elapsed_s for glance in bed.finished.values())
    others = [c for c in choice.ranking.ranked if c.basis == "predicted"]
    expected = choice.device_s + sum(4 * (10 + 12 * choice.ranking.step_s(c)) for c in others)
    assert choice.device_s_all() == pytest.approx(expected)
    path = choice_file("local", "a/b", tmp_path)
    write_choice(bed.content(choice), path)
    content = json.loads(path.read_text())
    assert content["answers"][0]["recommended"] == "sequential"  # nothing is surely faster
    assert [trial["strategy"] for trial in content["trials"]] == bed.measured


def test_the_figure_knows_what_was_measured(tmp_path) -> None:
    bed = Bed(tmp_path)
    content = bed.content(bed.choose(cells=2))
    _figure, plotted = FIGURES["choice"].function()(content)
    assert set(plotted.query("basis == 'measured'")["strategy"]) == set(bed.measured)


def test_what_was_measured_before_counts_as_measured(tmp_path) -> None:
    bed = Bed(tmp_path)
    earlier = QUESTION.cell("ddp")
    bed.finished[earlier.id] = Glance(earlier, Status.OK, 20.0, 0.5, 10.0)
    content = bed.content(bed.choose(cells=1))
    candidates = {
        candidate["strategy"]: candidate for candidate in content["answers"][0]["candidates"]
    }
    assert (candidates["ddp"]["basis"], candidates["ddp"]["measured_step_s"]) == ("measured", 0.5)
    assert candidates["ddp"]["predicted_step_s"] not in (None, 0.5)
    assert "ddp" not in [trial["strategy"] for trial in content["trials"]]


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"epochs": 9, "seed": 3, "learning_rate": 0.5, "repeat": 1, "validate": True}, True),
        *(({name: value}, False) for name, value in {
            "optimizer": "adamw", "compile": True, "deterministic": True, "data_source": "real",
            "weight_decay": 0.1,
        }.items()),
    ],
    ids=str,
)  # fmt: skip
def test_runs_with_other_work_a_step_are_of_another_question(changes, same) -> None:
    cell = Cell("mnist", "mlp", "ddp", batch_size=8)
    assert same_step(cell.with_(**changes), cell) is same


def test_a_short_cell_does_the_same_work_a_step() -> None:
    cell = QUESTION.cell("ddp")
    short = short_cell(cell)
    assert (short.batch_size, short.strategy, short.devices) == (32, "ddp", 4)
    assert (short.warmup_steps, short.max_steps, short.data_scale) == (2, 10, 0.007)
