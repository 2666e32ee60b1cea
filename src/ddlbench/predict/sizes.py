"""Several geometries in one question: what more devices bring, at the same batch.

::

    geometry   best of its ranking   speed-up S(n)    efficiency S(n) / n     device-hours an epoch
    1x2        DDP                   1.9              0.95                    n T steps
    1x4        DDP                   3.6              0.90
    2x4        1F1B                  4.4              0.55    a further device adds 0.2 of a device

From one size to the next, each further device adds ``(S(n') - S(n)) / (n' - n)`` of a device. More
devices pay as long as that is at least half of a device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.units import HOURS
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


def gains(sizes: Sequence[Size]) -> list[float | None]:
    """What each further device adds, in devices, since the next smaller size; None if unknown.

    Args:
        sizes: by their devices, the fewest first; the first is compared with one device.
    """
    found: list[float | None] = []
    before_devices, before = 1, 1.0
    for size in sizes:
        devices, speedup = size.question.devices, size.speedup
        if speedup is None or devices == before_devices:
            found.append(None)
            continue
        found.append((speedup - before) / (devices - before_devices))
        before_devices, before = devices, speedup
    return found


def enough(sizes: Sequence[Size]) -> Size | None:
    """The size after which more devices do not pay; None if the largest still pays.

    Args:
        sizes: by their devices, the fewest first.
    """
    last: Size | None = None
    for size, gain in zip(sizes, gains(sizes), strict=True):
        if gain is not None and gain < PAYS:
            return last or size
        last = size
    return None


def sizes_dict(sizes: Sequence[Size]) -> dict[str, Any]:
    """The answer as JSON values."""
    last = enough(sizes)
    return {
        "geometries": [size.to_dict() for size in sizes],
        "advice": sizes_advice(sizes),
        "enough": last.question.geometry if last else None,
    }


def sizes_advice(sizes: Sequence[Size]) -> list[str]:
    """What the sizes come to, in sentences."""
    answered = [size for size in sizes if size.speedup is not None]
    if not answered:
        return ["Nothing was compared: no geometry has a strategy that can be timed."]
    last, found = enough(sizes), gains(sizes)
    rule = f"each further device adds less than {PAYS:g} of a device"
    if last is None:
        largest = answered[-1].question.geometry
        return [
            f"All devices pay, up to {largest}: each further one adds {PAYS:g} of a device or more."
        ]
    if found[0] is not None and found[0] < PAYS and last is sizes[0]:
        return [f"Several devices do not pay: with {last.question.geometry} {rule}."]
    following = sizes[sizes.index(last) + 1].question.geometry
    return [f"More devices than {last.question.geometry} do not pay: with {following} {rule}."]
