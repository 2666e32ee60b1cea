"""The recommenders: sets of predictors, one per strategy, by which strategies are compared.

A recommender does not rank a strategy for which it has no predictor. Baselines are scored beside
the recommenders: a single rule for all strategies, or no model at all.

::

    measured-links   each strategy's preferred predictor on such devices; all make the same
                     assumptions
                     GPUs   communication hides behind computation, devices of one process compute
                            at the same time: published equations, and extensions of them, with
                            measured links
                     CPUs   a device is a core that either computes or communicates: nothing is
                            hidden, replicas of a node slow each other down
    overlap          the predictors that are preferred on GPUs, on any device
    thesis           Jansen's recommender, which chooses between Horovod and GPipe
    ddlbench         the equations of DDLBench

A strategy's descriptor names the predictor that it prefers, and the one that a published
recommender uses for it.
"""

from __future__ import annotations

from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.registry import PREDICTORS, STRATEGIES, known
from ddlbench.experiment.schema import nearest
from ddlbench.planning.strategy import known_strategy
from ddlbench.predict.prediction import predictor_of

DEFAULT_RECOMMENDER = "measured-links"
_OVERLAP = "overlap"
RECOMMENDERS = (DEFAULT_RECOMMENDER, _OVERLAP, "thesis", "ddlbench")

# "Horovod unless out of memory, else GPipe": a rule of thumb. It got all 24 cases of the thesis
# right; the thesis' recommender got 16.
UNLESS_OOM = "horovod-unless-oom"


def predictor_for(recommender: str, strategy: str, device: str) -> str | None:
    """Name of the predictor that a recommender uses for a strategy; None if it has none.

    A predictor of every strategy is a recommender by itself. For a strategy of another package it
    is the first predictor of another package that lists this strategy.

    Args:
        recommender: its name.
        strategy: name of the strategy.
        device: "cpu" or "cuda", as the site file says.

    Raises:
        ConfigError: there is no such recommender.
    """
    if recommender not in RECOMMENDERS:
        if recommender in known("ddlbench.predictors"):
            return recommender
        remark = nearest(recommender, [*RECOMMENDERS, *known("ddlbench.predictors")])
        raise ConfigError(f"unknown recommender {recommender!r}; {remark}")
    predictor = _named_predictor(recommender, strategy, device)
    if predictor is not None or strategy in STRATEGIES:
        return predictor
    for name in known("ddlbench.predictors"):
        if name not in PREDICTORS and strategy in (predictor_of(name).strategies or ()):
            return name
    return None


def recommenders_on(device: str) -> list[str]:
    """Names of the recommenders that differ on such devices."""
    distinct: dict[tuple[str | None, ...], str] = {}
    for name in RECOMMENDERS:
        members = tuple(_named_predictor(name, strategy, device) for strategy in STRATEGIES)
        distinct.setdefault(members, name)
    return list(distinct.values())


def _named_predictor(recommender: str, strategy: str, device: str) -> str | None:
    """The predictor that a strategy's descriptor names for a recommender."""
    descriptor = known_strategy(strategy)
    if descriptor is None:
        return None
    if recommender == DEFAULT_RECOMMENDER:
        return descriptor.preferred_predictor.get(device)
    if recommender == _OVERLAP:
        return descriptor.preferred_predictor.get("cuda")
    return descriptor.recommended_by.get(recommender)
