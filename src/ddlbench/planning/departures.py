"""Departures: cells that do not train as one device does, by the losses of their first steps.

::

    step                1      2      3      4
    one device        2.302  2.304  2.281  2.270     same network, batches, seed and settings
    synchronous       2.302  2.304  2.294            departs at step 3: a weight stayed as it was
    older weights     2.302  |                       the first step only: its weights are initial
    its replay        2.302  2.304  2.303  2.291     the rest of it, where there is a replay

What a step computes is fixed by the cell, so its loss may differ by rounding only, and the bound
for it grows from step to step. Two effects are known and larger: a batch norm takes its statistics
of the samples of one pass, and ranks draw random numbers of their own. Such cells are held against
a gross bound: a loss that is no number, or off by more than half of the first.

Cells of one network that began with other weights are not compared at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Self

from ddlbench.common.statistics import grouped
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.registry import BASE
from ddlbench.experiment.result import Result
from ddlbench.experiment.status import Status
from ddlbench.experiment.training import Training
from ddlbench.planning.strategy import known_strategy

SENTENCES = {
    "other_training": "does not train as one device does: {data}",
    "other_weights": "began with other weights than {data}",
}
"""What a departure says of its cell, by its code."""

# Fields of a cell that change no sample of a step, and its results by rounding at most.
_FREE = frozenset(
    {
        *("strategy", "options", "nodes", "devices_per_node", "fabric", "repeat", "epochs"),
        *("loader_workers", "threads_per_device", "cudnn_benchmark", "deterministic", "compile"),
        *("checkpoint_every_steps", "validate"),
    }
)
_FIXED = tuple(field.name for field in fields(Cell) if field.name not in _FREE)
_OF_WEIGHTS = ("dataset", "network", "seed")

# Largest difference of a first loss, as a share of it. A unit roundoff is 6e-8 in float32; sums of
# thousands of products in another order, or by another algorithm of a convolution, err by some
# hundred of it. TF32 rounds factors to 5e-4 and bfloat16 to 2e-3, and both add up in float32.
# Float16 rounds factors as TF32 does.
# Measured over 8 steps (MLP, VGG-11, AlexNet and GPT-tiny, learning rates 0.01 and 0.1, samples in
# another order or in two halves): at most 2e-7, 3e-4 and 3e-3, with TF32 imitated on a CPU; float16
# 3e-5.
_ROUNDING: Mapping[str, float] = {"fp32": 1e-5, "tf32": 1e-3, "bf16": 5e-3, "fp16": 1e-3}
# Batch norm divides by deviations that may be small, and so amplifies rounding: ResNet-18 of 8
# samples in another order, float32: 9e-8 at the second step, then 2e-5, 2e-4, 2e-3.
_AMPLIFICATION = 10.0
# Honest departures of batch norm over other samples were up to 0.11 (ResNet-18 with GPipe).
_GROSS = 0.5
_DIVERGES = 2.0  # times the first loss


@dataclass(frozen=True)
class _Bound:
    """The largest difference that rounding explains, as a share of one device's first loss.

    Args:
        first: at the first step. Each update adds as much.
        amplified: each update multiplies it instead.
    """

    first: float
    amplified: bool = False

    def at(self, step: int) -> float:
        grown = self.first * (_AMPLIFICATION**step if self.amplified else step + 1)
        return min(grown, _GROSS)


@dataclass(frozen=True)
class Trained:
    """How a cell trained, by its result.

    Args:
        cell: what was measured.
        training: its beginning.
        synchronous: every update uses gradients of current weights, of one mini-batch.
        own_data: digest of the user's own data; None for generated data.
        own_network: digest of the network's code; None of a built-in one.
    """

    cell: Cell
    training: Training
    synchronous: bool
    own_data: str | None = None
    own_network: str | None = None

    @classmethod
    def of(cls, cell: Cell, result: Result) -> Self | None:
        """Read it from a cell's result; None where nothing was trained, or nothing is known."""
        if result.status != Status.OK or result.training is None or result.accelerator is not None:
            return None
        synchronous = result.update_semantics == "synchronous" and _sums_one_batch(cell, result)
        code = result.inputs.network_digest
        return cls(cell, result.training, synchronous, result.own_data, code)

    @property
    def is_base(self) -> bool:
        return self.cell.strategy == BASE


def _sums_one_batch(cell: Cell, result: Result) -> bool:
    try:
        return (
            known_strategy(cell.strategy).samples_per_update(cell, result.plan_details)
            == cell.batch_size
        )
    except (ValueError, TypeError, KeyError, ArithmeticError):  # the schema takes any details
        return True


@dataclass(frozen=True)
class Departure:
    """How a cell does not train as one device does.

    Args:
        code: key of :data:`SENTENCES`.
        data: losses that differ, or the cells whose weights do.
    """

    code: str
    data: str

    @property
    def sentence(self) -> str:
        """Without subject and full stop."""
        return SENTENCES[self.code].format(data=self.data)


@dataclass(frozen=True)
class Comparison:
    """How a cell was compared with one device.

    Args:
        reference: id of the cell of one device; None where no cell trained the same there.
        departure: None if the cell does not depart.
    """

    reference: str | None
    departure: Departure | None


