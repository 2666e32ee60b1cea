"""What physics forbids is not ranked, over made-up profiles and links; the shown step decides."""

from __future__ import annotations

import itertools

import predict_factory as make
import pytest

from ddlbench.experiment.registry import BASE
from ddlbench.predict.prediction import Measured, Prediction
from ddlbench.predict.ranking import TIE, Belief, Candidate, candidate_dict, rank
from ddlbench.predict.recommend import recommend

ROUNDING = 1 + 1e-9
LINKS = list(itertools.product((1e6, 1e9, 1e13), (1e-7, 1e-2)))  # bandwidth, latency


def site_of(folder, parameters, bandwidth=1e9, latency_s=1e-4):
    pairs = (
        make.pair([0] * 8, bandwidth, latency_s),
        make.pair([0, 1, 2, 3], bandwidth, latency_s),
    )
    make.write_site(folder, make.profile((parameters,) * 23), make.links(*pairs))
    return folder


def check(ranking) -> None:
    """What holds for every ranking that goes by beliefs."""
    ranked, base = ranking.ranked, ranking.base
    assert sum(c.chance for c in ranked) == pytest.approx(1 if ranked else 0)
    for place, candidate in enumerate(ranked):
        low, high = ranking.interval_s(candidate)
        assert low <= ranking.step_s(candidate) <= high
        assert 0 <= candidate.chance <= 1
        speedup = ranking.speedup(candidate)
        if speedup is not None and speedup.basis == "predicted":
            assert speedup.ratio <= candidate.bound * ROUNDING, candidate.strategy
            assert not ranking.above_bound(candidate)
        if base is None or candidate is base:
            continue
        if candidate.bound == 1:
            assert candidate.chance == candidate.chance_to_gain == 0
            assert place > ranked.index(base)
            assert candidate not in ranking.tied or base in ranking.tied
        if candidate.basis == "predicted":
            assert low >= base.belief.interval_s[0] / candidate.bound / ROUNDING
            assert ranking.step_s(candidate) >= base.belief.step_s / candidate.bound / ROUNDING
    held = [c for c in ranked if c.basis == "measured" and c.bound == 1]  # below one device
    steps_s = [ranking.step_s(c) for c in ranked if c not in held or c is base]
    assert steps_s == sorted(steps_s)
    if ranked:
        assert ranked[0] in ranking.tied
        tied = [c for c in ranked[1:] if c.chance_to_win >= TIE]
        assert list(ranking.tied) == [ranked[0], *tied]


@pytest.mark.parametrize(("bandwidth", "latency_s"), LINKS)
@pytest.mark.parametrize("parameters", [10_000, 5 * make.MB])
def test_no_prediction_is_above_its_bound(tmp_path, parameters, bandwidth, latency_s):
    root = site_of(tmp_path, parameters, bandwidth, latency_s)
    shapes = [("1x1", 8), ("1x2", 13), ("1x4", 32), ("1x8", 64), ("2x2", 32), ("3x1", 12)]
    devices = itertools.cycle(("cpu", "cuda") if latency_s < 1e-3 else ("cuda", "cpu"))
    for (geometry, batch_size), device in zip(shapes, devices, strict=False):
        known = make.knowledge(root, site=make.site(device=device))
        ranking = recommend(make.question(geometry, batch_size), known)
        check(ranking)
        assert ranking.base is not None


@pytest.mark.parametrize("step_s", [0.01, 0.2, 0.41, 2.0])
@pytest.mark.parametrize("strategy", ["ddp", "pipe-1f1b", "model-parallel", "gpipe", BASE])
def test_nor_after_something_was_measured(tmp_path, strategy, step_s):
    root, question = site_of(tmp_path, make.MB), make.question()
    for runs in (1, 3):
        measured = (Measured(question.cell(strategy), step_s),) * runs
        check(recommend(question, make.knowledge(root, history=measured)))
        base = (Measured(question.cell(BASE), 0.42),)
        check(recommend(question, make.knowledge(root, history=(*measured, *base))))


