"""Imports torchvision, also where its C++ operators cannot be loaded.

The torchvision wheel of the package index is built for CUDA; beside a CPU-only torch its library
``_C`` does not load. The import then fails when torchvision describes the missing operators
``nms`` and ``qnms``, which no network or dataset of this project calls. Declaring their schemas is
enough; calling one still fails.

Import torchvision's parts from here, at least once before any ``import torchvision``.
"""

from __future__ import annotations

import importlib

import torch

__all__ = ["datasets", "models", "ops", "transforms"]

_OPERATORS = ("nms", "qnms")

# A Library's declarations last only as long as the object.
_declared: torch.library.Library | None = None


def _import_torchvision() -> None:
    global _declared  # noqa: PLW0603
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        missing = [name for name in _OPERATORS if not hasattr(torch.ops.torchvision, name)]
        if not missing:
            raise
        # A fragment: torchvision's own definitions, if they ever load, are no second "DEF".
        _declared = torch.library.Library("torchvision", "FRAGMENT")
        for name in missing:
            _declared.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        importlib.import_module("torchvision")


_import_torchvision()

from torchvision import datasets, models, ops, transforms  # noqa: E402
