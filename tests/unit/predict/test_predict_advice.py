"""The advice: one device, nothing compared, ties, runs before guesses, batches, larger sites."""

from __future__ import annotations

from dataclasses import replace

import predict_factory as make
import pytest
from predict_factory import MB

from ddlbench.commands.recommend import recommendation_lines
from ddlbench.experiment.profile import Profile
from ddlbench.experiment.registry import BASE
from ddlbench.experiment.site import Accelerator
from ddlbench.planning.device_table import table_of_profile, write_table
from ddlbench.predict.advice import advise, answer_dict
from ddlbench.predict.prediction import Measured
from ddlbench.predict.ranking import rank
from ddlbench.predict.recommend import dividing_batches, likeliest_of, recommend

POOR = {"ddlbench": (0.5, -0.3, 0.4, 0.6)}  # errors of predictions that say little


@pytest.fixture
def here(tmp_path):
    """A site where several devices pay, and Horovod, DDP and others are close."""
    root = tmp_path / "results"
    make.write_site(
        root, make.profile((MB,) * 23), make.links(make.pair([0] * 8), make.pair([0, 1, 2, 3]))
    )
    return make.knowledge(root)


def runs(question, repeats=3, **seconds):
    """Measured steps by strategy."""
    named = {name.replace("_", "-"): step_s for name, step_s in seconds.items()}
    return tuple(
        Measured(question.cell(name), step_s)
        for name, step_s in named.items()
        for _ in range(repeats)
    )


def answered(question, here):
    ranking = recommend(question, here)
    return ranking, advise(question, ranking, here)


def by_strategy(ranking):
    return {candidate.strategy: candidate for candidate in ranking.candidates}


def test_one_device_trains_sequentially(here):
    ranking, advice = answered(make.question("1x1"), here)
    assert advice.strategy == BASE
    assert len(ranking.ranked) > 2  # others would run
    assert len(advice.sentences) == 1


def test_the_first_of_the_ranking_is_advised_with_its_chance(here):
    ranking, advice = answered(make.question(), here)
    assert advice.recommended is ranking.best
    assert ranking.best.strategy != BASE
    assert ranking.best.label in advice.sentences[0]
    assert f"{ranking.speedup(ranking.best).ratio:.2f}x one device" in advice.sentences[0]
    others = " ".join(advice.sentences)
    assert all(c.label in others for c in ranking.tied)


def test_where_nothing_was_compared_nothing_is_recommended(here):
    """Only one device can be timed: the site is too small for the others."""
    question = make.question("8x8", 64)
    ranking, advice = answered(question, here)
    assert [c.strategy for c in ranking.ranked] == [BASE]
    assert (advice.recommended, advice.strategy) == (None, None)
    assert "--geometry 4x8" in advice.sentences[0]
    assert answer_dict(question, ranking, advice)["recommended"] is None


def test_where_nothing_fits_nothing_is_recommended(here):
    ranking, advice = answered(make.question(), replace(here, device_memory_bytes=1))
    assert ranking.ranked == ()
    assert advice.recommended is None
    assert "do not fit" in advice.sentences[0]


@pytest.mark.parametrize(("bandwidth", "likeliest"), [(1e4, False), (1e6, True)])
def test_over_a_slow_link_one_device_is_advised(tmp_path, bandwidth, likeliest):
    """Another strategy is named where it has a chance."""
    links = make.links(make.pair([0, 1, 2, 3], bandwidth=bandwidth))
    make.write_site(tmp_path, make.profile((30 * MB,) * 23), links)
    ranking, advice = answered(make.question("4x1"), make.knowledge(tmp_path))
    assert advice.strategy == BASE
    assert ranking.base in ranking.tied
    assert ("likeliest" in advice.sentences[0]) == likeliest


