"""Files with checksums, the form in which a split is read, and the errors of datasets.

A checksum is computed while a file is written, and again to check it. A *record* describes what
must be at a path: size and CRC-32 of a file; of a folder of many small files, their number, total
size and the CRC-32 of all paths and contents in sorted order.
"""

from __future__ import annotations

import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
from typing_extensions import TypedDict


class DataError(RuntimeError):
    """Files of a dataset are missing, damaged, or of another dataset."""


class StagingError(DataError):
    """The data cannot be written to the scratch folder (no space, no permission, ...)."""


_CHUNK_BYTES = 4 << 20

T = TypeVar("T")
BytesLike = Any  # bytes or a C-contiguous array: whatever memoryview takes


class Record(TypedDict):
    """Description of a file, or of a folder of files; ``files`` is 0 for a file."""

    files: int
    size_bytes: int
    crc32: int


Records = dict[str, Record]


class CheckedFile:
    """A new file that counts its bytes and checksum, and is synced to disk at the end.

    Raises:
        OSError: as the system reports it; a write is never partial.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        self._size = 0
        self._crc = 0

    def __enter__(self) -> CheckedFile:
        return self

    def write(self, data: BytesLike) -> None:
        view = memoryview(data).cast("B")
        self._crc = zlib.crc32(view, self._crc)
        self._size += len(view)
        while view:
            view = view[os.write(self._fd, view) :]

    @property
    def record(self) -> Record:
        return {"files": 0, "size_bytes": self._size, "crc32": self._crc}

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                # Now, so that the kernel does not write it back during a measurement.
                os.fdatasync(self._fd)
        finally:
            os.close(self._fd)


def folder_crc(crc: int, name: str, content: BytesLike) -> int:
    """Checksum of a folder after its next file, in sorted order."""
    return zlib.crc32(content, zlib.crc32(os.fsencode(name), crc))


def record_of(path: Path, *, contents: bool) -> Record:
    """Describes the file, or the folder of files, at ``path``; ``crc32`` is 0 without ``contents``.

    Raises:
        OSError: nothing is there, or it cannot be read.
    """
    size = crc = 0
    if not path.is_dir():
        if contents:
            with path.open("rb", buffering=0) as file:
                while chunk := file.read(_CHUNK_BYTES):
                    crc = zlib.crc32(chunk, crc)
        return {"files": 0, "size_bytes": path.stat().st_size, "crc32": crc}
    entries = sorted(_files_below(path, ""))
    for name, size_bytes in entries:
        size += size_bytes
        if contents:
            crc = folder_crc(crc, name, (path / name).read_bytes())
    return {"files": len(entries), "size_bytes": size, "crc32": crc}


def _files_below(folder: Path, within: str) -> Iterator[tuple[str, int]]:
    """Path from the folder and size in bytes of each file in it and in its folders."""
    with os.scandir(folder) as scanned:
        for entry in scanned:
            if entry.is_file():
                yield f"{within}{entry.name}", entry.stat().st_size
            elif entry.is_dir(follow_symlinks=False):
                yield from _files_below(Path(entry.path), f"{within}{entry.name}/")


def check_record(path: Path, expected: Record) -> str | None:
    """How sizes or checksums of ``path`` differ from ``expected``; None if they do not."""
    try:
        present = record_of(path, contents=True)
    except FileNotFoundError:
        return f"{path} is missing"
    except OSError as error:
        return f"{path} cannot be read ({error.strerror})"
    if present["files"] != expected["files"]:
        return f"{path} holds {present['files']} files instead of {expected['files']}"
    if present["size_bytes"] != expected["size_bytes"]:
        return f"{path} has {present['size_bytes']} bytes instead of {expected['size_bytes']}"
    if present["crc32"] != expected["crc32"]:
        return f"{path} has other contents than were written"
    return None


def available_cpus() -> int:
    """CPUs that this process may use (a job's share, not the node's)."""
    return len(os.sched_getaffinity(0))


def in_parallel(jobs: Sequence[Callable[[], T]], workers: int) -> Iterable[T]:
    """Results of ``jobs``, in their order, run by ``workers`` threads.

    Threads suffice because the jobs run code without the interpreter's lock (numpy, zlib, the
    system). The first failure is raised, and jobs that have not begun are dropped.
    """
    if workers <= 1:
        yield from (job() for job in jobs)
        return
    with ThreadPoolExecutor(workers) as pool:
        running = [pool.submit(job) for job in jobs]
        try:
            for future in running:
                yield future.result()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


@dataclass(frozen=True)
class ArraySplit:
    """Images in memory, or mapped into it.

    Args:
        shards: uint8 arrays of shape (n_k, C, H, W); a sample's id counts through them.
        labels: int64 of shape (N,).
    """

    shards: list[np.ndarray]
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class FileSplit:
    """Images in files, one folder a class.

    Args:
        folder: of the split.
        classes: names of the training split's class folders, sorted; a label is a place in them.
        names: path of every sample from its class folder, bytes of shape (N,), an array so that
            loader workers share its memory; ids are in torchvision's order: by class folder, then
            by name.
        labels: int64 of shape (N,).
        left_out: how many further files have each ending.
        not_classes: names of folders beside the class folders that are none.
    """

    folder: Path
    classes: list[str]
    names: np.ndarray
    labels: np.ndarray
    left_out: Counter[str] = field(default_factory=Counter)
    not_classes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def path(self, sample_id: int) -> Path:
        name = os.fsdecode(bytes(self.names[sample_id]))
        return self.folder / self.classes[int(self.labels[sample_id])] / name


@dataclass(frozen=True)
class TokenSplit:
    """A stream of tokens, in memory or mapped into it.

    Args:
        tokens: whole numbers of shape (M,): uint16 or uint32 of files of tokens; those of tables
            keep their type, and may be read through a
            :class:`~ddlbench.datasets.columns.Stream`.
        length: tokens of a sequence, T; sequence ``i`` begins at ``i * T``.
    """

    tokens: np.ndarray
    length: int

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.length  # the last label is a token, too


@dataclass(frozen=True)
class EncodedSplit:
    """Encoded images in files of another library, such as tables or archives.

    Args:
        classes: names of the classes, in the order of their labels.
        labels: int64 of shape (N,).
        encoded: the place of a sample, for messages, and its JPEG, PNG ... file.
    """

    classes: list[str]
    labels: np.ndarray
    encoded: Callable[[int], tuple[str, bytes]]

    def __len__(self) -> int:
        return len(self.labels)


Split = ArraySplit | FileSplit | TokenSplit | EncodedSplit

HELD_OUT = 10
"""Where own data has no validation split, a sample of so many is held out for it."""


_GOLDEN = 2654435769  # 2**32 over the golden ratio: its multiples are spread evenly (Knuth, 6.4)


def spread(count: int, kept: int) -> np.ndarray:
    """Ids of ``kept`` of ``count`` samples, spread evenly over them; int64, rising.

    They follow no period, so labels that come in turns have a share each, as have sorted ones.
    """
    places = (np.arange(count, dtype=np.uint64) * np.uint64(_GOLDEN)) % np.uint64(1 << 32)
    return np.sort(np.argsort(places, kind="stable")[:kept])


def of_split(count: int, split: str) -> np.ndarray:
    """Ids of the samples of a split, where own data has no validation split; int64, rising."""
    held_out = spread(count, count // HELD_OUT)
    if split == "val":
        return held_out
    return np.setdiff1d(np.arange(count), held_out, assume_unique=True)
