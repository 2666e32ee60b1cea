"""What networks read: the type of a dataset's samples, and made-up samples to try networks on."""

from __future__ import annotations

import torch
from torch import Tensor

from ddlbench.experiment.dataset_spec import DatasetSpec


def input_dtype(spec: DatasetSpec, floating: torch.dtype = torch.float32) -> torch.dtype:
    """Type of a batch of inputs: integers for tokens, ``floating`` for images and volumes."""
    return floating if spec.input_dtype == "float32" else torch.int64


def made_up_inputs(
    spec: DatasetSpec, samples: int, device: torch.device | str | None = None
) -> Tensor:
    """Random inputs: normal values (N, C, ...) for images and volumes, tokens (N, T) in int64.

    Args:
        spec: of the dataset.
        samples: N.
        device: of the inputs; None for torch's default.
    """
    shape = (samples, *spec.shape)
    if spec.input_dtype == "int64":
        return torch.randint(spec.num_classes, shape, device=device)
    return torch.randn(shape, device=device)