def test_where_only_one_device_lacks_room_it_is_said_that_it_would_be_faster(tmp_path):
    """What is advised takes longer than one device, had it room."""
    links = make.links(make.pair([0, 1, 2, 3], bandwidth=1e4))
    make.write_site(tmp_path, make.profile((30 * MB,) * 23), links)
    known = make.knowledge(tmp_path)
    needed = answered(make.question("4x1"), known)[0].base.room.needed_bytes
    for device_memory_bytes, is_said in ((needed + 1, False), (needed - 1, True)):
        lacking = replace(known, device_memory_bytes=device_memory_bytes)
        ranking, advice = answered(make.question("4x1"), lacking)
        assert (ranking.base is None) == is_said
        assert ("One device would be faster" in " ".join(advice.sentences)) == is_said


def test_what_can_gain_nothing_is_never_advised(here):
    """A run that is faster than a strategy can be is noise."""
    question = make.question()
    seconds = {"sequential": 0.42, "model_parallel": 0.1}
    slow = dict.fromkeys(("ddp", "horovod", "fsdp", "parameter_server", "gpipe"), 5.0)
    pipes = ("pipe_gpipe", "pipe_1f1b", "pipe_zb", "pipe_zbv", "pipe_interleaved")
    history = runs(question, **seconds, **slow, **dict.fromkeys(pipes, 5.0))
    ranking, advice = answered(question, replace(here, history=history))
    assert ranking.above_bound(by_strategy(ranking)["model-parallel"])
    assert advice.strategy == BASE
    assert "noise" in advice.why_not["model-parallel"]
    assert any("Model parallel" in sentence for sentence in advice.sentences)


def test_a_measured_one_goes_before_a_guess(here):
    """The first is predicted and more likely not the fastest: the measured one may be as fast."""
    question = make.question()
    history = runs(question, sequential=0.42, horovod=0.3)
    ranking, advice = answered(question, replace(here, history=history))
    assert ranking.best.basis == "predicted"
    assert ranking.best.chance < 0.5
    assert advice.strategy == "horovod"
    better = [c for c in ranking.ranked if ranking.speedup(c).ratio > 0.42 / 0.3]
    assert set(advice.why_not) == {c.strategy for c in better}


def test_a_guess_that_is_likely_goes_first(here):
    question = make.question()
    history = runs(question, sequential=0.42, horovod=0.41)
    names = ("ddp", "fsdp", "parameter-server")
    errors = {("ddlbench", name): (0.01, -0.01, 0.02) for name in names}
    ranking, advice = answered(question, replace(here, history=history, errors=errors))
    assert ranking.best.chance >= 0.5
    assert advice.recommended is ranking.best
    assert ranking.best.basis == "predicted"


def test_what_is_surely_faster_than_one_device_is_advised_though_a_guess_may_not_be(here):
    """The first is a poor guess, so that one device is tied with it; Horovod ran in 0.88 of it."""
    question = make.question()
    names = ("parameter-server", "ddp", "fsdp")
    errors = {("ddlbench", name): POOR["ddlbench"] for name in names}
    history = runs(question, sequential=0.42, horovod=0.37)
    ranking, advice = answered(question, replace(here, history=history, errors=errors))
    assert by_strategy(ranking)["horovod"].chance_to_gain > 0.99
    assert ranking.base.chance == 0
    assert advice.strategy == "horovod"


@pytest.mark.parametrize(
    ("geometry", "batch_size", "sizes"),
    [
        ("1x2", 13, (12, 14)),
        ("1x4", 3, (4,)),
        ("1x4", 30, (28, 32)),
        ("1x4", 32, None),
        ("2x2", 33, (32, 36)),
    ],
)
def test_batches_that_divide_are_named(here, geometry, batch_size, sizes):
    question = make.question(geometry, batch_size)
    ranking, advice = answered(question, here)
    actual = dividing_batches(question, ranking, here)
    assert actual[0] == (sizes or ())
    text = " ".join(advice.sentences)
    if sizes is None:
        assert "divide" not in text
        return
    assert f"{' or '.join(map(str, sizes))}" in text
    assert actual[1] > 0
    uneven = ("uneven_batch", "invalid_schedule")
    before = {c.strategy for c in ranking.not_ranked if c.code in uneven}
    for size in sizes:
        again = recommend(question.with_batch(size), here)
        assert len({c.strategy for c in again.ranked} & before) == actual[1]


