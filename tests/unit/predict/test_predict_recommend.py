"""The ranking: fastest of what fits, never what does not, and why."""

from typing import ClassVar

import predict_factory as make
import pytest
from predict_factory import MB

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.profile import Profile
from ddlbench.experiment.registry import STRATEGIES, known
from ddlbench.experiment.site import Accelerator
from ddlbench.planning.device_table import table_of_profile, write_table
from ddlbench.predict.prediction import Measured
from ddlbench.predict.ranking import candidate_dict
from ddlbench.predict.recommend import recommend
from ddlbench.strategies.ddp.descriptor import DistributedDataParallel


class Stale(DistributedDataParallel):
    """A strategy that is like DDP, but updates with old gradients."""

    name = "stale"
    synchronous = False
    preferred_predictor: ClassVar[dict] = {}


@pytest.fixture
def root(tmp_path):
    links = make.links(make.pair([0] * 8), make.pair([0, 1, 2, 3], bandwidth=1e8))
    make.write_site(tmp_path, make.profile(), links)
    return tmp_path


@pytest.fixture
def ranking_of(root):
    """The ranking of a question, with what is known besides."""

    def ranking(question=None, **known_here):
        return recommend(question or make.question(), make.knowledge(root, **known_here))

    return ranking


def by_strategy(ranking):
    return {candidate.strategy: candidate for candidate in ranking.candidates}


def test_the_ranking_is_by_predicted_time(ranking_of):
    ranking = ranking_of()
    steps_s = [c.predicted_s for c in ranking.ranked]
    assert steps_s == sorted(steps_s)
    assert len(steps_s) >= 5
    assert ranking.best is ranking.candidates[0]
    assert ranking.candidates == ranking.ranked + ranking.not_ranked
    assert all(c.cell.batch_size == 32 for c in ranking.candidates)
    assert set(by_strategy(ranking)) == set(known("ddlbench.strategies"))


def test_a_slow_link_turns_the_recommendation(tmp_path):
    make.write_site(tmp_path, make.profile(), make.links(make.pair([0] * 4, bandwidth=1e6)))
    ranking = recommend(make.question(), make.knowledge(tmp_path))
    candidates = by_strategy(ranking)
    sums = ("horovod", "ddp")  # all gradients over the link
    assert ranking.best.strategy not in sums
    assert ranking.best.predicted_s < min(candidates[name].predicted_s for name in sums)
    assert candidates["horovod"].prediction.exposed_communication_s > 100


@pytest.mark.parametrize(
    "recommender", ["measured-links", "overlap", "thesis", "ddlbench", "linear"]
)
@pytest.mark.parametrize("memory", [10 * MB, 150 * MB, 250 * MB, 280 * MB, 320 * MB, 10_000 * MB])
def test_what_does_not_fit_is_never_recommended(ranking_of, recommender, memory):
    ranking = ranking_of(
        make.question(batch_size=64), recommender=recommender, device_memory_bytes=memory
    )
    for candidate in ranking.candidates:
        if candidate.room is not None:
            devices = candidate.cell.devices
            shared = candidate.strategy in ("gpipe", "model-parallel")
            assert candidate.fits == (candidate.memory_bytes <= memory * (devices if shared else 1))
            assert candidate.room.capacity_bytes == memory
    assert all(c.fits is not False for c in ranking.ranked)
    able = [c for c in ranking.candidates if c.prediction and c.fits is not False]
    assert {c.strategy for c in able} == {c.strategy for c in ranking.ranked}
    too_large = [c.code == "too_large" for c in ranking.not_ranked]
    assert too_large == sorted(too_large, reverse=True)  # these come first


def test_speedups_are_over_one_device_that_has_no_room(ranking_of):
    room, none = (ranking_of(device_memory_bytes=memory * MB) for memory in (10_000, 280))
    ddp, again = (by_strategy(ranking)["ddp"] for ranking in (room, none))
    assert none.base is None
    assert none.speedup(again) == room.speedup(ddp)


@pytest.mark.parametrize("strategy", ["ddp", "horovod", "fsdp"])
def test_micro_batches_are_taken_where_a_share_has_no_room(ranking_of, strategy):
    question = make.question(batch_size=49152)
    room = by_strategy(ranking_of(question))[strategy]
    assert room.cell.option("accumulate") is None
    for recommender, is_ranked in (("ddlbench", True), ("thesis", False)):
        known_here = {"recommender": recommender, "device_memory_bytes": room.memory_bytes - 1}
        candidate = by_strategy(ranking_of(question, **known_here))[strategy]
        assert candidate.ranked == is_ranked  # the thesis knows no micro-batches of replicas
        assert (candidate.cell.option("accumulate") is not None) == is_ranked


