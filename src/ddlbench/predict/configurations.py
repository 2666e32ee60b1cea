"""The configurations of a strategy among which ``ddlbench tune`` searches.

::

    values of each option that varies  -> product -> cells -> cannot run | does not fit | predicted

An option varies if its schema names ``examples`` (values that are worth a try), or if the user
names values for it. ``batch_size`` may vary too, so configurations are compared by seconds a
sample.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ddlbench.common.errors import ConfigError
from ddlbench.common.schema import nearest
from ddlbench.experiment.cell import Cell, OptionValue
from ddlbench.experiment.registry import BASE
from ddlbench.planning.strategy import strategy_of
from ddlbench.predict.belief import Belief
from ddlbench.predict.candidate import Candidate, Knowledge, assess
from ddlbench.predict.prediction import History, steps_measured
from ddlbench.predict.question import Question

Values = Mapping[str, OptionValue]

BATCH_SIZE = "batch_size"
# Correlation of the errors of two predictions that differ in one option; an assumption.
_ONE_OPTION = 0.85
_MOST = 2000


@dataclass(frozen=True)
class Configuration:
    """One cell to choose from.

    Args:
        values: of everything that varies, defaults included.
        candidate: what is known of its cell.
    """

    values: Values
    candidate: Candidate

    @property
    def cell(self) -> Cell:
        return self.candidate.cell

    @property
    def expected(self) -> Belief | None:
        """Seconds a sample by the prediction; None if it cannot run or has no prediction."""
        step = self.candidate.expected
        return None if step is None else replace(step, step_s=step.step_s / self.cell.batch_size)

    @property
    def memory_bytes(self) -> int | None:
        return self.candidate.memory_bytes

    @property
    def why(self) -> str:
        """Why it is left out; empty if it is not."""
        return str(self.candidate.reason)

    @property
    def label(self) -> str:
        """``chunks=8 balance=work``."""
        texts = {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in self.values.items()
        }
        return " ".join(f"{name}={text}" for name, text in texts.items())

    def runs(self, history: History) -> tuple[float, ...]:
        """Seconds a sample of each of its runs at the site."""
        steps_s = steps_measured(history, self.cell)
        return tuple(step_s / self.cell.batch_size for step_s in steps_s)


def varied(
    strategy: str, named: Mapping[str, Sequence[OptionValue]], fixed: Mapping[str, Any]
) -> dict[str, tuple[OptionValue, ...]]:
    """Name -> values: those the user named, else every option with examples that is not fixed.

    Raises:
        ConfigError: the strategy has no such option, or there is nothing to vary.
    """
    options = strategy_of(strategy).options.schemas()
    for name in named:
        if name != BATCH_SIZE and name not in options:
            remark = nearest(name, [BATCH_SIZE, *options])
            raise ConfigError(f"--vary {name}: {strategy} has no such option; {remark}")
        if name in fixed:
            raise ConfigError(f"--vary {name} and --option {strategy}.{name} exclude each other")
    if named:
        return {name: tuple(dict.fromkeys(values)) for name, values in named.items()}
    found = {
        name: tuple(dict.fromkeys((schema["default"], *schema["examples"])))
        for name, schema in options.items()
        if "examples" in schema and name not in fixed
    }
    if not found:
        raise ConfigError(
            f"{strategy} has no option that is worth tuning; name one with --vary, as "
            f"{BATCH_SIZE}=16,32,64"
        )
    return found


def configurations(
    question: Question, strategy: str, values: Mapping[str, Sequence[OptionValue]], known: Knowledge
) -> list[Configuration]:
    """Every configuration, predicted; what cannot run or does not fit says why.

    Args:
        question: network, dataset, devices, and the options that do not vary.
        strategy: its name.
        values: of what varies.
        known: what is known at the site.

    Raises:
        ConfigError: a value is wrong, there are too many, or a profile or links are missing.
    """
    count = int(np.prod([len(choices) for choices in values.values()]))
    if count > _MOST:
        raise ConfigError(
            f"{count} configurations are more than {_MOST}; vary fewer options (--vary)"
        )
    found: dict[str, tuple[Values, Cell]] = {}
    for chosen in itertools.product(*values.values()):
        one = dict(zip(values, chosen, strict=True))
        cell = _cell(question, strategy, one)
        found.setdefault(cell.id, (one, cell))
    known.inputs.check([cell for _, cell in found.values()])
    base = assess(question.cell(BASE), known)
    return [Configuration(one, _limited(cell, base, known)) for one, cell in found.values()]


def _limited(cell: Cell, base: Candidate, known: Knowledge) -> Candidate:
    """The candidate within its bound over one device with a batch of the same size."""
    alone = base
    if cell.batch_size != base.cell.batch_size:
        alone = assess(base.cell.with_(batch_size=cell.batch_size), known)
    return assess(cell, known).limited(alone)


def _cell(question: Question, strategy: str, values: Values) -> Cell:
    options = {**question.written_options(strategy), **values}
    batch_size = options.pop(BATCH_SIZE, question.batch_size)
    if not isinstance(batch_size, int) or isinstance(batch_size, bool) or batch_size < 1:
        raise ConfigError(f"{BATCH_SIZE} {batch_size!r}: write whole numbers from 1 on")
    written = {**question.options, strategy: options}
    return replace(question, batch_size=batch_size, options=written).cell(strategy)


def alike(found: Sequence[Configuration]) -> np.ndarray:
    """Correlation of the errors of their predictions, by how many options differ."""
    names = list(found[0].values) if found else []
    columns = [np.array([str(one.values[name]) for one in found]) for name in names]
    differing = sum(
        ((column[:, None] != column[None, :]).astype(float) for column in columns),
        start=np.zeros((len(found), len(found))),
    )
    matrix: np.ndarray = _ONE_OPTION**differing
    return matrix