def test_fitted_options_are_told(here):
    ranking, advice = answered(make.question("1x8", 64), here)
    chunks = by_strategy(ranking)["pipe-1f1b"].cell.option("chunks")
    assert chunks >= 8
    words = (f"chunks={chunks}", "1F1B")
    assert any(all(word in sentence for word in words) for sentence in advice.sentences)
    question = make.question("1x8", 64, options={"pipe-1f1b": {"chunks": 16}})
    _, advice = answered(question, here)
    assert not any("chunks=16" in sentence for sentence in advice.sentences)  # as it was written


def test_a_pipeline_has_its_fastest_options_and_those_that_ran_before_others(here):
    question = make.question("1x4", 256)
    cells = question.cells("pipe-1f1b")
    written = [
        replace(question, options={"pipe-1f1b": {"chunks": dict(cell.options).get("chunks", 4)}})
        for cell in cells
    ]
    each = [by_strategy(recommend(other, here))["pipe-1f1b"].predicted_s for other in written]
    fastest = by_strategy(recommend(question, here))["pipe-1f1b"]
    assert fastest.predicted_s == min(each)
    assert fastest.cell == cells[each.index(min(each))]
    slow = cells[each.index(max(each))]
    known = replace(here, history=(Measured(slow, 2 * max(each)),))
    ran = by_strategy(recommend(question, known))["pipe-1f1b"]
    assert (ran.cell, ran.basis) == (slow, "measured")


@pytest.mark.parametrize(
    "changes",
    [
        {"launcher": "slurm", "nodes": 1, "devices_per_node": 2},
        {"launcher": "slurm", "device": "cuda", "nodes": 2, "devices_per_node": 1},
        {"accelerator": True, "nodes": 1, "devices_per_node": 2},
    ],
)
def test_beyond_a_site_that_scales_is_predicted_and_never_measured(here, tmp_path, changes):
    if "accelerator" in changes:  # devices of a site that emulates them share no cores
        accelerator = Accelerator(str(tmp_path / "device"))
        made = Profile.from_dict(make.profile((MB,) * 23))
        table = accelerator.table_file(made.dataset, made.network)
        write_table(table, table_of_profile(made, "a profile"))
        changes = {**changes, "accelerator": accelerator}
    larger = replace(here, site=make.site(**changes))
    question = make.question()
    ranking, advice = answered(question, larger)
    beyond = [c for c in ranking.ranked if c.beyond]
    assert len(beyond) > 3
    assert not any(c.beyond for c in ranking.ranked if c.strategy == BASE)
    assert all(c.basis == "predicted" for c in beyond)
    assert likeliest_of(ranking) is None
    assert any(beyond[0].beyond in sentence for sentence in advice.sentences)
    assert "--measure" not in " ".join(advice.sentences)
    many, refused = answered(make.question("1000x8"), larger)
    assert all(not c.ranked for c in many.candidates if c.cell.devices > 1)
    assert "--geometry" not in " ".join(refused.sentences)  # fewer devices are not the remedy
    # As fast as on a site that has them.
    has_them = replace(larger.site, nodes=4, devices_per_node=8)
    has = recommend(question, replace(here, site=has_them))
    assert [c.predicted_s for c in has.ranked] == [c.predicted_s for c in ranking.ranked]


