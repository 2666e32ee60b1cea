"""How large a question pays: the largest batch that fits, and the most devices that pay.

The largest batch is by the memory model, and confirmed by a cell::

    batch    unit  2 unit  3 unit  ...  | n unit |  ...
    memory   fits  fits    fits         | fits   |  does not         by the model: bisection
                                            |
                              a short cell: ok -> this one;  out of memory -> a tenth less, again

``unit`` is the smallest batch that the strategy can cut: a sample a worker, or one a micro-batch.
Running out of memory is an answer, not a failure. Of the options that ``recommend`` compares, those
with the largest predicted batch are taken: more micro-batches need less memory, for instance.

Several geometries in one question show what more devices bring, at the same batch::

    geometry   best of its ranking   speed-up S(n)    efficiency S(n) / n     device-hours an epoch
    1x2        DDP                   1.9              0.95                    n T steps
    1x4        DDP                   3.6              0.90
    2x4        1F1B                  4.4              0.55    a further device adds 0.2 of a device

From one size to another, each further device adds ``(S(n') - S(n)) / (n' - n)`` of a device. More
devices pay if that is at least half of a device.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ddlbench.common.errors import ConfigError
from ddlbench.common.quantities import HOURS, counted, size_text
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.result import Glance
from ddlbench.experiment.site import Accelerator, Site
from ddlbench.experiment.status import Status
from ddlbench.planning.memory import Room, memory_bytes, room_of
from ddlbench.planning.planner import make_plan
from ddlbench.planning.strategy import strategy_of
from ddlbench.planning.workload import Workload
from ddlbench.predict.advice import Advice, answer_dict
from ddlbench.predict.question import Question
from ddlbench.predict.ranking import Candidate, Ranking
from ddlbench.predict.recommend import Trial, short_cell

_LESS = 0.9  # of the predicted memory of a batch that ran out
_MOST_UNIT = 4096


@dataclass(frozen=True)
class MemoryOfBatches:
    """Predicted memory of a cell at any batch size; ``capacity_bytes`` are of one device."""

    cell: Cell
    site: Site
    workload: Workload
    capacity_bytes: float

    def needed(self, batch_size: int) -> int:
        """Bytes of the fullest device, or on CPU of the fullest process.

        Raises:
            ConfigError: the strategy has no memory model.
        """
        return self.room(batch_size).needed_bytes

    def fits(self, batch_size: int) -> bool:
        return self.room(batch_size).fits is not False

    def room(self, batch_size: int) -> Room:
        """What the fullest memory needs, and what it has."""
        cell = self.cell.with_(batch_size=batch_size)
        plan = make_plan(cell, self.site.name, self.site.accelerator)
        devices = memory_bytes(self.workload, plan)
        room = room_of(self.workload, plan, devices, self.site, self.capacity_bytes)
        assert room is not None
        return room

    @cached_property
    def unit(self) -> int:
        """The smallest batch that the strategy can cut.

        Raises:
            ConfigError: there is none.
        """
        return smallest_batch(self.cell, self.site.accelerator)

    @cached_property
    def most(self) -> int:
        """The largest batch of which an epoch has enough steps to communicate once."""
        rounds = math.ceil(
            strategy_of(self.cell.strategy).round_steps(self.cell) / self.cell.epochs
        )
        return DATASETS[self.cell.dataset].num_train // rounds

    @cached_property
    def predicted(self) -> int:
        """The largest batch by the memory model; 0 if none fits."""
        return predicted_largest(self, self.unit, self.most)


def roomiest(memories: Sequence[MemoryOfBatches]) -> MemoryOfBatches:
    """Which of several options of a strategy fits the largest batch; the first of equals."""
    return max(memories, key=lambda memory: memory.predicted)


@dataclass
class LargestBatch:
    """What was found.

    Args:
        unit: smallest batch that the strategy can cut.
        predicted: largest batch by the memory model; 0 if none fits.
        batch_size: largest batch that a cell has confirmed, or that is predicted where nothing was
            measured; 0 if none fits.
        needed_bytes: predicted memory of that batch.
        trials: measured cells.
        limit: what bounds it: the memory, or the dataset.
    """

    unit: int
    predicted: int
    batch_size: int
    needed_bytes: int | None
    limit: str
    trials: list[Trial] = field(default_factory=list)

    @property
    def confirmed(self) -> bool:
        return any(trial.status == Status.OK for trial in self.trials)


def smallest_batch(cell: Cell, accelerator: Accelerator | None = None) -> int:
    """The smallest batch that the strategy can cut; its multiples can be cut, too.

    Raises:
        ConfigError: there is none.
    """
    strategy = strategy_of(cell.strategy, accelerator)
    reason: str | None = None
    for batch_size in range(1, _MOST_UNIT + 1):
        reason = strategy.supports(cell.with_(batch_size=batch_size))
        if reason is None:
            return batch_size
    raise ConfigError(f"{cell.strategy} cannot run {cell.geometry} at any batch size: {reason}")


def predicted_largest(memory: MemoryOfBatches, unit: int, most: int) -> int:
    """The largest multiple of ``unit`` up to ``most`` that fits; 0 if none does."""
    sizes = range(unit, most + 1, unit)
    return unit * bisect_left(sizes, True, key=lambda size: not memory.fits(size))


def largest_batch(
    memory: MemoryOfBatches,
    measure: Callable[[Cell], Glance | None] | None,
    done: Callable[[Cell], Glance | None],
    trials: int = 3,
) -> LargestBatch:
    """The largest batch that fits.

    ``measure`` is None to predict only; ``trials`` are the most cells.

    Raises:
        ConfigError: a cell ended otherwise than well or out of memory, or there is no model.
    """
    unit, predicted = memory.unit, memory.predicted
    limit = "the dataset" if predicted + unit > memory.most else "memory"
    largest = LargestBatch(unit, predicted, predicted, None, limit)
    size = predicted
    while size:
        largest.batch_size, largest.needed_bytes = size, memory.needed(size)
        if measure is None:
            return largest
        cell = short_cell(memory.cell.with_(batch_size=size))
        ended = done(cell) or measure(cell)
        if ended is None:
            raise ConfigError(f"{cell.id} left no result; look at its log.txt")
        largest.trials.append(Trial.of(cell, ended))
        if ended.status == Status.OK:
            return largest
        if ended.status != Status.OUT_OF_MEMORY:
            raise ConfigError(
                f"{cell.id} ended with {ended.status}, which says nothing of its memory; "
                "look at its log.txt"
            )
        if len(largest.trials) >= trials:
            break
        less_bytes = _LESS * largest.needed_bytes / memory.room(size).devices
        less = MemoryOfBatches(memory.cell, memory.site, memory.workload, less_bytes)
        size = predicted_largest(less, unit, size - unit)
    largest.batch_size, largest.needed_bytes = 0, None
    return largest


def batch_advice(largest: LargestBatch, memory: MemoryOfBatches, options: str = "") -> list[str]:
    """What was found, in sentences; ``options`` are those that the batch needs."""
    if not largest.predicted:
        used = _used(memory.room(largest.unit))
        return [f"No batch fits: {counted(largest.unit, 'sample')}, the fewest, would take {used}."]
    tried = [
        f"{counted(Cell.from_id(trial.cell_id).batch_size, 'sample')}: {trial.status}"
        for trial in largest.trials
    ]
    measured = [f"Measured: {', '.join(tried)}."] if tried else []
    if not largest.batch_size:
        return [
            *measured,
            "No batch was confirmed; predict a smaller one with --device-memory-bytes.",
        ]
    how = "confirmed by a cell" if largest.confirmed else "predicted, not measured"
    with_options = f" with {options}" if options else ""
    return [
        f"Largest batch: {counted(largest.batch_size, 'sample')} per step{with_options} ({how}); "
        f"{_used(memory.room(largest.batch_size))} predicted, limited by {largest.limit}.",
        *measured,
    ]


def _used(room: Room) -> str:
    """``2.0 GB of the 2.1 GB of 4 devices``."""
    assert room.held_bytes is not None
    whose = "" if room.devices == 1 else f" of {room.devices} devices"
    return f"{size_text(room.needed_bytes)} of {size_text(room.held_bytes)}{whose}"


PAYS = 0.5
"""Least part of a device that a further device must add."""


@dataclass(frozen=True)
class Size:
    """The answer for one geometry."""

    question: Question
    ranking: Ranking
    advice: Advice

    @property
    def best(self) -> Candidate | None:
        return self.advice.recommended

    @property
    def devices(self) -> int:
        """Devices that train: one, if the advice is to stay on one."""
        return self.best.cell.devices if self.best else self.question.devices

    @property
    def speedup(self) -> float | None:
        """Speed-up of the recommended strategy over one device; None if unknown."""
        speedup = self.ranking.speedup(self.best) if self.best else None
        return speedup.ratio if speedup else None

    @property
    def efficiency(self) -> float | None:
        """Speed-up over the devices of the geometry."""
        return None if self.speedup is None else self.speedup / self.question.devices

    @property
    def epoch_device_s(self) -> float | None:
        """Seconds of an epoch of the whole dataset, times the devices that train."""
        if self.best is None:
            return None
        steps = DATASETS[self.question.dataset].num_train / self.question.batch_size
        return steps * self.ranking.step_s(self.best) * self.devices

    def to_dict(self) -> dict[str, Any]:
        hours = None if self.epoch_device_s is None else HOURS.of(self.epoch_device_s)
        return {
            "geometry": self.question.geometry,
            "speedup": self.speedup,
            "efficiency": self.efficiency,
            "epoch_device_hours": hours,
            **answer_dict(self.question, self.ranking, self.advice),
        }


def enough(sizes: Sequence[Size]) -> Size | None:
    """The size after which more devices do not pay; None if that is one device.

    From a size, the next one is the smallest to which each further device adds half of a device or
    more. Sizes between them that do not pay are skipped.

    Sizes come by their devices, the fewest first.
    """
    last: Size | None = None
    devices, speedup = 1, 1.0
    for size in sizes:
        if size.speedup is None or size.question.devices < devices:
            continue
        added = size.question.devices - devices
        if size.speedup - speedup >= PAYS * added and (added or size.speedup > speedup):
            last, devices, speedup = size, size.question.devices, size.speedup
    return last


def sizes_dict(sizes: Sequence[Size]) -> dict[str, Any]:
    """The answer as JSON values; ``enough`` is None if the largest size still pays."""
    return {
        "geometries": [size.to_dict() for size in sizes],
        "advice": sizes_advice(sizes),
        "enough": _enough_geometry(sizes),
    }


def _enough_geometry(sizes: Sequence[Size]) -> str | None:
    answered = [size.question.devices for size in sizes if size.speedup is not None]
    last = enough(sizes)
    if last is None:
        return "1x1" if answered else None
    return None if last.question.devices == answered[-1] else last.question.geometry


def sizes_advice(sizes: Sequence[Size]) -> list[str]:
    """What the sizes come to, in sentences."""
    answered = [size for size in sizes if size.speedup is not None]
    if not answered:
        return ["Nothing was compared: no geometry has a strategy that can be timed."]
    last = enough(sizes)
    rule = f"each further device adds less than {PAYS:g} of a device"
    if last is None:
        return [f"Several devices do not pay: {rule}."]
    if last.question.devices == answered[-1].question.devices:
        return [f"All devices pay, up to {last.question.geometry}."]
    return [f"More devices than {last.question.geometry} do not pay: {rule}."]