def compared(trained: Iterable[Trained]) -> dict[str, Comparison]:
    """The comparison of each cell of several devices, by its id."""
    every = list(trained)
    bases = [each for each in every if each.is_base]
    bases_by_training = grouped((_key(each, _FIXED), each) for each in bases)
    bases_by_weights = grouped((_key(each, _OF_WEIGHTS), each) for each in bases)
    by_weights = grouped((_key(each, _OF_WEIGHTS), each) for each in every)
    comparisons = {}
    for each in every:
        if each.is_base:
            continue
        reference = _nearest(each.cell, bases_by_training.get(_key(each, _FIXED), ()))
        weights = _key(each, _OF_WEIGHTS)
        with_weights = bases_by_weights.get(weights) or by_weights[weights]
        departure = (
            _other_weights(each, [reference] if reference else with_weights)
            or (_other_training(each, reference.training) if reference else None)
            or _unlike_replay(each)
        )
        comparisons[each.cell.id] = Comparison(reference.cell.id if reference else None, departure)
    return comparisons


def departures(trained: Iterable[Trained]) -> dict[str, Departure]:
    """The departure of each cell that departs, by its id."""
    return {
        cell_id: comparison.departure
        for cell_id, comparison in compared(trained).items()
        if comparison.departure
    }


def departures_in(results: Mapping[Cell, Result]) -> dict[str, Departure]:
    """The departures among the results of cells."""
    trained = (Trained.of(cell, result) for cell, result in results.items())
    return departures(trained_cell for trained_cell in trained if trained_cell is not None)


def _key(trained: Trained, names: Sequence[str]) -> tuple[object, ...]:
    return trained.own_data, trained.own_network, *(getattr(trained.cell, name) for name in names)


def _nearest(cell: Cell, references: Sequence[Trained]) -> Trained | None:
    """The reference that shares most settings with the cell, its repeat before others."""

    def distance(reference: Trained) -> tuple[bool, int]:
        other = reference.cell
        differing = sum(getattr(cell, name) != getattr(other, name) for name in _FREE)
        return cell.repeat != other.repeat, differing

    return min(references, key=distance, default=None)


def _other_weights(trained: Trained, references: Sequence[Trained]) -> Departure | None:
    """A departure if a cell began with other weights than all of these."""
    digest = trained.training.initial_digest
    others = {
        reference.training.initial_digest
        for reference in references
        if reference is not trained and reference.training.initial_digest is not None
    }
    if digest is None or not others or digest in others:
        return None
    of_base = any(reference.is_base for reference in references)
    return Departure("other_weights", "its base" if of_base else "other cells of its network")


def _other_training(trained: Trained, base: Training) -> Departure | None:
    """A departure if the losses of a cell are not those of one device.

    With older weights only the first step uses the same.
    """
    losses = trained.training.first_loss if trained.synchronous else trained.training.first_loss[:1]
    return _apart(losses, base.first_loss, _bound(trained, base), "on one device")


def _unlike_replay(trained: Trained) -> Departure | None:
    training = trained.training
    bound = _Bound(_GROSS) if training.random else _rounding(trained)
    return _apart(training.first_loss, training.replayed_loss, bound, "in its replay on one device")


def _bound(trained: Trained, base: Training) -> _Bound:
    """A gross bound where ranks draw other numbers, or a batch norm sees other samples."""
    training = trained.training
    other_statistics = training.batch_norm and training.samples_per_pass != base.samples_per_pass
    return _Bound(_GROSS) if training.random or other_statistics else _rounding(trained)


def _rounding(trained: Trained) -> _Bound:
    """The bound for the least precise numbers of a step."""
    first = _ROUNDING.get(known_strategy(trained.cell.strategy).precision(trained.cell), _GROSS)
    return _Bound(first, amplified=trained.training.batch_norm)


def _first_apart(
    losses: Sequence[float | None], references: Sequence[float | None], bound: _Bound
) -> int | None:
    """The first step of both whose losses differ by more than the bound; None if none does.

    Where the reference diverges rounding grows without bound, so no later step is compared.
    """
    scale = next((loss for loss in references[:1] if loss is not None), 1.0)
    for step, (loss, reference) in enumerate(zip(losses, references, strict=False)):
        if reference is not None and reference > _DIVERGES * scale:
            return None
        if loss is None or reference is None:
            if loss is not reference:
                return step
        elif abs(loss - reference) > bound.at(step) * scale:
            return step
    return None


def _apart(
    losses: Sequence[float | None], references: Sequence[float | None], bound: _Bound, where: str
) -> Departure | None:
    step = _first_apart(losses, references, bound)
    if step is None:
        return None
    loss, reference = _texts(losses[step], references[step])
    return Departure("other_training", f"loss {loss} at step {step + 1}, {reference} {where}")


def _texts(loss: float | None, reference: float | None) -> tuple[str, str]:
    """Both losses with as many digits, three at least, as tell them apart."""
    for digits in range(3, 17):
        pair = _text(loss, digits), _text(reference, digits)
        if pair[0] != pair[1]:
            break
    return pair


def _text(loss: float | None, digits: int) -> str:
    return "NaN" if loss is None else f"{loss:.{digits}g}"
