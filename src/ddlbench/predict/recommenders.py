"""Recommenders: which predictor each of them uses for a strategy.

::

    recommender      strategy     device        predictor
    ddlbench         any          any           ddlbench, or that of another package
    measured-links   ddp          cpu           the descriptor's preferred_predictor["cpu"]
    measured-links   gpipe        emulated      ... ["emulated"]; ["cpu"] where there is none
    overlap          ddp          any           the descriptor's preferred_predictor["cuda"]
    thesis           horovod      any           the descriptor's recommended_by["thesis"]
    linear           any          any           linear: a predictor of every strategy
"""

from __future__ import annotations

from ddlbench.common.errors import ConfigError
from ddlbench.common.schema import nearest
from ddlbench.experiment.registry import PREDICTORS, STRATEGIES, known
from ddlbench.experiment.site import ComputeKind
from ddlbench.planning.strategy import known_strategy
from ddlbench.predict.prediction import DEFAULT_PREDICTOR, predictor_of

DEFAULT_RECOMMENDER = DEFAULT_PREDICTOR
MEASURED_LINKS = "measured-links"
_OVERLAP = "overlap"
RECOMMENDERS = (MEASURED_LINKS, _OVERLAP, "thesis", "ddlbench-2020")

# "Horovod unless out of memory, else GPipe": a rule of thumb. It got all 24 cases of the thesis
# right; the thesis' recommender got 16.
UNLESS_OOM = "horovod-unless-oom"


def predictor_for(recommender: str, strategy: str, compute_kind: ComputeKind) -> str | None:
    """Name of the predictor that a recommender uses for a strategy; None if it has none.

    A predictor of every strategy is a recommender by itself; the default is ``ddlbench``. For a
    strategy of another package, the first predictor of another package that lists it goes first.

    Args:
        recommender: its name.
        strategy: name of the strategy.
        compute_kind: what computes.

    Raises:
        ConfigError: there is no such recommender.
    """
    own = recommender if recommender in known("ddlbench.predictors") else None
    if own is None and recommender not in RECOMMENDERS:
        names = [*RECOMMENDERS, UNLESS_OOM, *known("ddlbench.predictors")]
        remark = nearest(recommender, names)
        raise ConfigError(f"unknown recommender {recommender!r}; {remark}")
    if own is not None and own != DEFAULT_RECOMMENDER:
        return own
    predictor = None if own else _named_predictor(recommender, strategy, compute_kind)
    if predictor is not None or strategy in STRATEGIES:
        return predictor or own
    for name in known("ddlbench.predictors"):
        if name not in PREDICTORS and strategy in (predictor_of(name).strategies or ()):
            return name
    return own


def recommenders_on(compute_kind: ComputeKind) -> list[str]:
    """Names of the recommenders that differ on such devices."""
    distinct: dict[tuple[str | None, ...], str] = {}
    for name in RECOMMENDERS:
        members = tuple(_named_predictor(name, strategy, compute_kind) for strategy in STRATEGIES)
        distinct.setdefault(members, name)
    return list(distinct.values())


def _named_predictor(recommender: str, strategy: str, compute_kind: ComputeKind) -> str | None:
    """The predictor that a strategy's descriptor names for a recommender."""
    descriptor = known_strategy(strategy)
    if recommender == MEASURED_LINKS:
        return descriptor.preferred_on(compute_kind)
    if recommender == _OVERLAP:
        return descriptor.preferred_on("cuda")
    return descriptor.recommended_by.get(recommender)
