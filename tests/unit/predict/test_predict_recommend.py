"""The ranking: fastest of what fits, never what does not, and why."""

from typing import ClassVar

import predict_factory as make
import pytest
from predict_factory import MB

from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.registry import STRATEGIES, known
from ddlbench.predict.inputs import Inputs
from ddlbench.predict.prediction import Measured
from ddlbench.predict.recommend import PredictionRequest, recommend
from ddlbench.strategies.ddp.descriptor import DistributedDataParallel

SITE = make.site()


class Stale(DistributedDataParallel):
    """A strategy that is like DDP, but updates with old gradients."""

    synchronous = False
    preferred_predictor: ClassVar[dict] = {}


def question(geometry=(1, 4), batch_size=32, **changes):
    values = {
        "network": "vgg11",
        "dataset": "mnist",
        "nodes": geometry[0],
        "devices_per_node": geometry[1],
        "batch_size": batch_size,
        "settings": {},
        "options": {},
    }
    return PredictionRequest(**{**values, **changes})


@pytest.fixture
def inputs(tmp_path):
    links = make.links(make.pair([0] * 8), make.pair([0, 1, 2, 3], bandwidth=1e8))
    make.write_site(tmp_path, make.profile(), links)
    return Inputs("local", tmp_path)


def by_strategy(found):
    return {candidate.cell.strategy: candidate for candidate in found.ranking}


def test_the_ranking_is_by_predicted_time(inputs):
    found = recommend(question(), SITE, inputs)
    told = [c.prediction.step_s for c in found.ranking if c.prediction]
    assert told == sorted(told)
    assert len(told) >= 5
    assert found.best is found.ranking[0]
    assert all(c.cell.batch_size == 32 for c in found.ranking)


def test_a_slow_link_turns_the_recommendation(tmp_path):
    make.write_site(tmp_path, make.profile(), make.links(make.pair([0] * 4, bandwidth=1e6)))
    found = recommend(question(), SITE, Inputs("local", tmp_path))
    told = by_strategy(found)
    sums = ("horovod", "ddp")  # all gradients over the link
    assert found.best.cell.strategy not in sums
    assert found.best.prediction.step_s < min(told[name].prediction.step_s for name in sums)
    assert told["horovod"].prediction.exposed_communication_s > 100


@pytest.mark.parametrize(
    "recommender", ["measured-links", "overlap", "thesis", "ddlbench", "linear"]
)
@pytest.mark.parametrize("memory", [10 * MB, 150 * MB, 250 * MB, 280 * MB, 320 * MB, 10_000 * MB])
def test_what_does_not_fit_is_never_recommended(inputs, recommender, memory):
    found = recommend(
        question(batch_size=64), SITE, inputs, recommender=recommender, device_memory_bytes=memory
    )
    for candidate in found.ranking:
        if candidate.prediction and candidate.memory_bytes:
            devices = candidate.cell.devices
            shared = candidate.cell.strategy in ("gpipe", "model-parallel")
            assert candidate.fits == (candidate.memory_bytes <= memory * (devices if shared else 1))
    best = found.best
    if best is None:
        assert not any(c.fits for c in found.ranking)
    else:
        assert best.fits is not False  # None: there is no model of the strategy's memory
        fitting = [c for c in found.ranking if c.fits]
        assert all(best.prediction.step_s <= c.prediction.step_s for c in fitting)
    told = [c for c in found.ranking if c.prediction]
    assert [c.fits is False for c in told] == sorted(c.fits is False for c in told)


def test_nothing_fits_is_said(inputs):
    found = recommend(question(), SITE, inputs, device_memory_bytes=1)
    assert found.best is None
    assert found.to_dict()["recommended"] is None
    assert "does not fit" in by_strategy(found)["ddp"].why


def test_the_sites_memory_counts_on_cpu(inputs):
    from dataclasses import replace

    found = recommend(question(), replace(SITE, memory_per_device_mb=1), inputs)
    assert found.best is None
    unknown = recommend(question(), SITE, inputs)
    assert unknown.best.fits is None
    assert "memory of a device unknown" in unknown.best.why


def test_what_cannot_run_stands_below_with_its_reason(inputs):
    across = by_strategy(recommend(question((2, 2)), SITE, inputs))
    assert across["gpipe"].prediction is None
    assert "cannot span 2" in across["gpipe"].why
    uneven = by_strategy(recommend(question(batch_size=30), SITE, inputs))
    assert "does not divide" in uneven["ddp"].why


def test_stale_strategies_only_when_asked_for(inputs, monkeypatch):
    monkeypatch.setitem(STRATEGIES, "stale", f"{__name__}:Stale")
    known.cache_clear()
    try:
        assert "stale" not in by_strategy(recommend(question(), SITE, inputs))
        shown = by_strategy(recommend(question(), SITE, inputs, allow_stale=True))
        assert not shown["stale"].synchronous
        assert shown["stale"].prediction is not None
    finally:
        known.cache_clear()


