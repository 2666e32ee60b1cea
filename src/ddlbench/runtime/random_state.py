"""All random numbers that a rank draws: Python's, torch's, and those of its GPUs.

NumPy's global generator is nobody's here: data has generators of its own, keyed by seed and epoch.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import torch

__all__ = ["random_state", "set_random_state"]


def random_state(devices: Sequence[torch.device]) -> dict[str, Any]:
    """Where the generators are, as tensors and numbers."""
    version, words, gauss_next = random.getstate()
    return {
        "python": {
            "version": version,
            "words": torch.tensor(words, dtype=torch.int64),
            "gauss_next": gauss_next,
        },
        "torch": torch.get_rng_state(),
        "cuda": [torch.cuda.get_rng_state(device) for device in _gpus(devices)],
    }


def set_random_state(state: dict[str, Any], devices: Sequence[torch.device]) -> None:
    """Put the generators where they were; ``devices`` are the same, in the same order."""
    python = state["python"]
    words = tuple(python["words"].tolist())
    random.setstate((python["version"], words, python["gauss_next"]))
    torch.set_rng_state(state["torch"])
    for device, own in zip(_gpus(devices), state["cuda"], strict=True):
        torch.cuda.set_rng_state(own, device)


def _gpus(devices: Sequence[torch.device]) -> list[torch.device]:
    return list(dict.fromkeys(device for device in devices if device.type == "cuda"))
