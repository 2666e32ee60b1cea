"""A first look at a network, and the smallest cells that show what a strategy does to it.

The look shows its blocks, and by how much two trainings of it may differ::

    first         trained on one device
    other seeds   differs: the network draws random numbers, or its weights are not the seed's own
    moved         weights that differ in their last places: what rounding may change

The smallest cells have::

    devices      those of the geometry; more while too few of them train
    blocks       dealt to as many stages as the strategy has: evenly, and all but a few to the first
    mini-batch   the smallest that gives each part a few samples
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.distributed import Store

from ddlbench.common.errors import ConfigError
from ddlbench.equivalence.one_device import (
    State,
    Trained,
    Training,
    base_of,
    begin_as_a_process,
    built,
    train,
    whole_batches,
)
from ddlbench.equivalence.rounding import (
    Floating,
    TrialError,
    change,
    coarsest_eps,
    difference,
    dtype_of,
    move_weights,
    tolerance,
    trains_in_float64,
)
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.status import Reason, code_of
from ddlbench.networks.factory import BlockFails, build_with_traits, try_out
from ddlbench.planning.network_tables import NetworkTraits
from ddlbench.planning.pipeline_stages import even_blocks
from ddlbench.planning.planner import make_plan
from ddlbench.planning.strategy import Strategy, normalise, strategy_of
from ddlbench.strategies.training import MeanCrossEntropy

_SAMPLES = 4
_FEW_SAMPLES = 2  # of large ones
_STEPS = 3
_LARGE_SAMPLE_BYTES = 2**22  # larger ones are not made larger still
_MANY_OPERATIONS = 5e8  # of a sample; a CPU's float64 would take long
_RANDOM_SAFETY = 4  # times what other seeds change
_FURTHER_SEEDS = (2, 3)  # of a network that draws random numbers


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
        """The largest difference of a loss."""
        losses = torch.tensor(self.trained.losses, dtype=dtype_of(self.floating))
        rounding = tolerance(losses, self.noise.moved_loss)
        return max(rounding, _RANDOM_SAFETY * self.noise.drawn_loss)


def look_at(cell: Cell, _rank: int, _store: Store | None, *, float64: bool = True) -> Look:
    """Build the cell's network and train it three times, in ``float64`` if it can.

    Raises:
        TrialError: it cannot be built.
    """
    spec = DATASETS[cell.dataset]
    try:
        operations = try_out(cell.network, spec)
        small = spec.input_bytes < _LARGE_SAMPLE_BYTES and operations < _MANY_OPERATIONS
        wide = float64 and small and _trains_in_float64(cell)
        floating: Floating = "float64" if wide else "as built"
        built_network, traits = build_with_traits(cell.network, spec, cell.seed, with_pairs=True)
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
    return trains_in_float64(partial(built, cell), inputs, labels, MeanCrossEntropy())


@dataclass(frozen=True)
class _Run:
    """A training, and the state that it began with."""

    start: State
    end: State
    losses: Tensor


def _change(run: _Run, name: str) -> Tensor:
    return change(run.end[name], run.start[name])


def _run(training: Training, rank: int, *, move: bool = False) -> _Run:
    eps = 0.0
    if move and training.floating == "as built":
        ((inputs, _),) = whole_batches(training.cell, 1, dtype_of(training.floating))
        eps = coarsest_eps(built(training.cell).train(), inputs)
    network = begin_as_a_process(training.cell, training.floating, rank)
    if move:
        move_weights(network, seed=1, least_eps=eps)
    start = {name: value.clone() for name, value in network.state_dict().items()}
    trained = train(training, network)
    losses = torch.tensor(trained.losses, dtype=torch.float64)
    return _Run(start, trained.states[0], losses)


def _noise(cell: Cell, floating: Floating) -> Noise:
    large = DATASETS[cell.dataset].input_bytes >= _LARGE_SAMPLE_BYTES
    samples = _FEW_SAMPLES if large else _SAMPLES
    training = Training(base_of(cell).with_(batch_size=samples), _STEPS, floating)
    first, other = _run(training, 0), _run(training, 1)
    first_loss = float(first.losses.flatten()[0])
    if not math.isfinite(first_loss):
        raise ConfigError(
            f"its first loss is {first_loss}, and nothing can be compared; look for a division by "
            "zero, or a logarithm of zero"
        )
    moved = _run(training, 0, move=True)
    changes = {name: difference(_change(moved, name), _change(first, name)) for name in first.end}
    moved_loss = difference(moved.losses, first.losses)
    start = max((difference(other.start[name], first.start[name]) for name in changes), default=0)
    apart = {name: difference(other.end[name], value) for name, value in first.end.items()}
    draws = start == 0 and any(
        size > tolerance(first.end[name], changes[name]) for name, size in apart.items()
    )
    if not draws:
        return Noise(changes, moved_loss, start=start)
    others = [other, *(_run(training, seed) for seed in _FURTHER_SEEDS)]  # two may agree by chance
    drawn = max(difference(run.end[name], first.end[name]) for run in others for name in changes)
    drawn_loss = max(difference(run.losses, first.losses) for run in others)
    return Noise(changes, moved_loss, drawn, drawn_loss)


MOST_DEVICES = 4

_BATCH_SIZES = (4, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_ONE_DEVICE = "one_device_only"
_CURED_BY_DEVICES = (_ONE_DEVICE, "too_few_devices", "uneven_groups", "wrong_balance")


def tiny_cells(
    cell: Cell, blocks: int, geometry: tuple[int, int], batch_size: int | None = None
) -> list[Cell] | Reason:
    """Cells that the strategy supports, which differ in their balance, or why there is none.

    ``geometry`` is the number of nodes, and of devices of each. By default the mini-batch is the
    smallest that serves.
    """
    strategy = strategy_of(cell.strategy)
    large = DATASETS[cell.dataset].input_bytes >= _LARGE_SAMPLE_BYTES
    least = _FEW_SAMPLES if large else _SAMPLES
    first: Reason | None = None
    for place in _places(cell, strategy, geometry):
        for size in _BATCH_SIZES if batch_size is None else (batch_size,):
            tried = _dealt(place.with_(batch_size=size), strategy, blocks)
            if isinstance(tried, Reason):
                first = first or tried
            elif batch_size or size >= least * make_plan(tried[0]).parts:
                return tried
        if first is not None and first.code not in _CURED_BY_DEVICES:
            return first
    return first or Reason("unsupported", "no small mini-batch fits; write --batch-size")


def _places(cell: Cell, strategy: Strategy, geometry: tuple[int, int]) -> Iterator[Cell]:
    """The cell where at least as many devices train as the geometry has, then on one device."""
    nodes, devices = geometry
    wanted = nodes * devices
    for each in range(devices, max(devices, MOST_DEVICES // nodes) + 1):
        last = nodes * (each + 1) > MOST_DEVICES
        if last or strategy.workers(nodes * each, dict(cell.options)) >= wanted:
            yield normalise(cell.with_(nodes=nodes, devices_per_node=each))
    placed = cell.with_(nodes=nodes, devices_per_node=devices)
    if code_of(strategy.supports(placed)) == _ONE_DEVICE:
        yield cell.with_(nodes=1, devices_per_node=1)


def _dealt(cell: Cell, strategy: Strategy, blocks: int) -> list[Cell] | Reason:
    """The cell with its blocks dealt to stages, unless they are dealt by hand; or why not.

    No rule for a balance is used: the network may be in no table, and nothing is measured.
    """
    by_hand = str(cell.option("balance", "")).partition("+")[0].isdigit()
    if "balance" not in strategy.options.defaults() or by_hand:
        refusal = strategy.supports(cell)
        return [cell] if refusal is None else _as_reason(refusal)
    refusal = None
    for stages in range(1, blocks + 1):
        counts = even_blocks(blocks, (1,) * stages)
        refusal = strategy.supports(_with_balance(cell, counts))
        if refusal is None:
            late = (blocks - stages + 1, *(1,) * (stages - 1))
            return [_with_balance(cell, dealt) for dealt in dict.fromkeys((counts, late))]
        if code_of(refusal) != "wrong_balance":
            return _as_reason(refusal)
    few = "1 block is" if blocks == 1 else f"{blocks} blocks are"
    return Reason("too_few_blocks", f"{few} too few for its stages")


def _with_balance(cell: Cell, counts: tuple[int, ...]) -> Cell:
    options = {**dict(cell.options), "balance": "+".join(map(str, counts))}
    return cell.with_(options=tuple(options.items()))


def _as_reason(refusal: str) -> Reason:
    return Reason(code_of(refusal), refusal)