def test_nothing_fits_is_said(ranking_of):
    ranking = ranking_of(device_memory_bytes=1)
    assert ranking.best is ranking.base is None
    assert (ranking.ranked, ranking.tied) == ((), ())
    ddp = by_strategy(ranking)["ddp"]
    assert (ddp.code, ddp.chance) == ("too_large", None)


def test_the_sites_memory_counts_on_cpus(ranking_of):
    assert ranking_of(site=make.site(memory_per_device_mb=1)).best is None
    unknown = ranking_of(site=make.site(memory_per_device_mb=None, launcher="slurm"))
    assert unknown.best.fits is None
    assert unknown.best.memory_bytes > 0


def test_a_local_site_shares_its_machine_s_memory(ranking_of):
    local = make.site(memory_per_device_mb=None)
    ranking = ranking_of(site=local)
    (capacity,) = {c.room.capacity_bytes for c in ranking.ranked}
    assert capacity == pytest.approx(local.memory_per_device_bytes)
    half = make.site(memory_per_device_mb=None, nodes=8)
    assert half.memory_per_device_bytes == pytest.approx(capacity / 2)


def test_what_cannot_run_stands_below_with_its_reason(ranking_of):
    across = by_strategy(ranking_of(make.question("2x2")))["gpipe"]
    assert (across.prediction, across.bound, across.code) == (None, None, "one_node_only")
    assert "cannot span 2" in across.reason
    assert by_strategy(ranking_of(make.question(batch_size=30)))["ddp"].code == "uneven_batch"


def test_old_weights_only_when_asked_for(ranking_of, monkeypatch):
    monkeypatch.setitem(STRATEGIES, "stale", f"{__name__}:Stale")
    known.cache_clear()
    try:
        stale = by_strategy(ranking_of())["stale"]
        assert (stale.ranked, stale.code) == (False, "old_weights")
        shown = by_strategy(ranking_of(allow_stale=True))["stale"]
        assert shown.ranked
        assert shown.prediction is not None
        # Nor does a run of it count: it is not the step that was asked for.
        run = Measured(stale.cell, 0.001)
        assert not by_strategy(ranking_of(history=(run,)))["stale"].ranked
        assert (
            by_strategy(ranking_of(history=(run,), allow_stale=True))["stale"].basis == "measured"
        )
    finally:
        known.cache_clear()


def test_options_reach_their_strategy(ranking_of):
    ranking = ranking_of(make.question(options={"gpipe": {"chunks": 8}}))
    assert by_strategy(ranking)["gpipe"].cell.option("chunks") == 8
    with pytest.raises(ConfigError, match="options of gpipe"):
        ranking_of(make.question(options={"gpipe": {"chunk": 8}}))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"dataset": "cifar"}, "did you mean 'cifar10'"),
        ({"network": "vgg"}, "unknown network 'vgg'"),
        ({"network": "resnet5"}, r"did you mean 'resnet50'\? \(one of your own is "),
        ({"options": {"gpip": {}}}, "did you mean 'gpipe'"),
    ],
)
def test_names_are_checked(ranking_of, changes, says):
    question = make.question(**changes)
    with pytest.raises(ConfigError, match=says):
        ranking_of(question)


def test_an_unknown_recommender_is_refused(ranking_of):
    with pytest.raises(ConfigError, match="unknown recommender 'theses'; did you mean 'thesis'"):
        ranking_of(recommender="theses")


def test_a_network_of_ones_own_needs_its_profile(ranking_of):
    with pytest.raises(ConfigError, match=r"no profile of mine.nets:tiny .* make it with"):
        ranking_of(make.question(network="mine.nets:tiny"))


def test_on_cpus_pipelines_of_one_process_are_not_recommended_for_their_speed(ranking_of):
    """Four partitions that take turns are no faster than one device; on GPUs they may be."""
    candidates = by_strategy(ranking_of())
    assert candidates["gpipe"].prediction.predictor == "ddlbench"
    assert candidates["gpipe"].bound == 1
    assert candidates["gpipe"].predicted_s > candidates["sequential"].predicted_s
    on_gpu = by_strategy(ranking_of(site=make.site(device="cuda"), recommender="measured-links"))
    assert on_gpu["gpipe"].prediction.predictor == "thesis-6"
    assert on_gpu["gpipe"].bound > 1


def test_on_emulated_devices_pipelines_of_one_process_are_faster_than_one(tmp_path):
    device = Accelerator(str(tmp_path / "device"))
    times = Profile.from_dict(make.profile())
    write_table(device.table_file("mnist", "vgg11"), table_of_profile(times, "a profile"))
    make.write_site(tmp_path, make.emulated(), make.links())
    emulated = make.site(accelerator=device)
    here = make.knowledge(tmp_path, site=emulated)
    question = make.question(batch_size=256, options={"gpipe": {"chunks": 8}})
    candidates = by_strategy(recommend(question, here))
    assert candidates["gpipe"].bound == pytest.approx(4 * 8 / 11)
    assert candidates["gpipe"].predicted_s < candidates["sequential"].predicted_s
    assert candidates["model-parallel"].bound == 1


