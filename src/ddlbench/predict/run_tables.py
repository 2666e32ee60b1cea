"""Tables of runs that other people published: their kind is told by their columns.

``score(table, question)`` of a kind returns what ``ddlbench oracle score RUNS --json`` prints::

    {"rows": n, "mean_absolute_error": share, "median_absolute_error": share,
     "within_20_percent": share,
     "memory_mean_absolute_error": share, "memory_median_absolute_error": share,
     "fit": {"survivors_refused": share, "failures_refused_or_cannot_tell": share},
     "choice": {"cases": n, "mean_regret": share, "best_of_three_regret": share},
     "by": {name: {value: errors}}}

A part is null where a table has no such column.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import pandas as pd

from ddlbench.common.errors import ConfigError
from ddlbench.predict.platforms import read_table

HoldOut = Literal["none", "model", "gpus", "submitter", "device"]
HOLD_OUTS: tuple[HoldOut, ...] = ("none", "model", "gpus", "submitter", "device")


@dataclass(frozen=True)
class ScoreQuestion:
    """How a table is to be scored.

    Args:
        hold_out: each value of this is predicted with constants fitted without it; "none" takes
            the shipped constants as they are.
        kind: which rows count, as ``pipeline=no``, ``max_gpus=256``, ``tensor_max=8``.
        software, device, fabric: names of files that stand for those which the table's rows name.
    """

    hold_out: HoldOut = "none"
    kind: Mapping[str, str] = field(default_factory=dict)
    software: str | None = None
    device: str | None = None
    fabric: str | None = None


_PARTS = (
    "rows", "mean_absolute_error", "median_absolute_error", "within_20_percent",
    "memory_mean_absolute_error", "memory_median_absolute_error", "fit", "choice", "by",
)  # fmt: skip
Scorer = Callable[[pd.DataFrame, ScoreQuestion], dict[str, Any]]


@dataclass(frozen=True)
class TableKind:
    """A kind of table.

    Args:
        name: of the kind.
        marks: columns that only tables of this kind have together.
        scorer: "module:function".
    """

    name: str
    marks: tuple[str, ...]
    scorer: str

    def score(self, table: pd.DataFrame, question: ScoreQuestion) -> dict[str, Any]:
        """Score the table's predictions."""
        module, _, function = self.scorer.partition(":")
        scorer = cast(Scorer, getattr(importlib.import_module(module), function))
        return dict.fromkeys(_PARTS) | scorer(table, question)


_PREDICT = "ddlbench.predict"
_DECODERS = f"{_PREDICT}.transformer.run_scores:score"
TABLES: Mapping[str, TableKind] = {
    kind.name: kind
    for kind in (
        TableKind("playbook", ("zero_stage", "memory_gib"), _DECODERS),
        TableKind("foundry", ("sharding", "activation_recomputation"), _DECODERS),
        TableKind("mlperf", ("round", "submitter"), f"{_PREDICT}.horovod_scaling:score"),
        TableKind("megatron", ("global_batch", "tensor", "pipeline", "attention_heads"), _DECODERS),
        TableKind("nccl", ("collective", "payload_bytes"), f"{_PREDICT}.collective_times:score"),
    )
}


def kind_of(path: Path) -> TableKind:
    """The kind of a table.

    Raises:
        ConfigError: it is unreadable, or its columns are of no kind.
    """
    columns = list(read_table(path, ()).columns)
    if kind := kind_of_columns(columns):
        return kind
    kind = nearest_kind(columns)
    if kind is None:
        known = "; ".join(f"{kind.name}: {', '.join(kind.marks)}" for kind in TABLES.values())
        raise ConfigError(f"{path}: its columns are of no known table of runs; marks are {known}")
    missing = next(name for name in kind.marks if name not in columns)
    raise ConfigError(
        f"{path}: column {missing!r} is missing; a table like {kind.name}.csv has "
        f"{' and '.join(kind.marks)}"
    )


def kind_of_columns(columns: Sequence[str]) -> TableKind | None:
    """The kind that has these columns; None if there is none."""
    for kind in TABLES.values():
        if set(kind.marks) <= set(columns):
            return kind
    return None


def nearest_kind(columns: Sequence[str]) -> TableKind | None:
    """The first kind that has a mark among these columns; None if none has any."""
    return next((kind for kind in TABLES.values() if set(kind.marks) & set(columns)), None)


def score_file(path: Path, question: ScoreQuestion) -> dict[str, Any]:
    """Score a table, whichever kind it is of.

    Raises:
        ConfigError: as :func:`kind_of`, or a value is wrong.
    """
    return kind_of(path).score(read_table(path, ()), question)
