"""Datasets as torch sees them: uint8 images or tokens, and labels, by global sample id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from ddlbench.datasets.decoding import decode
from ddlbench.datasets.files import (
    ArraySplit,
    DataError,
    EncodedSplit,
    FileSplit,
    Manifest,
    TokenSplit,
    spread,
)
from ddlbench.datasets.formats import SPLITS, format_of
from ddlbench.datasets.loader import BatchLoader, ImageDataset
from ddlbench.datasets.staging import hold
from ddlbench.experiment.dataset_spec import DataRequest
from ddlbench.experiment.paths import scratch_dir

_LARGE_IMAGE_BYTES = 16 << 10


def open_split(path: Path, request: DataRequest, split: str) -> ImageDataset:
    """Opens split "train" or "val" of staged data (at ``Staged.path``), or of the user's own.

    Of the user's own data at a scale under 1, evenly spaced samples are kept.

    Raises:
        DataError: the data is missing, damaged, or not that of ``request``.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, not {split!r}")
    if request.is_synthetic:
        problem = Manifest.read(path).mismatch(request)
        if problem:
            raise DataError(f"{path} holds other data: {problem}; stage it first")
    data = format_of(request).read(path, request.spec, split)
    total = len(data)
    keep = np.arange(total)
    if not request.is_synthetic and request.scale < 1:
        kept = max(1, round(total * request.scale))
        is_stream = isinstance(data, TokenSplit)
        keep = np.arange(kept) * total // kept if is_stream else spread(total, kept)
    origin = (path, request, split)
    if isinstance(data, TokenSplit):
        return TokenSequences(data, origin, keep)
    if isinstance(data, FileSplit | EncodedSplit):
        return EncodedImages(data, origin, keep)
    return ArrayImages(data, origin, keep)


def open_held(request: DataRequest, scratch: str, split: str) -> ImageDataset:
    """Opens a split of data staged on this node, which stay there while this process lives.

    ``scratch`` is the site's template of the folder.

    Raises:
        DataError, StagingError: as :func:`open_split` and :func:`~ddlbench.datasets.staging.hold`.
    """
    return open_split(hold(request, scratch_dir(scratch)), request, split)


def make_feed(
    path: Path, request: DataRequest, split: str = "train", **settings: Any
) -> BatchLoader:
    """A started loader of ``split`` with these ``settings`` of a BatchLoader."""
    loader = BatchLoader(open_split(path, request, split), **settings)
    loader.start()
    return loader


Origin = tuple[Path, DataRequest, str]


class _Samples(Dataset[tuple[torch.Tensor, int | torch.Tensor]]):
    """Samples of a split.

    Args:
        data: the split.
        origin: the arguments of :func:`open_split`; a loader's worker opens the files by them
            instead of receiving their contents.
        keep: ids in ``data`` of the samples to keep.
    """

    dtype = torch.uint8

    def __init__(self, data: Any, origin: Origin, keep: np.ndarray) -> None:
        self._data, self._origin, self._keep = data, origin, keep
        self.spec = origin[1].spec
        self.shape: tuple[int, ...] = self.spec.shape
        self.num_classes = self.spec.num_classes

    def __reduce__(self) -> tuple[Any, ...]:
        return open_split, self._origin

    def __len__(self) -> int:
        return len(self._keep)

    def __getitem__(self, sample_id: int) -> tuple[torch.Tensor, int | torch.Tensor]:
        if not 0 <= sample_id < len(self):
            raise IndexError(f"sample id {sample_id} is not in 0..{len(self) - 1}")
        samples, labels = self.gather(np.array([sample_id]))
        return samples[0], labels[0] if labels.dim() > 1 else int(labels[0])

    def gather(
        self, sample_ids: np.ndarray, *, pin_memory: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Images, uint8 (n, C, H, W), and labels, int64 (n,)."""
        shape = (len(sample_ids), *self.shape)
        images = torch.empty(shape, dtype=torch.uint8, pin_memory=pin_memory)
        self._read(self._keep[sample_ids], images.numpy())
        return images, self.labels(sample_ids)

    def labels(self, sample_ids: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(self._data.labels[self._keep[sample_ids]])

    def _read(self, places: np.ndarray, out: np.ndarray) -> None:
        raise NotImplementedError


class ArrayImages(_Samples):
    """Images in memory or mapped into it."""

    _data: ArraySplit

    def __init__(self, data: ArraySplit, origin: Origin, keep: np.ndarray) -> None:
        super().__init__(data, origin, keep)
        self._starts = np.cumsum([0, *map(len, data.shards)])[:-1]

    def _read(self, places: np.ndarray, out: np.ndarray) -> None:
        shards = self._data.shards
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


class EncodedImages(_Samples):
    """Images in files of their own, in tables or in archives, decoded at every access."""

    _data: FileSplit | EncodedSplit

    def __reduce__(self) -> tuple[Any, ...]:
        if isinstance(self._data, FileSplit):  # its names are there; listing folders takes long
            return EncodedImages, (self._data, self._origin, self._keep)
        return super().__reduce__()

    def _read(self, places: np.ndarray, out: np.ndarray) -> None:
        for target, place in zip(out, places.tolist(), strict=True):
            target[...] = decode(*self._data.encoded(place), self.spec)


class TokenSequences(_Samples):
    """Sequences of tokens, and the token after each position: both int64 (n, T)."""

    _data: TokenSplit
    dtype = torch.int64

    def gather(
        self, sample_ids: np.ndarray, *, pin_memory: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        whole = self._whole(sample_ids)
        inputs, labels = whole[:, :-1].contiguous(), whole[:, 1:].contiguous()
        return (inputs.pin_memory(), labels) if pin_memory else (inputs, labels)

    def labels(self, sample_ids: np.ndarray) -> torch.Tensor:
        return self._whole(sample_ids)[:, 1:].contiguous()

    def _whole(self, sample_ids: np.ndarray) -> torch.Tensor:
        """Each sequence and the token after it: int64 (n, T + 1)."""
        begin = self._keep[sample_ids] * self._data.length
        places = begin[:, None] + np.arange(self._data.length + 1)
        return torch.from_numpy(self._data.tokens[places].astype(np.int64))
