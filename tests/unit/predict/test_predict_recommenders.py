"""Which predictor a recommender asks, on CPUs and on GPUs."""

import pytest
from click.testing import CliRunner

from ddlbench.commands.recommend import recommend
from ddlbench.common.errors import ConfigError
from ddlbench.experiment.registry import PREDICTORS, SHIPPED_STRATEGIES
from ddlbench.planning.strategy import strategy_of
from ddlbench.predict.prediction import (
    DEFAULT_RECOMMENDER,
    RECOMMENDERS,
    modelled_strategies,
    predictor_for,
    predictor_of,
    recommenders_on,
)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_predictor_speaks_of_the_strategy_that_it_is_asked_about(device):
    for recommender in RECOMMENDERS:
        for strategy in SHIPPED_STRATEGIES:
            name = predictor_for(recommender, strategy, device)
            if name is not None:
                assert strategy in modelled_strategies(predictor_of(name)), (recommender, strategy)


def test_the_default_asks_one_predictor_for_every_strategy():
    predictors = {
        predictor_for(DEFAULT_RECOMMENDER, s, d)
        for s in SHIPPED_STRATEGIES
        for d in ("cpu", "cuda")
    }
    assert predictors == {"ddlbench"}


def test_measured_links_speaks_of_every_strategy_but_of_splits_on_cpus():
    for strategy in SHIPPED_STRATEGIES:
        if strategy == "data-tensor-pipe":  # no model times the messages within its passes
            assert predictor_for("measured-links", strategy, "cuda") is None
            continue
        assert predictor_for("measured-links", strategy, "cuda") in PREDICTORS
        predictor = predictor_for("measured-links", strategy, "cpu")
        assert (predictor is None) == (strategy_of(strategy).family == "split")


def test_on_cpus_measured_links_hides_nothing_and_takes_turns():
    predictors = {s: predictor_for("measured-links", s, "cpu") for s in SHIPPED_STRATEGIES}
    assert predictors["horovod"] == "horovod-serial"
    assert predictors["ddp"] == "ddp-serial"
    assert predictors["parameter-server"] == "parameter-server"
    assert predictors["gpipe"] == predictors["model-parallel"] == "torchgpipe-turns"
    on_gpu = {s: predictor_for("measured-links", s, "cuda") for s in SHIPPED_STRATEGIES}
    assert on_gpu == {s: predictor_for("overlap", s, "cpu") for s in SHIPPED_STRATEGIES}
    assert (on_gpu["gpipe"], on_gpu["ddp"]) == ("thesis-6", "ddp-buckets")


def test_emulated_devices_are_cpus_but_for_what_their_queues_change():
    emulated = {s: predictor_for("measured-links", s, "emulated") for s in SHIPPED_STRATEGIES}
    on_cpu = {s: predictor_for("measured-links", s, "cpu") for s in SHIPPED_STRATEGIES}
    replayed = dict.fromkeys(("gpipe", "model-parallel"), "torchgpipe-replay")
    assert emulated == on_cpu | replayed


def test_what_says_the_same_is_named_once():
    assert recommenders_on("cpu") == ["measured-links", "overlap", "thesis", "ddlbench-2020"]
    assert recommenders_on("cuda") == ["measured-links", "thesis", "ddlbench-2020"]


def test_a_predictor_of_all_strategies_is_a_recommender():
    assert predictor_for("linear", "ddp", "cpu") == "linear"
    with pytest.raises(ConfigError, match="unknown recommender 'serial'"):
        predictor_for("serial", "ddp", "cpu")


def test_help_names_every_recommender():
    text = CliRunner().invoke(recommend, ["--help"]).output
    assert all(name in text for name in RECOMMENDERS)
