"""Tables that the oracle reads: shapes of transformers, and how each is cut over devices.

A table has one configuration a row::

    shape   layers, hidden_size, attention_heads, sequence_length, vocabulary
    batch   global_batch = micro-batches x micro_batch x data
    cut     tensor x data x pipeline devices, schedule, chunks of a device's stages, ZeRO's stage,
            sequence parallelism, recomputation
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from ddlbench.common.errors import ConfigError
from ddlbench.predict.measured_steps import Array, check_columns, refuse
from ddlbench.predict.transformer.counts import (
    PRECISIONS,
    RECOMPUTATIONS,
    VOCABULARY,
    WHOLE_VOCABULARY,
    padded_vocabulary,
)

SHAPE = ("hidden_size", "attention_heads", "layers", "sequence_length")
CUT = ("tensor", "data", "pipeline", "micro_batch")
NEEDED = (*SHAPE, "global_batch", *CUT)
OTHERS = ("vocabulary", "chunks", "zero", "sequence_parallel", "gradient_bytes")
"""Columns of numbers that a table may leave out."""
SCHEDULES = ("1f1b", "gpipe", "interleaved-1f1b", "interleaved-zero-bubble", "zero-bubble-v")
"""As :mod:`ddlbench.planning.schedules` names them."""
CHOICES: Mapping[str, tuple[str, ...]] = {
    "schedule": SCHEDULES,
    "recomputation": RECOMPUTATIONS,
    "precision": tuple(PRECISIONS),
}
"""Columns of words that a table may leave out; the first schedule and precision are usual."""
ONE_NODE = 8
"""What a table leaves out depends on whether it has more devices than this: see :func:`_usual`."""
_LARGEST_ZERO = 3


@dataclass(frozen=True)
class Configurations:
    """Configurations as columns of equal length.

    Args:
        rows: :data:`NEEDED`, :data:`OTHERS` and :data:`CHOICES`, filled in and checked.
    """

    rows: pd.DataFrame

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> Array:
        """A column of numbers as floats, or of words."""
        return self._columns[name]

    @cached_property
    def _columns(self) -> dict[str, Array]:
        given = {name: self.rows[name].to_numpy() for name in self.rows.columns}
        return {
            name: values if name in CHOICES else values.astype(float)
            for name, values in given.items()
        }

    @cached_property
    def devices(self) -> Array:
        """Of each configuration: tensor x data x pipeline."""
        return self["tensor"] * self["data"] * self["pipeline"]

    @cached_property
    def micro_batches(self) -> Array:
        """Of one pipeline in one step; the last may be smaller."""
        return np.ceil(self["global_batch"] / (self["data"] * self["micro_batch"]))

    @cached_property
    def vocabulary(self) -> Array:
        """Rows of the embedding, padded."""
        return np.asarray(padded_vocabulary(self["vocabulary"], self["tensor"]))

    @cached_property
    def stage_layers(self) -> Array:
        """Layers of the fullest device."""
        return np.ceil(self["layers"] / self["pipeline"])

    def bytes_of(self, kind: str) -> Array:
        """A field of each configuration's :class:`~.counts.Precision`."""
        return np.array([getattr(PRECISIONS[name], kind) for name in self["precision"]])

    def is_(self, column: str, word: str) -> Array:
        """Where a column of words has this one."""
        return np.asarray(self[column] == word)

    def take(self, chosen: Any) -> Configurations:
        """Some of them: a mask, or their places."""
        places = np.flatnonzero(chosen) if np.asarray(chosen).dtype == bool else chosen
        return Configurations(self.rows.iloc[places].reset_index(drop=True))

    def each(self) -> Iterator[dict[Any, Any]]:
        """One mapping a configuration."""
        yield from self.rows.to_dict("records")


def configurations(table: pd.DataFrame, where: str) -> Configurations:
    """Check a table, and fill in the columns that it may leave out.

    Args:
        table: :data:`NEEDED` columns and any others; those unknown are left out.
        where: the table's name, for messages.

    Raises:
        ConfigError: a column is missing, or a value is not one that a transformer can have.
    """
    check_columns(table, NEEDED, where)
    if table.empty:
        raise ConfigError(f"{where}: has no row; write at least one configuration")
    rows = pd.DataFrame(index=table.index)
    for name in NEEDED:
        rows[name] = _numbers(table[name], name, where)
    usual = _usual(rows)
    for name in (*OTHERS, *CHOICES):
        rows[name] = usual[name]
        if name in table.columns:
            rows[name] = table[name].fillna(rows[name])
    for name in OTHERS:
        rows[name] = _numbers(rows[name], name, where)
    for name, words in CHOICES.items():
        wrong = ~rows[name].isin(words)
        refuse(wrong, rows[name], where, f"{name} {{!r}} is unknown; {{}}", words)
    wrong = rows["zero"] > _LARGEST_ZERO
    refuse(wrong, rows["zero"], where, "zero is {}; write 0, 1, 2 or 3")
    for part, whole in (("attention_heads", "tensor"), ("layers", "pipeline")):
        wrong = rows[whole] > rows[part]
        refuse(wrong, rows[whole], where, f"{whole} is {{}}; write at most the number of {part}")
    if "devices" in table.columns:
        cut = rows["tensor"] * rows["data"] * rows["pipeline"]
        wrong = pd.to_numeric(table["devices"], errors="coerce") != cut
        differ = table["devices"].astype(str) + ", but tensor x data x pipeline is " + cut.map(str)
        refuse(wrong, differ, where, "devices is {}; write their product or leave it out")
    return Configurations(rows.reset_index(drop=True))


def _numbers(given: pd.Series[Any], name: str, where: str) -> pd.Series[int]:
    numbers = pd.to_numeric(given, errors="coerce")
    least = 0 if name in ("zero", "sequence_parallel") else 1
    wrong = ~np.isfinite(numbers) | (numbers < least) | (numbers != np.floor(numbers))
    refuse(wrong, given, where, f"{name} is {{!r}}; write a whole number of {least} or more")
    return numbers.astype("int64")


def _usual(rows: pd.DataFrame) -> Mapping[str, Any]:
    """Values of columns that a table leaves out: those of the published runs (docs/oracle.md).

    On one node nothing is recomputed, GPT-2's vocabulary is not padded, and gradients are summed in
    half precision; on many, all is recomputed, the vocabulary is Megatron's, and gradients are
    summed in single precision.
    """
    many = rows["tensor"] * rows["data"] * rows["pipeline"] > ONE_NODE
    return {
        "vocabulary": np.where(many, WHOLE_VOCABULARY, VOCABULARY),
        "chunks": 1,
        "zero": 0,
        "sequence_parallel": 0,
        "schedule": SCHEDULES[0],
        "gradient_bytes": np.where(many, 4, 2),
        "recomputation": np.where(many, "full", "none"),
        "precision": CHOICES["precision"][0],
    }
