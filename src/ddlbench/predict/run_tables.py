"""Tables of runs that other people published: their kind is told by their columns.

``score(table, question)`` of a kind returns what ``ddlbench oracle score RUNS --json`` prints::

    {"rows": n, "mean_absolute_error": share, "median_absolute_error": share,
     "within_20_percent": share,
     "memory_mean_absolute_error": share, "memory_median_absolute_error": share,
     "fit": {"survivors_refused": share, "failures_refused_or_cannot_tell": share},
     "choice": {"cases": n, "mean_regret": share, "best_of_three_regret": share},
     "by": {name: {value: errors}}}

A value is null where a table cannot tell it.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

import numpy as np
import pandas as pd

from ddlbench.common.errors import ConfigError
from ddlbench.common.quantities import counted
from ddlbench.common.schema import nearest
from ddlbench.predict.constants import Array


def read_table(path: Path, needed: Sequence[str]) -> pd.DataFrame:
    """Read a CSV table.

    Raises:
        ConfigError: it is unreadable, a column stands twice, rows have more values than there are
            columns, or one of the ``needed`` columns is missing.
    """
    try:
        table = pd.read_csv(path, skipinitialspace=True).rename(columns=str.strip)
        header = pd.read_csv(path, header=None, nrows=1, dtype=str).iloc[0].dropna().str.strip()
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is no text in UTF-8; save it as CSV in UTF-8") from None
    except pd.errors.EmptyDataError:
        raise ConfigError(f"{path} is empty; write a line of columns, and a row per run") from None
    except (OSError, ValueError) as error:
        if longer := _LONGER_ROW.search(str(error)):
            columns, line, values = map(int, longer.groups())
            raise ConfigError(
                f"{path} line {line}: {counted(values, 'value')} for {counted(columns, 'column')}; "
                "write one for each, and a text with a comma in double quotes"
            ) from None
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path} cannot be read as a CSV table: {reason}") from None
    if len(header) == 1 and (sign := next((s for s in _OTHER_SIGNS if s in header.iloc[0]), "")):
        raise ConfigError(
            f"{path}: {sign!r} stands between its columns; write commas, and points in numbers"
        )
    if header.duplicated().any():
        twice = header[header.duplicated()].iloc[0]
        raise ConfigError(f"{path}: column {twice!r} stands twice; keep one")
    if not isinstance(table.index, pd.RangeIndex):  # pandas takes the first column for names
        raise ConfigError(
            f"{path}: its rows have more values than its first line has columns; write a value for "
            "each column, and no comma after the last"
        )
    check_columns(table, needed, str(path))
    return table.map(lambda value: value.strip() if isinstance(value, str) else value)


_OTHER_SIGNS = (";", "\t", "|")
_LONGER_ROW = re.compile(r"Expected (\d+) fields in line (\d+), saw (\d+)")


def check_columns(table: pd.DataFrame, needed: Sequence[str], where: str) -> None:
    """Raise ConfigError if a table lacks a column."""
    missing = [name for name in needed if name not in table.columns]
    if missing:
        raise ConfigError(f"{where}: column {missing[0]!r} is missing; needed: {', '.join(needed)}")


def refuse(
    wrong: pd.Series[bool],
    column: pd.Series[Any],
    where: str,
    sentence: str,
    known: Sequence[str] = (),
) -> None:
    """Raise ConfigError for the first line that is wrong.

    Args:
        wrong: of each row.
        column: its values.
        where: the table's name.
        sentence: with a place for the wrong value, and one for the nearest of ``known``.
        known: words that are right.
    """
    if wrong.any():
        at = int(wrong.to_numpy().argmax())
        value = column.tolist()[at]
        value = "empty" if isinstance(value, float) and np.isnan(value) else value
        remark = sentence.format(value, nearest(value, known))
        raise ConfigError(f"{where} line {at + 2}: {remark}")


def numbers_of(
    given: pd.Series[Any],
    where: str,
    write: str,
    holds: Callable[[pd.Series[float]], pd.Series[bool]],
    *,
    may_lack: bool = False,
) -> pd.Series[float]:
    """A column of finite numbers.

    Args:
        given: as it was read.
        where: the table's name.
        write: what to write instead of a number that is wrong.
        holds: which numbers are right.
        may_lack: it may be empty, and is NaN there.

    Raises:
        ConfigError: a number is wrong; the sentence names its line.
    """
    numbers = pd.to_numeric(given, errors="coerce")
    wrong = ~(np.isfinite(numbers) & holds(numbers)) & ~(may_lack & given.isna())
    refuse(wrong, given, where, f"{given.name} is {{!r}}; write {write}")
    return numbers


def whole_numbers(given: pd.Series[Any], where: str, least: int = 1) -> pd.Series[float]:
    """A column of whole numbers; see :func:`numbers_of`."""
    write = f"a whole number of {least} or more"
    return numbers_of(given, where, write, lambda n: (n >= least) & (n == np.floor(n)))


def refuse_options(options: Mapping[str, str | None], what: str) -> None:
    """Raise ConfigError for options, by name, that are given and have no effect on a table."""
    given = [f"--{name}" for name, value in options.items() if value is not None]
    if given:
        raise ConfigError(f"leave out {' and '.join(given)}: no effect on {what}")


HoldOut = Literal["none", "model", "gpus", "layers", "submitter", "device"]
HOLD_OUTS: tuple[HoldOut, ...] = get_args(HoldOut)


@dataclass(frozen=True)
class ScoreQuestion:
    """How a table is to be scored.

    Args:
        hold_out: each value of this is predicted with constants fitted without it; "none" takes
            the shipped constants as they are.
        kind: which rows count, as ``pipeline=no``, ``max_gpus=256``, ``tensor_max=8``.
        software, device, fabric: names of files that stand for those which the table's rows name.
        platform: of iterations of CNNs, and of steps of GPTs; the one fitted to such runs if left
            out.
        predictor: of iterations of CNNs.
        where: the table's name, for messages.
    """

    hold_out: HoldOut = "none"
    kind: Mapping[str, str] = field(default_factory=dict)
    software: str | None = None
    device: str | None = None
    fabric: str | None = None
    platform: str | None = None
    predictor: str = "corrected"
    where: str = "the table"


_LIMITS = ("max", "min")
_FEW = 12
_LAYOUT: Mapping[str, float | str] = {"pipeline": "no", "tensor": 1.0}
"""Of rows whose table has no layouts: all are data-parallel."""


def rows_of_kind(kind: Mapping[str, str], columns: Mapping[str, Array], rows: int) -> Array:
    """Rows that all filters of a question let pass, (rows,) of bool.

    ``max_gpus=8``, ``gpus_max=8`` and ``min_gpus`` limit a column of numbers, ``gpus=8`` and
    ``submitter=NVIDIA`` say its value; of an accelerator a part of the name is enough.

    Args:
        kind: filters, by name.
        columns: that the table has, (rows,) each; numbers, or words.
        rows: of the table.

    Raises:
        ConfigError: a filter is of no column, its value is wrong, or it leaves no row.
    """
    columns = {name: np.full(rows, value) for name, value in _LAYOUT.items()} | dict(columns)
    chosen = np.ones(rows, dtype=bool)
    for name, value in kind.items():
        words = name.split("_")
        limit = next((word for word in _LIMITS if word in (words[0], words[-1])), None)
        column = "_".join(word for word in words if word != limit)
        if column not in columns:
            known = ", ".join(sorted(columns))
            raise ConfigError(f"--kind {name}={value}: {column!r} is unknown; write {known}")
        values = columns[column]
        if values.dtype.kind in "OU":
            if limit:
                raise ConfigError(f"--kind {name}={value}: {column} is a word; write {column}=...")
            same = _is_word(values.astype(str), value, part=column == "accelerator")
            if not same.any():
                known = ", ".join(sorted(set(values.astype(str)))[:_FEW])
                raise ConfigError(f"--kind {name}={value}: no row has it; write {known}")
            chosen &= same
            continue
        if not value.isdigit():
            raise ConfigError(f"--kind {name}={value}; write a whole number")
        number = float(value)
        chosen &= {"max": values <= number, "min": values >= number, None: values == number}[limit]
    if not chosen.any():
        raise ConfigError(f"no row of {rows} is of this kind; leave out a part of --kind")
    return chosen


def _is_word(words: Array, wanted: str, *, part: bool) -> Array:
    wanted = wanted.casefold()
    same = [wanted in word if part else wanted == word for word in map(str.casefold, words)]
    return np.array(same, dtype=bool)


NEAR = 0.2
"""Error up to which a prediction is near."""


def error_means(errors: Array) -> dict[str, float]:
    """Mean and median of the known errors, (n,), and the share of those that are near."""
    errors = errors[np.isfinite(errors)]
    if not len(errors):
        return {}
    return {
        "mean_absolute_error": float(errors.mean()),
        "median_absolute_error": float(np.median(errors)),
        "within_20_percent": float(np.mean(errors <= NEAR)),
    }


def each_kind(kinds: Array, fitted_kinds: Array, hold_out: str) -> Iterator[tuple[Array, Array]]:
    """For each kind in turn, the rows to predict, (n,) of bool, and to fit, (m,) of bool.

    Args:
        kinds: of the rows to predict, (n,).
        fitted_kinds: of the rows to fit, (m,).
        hold_out: what the kinds are, for messages.

    Raises:
        ConfigError: no row of another kind is left to fit.
    """
    for kind in np.unique(kinds):
        others = fitted_kinds != kind
        if not others.any():
            raise ConfigError(f"all rows have {hold_out} {kind}; nothing is left to fit")
        yield kinds == kind, others


_EMPTY: Mapping[str, Any] = {
    "rows": 0,
    "mean_absolute_error": None,
    "median_absolute_error": None,
    "within_20_percent": None,
    "memory_mean_absolute_error": None,
    "memory_median_absolute_error": None,
    "fit": {"survivors_refused": None, "failures_refused_or_cannot_tell": None},
    "choice": {"cases": 0, "mean_regret": None, "best_of_three_regret": None},
    "by": {},
}
"""What every score has."""


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
        scored = scorer(table, question)
        return {**_EMPTY, **scored} | {
            name: {**_EMPTY[name], **(scored.get(name) or {})} for name in ("fit", "choice")
        }


CNN = "cnn"
"""Iterations of CNNs, of the strategies that ParaDL knows."""
_PREDICT = "ddlbench.predict"
_DECODERS = f"{_PREDICT}.transformer.run_scores:score"
TABLES: Mapping[str, TableKind] = {
    kind.name: kind
    for kind in (
        TableKind("playbook", ("zero_stage", "memory_gib"), _DECODERS),
        TableKind("foundry", ("sharding", "activation_recomputation"), _DECODERS),
        TableKind("mlperf", ("round", "submitter"), f"{_PREDICT}.horovod_scaling:score"),
        TableKind("megatron", ("global_batch", "tensor", "pipeline", "attention_heads"), _DECODERS),
        TableKind(
            CNN, ("strategy", "gpus", "seconds_per_iteration"), f"{_PREDICT}.paradl.measured:score"
        ),
        TableKind("nccl", ("collective", "payload_bytes"), f"{_PREDICT}.collective_points:score"),
    )
}


def kind_of(path: Path) -> TableKind:
    """The kind of a table.

    Raises:
        ConfigError: it is unreadable, or its columns are of no kind.
    """
    columns = list(read_table(path, ()).columns)
    kind = kind_of_columns(columns)
    if kind is None:
        lacking = {
            table.name: [name for name in table.marks if name not in columns]
            for table in TABLES.values()
        }
        near = [name for name, names in lacking.items() if len(names) < len(TABLES[name].marks)]
        needs = "; ".join(
            f"one like {name} also needs {', '.join(lacking[name])}" for name in near or lacking
        )
        raise ConfigError(f"{path}: its columns are of no known table of runs; {needs}")
    return kind


def kind_of_columns(columns: Sequence[str]) -> TableKind | None:
    """The kind that has these columns; None if there is none."""
    for kind in TABLES.values():
        if set(kind.marks) <= set(columns):
            return kind
    return None


def score_file(path: Path, question: ScoreQuestion) -> dict[str, Any]:
    """Score a table, whichever kind it is of.

    Raises:
        ConfigError: as :func:`kind_of`, or a value is wrong.
    """
    return kind_of(path).score(read_table(path, ()), replace(question, where=str(path)))
