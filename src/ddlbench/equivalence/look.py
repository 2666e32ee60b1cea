"""A first look at a network: its blocks, and by how much two trainings of it may differ.

::

    first         trained on one device
    other seeds   differs: the network draws random numbers, or its weights are not the seed's own
    moved         weights that differ in their last places: what rounding may change
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.distributed import Store

from ddlbench.equivalence.errors import TrialError
from ddlbench.equivalence.mini_batches import whole_batches
from ddlbench.equivalence.one_device import Reference, base_of, begin_as_a_process, built, train
from ddlbench.equivalence.reference import State, Trained
from ddlbench.equivalence.rounding import (
    Floating,
    change,
    difference,
    dtype_of,
    move_weights,
    tolerance,
    trains_in_float64,
)
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.networks.factory import BlockFails, build_with_traits, try_out
from ddlbench.planning.network_traits import NetworkTraits
from ddlbench.strategies.training import make_loss

_SAMPLES = 4
_FEW_SAMPLES = 2  # of large ones
_STEPS = 3
_LARGE_SAMPLE_BYTES = 2**22  # larger ones are not made larger still
_MANY_OPERATIONS = 5e8  # of a sample; a CPU's float64 would take long
_RANDOM_SAFETY = 4  # times what other seeds change


@dataclass(frozen=True)
class Noise:
    """What changes from training to training though nothing is wrong.

    Args:
        moved: how much a change of each tensor differs if weights are moved.
        moved_loss: the same of losses.
        drawn: how much other random numbers change, most of all tensors; 0 if it draws none.
        drawn_loss: the same of losses.
        start: largest difference of the initial weights that one seed gave twice.
    """

    moved: dict[str, float]
    moved_loss: float
    drawn: float = 0.0
    drawn_loss: float = 0.0
    start: float = 0.0


@dataclass(frozen=True)
class Look:
    """What one device shows of a network.

    Args:
        blocks: their number.
        traits: which decide the strategies that can train it.
        floating: the type of floats in which it is compared.
        noise: of its training; None if one device cannot train it.
        failure: why it cannot; empty if it can.
    """

    blocks: int
    traits: NetworkTraits
    floating: Floating
    noise: Noise | None
    failure: str = ""


@dataclass(frozen=True)
class Expected:
    """What ranks are compared with."""

    trained: Trained
    noise: Noise
    floating: Floating
    steps: int

    def tolerance_of(self, name: str) -> float:
        """The largest difference of a weight or buffer that is none of the strategy's."""
        moved = self.noise.moved.get(name, 0.0) * max(1.0, self.steps / _STEPS)
        rounding = tolerance(self.trained.states[0][name], moved)
        return max(rounding, _RANDOM_SAFETY * self.noise.drawn)

    @property
    def loss_tolerance(self) -> float:
        """The same of losses."""
        losses = torch.tensor(self.trained.losses, dtype=dtype_of(self.floating))
        rounding = tolerance(losses, self.noise.moved_loss)
        return max(rounding, _RANDOM_SAFETY * self.noise.drawn_loss)


def look_at(cell: Cell, _rank: int, _store: Store | None) -> Look:
    """Build the cell's network and train it three times.

    Raises:
        TrialError: it cannot be built.
    """
    spec = DATASETS[cell.dataset]
    try:
        operations = try_out(cell.network, spec)
        small = spec.input_bytes < _LARGE_SAMPLE_BYTES and operations < _MANY_OPERATIONS
        floating: Floating = "float64" if small and _trains_in_float64(cell) else "as built"
        built_network, traits = build_with_traits(cell.network, spec, cell.seed)
    except BlockFails as error:
        return Look(len(built(cell)), NetworkTraits(), "as built", None, str(error))
    except BaseException as error:
        raise TrialError.of(error) from error
    blocks = len(built_network)
    try:
        return Look(blocks, traits, floating, _noise(cell, floating))
    except BaseException as error:
        return Look(blocks, traits, floating, None, TrialError.of(error).reason)


def _trains_in_float64(cell: Cell) -> bool:
    few = cell.with_(batch_size=_SAMPLES)
    ((inputs, labels),) = whole_batches(few, 1, torch.float64)
    return trains_in_float64(partial(built, cell), inputs, labels, make_loss(cell))


@dataclass(frozen=True)
class _Run:
    """A training, and the state that it began with."""

    start: State
    end: State
    losses: Tensor


def _change(run: _Run, name: str) -> Tensor:
    return change(run.end[name], run.start[name])


def _run(reference: Reference, rank: int, *, move: bool = False) -> _Run:
    network = begin_as_a_process(reference.cell, reference.floating, rank)
    if move:
        move_weights(network, seed=1)
    start = {name: value.clone() for name, value in network.state_dict().items()}
    trained = train(reference, network)
    losses = torch.tensor(trained.losses, dtype=torch.float64)
    return _Run(start, trained.states[0], losses)


def _noise(cell: Cell, floating: Floating) -> Noise:
    large = DATASETS[cell.dataset].input_bytes >= _LARGE_SAMPLE_BYTES
    samples = _FEW_SAMPLES if large else _SAMPLES
    reference = Reference(base_of(cell).with_(batch_size=samples), _STEPS, floating)
    first, other = _run(reference, 0), _run(reference, 1)
    moved = _run(reference, 0, move=True)
    changes = {name: difference(_change(moved, name), _change(first, name)) for name in first.end}
    moved_loss = difference(moved.losses, first.losses)
    start = max((difference(other.start[name], first.start[name]) for name in changes), default=0)
    apart = {name: difference(other.end[name], value) for name, value in first.end.items()}
    draws = start == 0 and any(
        size > tolerance(first.end[name], changes[name]) for name, size in apart.items()
    )
    if not draws:
        return Noise(changes, moved_loss, start=start)
    drawn_loss = difference(other.losses, first.losses)
    return Noise(changes, moved_loss, max(apart.values()), drawn_loss)
