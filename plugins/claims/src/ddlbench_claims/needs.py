"""What a row must have so that it can test a claim, computed from columns of the row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

import pandas as pd
from annotated_types import MinLen

from ddlbench.common.form import Count, Form, Name, Positive
from ddlbench.report.kept_verdicts import CPU, EMULATED_GPU, GPU
from ddlbench_claims.predicate import value_text

RUNTIME = "ddlbench"
"""The software of every row: this project's strategies, on torch."""
_ABOUT = 1.25  # a link is "about" as fast within this factor


@dataclass(frozen=True)
class Needs(Form):
    """What a claim needs; the defaults need nothing."""

    device: Literal["gpu", "real", "real-gpu"] | None = None
    """Devices that compute as fast as GPUs (`gpu`), that compute, which emulated ones do not
    (`real`), or both; by the bed."""
    overlap: bool = False
    """Devices that send while they compute; by the bed, as a CPU's core does both."""
    at_once: bool = False
    """Devices that compute at the same time, by column at_once: torchgpipe's CPU partitions take
    turns."""
    inside: bool = False
    """Messages inside a node pass a link as GPUs have, by column inside."""
    gbit_per_s: Positive | None = None
    """The link between nodes is about as fast as this, as devices see it, by column gbit_per_s;
    rows of one node have it."""
    chunks: Count | None = None
    """A pipeline has at least so many micro-batches, by column chunks; other strategies have it."""
    runtime: Name = ""
    """The software that the claim is of, by column runtime."""
    each: Mapping[str, Annotated[tuple[str | float, ...], MinLen(1)]] = field(default_factory=dict)
    """Of all rows: some row has each of these values, by column."""

    def of_bed(self, bed: str) -> list[str]:
        """In words, what no row of this bed can have."""
        lacks = []
        if self.runtime and self.runtime != RUNTIME:
            lacks.append(self.runtime)
        if self.device == "gpu" and bed not in (GPU, EMULATED_GPU):
            lacks.append("devices as fast as GPUs")
        if self.device == "real" and bed not in (CPU, GPU):
            lacks.append("devices that compute")
        if self.device == "real-gpu" and bed != GPU:
            lacks.append("real GPUs")
        if self.overlap and bed == CPU:
            lacks.append("devices that send while they compute")
        return lacks

    def met(self, rows: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
        """The rows that have what is needed, and what the others lack, in words."""
        lacks = []
        for words, has in self._of_rows(rows):
            if not has.all():
                lacks.append(words)
            rows = rows[has.loc[rows.index]]
        absent = []
        for column, values in self.each.items():
            there = set(map(value_text, rows[column]))
            missing = [str(value) for value in values if value_text(value) not in there]
            if missing:
                absent.append(f"cells of {column} {' and '.join(missing)}")
        return (rows.iloc[:0] if absent else rows), [*lacks, *absent]

    def _of_rows(self, rows: pd.DataFrame) -> Iterator[tuple[str, pd.Series]]:
        if self.at_once:
            yield "devices that compute at the same time", rows["at_once"].astype(bool)
        if self.inside:
            yield "a link inside a node, as GPUs have", rows["inside"].astype(bool)
        if self.gbit_per_s is not None:
            speed = pd.to_numeric(rows["gbit_per_s"]) / self.gbit_per_s
            near = (speed >= 1 / _ABOUT) & (speed <= _ABOUT)
            yield f"{self.gbit_per_s:g} Gbit/s between nodes", near | (rows["nodes"] == 1)
        if self.chunks is not None:
            counts = pd.to_numeric(rows["chunks"])
            words = f"pipelines of {self.chunks} micro-batches or more"
            yield words, counts.isna() | (counts >= self.chunks)

    def in_words(self) -> list[str]:
        """All that is needed."""
        words = [*self.of_bed(CPU), *(text for text, _ in self._of_rows(_NO_ROWS))]
        return words + [
            f"cells of {column} {' and '.join(map(str, values))}"
            for column, values in self.each.items()
        ]


_NO_ROWS = pd.DataFrame(columns=["at_once", "inside", "gbit_per_s", "chunks", "nodes"])
