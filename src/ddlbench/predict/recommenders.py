"""Which predictor speaks for which strategy when strategies are compared.

A recommender is a set of predictors, one a strategy; what it does not name it does not rank. The
baselines are judged beside it: a single rule for all strategies, or no model at all.
"""

from __future__ import annotations

from collections.abc import Mapping

from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.registry import PREDICTORS, known
from ddlbench.experiment.schema import nearest
from ddlbench.predict.prediction import predictor_of

__all__ = ["DEFAULT_RECOMMENDER", "RECOMMENDERS", "UNLESS_OOM", "predictor_for"]

DEFAULT_RECOMMENDER = "measured-links"

_PIPELINES = (
    *("pipedream", "model-parallel-p2p"),
    *("pipe-gpipe", "pipe-1f1b", "pipe-interleaved", "pipe-zb", "pipe-zbv"),
)

RECOMMENDERS: dict[str, Mapping[str, str]] = {
    "measured-links": {
        "sequential": "sequential",
        "horovod": "thesis-5.1-transport",
        "ddp": "ddp-buckets",
        "parameter-server": "parameter-server-messages",
        "gpipe": "thesis-6",
        "model-parallel": "model-parallel",
        **dict.fromkeys(_PIPELINES, "pipeline-replay"),
    },
    # Measured collectives, none of them hidden: what devices of one core do.
    "serial": {
        "sequential": "sequential",
        "horovod": "horovod-serial",
        "ddp": "ddp-serial",
        "gpipe": "thesis-6",
        "model-parallel": "model-parallel",
        **dict.fromkeys(_PIPELINES, "pipeline-replay"),
    },
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

# "Horovod unless out of memory, else GPipe": the rule of thumb that got 24 of the thesis' 24 cases
# right, where its recommender got 16.
UNLESS_OOM = "horovod-unless-oom"


def predictor_for(recommender: str, strategy: str) -> str | None:
    """Name of the predictor that a recommender asks about a strategy; None where it has none.

    A predictor that speaks of every strategy is a recommender by itself. A strategy that comes
    from another package is asked about at that package's predictor.

    Raises:
        ConfigError: there is no such recommender.
    """
    named = RECOMMENDERS.get(recommender)
    if named is None:
        if recommender in known("ddlbench.predictors"):
            return recommender
        choices = [*RECOMMENDERS, *known("ddlbench.predictors")]
        remark = nearest(recommender, choices)
        raise ConfigError(f"unknown recommender {recommender!r}; {remark}")
    if strategy in named:
        return named[strategy]
    for name in known("ddlbench.predictors"):
        if name not in PREDICTORS and strategy in (predictor_of(name).strategies or ()):
            return name
    return None
