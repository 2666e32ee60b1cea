"""What reading one split of a dataset gives, whatever the format; no torch needed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

__all__ = ["ArraySplit", "FileSplit"]


@dataclass(frozen=True)
class ArraySplit:
    """Images that are in memory, or mapped into it.

    Args:
        shards: uint8 arrays of shape (n_k, C, H, W); a sample's id counts through them.
        labels: int64 of shape (N,).

    """

    shards: list[np.ndarray]
    labels: np.ndarray


@dataclass(frozen=True)
class FileSplit:
    """Images that are files, one folder a class.

    Names are one bytes array, not a list of strings: loader workers then share its memory.

    Args:
        folder: of the split.
        classes: names of the class folders, sorted.
        names: file name of every sample, bytes of shape (N,); a sample's id is its place in the
            order of class folder, then name - torchvision's order.
        labels: int64 of shape (N,).

    """

    folder: Path
    classes: list[str]
    names: np.ndarray
    labels: np.ndarray

    def path(self, sample_id: int) -> Path:
        """File of a sample."""
        name = os.fsdecode(bytes(self.names[sample_id]))
        return self.folder / self.classes[int(self.labels[sample_id])] / name