def test_beyond_one_machine_nothing_is_predicted(here):
    """More devices of one machine share its cores, so they would not compute as fast."""
    small = replace(here, site=make.site(nodes=1, devices_per_node=2))
    ranking, advice = answered(make.question(), small)
    assert not any(c.beyond for c in ranking.candidates)
    assert by_strategy(ranking)["ddp"].code == "site_too_small"
    assert advice.strategy is None
    assert "Write --geometry 1x2 or less" in advice.sentences[0]
    fits, _ = answered(make.question("1x2"), small)
    assert by_strategy(fits)["ddp"].ranked


def test_by_a_rule_there_are_no_chances(here):
    question = make.question()
    ranking, advice = answered(question, replace(here, recommender="horovod-unless-oom"))
    assert ranking.best.strategy == "horovod"
    assert advice.strategy in ("horovod", BASE)
    assert "%" not in advice.sentences[0].partition(":")[2].partition(".")[0]


def test_measuring_is_not_advised_where_it_is_refused(here):
    """Only the default recommender goes by measurements."""
    other = replace(here, recommender="measured-links")
    _, advice = answered(make.question(), other)
    assert "--measure" not in " ".join(advice.sentences)
    _, advice = answered(make.question(), here)
    assert "--measure" in " ".join(advice.sentences)


def test_an_answer_is_the_whole_ranking(here):
    question = make.question(batch_size=30)
    ranking, advice = answered(question, here)
    answer = answer_dict(question, ranking, advice)
    assert answer["advice"] == list(advice.sentences)
    assert [candidate["strategy"] for candidate in answer["candidates"]] == [
        c.strategy for c in ranking.ranked
    ]
    assert len(answer["candidates"]) + len(answer["not_ranked"]) == len(ranking.candidates)
    assert all(candidate["reason"] for candidate in answer["not_ranked"])
    assert answer["tied"] == [c.strategy for c in ranking.tied]


QUESTIONS = [("1x1", 8), ("1x2", 13), ("1x4", 32), ("2x2", 30), ("8x8", 64), ("1x8", 256)]


@pytest.mark.parametrize(("geometry", "batch_size"), QUESTIONS)
@pytest.mark.parametrize("launcher", ["local", "slurm"])
def test_the_screen_says_what_its_json_says(here, monkeypatch, geometry, batch_size, launcher):
    monkeypatch.setenv("COLUMNS", "80")
    question = make.question(geometry, batch_size)
    history = runs(question, sequential=0.4, horovod=0.3, model_parallel=0.1)
    for known in (here, replace(here, history=history), replace(here, device_memory_bytes=1)):
        known_here = replace(known, site=make.site(launcher=launcher))
        ranking, advice = answered(question, known_here)
        for why in (False, True):
            lines = recommendation_lines(question, ranking, advice, known_here, why=why)
            assert max(len(line) for line in lines if "/results/" not in line) <= 80
            screen = " ".join(" ".join(lines).split())
            for sentence in answer_dict(question, ranking, advice)["advice"]:
                assert sentence in screen
            rows = [line for line in lines if line.lstrip("=0123456789 ").startswith("Horovod ")]
            assert bool(rows) == (by_strategy(ranking)["horovod"].ranked or why)


def test_a_row_of_another_world_is_marked(here):
    """A measured row whose base was not measured has a predicted speed-up."""
    question = make.question()
    for base, marked in ((), True), (runs(question, sequential=0.42), False):
        known = replace(here, history=(*runs(question, ddp=0.3), *base))
        ranking, advice = answered(question, known)
        lines = recommendation_lines(question, ranking, advice, known, why=False)
        row = next(line for line in lines if " DDP " in line)
        assert (f"~{ranking.speedup(by_strategy(ranking)['ddp']).ratio:.2f}" in row) == marked
        assert ("~ =" in " ".join(lines)) == marked


def test_a_ranking_of_nothing_but_reasons_has_an_answer(here):
    question = make.question()
    ranking = recommend(question, here)
    empty = rank([replace(c, belief=None, reason="why") for c in ranking.candidates], "ddlbench")
    assert advise(question, empty, here).recommended is None
