"""Which predictor speaks for which strategy when strategies are compared.

A recommender is a set of predictors, one a strategy; what it does not name it does not rank. The
baselines are judged beside it: a single rule for all strategies, or no model at all.

The default compares on equal terms, which depend on the device::

    GPUs   communication hides behind computation, devices of one process compute at once:
           the published equations and what follows from them, with measured links
    CPUs   a device is a core that either computes or communicates: nothing is hidden, replicas of
           a node slow each other down, torchgpipe's partitions take turns. Splits are not ranked:
           their steps there are projected a third to two thirds too short, so they would win
           where they lose (docs/validation/README.md, splits)
"""

from __future__ import annotations

from collections.abc import Mapping

from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.registry import PREDICTORS, known
from ddlbench.experiment.schema import nearest
from ddlbench.predict.prediction import predictor_of

__all__ = [
    "DEFAULT_RECOMMENDER",
    "RECOMMENDERS",
    "UNLESS_OOM",
    "predictor_for",
    "recommenders_on",
]

DEFAULT_RECOMMENDER = "measured-links"

_PIPELINES = (
    *("pipedream", "model-parallel-p2p"),
    *("pipe-gpipe", "pipe-1f1b", "pipe-interleaved", "pipe-zb", "pipe-zbv"),
)
_SPLITS = ("spatial", "filter", "channel", "data-filter", "data-spatial")

_OVERLAP = {
    "sequential": "sequential",
    "horovod": "thesis-5.1-transport",
    "ddp": "ddp-buckets",
    "parameter-server": "parameter-server-messages",
    "gpipe": "thesis-6",
    "model-parallel": "model-parallel",
    **dict.fromkeys(_PIPELINES, "pipeline-replay"),
    **dict.fromkeys(_SPLITS, "paradl-corrected"),
}

RECOMMENDERS: dict[str, Mapping[str, str]] = {
    "measured-links": _OVERLAP,
    "overlap": _OVERLAP,
    # Jansen's recommender chooses between Horovod and GPipe.
    "thesis": {"sequential": "sequential", "horovod": "thesis-5.1-p2p", "gpipe": "thesis-6"},
    "ddlbench": {
        "sequential": "sequential",
        "horovod": "ddlbench-eq1",
        "gpipe": "ddlbench-eq2",
        "model-parallel": "ddlbench-eq2",
        "pipedream": "ddlbench-eq3",
    },
}
"""The sets, as they are on GPUs."""

_ON_CPU: dict[str, Mapping[str, str | None]] = {
    "measured-links": {
        "horovod": "horovod-serial",
        "ddp": "ddp-serial",
        "parameter-server": "parameter-server",
        "gpipe": "torchgpipe-turns",
        "model-parallel": "torchgpipe-turns",
        **dict.fromkeys(_SPLITS),
    },
}
"""What a set asks instead where devices are CPUs; None: nobody."""

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
    named = _set_of(recommender, device)
    if strategy in named:
        return named[strategy]
    for name in known("ddlbench.predictors"):
        if name not in PREDICTORS and strategy in (predictor_of(name).strategies or ()):
            return name
    return None


def recommenders_on(device: str) -> list[str]:
    """Names of the sets that differ on such devices."""
    distinct: dict[tuple[tuple[str, str], ...], str] = {}
    for name in RECOMMENDERS:
        distinct.setdefault(tuple(sorted(_set_of(name, device).items())), name)
    return list(distinct.values())


def _set_of(recommender: str, device: str) -> dict[str, str]:
    changed = _ON_CPU.get(recommender, {}) if device == "cpu" else {}
    asked = {**RECOMMENDERS[recommender], **changed}
    return {strategy: name for strategy, name in asked.items() if name is not None}
