"""What a cell sets for all of torch, before anything is computed."""

from __future__ import annotations

import os

import torch

from ddlbench.experiment.cell import Cell

__all__ = ["apply_settings"]

_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


def apply_settings(cell: Cell) -> None:
    """Threads, cuDNN's search, and whether kernels must repeat their bits.

    A layer that has no deterministic kernel warns and runs. cuBLAS reads its variable when a GPU is
    first used, so this comes before.
    """
    torch.set_num_threads(cell.threads_per_device)
    torch.backends.cudnn.benchmark = cell.cudnn_benchmark and not cell.deterministic
    if cell.deterministic:
        os.environ.setdefault(_CUBLAS, ":4096:8")
        torch.backends.cudnn.deterministic = True
        torch.use_deterministic_algorithms(True, warn_only=True)
