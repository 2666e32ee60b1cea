"""Several geometries in one question: what more devices bring, at the same batch.

::

    geometry   best of its ranking   speed-up S(n)    efficiency S(n) / n     device-hours an epoch
    1x2        DDP                   1.9              0.95                    n T steps
    1x4        DDP                   3.6              0.90
    2x4        1F1B                  4.4              0.55    a further device adds 0.2 of a device

From one size to another, each further device adds ``(S(n') - S(n)) / (n' - n)`` of a device. More
devices pay if that is at least half of a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ddlbench.common.units import HOURS
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.predict.advice import Advice, answer_dict
from ddlbench.predict.candidate import Candidate
from ddlbench.predict.question import Question
from ddlbench.predict.ranking import Ranking

PAYS = 0.5
"""Least part of a device that a further device must add."""


@dataclass(frozen=True)
class Size:
    """The answer for one geometry.

    Args:
        question: with this geometry.
        ranking: of its candidates.
        advice: of the ranking.
    """

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
        """Of the recommended strategy over one device; None if unknown."""
        found = self.ranking.speedup(self.best) if self.best else None
        return found.ratio if found else None

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
        return steps * self.best.shown_s * self.devices

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

    Args:
        sizes: by their devices, the fewest first.
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
