"""A small network whose steps take a few milliseconds: long enough to be hit by a kill."""

from __future__ import annotations

import time

from torch import nn

STEP_S = 0.004


class Slow(nn.Module):
    def forward(self, inputs):
        time.sleep(STEP_S)
        return inputs


def slow(spec) -> nn.Sequential:
    """Weights, statistics, random numbers: all that a checkpoint has to keep."""
    return nn.Sequential(
        Slow(),
        nn.Flatten(),
        nn.Linear(spec.image_bytes, 8),
        nn.BatchNorm1d(8),
        nn.Dropout(0.2),
        nn.Linear(8, 10),
    )