def test_what_was_measured_above_its_bound_is_shown_and_marked(tmp_path):
    root, question = site_of(tmp_path, make.MB), make.question()
    cells = {BASE: 0.42, "model-parallel": 0.3, "ddp": 0.1, "horovod": 0.2}
    history = tuple(Measured(question.cell(name), step_s) for name, step_s in cells.items())
    ranking = recommend(question, make.knowledge(root, history=history))
    above = {c.strategy: ranking.above_bound(c) for c in ranking.ranked if c.strategy in cells}
    assert above == {BASE: False, "model-parallel": True, "ddp": True, "horovod": False}
    rows = {c.strategy: candidate_dict(ranking, c) for c in ranking.ranked}
    assert rows["model-parallel"]["speedup"] == pytest.approx(1.4)
    assert rows["model-parallel"]["chance"] == 0


def test_a_speedup_is_a_ratio_of_the_steps_that_are_shown(tmp_path):
    root, question = site_of(tmp_path, make.MB), make.question()
    ran = (Measured(question.cell("ddp"), 0.2),)
    base = (Measured(question.cell(BASE), 0.3),)
    for history, basis in (
        ((), "predicted"),
        (base, "predicted"),
        (ran, "predicted"),
        ((*ran, *base), "measured"),
    ):
        ranking = recommend(question, make.knowledge(root, history=history))
        rows = {c.strategy: candidate_dict(ranking, c) for c in ranking.ranked}
        assert rows["ddp"]["speedup_basis"] == basis
        for row in rows.values():
            ratio = rows[BASE]["step_s"] / row["step_s"]
            known = row["speedup_basis"] == "measured"
            assert row["speedup"] == pytest.approx(ratio if known else min(ratio, row["bound"]))


def planted(strategy: str, step_s: float, spread: float = 0.1, **changes) -> Candidate:
    geometry = "1x1" if strategy == BASE else "1x4"
    belief = Belief(step_s, spread, "predicted")
    values = {
        "cell": make.cell(strategy, geometry),
        "label": strategy,
        "bound": 1.0 if strategy == BASE else 4.0,
        "prediction": Prediction("x", step_s),
        "predicted_s": step_s,
        "expected": belief,
        "belief": belief,
    }
    return Candidate(**{**values, **changes})


def test_predictions_are_limited_and_one_device_goes_first_among_equals():
    ranking = rank(
        [
            planted("ddp", 0.01),  # at most four times as fast
            planted("model-parallel", 0.5, bound=1.0),
            planted(BASE, 1.0),
            planted("gpipe", 1.0, bound=1.0),
        ],
        "ddlbench",
    )
    assert [(c.strategy, c.predicted_s) for c in ranking.ranked] == [
        ("ddp", 0.25),
        (BASE, 1.0),
        ("model-parallel", 1.0),
        ("gpipe", 1.0),
    ]
    assert [c.chance for c in ranking.ranked[2:]] == [0, 0]
    assert ranking.ranked[0].chance > 0.5  # a prediction so far above its bound is not trusted
    check(ranking)


def test_without_a_base_nothing_is_limited():
    ranking = rank([planted("ddp", 0.01), planted("horovod", 0.02)], "ddlbench")
    assert ranking.base is None
    assert ranking.speedup(ranking.best) is None
    assert ranking.best.chance_to_gain is None
    assert [c.predicted_s for c in ranking.ranked] == [0.01, 0.02]


def test_what_was_measured_moves_the_steps_of_its_siblings_and_not_their_predictions():
    run = {"belief": Belief(0.9, 0.02, "measured", 3), "measured_s": (0.9,) * 3}
    before = [planted("ddp", 0.3), planted("horovod", 0.3), planted(BASE, 1.0)]
    ranking = rank([planted("ddp", 0.3, **run), *before[1:]], "ddlbench")
    moved = {c.strategy: candidate_dict(ranking, c) for c in ranking.ranked}["horovod"]
    assert moved["step_s"] > moved["predicted_step_s"] == 0.3
    check(ranking)


def test_a_measured_base_limits_the_steps_that_are_shown():
    """A prediction that one device's run shows to be too short is shown at its bound."""
    run = {"belief": Belief(4.0, 0.02, "measured", 3), "measured_s": (4.0,) * 3}
    ranking = rank([planted("ddp", 0.3, 0.01), planted(BASE, 1.0, **run)], "ddlbench")
    row = candidate_dict(ranking, ranking.best)
    assert (row["step_s"], row["speedup"], row["predicted_step_s"]) == (1.0, 4.0, 0.3)
    check(ranking)


def test_an_empty_ranking_has_no_winner():
    ranking = rank([planted("ddp", 0.1, belief=None, reason="why")], "ddlbench")
    assert (ranking.ranked, ranking.best, ranking.base, ranking.tied) == ((), None, None, ())