def test_options_reach_their_strategy(inputs):
    found = recommend(question(options={"gpipe": {"chunks": 8}}), SITE, inputs)
    assert by_strategy(found)["gpipe"].cell.option("chunks") == 8
    with pytest.raises(ConfigError, match="options of gpipe"):
        recommend(question(options={"gpipe": {"chunk": 8}}), SITE, inputs)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"dataset": "cifar"}, "did you mean 'cifar10'"),
        ({"network": "vgg"}, "unknown network 'vgg'"),
        ({"options": {"gpip": {}}}, "did you mean 'gpipe'"),
    ],
)
def test_names_are_checked(inputs, changes, says):
    asked = question(**changes)
    with pytest.raises(ConfigError, match=says):
        recommend(asked, SITE, inputs)


def test_an_unknown_recommender_is_refused(inputs):
    with pytest.raises(ConfigError, match="unknown recommender 'theses'; did you mean 'thesis'"):
        recommend(question(), SITE, inputs, recommender="theses")


def test_a_network_of_ones_own_needs_its_profile(inputs):
    with pytest.raises(ConfigError, match=r"no profile of mine.nets:tiny .* make it with"):
        recommend(question(network="mine.nets:tiny"), SITE, inputs)


def test_on_cpus_pipelines_of_one_process_are_not_recommended_for_their_speed(inputs):
    """Four partitions that take turns are no faster than one device; on GPUs they may be."""
    told = by_strategy(recommend(question(), SITE, inputs))
    assert told["gpipe"].prediction.predictor == "ddlbench"
    assert told["gpipe"].prediction.step_s > told["sequential"].prediction.step_s
    links = "measured-links"
    on_gpu = by_strategy(recommend(question(), make.site(device="cuda"), inputs, recommender=links))
    assert on_gpu["gpipe"].prediction.predictor == "thesis-6"


def test_splits_are_ranked_where_their_prediction_holds(inputs):
    on_cpu = by_strategy(recommend(question(), SITE, inputs))
    links = "measured-links"
    on_gpu = by_strategy(recommend(question(), make.site(device="cuda"), inputs, recommender=links))
    asked = by_strategy(recommend(question(), SITE, inputs, recommender="overlap"))
    for name in ("filter", "channel"):  # one row before the head: no spatial split
        assert on_cpu[name].prediction is None
        assert f"no step of one device of {name} alone" in on_cpu[name].why
        for candidate in (on_gpu[name], asked[name]):
            assert candidate.prediction is not None, candidate.why
            assert candidate.prediction.predictor == "paradl-corrected"


def test_what_was_measured_goes_before_predictions(inputs):
    cells = {name: question().cell(name) for name in ("ddp", "horovod")}
    history = (Measured(cells["ddp"], 0.001), Measured(cells["horovod"], 99.0))
    found = recommend(question(), SITE, inputs, history=history)
    assert found.best.cell.strategy == "ddp"
    assert found.best.belief.basis == "measured"
    assert found.best.fastest > 0.99
    assert [c for c in found.ranking if c.ranked][-1].cell.strategy == "horovod"
    assert sum(c.fastest for c in found.ranking if c.ranked) == pytest.approx(1)
    told = found.best.to_dict()
    assert (told["measured_step_s"], told["runs"], told["basis"]) == (0.001, 1, "measured")


def test_another_recommender_gives_its_own_word(inputs):
    history = (Measured(question().cell("ddp"), 0.001),)
    found = recommend(question(), SITE, inputs, recommender="thesis", history=history)
    assert {c.cell.strategy for c in found.ranking if c.ranked} == {
        "sequential",
        "gpipe",
        "horovod",
    }
    assert by_strategy(found)["ddp"].measured_s == (0.001,)


def test_a_strategy_without_a_prediction_is_ranked_once_it_is_measured(inputs):
    split = question().cell("data-filter")
    assert not by_strategy(recommend(question(), SITE, inputs))["data-filter"].ranked
    found = recommend(question(), SITE, inputs, history=(Measured(split, 0.001),))
    assert found.best.cell.strategy == "data-filter"


def test_close_candidates_are_a_tie(inputs):
    cells = [question().cell(name) for name in ("ddp", "horovod", "parameter-server")]
    steps = zip(cells, (0.00100, 0.00101, 0.00200), strict=True)
    history = tuple(Measured(cell, step_s) for cell, step_s in steps)
    found = recommend(question(), SITE, inputs, history=history)
    assert [c.cell.strategy for c in found.tied] == ["ddp", "horovod"]


@pytest.mark.parametrize(("memory", "named"), [(10_000 * MB, "horovod"), (280 * MB, "gpipe")])
def test_the_rule_of_thumb_goes_by_memory_alone(inputs, memory, named):
    asked = question(batch_size=64)
    found = recommend(
        asked, SITE, inputs, recommender="horovod-unless-oom", device_memory_bytes=memory
    )
    assert found.best.cell.strategy == named
    assert found.tied == (found.best,)


def test_a_run_that_cannot_decide_is_still_shown(inputs):
    """Faster than its schedule allows is drift: the prediction counts, the run stays beside it."""
    history = (Measured(question().cell("model-parallel"), 0.001),)
    told = by_strategy(recommend(question(), SITE, inputs, history=history))["model-parallel"]
    assert told.measured_s == (0.001,)
    assert told.belief.basis == "predicted"
