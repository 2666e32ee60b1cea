"""Datasets as torch sees them: uint8 images or tokens, and labels, by global sample id."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from ddlbench.datasets.decoding import decode, decode_bytes
from ddlbench.datasets.files import (
    MANIFEST_NAME,
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
from ddlbench.experiment.dataset_spec import DataRequest, DatasetSpec

_LARGE_IMAGE_BYTES = 16 << 10


def open_split(path: Path, request: DataRequest, split: str) -> ImageDataset:
    """Opens split "train" or "val" of staged data (at ``Staged.path``), or of the user's own.

    Of the user's own data at a scale under 1, evenly spaced samples are kept.

    Raises:
        DataError: the data is missing, damaged, or not that of ``request``.
    """
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, not {split!r}")
    if request.is_synthetic or (path / MANIFEST_NAME).exists():
        problem = Manifest.read(path).mismatch(request)
        if problem:
            raise DataError(f"{path} holds other data: {problem}; stage it first")
    data = format_of(request).read(path, request.spec, split)
    keep = None
    if not request.is_synthetic and request.scale < 1:
        total = len(data)
        kept = max(1, round(total * request.scale))
        is_stream = isinstance(data, TokenSplit)
        keep = np.arange(kept) * total // kept if is_stream else spread(total, kept)
    if isinstance(data, TokenSplit):
        return TokenSequences(data, (path, request, split), keep)
    if isinstance(data, FileSplit):
        if keep is not None:
            data = replace(data, names=data.names[keep], labels=data.labels[keep])
        return FolderImages(data, request)
    if isinstance(data, EncodedSplit):
        return EncodedImages(data, (path, request, split), keep)
    return ArrayImages(data, (path, request, split), keep)


def make_feed(
    path: Path, request: DataRequest, split: str = "train", **settings: Any
) -> BatchLoader:
    """A started loader of ``split`` with these ``settings`` of a BatchLoader."""
    loader = BatchLoader(open_split(path, request, split), **settings)
    loader.start()
    return loader


class _Images(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, labels: np.ndarray, spec: DatasetSpec) -> None:
        self._labels = labels
        self.spec = spec
        self.shape: tuple[int, ...] = spec.shape
        self.num_classes = spec.num_classes
        self.dtype = torch.uint8

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, sample_id: int) -> tuple[torch.Tensor, int]:
        if not 0 <= sample_id < len(self):
            raise IndexError(f"sample id {sample_id} is not in 0..{len(self) - 1}")
        images, labels = self.gather(np.array([sample_id]))
        return images[0], int(labels[0])

    def gather(
        self, sample_ids: np.ndarray, *, pin_memory: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        shape = (len(sample_ids), *self.shape)
        images = torch.empty(shape, dtype=torch.uint8, pin_memory=pin_memory)
        self._read(sample_ids, images.numpy())
        return images, self.labels(sample_ids)

    def labels(self, sample_ids: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(self._labels[sample_ids])

    def _read(self, sample_ids: np.ndarray, out: np.ndarray) -> None:
        raise NotImplementedError


class ArrayImages(_Images):
    """Images in memory or mapped into it.

    Args:
        data: the arrays.
        origin: the arguments of :func:`open_split`; a loader's worker opens the files by them
            instead of receiving their contents.
        keep: ids in ``data`` of the samples to keep; None for all.
    """

    def __init__(
        self, data: ArraySplit, origin: tuple[Path, DataRequest, str], keep: np.ndarray | None
    ) -> None:
        super().__init__(data.labels if keep is None else data.labels[keep], origin[1].spec)
        self._shards = data.shards
        self._starts = np.cumsum([0, *map(len, data.shards)])[:-1]
        self._keep = keep
        self._origin = origin

    def __reduce__(self) -> tuple[object, ...]:
        return open_split, self._origin

    def _read(self, sample_ids: np.ndarray, out: np.ndarray) -> None:
        places = sample_ids if self._keep is None else self._keep[sample_ids]
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


class FolderImages(_Images):
    """Images that are decoded from their files at every access."""

    def __init__(self, data: FileSplit, request: DataRequest) -> None:
        super().__init__(data.labels, request.spec)
        self._data = data

    def _read(self, sample_ids: np.ndarray, out: np.ndarray) -> None:
        for target, sample_id in zip(out, sample_ids, strict=True):
            target[...] = decode(self._data.path(int(sample_id)), self.spec)


class EncodedImages(_Images):
    """Images in files of another library, decoded at every access; arguments as of ArrayImages."""

    def __init__(
        self, data: EncodedSplit, origin: tuple[Path, DataRequest, str], keep: np.ndarray | None
    ) -> None:
        super().__init__(data.labels if keep is None else data.labels[keep], origin[1].spec)
        self._data, self._origin = data, origin
        self._keep = keep

    def __reduce__(self) -> tuple[object, ...]:
        return open_split, self._origin

    def _read(self, sample_ids: np.ndarray, out: np.ndarray) -> None:
        places = sample_ids if self._keep is None else self._keep[sample_ids]
        for target, place in zip(out, places.tolist(), strict=True):
            target[...] = decode_bytes(*self._data.encoded(place), self.spec)


class TokenSequences(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Sequences of tokens, and the token after each position; arguments as of ArrayImages."""

    def __init__(
        self, data: TokenSplit, origin: tuple[Path, DataRequest, str], keep: np.ndarray | None
    ) -> None:
        self._data, self._origin = data, origin
        self._places = np.arange(len(data)) if keep is None else keep
        self.shape: tuple[int, ...] = (data.length,)
        self.num_classes = origin[1].spec.num_classes
        self.dtype = torch.int64

    def __reduce__(self) -> tuple[object, ...]:
        return open_split, self._origin

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, sample_id: int) -> tuple[torch.Tensor, torch.Tensor]:
        if not 0 <= sample_id < len(self):
            raise IndexError(f"sample id {sample_id} is not in 0..{len(self) - 1}")
        tokens, labels = self.gather(np.array([sample_id]))
        return tokens[0], labels[0]

    def gather(
        self, sample_ids: np.ndarray, *, pin_memory: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        whole = self._read(sample_ids)
        inputs, labels = whole[:, :-1].contiguous(), whole[:, 1:].contiguous()
        return (inputs.pin_memory(), labels) if pin_memory else (inputs, labels)

    def labels(self, sample_ids: np.ndarray) -> torch.Tensor:
        return self._read(sample_ids)[:, 1:].contiguous()

    def _read(self, sample_ids: np.ndarray) -> torch.Tensor:
        """Each sequence and the token after it: int64 (n, T + 1)."""
        begin = self._places[sample_ids] * self._data.length
        places = begin[:, None] + np.arange(self._data.length + 1)
        return torch.from_numpy(self._data.tokens[places].astype(np.int64))
