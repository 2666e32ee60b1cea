"""A candidate fails alone: what is wrong with one strategy is the reason of that strategy."""

from __future__ import annotations

from dataclasses import replace

import predict_factory as make
import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.registry import SHIPPED_STRATEGIES, STRATEGIES, known
from ddlbench.planning import trainable
from ddlbench.planning.labels import strategy_label
from ddlbench.planning.memory import Room
from ddlbench.planning.network_tables import LinearPairs, NetworkTraits
from ddlbench.predict.advice import advise, answer_dict
from ddlbench.predict.candidate import assess
from ddlbench.predict.prediction import Departure, Measured, Prediction
from ddlbench.predict.recommend import recommend
from ddlbench.strategies.ddp.descriptor import DistributedDataParallel

NAME = "faulty"
QUESTION = make.question()


class Faulty(DistributedDataParallel):
    """DDP, with a method that raises."""

    name, label = NAME, "Faulty"


@pytest.fixture
def here(tmp_path):
    make.write_site(tmp_path, make.profile(), make.links())
    return make.knowledge(tmp_path)


@pytest.fixture
def raising(monkeypatch):
    """Registers the strategy; ``raising(method, error)`` breaks it."""
    monkeypatch.setitem(STRATEGIES, NAME, f"{__name__}:Faulty")
    known.cache_clear()

    def made(method, error):
        def fail(*_given, **_named):
            raise error

        monkeypatch.setattr(Faulty, method, fail)

    yield made
    known.cache_clear()


@pytest.mark.parametrize(
    ("error", "code"),
    [(ValueError("no such thing"), "fault"), (ConfigError("no such thing"), "no_prediction")],
)
@pytest.mark.parametrize(
    "method",
    ["supports", "most_speedup", "placement", "plan", "step", "samples_per_update"],
)
def test_others_are_ranked(here, raising, method, error, code):
    before = recommend(QUESTION, here)
    raising(method, error)
    ranking = recommend(replace(QUESTION), here)  # a question plans a cell once
    (failed,) = (c for c in ranking.candidates if c.strategy == NAME)
    assert (failed.ranked, failed.belief) == (False, None)
    assert failed.code == (
        "unsupported" if (method, code) == ("supports", "no_prediction") else code
    )
    assert "no such thing" in failed.reason
    assert [(c.strategy, c.predicted_s) for c in ranking.ranked] == [
        (c.strategy, c.predicted_s) for c in before.ranked if c.strategy != NAME
    ]
    answer = answer_dict(QUESTION, ranking, advise(QUESTION, ranking, here))
    assert NAME in [entry["strategy"] for entry in answer["not_ranked"]]


def test_a_memory_model_that_fails_leaves_the_prediction(here, raising):
    raising("memory_bytes", ConfigError("no model"))
    actual = assess(QUESTION.cell(NAME), here)
    assert actual.ranked
    assert (actual.room, actual.fits, actual.memory_bytes) == (None, None, None)


def test_a_package_that_is_not_here_is_one_reason(here, monkeypatch):
    monkeypatch.setitem(STRATEGIES, NAME, "package_that_is_not_here:Faulty")
    known.cache_clear()
    try:
        ranking = recommend(QUESTION, here)
    finally:
        known.cache_clear()
    (failed,) = (c for c in ranking.candidates if c.strategy == NAME)
    assert not failed.ranked
    assert failed.reason
    assert failed.label == strategy_label(NAME) == NAME
    assert ranking.best is not None


@pytest.mark.parametrize("strategy", sorted(SHIPPED_STRATEGIES))
def test_what_is_known_of_a_cell_is_consistent(here, strategy):
    actual = assess(QUESTION.cell(strategy), here)
    assert actual.ranked == (actual.belief is not None and not actual.reason)
    assert (actual.prediction is None) == (actual.predicted_s is None) == (actual.expected is None)
    assert bool(actual.code) == bool(actual.reason)
    if actual.ranked:
        assert actual.bound >= 1
        assert actual.belief.step_s == actual.predicted_s == actual.prediction.step_s
        assert actual.basis == "predicted"


def test_what_does_not_train_as_one_device_does_is_not_ranked(here):
    cell = QUESTION.cell("ddp")
    sentence = "does not train as one device does: loss 2.31 at step 3, 2.28 on one device"
    departing = (Departure(cell.with_(epochs=1, repeat=1), sentence),)
    known = replace(here, history=(Measured(cell, 0.1),), departures=departing)
    actual = assess(cell, known)
    assert (actual.ranked, actual.code, str(actual.reason)) == (False, "other_training", sentence)
    assert assess(QUESTION.cell("gpipe"), known).code != "other_training"


def test_the_advice_says_that_a_recommended_run_diverged(here):
    cell = QUESTION.cell("ddp")
    note = "training diverged: the loss is no number from step 2 of 10 on"
    known = replace(here, history=(Measured(cell, 1e-6),))
    for divergences in ((), (Departure(cell.again(1), note),)):
        known = replace(known, divergences=divergences)
        ranking = recommend(QUESTION, known)
        assert ranking.best.strategy == "ddp"
        advice = " ".join(advise(QUESTION, ranking, known).sentences)
        assert (note in advice) == bool(divergences)


