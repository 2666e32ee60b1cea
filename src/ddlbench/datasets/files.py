"""What all formats share: what reading a split gives, files with checksums, and what can be wrong.

A checksum is taken as a file is written, and taken again to check it. A *record* says what must be
found at a path: of a file its size and CRC-32, of a folder of many small files their number, total
size and the CRC-32 of all names and contents in sorted order. No torch is needed.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, TypedDict, TypeVar

import numpy as np


class DataError(RuntimeError):
    """Files of a dataset are missing, damaged, or not what was asked for."""


class StagingError(DataError):
    """The data could not be put on the scratch folder (no room, no right to write, ...)."""


_CHUNK_BYTES = 4 << 20

T = TypeVar("T")
BytesLike = Any  # bytes or a C-contiguous array: whatever memoryview takes


class Record(TypedDict):
    """What a file, or a folder of files, must be; ``files`` is 0 for a file."""

    files: int
    size_bytes: int
    crc32: int


Records = dict[str, Record]


class CheckedFile:
    """A new file; ``write`` counts bytes and checksum, leaving syncs it to the disk.

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
        """Append ``data`` (any C-contiguous buffer)."""
        view = memoryview(data).cast("B")
        self._crc = zlib.crc32(view, self._crc)
        self._size += len(view)
        while view:
            view = view[os.write(self._fd, view) :]

    @property
    def record(self) -> Record:
        """What was written so far."""
        return {"files": 0, "size_bytes": self._size, "crc32": self._crc}

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                # Now, so that the kernel does not write it back during somebody's measurement.
                os.fdatasync(self._fd)
        finally:
            os.close(self._fd)


def folder_crc(crc: int, name: str, content: BytesLike) -> int:
    """Checksum of a folder once its next file, in sorted order, is added to ``crc``."""
    return zlib.crc32(content, zlib.crc32(os.fsencode(name), crc))


def record_of(path: Path, *, contents: bool) -> Record:
    """Describe what is found at ``path``: a file, or a folder of files.

    Args:
        path: what to look at.
        contents: read everything for the checksum; otherwise ``crc32`` is 0.

    Raises:
        OSError: nothing is there, or it cannot be read.
    """
    if path.is_dir():
        return _folder_record(path, contents)
    size, crc = path.stat().st_size, 0
    if contents:
        with path.open("rb", buffering=0) as file:
            while chunk := file.read(_CHUNK_BYTES):
                crc = zlib.crc32(chunk, crc)
    return {"files": 0, "size_bytes": size, "crc32": crc}


def _folder_record(path: Path, contents: bool) -> Record:
    size = crc = 0
    with os.scandir(path) as found:
        entries = sorted((e for e in found if e.is_file()), key=lambda entry: entry.name)
    for entry in entries:
        size += entry.stat().st_size
        if contents:
            crc = folder_crc(crc, entry.name, Path(entry.path).read_bytes())
    return {"files": len(entries), "size_bytes": size, "crc32": crc}


def check_record(path: Path, expected: Record, *, contents: bool) -> str | None:
    """Tell what differs between ``path`` and ``expected`` (sizes; checksum too if ``contents``)."""
    try:
        found = record_of(path, contents=contents)
    except FileNotFoundError:
        return f"{path} is missing"
    except OSError as error:
        return f"{path} cannot be read ({error.strerror})"
    if found["files"] != expected["files"]:
        return f"{path} holds {found['files']} files instead of {expected['files']}"
    if found["size_bytes"] != expected["size_bytes"]:
        return f"{path} has {found['size_bytes']} bytes instead of {expected['size_bytes']}"
    if contents and found["crc32"] != expected["crc32"]:
        return f"{path} has other contents than were written"
    return None


def available_cpus() -> int:
    """CPUs this process may use (a job's share, not the node's)."""
    return len(os.sched_getaffinity(0))


def in_parallel(jobs: Sequence[Callable[[], T]], workers: int) -> Iterable[T]:
    """Results of ``jobs``, in their order, run by ``workers`` threads.

    The jobs spend their time in code that lets go of the interpreter's lock (numpy, zlib, the
    system). The first failure is raised, and jobs not yet begun are dropped.
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