def test_splits_are_ranked_where_their_prediction_holds(ranking_of):
    on_cpu = by_strategy(ranking_of())
    on_gpu = by_strategy(ranking_of(site=make.site(device="cuda"), recommender="measured-links"))
    overlapping = by_strategy(ranking_of(recommender="overlap"))
    for name in ("filter", "channel"):  # one row before the head: no spatial split
        assert (on_cpu[name].prediction, on_cpu[name].code) == (None, "no_prediction")
        for candidate in (on_gpu[name], overlapping[name]):
            assert candidate.prediction is not None, candidate.reason
            assert candidate.prediction.predictor == "paradl-corrected"


def test_what_was_measured_goes_before_predictions(ranking_of):
    cells = {name: make.question().cell(name) for name in ("ddp", "horovod")}
    history = (Measured(cells["ddp"], 0.12), Measured(cells["horovod"], 99.0))
    ranking = ranking_of(history=history)
    assert (ranking.best.strategy, ranking.best.basis) == ("ddp", "measured")
    assert ranking.best.chance > 0.99
    assert ranking.ranked[-1].strategy == "horovod"
    best = candidate_dict(ranking, ranking.best)
    assert (best["measured_step_s"], best["runs"], best["basis"]) == (0.12, 1, "measured")


def test_another_recommender_gives_its_own_word(ranking_of):
    history = (Measured(make.question().cell("ddp"), 0.001),)
    ranking = ranking_of(recommender="thesis", history=history)
    assert {c.strategy for c in ranking.ranked} == {"sequential", "gpipe", "horovod"}
    ddp = by_strategy(ranking)["ddp"]
    assert (ddp.measured_s, ddp.code) == ((0.001,), "no_prediction")


def test_a_strategy_without_a_prediction_is_ranked_once_it_is_measured(ranking_of):
    split = make.question().cell("data-filter")
    assert not by_strategy(ranking_of())["data-filter"].ranked
    ranking = ranking_of(history=(Measured(split, 0.12),))
    assert ranking.best.strategy == "data-filter"
    assert ranking.best.predicted_s is None


def test_close_candidates_are_a_tie(ranking_of):
    cells = [make.question().cell(name) for name in ("ddp", "horovod", "parameter-server")]
    steps = zip(cells, (0.00100, 0.00101, 0.00200), strict=True)
    history = tuple(Measured(cell, step_s) for cell, step_s in steps)
    assert [c.strategy for c in ranking_of(history=history).tied] == ["ddp", "horovod"]


@pytest.mark.parametrize(("memory", "named"), [(10_000 * MB, "horovod"), (280 * MB, "gpipe")])
def test_the_rule_of_thumb_goes_by_memory_alone(ranking_of, memory, named):
    question = make.question(batch_size=64)
    ranking = ranking_of(question, recommender="horovod-unless-oom", device_memory_bytes=memory)
    assert ranking.best.strategy == named
    assert ranking.tied == (ranking.best,)
    assert all(c.chance is None for c in ranking.ranked)


def test_nobody_wins_by_a_run_that_cannot_be(ranking_of):
    """A run faster than the strategy can be is shown, and one device stays in front of it."""
    cells = [make.question().cell(name) for name in ("sequential", "model-parallel")]
    history = (Measured(cells[0], 0.4), *(Measured(cells[1], 0.1) for _ in range(3)))
    ranking = ranking_of(history=history)
    candidate = by_strategy(ranking)["model-parallel"]
    assert (candidate.basis, candidate.chance) == ("measured", 0.0)
    assert ranking.step_s(candidate) == 0.1
    assert ranking.speedup(candidate).ratio == pytest.approx(4)
    assert ranking.above_bound(candidate)
    assert ranking.ranked.index(ranking.base) < ranking.ranked.index(candidate)


def test_after_a_failure_the_chances_of_the_others_grow(ranking_of):
    ranking = ranking_of()
    first = next(c for c in ranking.ranked if c.strategy != "sequential" and c.chance)
    left = ranking.without([first.strategy])
    out = by_strategy(left)[first.strategy]
    assert (out.code, out.belief) == ("no_step", None)
    assert sum(c.chance for c in left.ranked) == pytest.approx(1)
    before = by_strategy(ranking)
    assert all(c.chance >= before[c.strategy].chance for c in left.ranked)
    assert ranking.without([]) is ranking