def test_runs_go_before_the_prediction(here):
    cell = QUESTION.cell("ddp")
    runs = tuple(Measured(cell, step_s) for step_s in (0.3, 0.5, 0.31))
    actual = assess(cell, replace(here, history=runs))
    assert (actual.basis, actual.belief.step_s, actual.belief.runs) == ("measured", 0.31, 3)
    assert actual.predicted_s == assess(cell, here).predicted_s
    other = assess(cell, replace(here, history=runs, recommender="thesis"))
    assert (other.measured_s, other.basis) == ((0.3, 0.5, 0.31), None)


def test_what_ran_here_needs_no_prediction_but_must_fit(here):
    cell = QUESTION.cell("filter")
    runs = (Measured(cell, 0.3),)
    assert assess(cell, here).code == "no_prediction"
    assert assess(cell, replace(here, history=runs)).ranked
    ddp = QUESTION.cell("ddp")
    small = replace(here, history=(Measured(ddp, 0.3),), device_memory_bytes=1)
    assert assess(ddp, small).code == "too_large"


def test_without_a_profile_a_run_is_still_held_against_its_bound(tmp_path):
    """Model parallel in a quarter of one device's time is noise, whatever files are missing."""
    cells = {name: QUESTION.cell(name) for name in ("sequential", "model-parallel")}
    history = (Measured(cells["sequential"], 0.4), Measured(cells["model-parallel"], 0.1))
    bare = make.knowledge(tmp_path, history=history)
    assert assess(cells["model-parallel"], bare).bound == 1
    ranking = recommend(QUESTION, bare)
    assert [(c.strategy, c.chance) for c in ranking.ranked] == [
        ("sequential", 1.0),
        ("model-parallel", 0.0),
    ]
    assert ranking.above_bound(ranking.ranked[1])
    assert advise(QUESTION, ranking, bare).strategy is None  # nothing that can gain is known


def test_a_plan_of_another_update_is_not_the_step_that_was_asked_for(here, raising, monkeypatch):
    monkeypatch.setattr(Faulty, "samples_per_update", lambda *_given: 64)
    cell = QUESTION.cell(NAME)
    actual = assess(cell, here)
    assert (actual.ranked, actual.code, actual.prediction) == (False, "other_update", None)
    ran = assess(cell, replace(here, history=(Measured(cell, 0.1),)))
    assert not ran.ranked


def test_a_prediction_is_no_faster_than_its_bound(here):
    base = assess(QUESTION.cell("sequential"), here)
    cell = QUESTION.cell("ddp")
    fast = replace(
        assess(cell, here),
        prediction=Prediction("x", 0.01),
        predicted_s=0.01,
        expected=replace(base.expected, step_s=0.01),
        belief=replace(base.expected, step_s=0.01),
    )
    limited = fast.limited(base)
    assert limited.predicted_s == pytest.approx(base.predicted_s / 4)
    assert limited.expected.step_s == limited.belief.step_s == limited.predicted_s
    assert limited.prediction.step_s == 0.01  # what the model says stays
    # A run is what it is; only the prediction beside it is limited.
    ran = replace(fast.belief, step_s=0.02, basis="measured", runs=1)
    run = replace(fast, measured_s=(0.02,), belief=ran)
    assert (run.limited(base).belief.step_s, run.limited(base).predicted_s) == (
        0.02,
        limited.predicted_s,
    )
    assert fast.limited(None) is fast
    assert assess(cell, here).limited(base).predicted_s == assess(cell, here).predicted_s


@pytest.mark.parametrize(("has", "fits"), [(None, None), (1e9, True), (1e6, False)])
def test_room_is_that_of_the_fullest_device(here, has, fits):
    site = make.site(memory_per_device_mb=None, launcher="slurm")
    room = assess(QUESTION.cell("ddp"), replace(here, site=site, device_memory_bytes=has)).room
    assert isinstance(room, Room)
    assert (room.capacity_bytes, room.fits) == (has, fits)
    assert room.needed_bytes > 100e6  # weights, gradients


def test_what_cannot_train_a_network_as_it_was_tried_is_not_ranked(here, monkeypatch):
    traits = NetworkTraits(sparse=("table",), pairs=LinearPairs(0, 0, 0, 0, 10))
    monkeypatch.setattr(trainable, "tried_traits", lambda _network, _dataset: traits)
    reasons = {
        name: str(assess(QUESTION.cell(name).with_(network="mine:net"), here).reason)
        for name in ("ddp", "fsdp", "tensor-parallel", "horovod")
    }
    assert "sparse gradients" in reasons["ddp"]
    assert "sparse gradients" in reasons["fsdp"]
    assert "no two linear layers" in reasons["tensor-parallel"]
    assert "cannot run" not in reasons["horovod"]
    assert "sparse" not in str(assess(QUESTION.cell("ddp"), here).reason)
