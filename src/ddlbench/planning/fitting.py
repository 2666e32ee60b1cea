"""Fits options that nobody wrote to a geometry and a batch.

::

    1F1B, 8 devices, batch 256     4 micro-batches (default) < 8 stages     -> chunks=8
    1F1B, 2 devices, batch 14      14 does not divide into 4                -> chunks=2

Each strategy names its alternatives (:meth:`ddlbench.planning.strategy.Strategy.alternatives`). A
matrix is not fitted: its cells are what the experiment file says.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from ddlbench.experiment.cell import Cell
from ddlbench.planning.strategy import Strategy, cut_by_profile

_MOST_ALTERNATIVES = 12  # a strategy that supports none of so many supports none
_MOST_PER_STAGE = 8


def fitted(cell: Cell, strategy: Strategy, written: Mapping[str, Any]) -> Cell:
    """The cell with options that its strategy supports, where nobody wrote others.

    ::

        defaults -> supported and suitable? -> alternatives, best first -> the first supported

    Args:
        cell: with the options that are written, and defaults.
        strategy: of the cell, on the site's devices.
        written: the options that the user wrote; these stay.

    Returns:
        The cell itself, with balance ``profile`` where it takes that, if no alternative helps.
    """
    cell = cut_by_profile(cell, strategy, written)
    if strategy.supports(cell) is None and strategy.suits(cell):
        return cell
    for values in itertools.islice(strategy.alternatives(cell), _MOST_ALTERNATIVES):
        if values.keys() & written.keys():
            continue
        options = strategy.check_options({**dict(cell.options), **values}, cell.strategy)
        other = cut_by_profile(cell.with_(options=tuple(options.items())), strategy, written)
        if strategy.supports(other) is None:
            return other
    return cell


def micro_batch_counts(samples: int, stages: int) -> Iterator[int]:
    """Numbers of equal micro-batches, best first: those that fill the stages, then fewer.

    With eight times as many as stages, the bubble is less than a ninth of the time: more are not
    worth their overhead.

    Args:
        samples: that are cut.
        stages: of the pipeline.
    """
    least = range(max(1, stages), min(samples, _MOST_PER_STAGE * stages) + 1)
    fewer = range(min(stages - 1, samples), 0, -1)
    yield from (count for count in (*least, *fewer) if samples % count == 0)
