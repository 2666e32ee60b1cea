"""Which predictor is asked about which strategy when strategies are compared.

A recommender is a set of predictors, one a strategy; what it does not name it does not rank. The
baselines are judged beside it: a single rule for all strategies, or no model at all.

::

    measured-links   each strategy's preferred predictor on such devices: it compares on equal terms
                     GPUs   communication hides behind computation, devices of one process compute
                            at once: published equations, and what follows, with measured links
                     CPUs   a device is a core that either computes or communicates: nothing is
                            hidden, replicas of a node slow each other down
    overlap          what is preferred on GPUs, on any device
    thesis           Jansen's recommender, which chooses between Horovod and GPipe
    ddlbench         the equations of DDLBench

A descriptor says which predictor it prefers, and which one a published recommender asks about it.
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
"""The sets of predictors."""

# "Horovod unless out of memory, else GPipe": the rule of thumb that got 24 of the thesis' 24 cases
# right, where its recommender got 16.
UNLESS_OOM = "horovod-unless-oom"


def predictor_for(recommender: str, strategy: str, device: str) -> str | None:
    """Name of the predictor that a recommender asks about a strategy; None where it has none.

    A predictor that speaks of every strategy is a recommender by itself. A strategy that comes
    from another package is asked about at that package's predictor.

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
        choices = [*RECOMMENDERS, *known("ddlbench.predictors")]
        remark = nearest(recommender, choices)
        raise ConfigError(f"unknown recommender {recommender!r}; {remark}")
    named = _named(recommender, strategy, device)
    if named is not None or strategy in STRATEGIES:
        return named
    return _of_another_package(strategy)


def recommenders_on(device: str) -> list[str]:
    """Names of the sets that differ on such devices."""
    distinct: dict[tuple[str | None, ...], str] = {}
    for name in RECOMMENDERS:
        members = tuple(_named(name, strategy, device) for strategy in STRATEGIES)
        distinct.setdefault(members, name)
    return list(distinct.values())


def _named(recommender: str, name: str, device: str) -> str | None:
    """The predictor that a strategy's descriptor names for a set."""
    strategy = known_strategy(name)
    if strategy is None:
        return None
    if recommender == DEFAULT_RECOMMENDER:
        return strategy.preferred_predictor.get(device)
    if recommender == _OVERLAP:
        return strategy.preferred_predictor.get("cuda")
    return strategy.recommended_by.get(recommender)


def _of_another_package(strategy: str) -> str | None:
    """The first predictor of another package that names this strategy."""
    for name in known("ddlbench.predictors"):
        if name not in PREDICTORS and strategy in (predictor_of(name).strategies or ()):
            return name
    return None
