"""Networks of a few numbers, some of which misbehave; experiments of these tests name them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from torch import Tensor, nn


class _Act(nn.Module):
    def __init__(self, act: Callable[[], None]) -> None:
        super().__init__()
        self.act = act

    def forward(self, inputs: Tensor) -> Tensor:
        self.act()
        return inputs


def _tiny(spec, act: Callable[[], None] = lambda: None) -> nn.Sequential:
    return nn.Sequential(
        _Act(act), nn.Flatten(), nn.Linear(spec.image_bytes, 8), nn.ReLU(), nn.Linear(8, 10)
    )


def _second_worker() -> bool:
    """Only data parallelism has one here: GPipe is one process, the baseline one worker."""
    return os.environ.get("DDLBENCH_LOCAL_RANK") == "1"


def other(spec) -> nn.Sequential:
    return _tiny(spec)


def buggy(spec) -> nn.Sequential:
    """Crashes the second worker, until somebody fixes the bug."""

    def act() -> None:
        if _second_worker() and not Path(os.environ["TINY_NETWORKS_FIXED"]).exists():
            raise ZeroDivisionError("a bug on the second worker")

    return _tiny(spec, act)


def too_large(spec) -> nn.Sequential:
    """Has no room on the second worker."""

    def act() -> None:
        if _second_worker():
            raise MemoryError("can't allocate memory: you tried to allocate 10 TB")

    return _tiny(spec, act)
