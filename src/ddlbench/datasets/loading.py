"""Datasets as torch sees them: uint8 images and labels by global sample id."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset

from ddlbench.datasets.files import ArraySplit, DataError, FileSplit
from ddlbench.datasets.formats import SPLITS, format_of
from ddlbench.datasets.imagefolder import decode
from ddlbench.datasets.loader import Batch, BatchLoader, ImageDataset
from ddlbench.datasets.manifest import MANIFEST_NAME, Manifest
from ddlbench.experiment.dataset_spec import DataRequest

__all__ = [
    "ArrayImages",
    "Batch",
    "BatchLoader",
    "FolderImages",
    "ImageDataset",
    "make_feed",
    "open_split",
]

_LARGE_IMAGE_BYTES = 16 << 10


def open_split(path: Path, request: DataRequest, split: str) -> ImageDataset:
    """Open one split of staged data, or of the user's own.

    Of the user's own data at a scale under 1, every so-many-th sample is kept.

    Args:
        path: ``Staged.path``.
        request: what was staged.
        split: "train" or "val".

    Raises:
        DataError: the data is missing, damaged, or not that of ``request``.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, not {split!r}")
    if request.is_synthetic or (path / MANIFEST_NAME).exists():
        problem = Manifest.read(path).mismatch(request)
        if problem:
            raise DataError(f"{path} is other data than asked for: {problem}; stage it first")
    data = format_of(request).read(path, request.spec, split)
    keep = None
    if not request.is_synthetic and request.scale < 1:
        total = len(data.labels)
        kept = max(1, round(total * request.scale))
        keep = np.arange(kept) * total // kept
    if isinstance(data, FileSplit):
        if keep is not None:
            data = FileSplit(data.folder, data.classes, data.names[keep], data.labels[keep])
        return FolderImages(data, request)
    return ArrayImages(data, (path, request, split), keep)


def make_feed(
    path: Path,
    request: DataRequest,
    split: str = "train",
    *,
    global_batch: int,
    shard: int = 0,
    num_shards: int = 1,
    seed: int = 0,
    loader_workers: int = 0,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> BatchLoader:
    """Open ``split`` and feed it; see :class:`~ddlbench.datasets.loader.BatchLoader`.

    The loader's workers are started and have read a sample each when this returns.
    """
    feed = BatchLoader(
        open_split(path, request, split),
        global_batch=global_batch,
        shard=shard,
        num_shards=num_shards,
        seed=seed,
        loader_workers=loader_workers,
        device=device,
        dtype=dtype,
    )
    feed.start()
    return feed


class ArrayImages(Dataset[tuple[torch.Tensor, int]]):
    """Images in memory or mapped into it.

    Args:
        data: the arrays.
        origin: arguments of :func:`open_split` that gave them; a loader's worker opens the files
            itself instead of being sent their contents.
        keep: ids in ``data`` of the samples this has; None for all.
    """

    def __init__(
        self, data: ArraySplit, origin: tuple[Path, DataRequest, str], keep: np.ndarray | None
    ) -> None:
        self._shards = data.shards
        self._starts = np.cumsum([0, *map(len, data.shards)])[:-1]
        self._keep = keep
        self._labels = data.labels if keep is None else data.labels[keep]
        self._origin = origin
        self.shape: tuple[int, ...] = origin[1].spec.shape
        self.num_classes = origin[1].spec.num_classes

    def __len__(self) -> int:
        return len(self._labels)

    def __reduce__(self) -> tuple[object, ...]:
        return open_split, self._origin

    def __getitem__(self, sample_id: int) -> tuple[torch.Tensor, int]:
        images, labels = self.gather(np.array([_in_range(sample_id, len(self))]))
        return images[0], int(labels[0])

    def gather(
        self, sample_ids: np.ndarray, *, pin_memory: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Images, uint8 (n, C, H, W), and labels, int64 (n,), of ``sample_ids``, int64 (n,)."""
        labels = self.labels(sample_ids)
        places = sample_ids if self._keep is None else self._keep[sample_ids]
        shape = (len(places), *self.shape)
        images = torch.empty(shape, dtype=torch.uint8, pin_memory=pin_memory)
        self._copy(places, images.numpy())
        return images, labels

    def labels(self, sample_ids: np.ndarray) -> torch.Tensor:
        """Labels alone, int64 (n,)."""
        return torch.from_numpy(self._labels[sample_ids])

    def _copy(self, places: np.ndarray, out: np.ndarray) -> None:
        shards = self._shards
        if len(shards) == 1:
            # "clip" writes to out directly; "raise", the default, goes through a copy.
            np.take(shards[0], places, axis=0, out=out, mode="clip")
            return
        which = np.searchsorted(self._starts, places, side="right") - 1
        within = places - self._starts[which]
        if out[0].nbytes >= _LARGE_IMAGE_BYTES or len(places) <= 8 * len(shards):
            for image, shard, place in zip(out, which.tolist(), within.tolist(), strict=True):
                image[...] = shards[shard][place]
            return
        for shard in np.unique(which):
            mine = which == shard
            out[mine] = shards[shard][within[mine]]


class FolderImages(Dataset[tuple[torch.Tensor, int]]):
    """Images that are decoded from files each time they are asked for."""

    def __init__(self, data: FileSplit, request: DataRequest) -> None:
        self._data = data
        self._spec = request.spec
        self.shape: tuple[int, ...] = request.spec.shape
        self.num_classes = request.spec.num_classes

    def __len__(self) -> int:
        return len(self._data.labels)

    def __getitem__(self, sample_id: int) -> tuple[torch.Tensor, int]:
        images, labels = self.gather(np.array([_in_range(sample_id, len(self))]))
        return images[0], int(labels[0])

    def gather(
        self, sample_ids: Sequence[int] | np.ndarray, *, pin_memory: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Images, uint8 (n, C, H, W), and labels, int64 (n,), of ``sample_ids``, int64 (n,)."""
        shape = (len(sample_ids), *self.shape)
        images = torch.empty(shape, dtype=torch.uint8, pin_memory=pin_memory)
        for target, sample_id in zip(images.numpy(), sample_ids, strict=True):
            target[...] = decode(self._data.path(int(sample_id)), self._spec)
        return images, self.labels(np.asarray(sample_ids))

    def labels(self, sample_ids: np.ndarray) -> torch.Tensor:
        """Labels alone, int64 (n,); no file is read."""
        return torch.from_numpy(self._data.labels[sample_ids])


def _in_range(sample_id: int, length: int) -> int:
    if not 0 <= sample_id < length:
        raise IndexError(f"sample id {sample_id} is not in 0..{length - 1}")
    return sample_id
