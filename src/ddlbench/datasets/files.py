"""Files of datasets: checksums, the manifest, and the forms in which a split is read.

A checksum is computed while a file is written, and again to check it. A *record* describes what
must be at a path: size and CRC-32 of a file; of a folder of many small files, their number, total
size and the CRC-32 of all paths and contents in sorted order. ``manifest.json`` of a dataset says
what was made, and holds the records.

A file beside a dataset remembers that its files had the right checksums, until one changes or the
node boots::

    mnist-idx-x1-s0-v1/            the data
    mnist-idx-x1-s0-v1.verified    boot, and digest of names, sizes, times and inodes of its files

Whoever writes to a file changes its times, so its bytes are read again. What changes beside the
file system, as on a failing disk, is found after the next boot.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
from typing_extensions import TypedDict

from ddlbench.common.document import read_object, write_json, write_text
from ddlbench.common.errors import ConfigError
from ddlbench.common.form import Form
from ddlbench.common.owner import boot_id
from ddlbench.common.quantities import counted
from ddlbench.datasets.synthetic import CONTENT_VERSION
from ddlbench.experiment.dataset_spec import DataRequest
from ddlbench.experiment.paths import data_path


class DataError(RuntimeError):
    """Files of a dataset are missing, damaged, or of another dataset."""


class StagingError(DataError):
    """The data cannot be written to the scratch folder (no space, no permission, ...)."""


@contextmanager
def reading(path: Path | None = None) -> Iterator[None]:
    """Turn what the system says of a file that cannot be read into a DataError."""
    try:
        yield
    except OSError as error:
        where = error.filename or path
        raise DataError(f"{where} cannot be read ({error.strerror})") from error


_CHUNK_BYTES = 4 << 20
_PIECE_BYTES = 4096

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


def write_checked(root: Path, name: str, data: BytesLike) -> tuple[str, Record]:
    """Writes a whole new file below ``root``; returns its name and its record."""
    with CheckedFile(root / name) as file:
        file.write(data)
    return name, file.record


def folder_crc(crc: int, name: str, content: BytesLike) -> int:
    """Checksum of a folder after its next file, in sorted order."""
    return zlib.crc32(content, zlib.crc32(os.fsencode(name), crc))


def record_of(path: Path) -> Record:
    """Describes the file, or the folder of files, at ``path``; reads all of it.

    Raises:
        OSError: nothing is there, or it cannot be read.
    """
    size = crc = 0
    if not path.is_dir():
        with path.open("rb", buffering=0) as file:
            while chunk := file.read(_CHUNK_BYTES):
                crc = zlib.crc32(chunk, crc)
        return {"files": 0, "size_bytes": path.stat().st_size, "crc32": crc}
    files = sorted((name, state.st_size) for name, state in _files_below(path))
    for name, size_bytes in files:
        size += size_bytes
        crc = folder_crc(crc, name, (path / name).read_bytes())
    return {"files": len(files), "size_bytes": size, "crc32": crc}


def crc_of_pieces(path: Path, end_bytes: int, pieces: int = 0) -> int:
    """CRC-32 of a file's size, beginning and end, and of evenly spaced pieces between them."""
    with path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        crc = zlib.crc32(file.read(end_bytes), zlib.crc32(size.to_bytes(8, "little")))
        between = range(end_bytes, size - end_bytes, max(1, size // (pieces + 1)))
        for place in between[1:] if pieces else ():
            crc = zlib.crc32(os.pread(file.fileno(), _PIECE_BYTES, place), crc)
        return zlib.crc32(os.pread(file.fileno(), end_bytes, max(0, size - end_bytes)), crc)


def _files_below(folder: Path | str, within: str = "") -> Iterator[tuple[str, os.stat_result]]:
    """Path from the folder and state of each file, by name; links to folders are not followed."""
    with os.scandir(folder) as scanned:
        entries = sorted(scanned, key=lambda entry: entry.name)
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _files_below(entry.path, f"{within}{entry.name}/")
        elif entry.is_file():
            yield f"{within}{entry.name}", entry.stat()


def _check_record(path: Path, expected: Record) -> str | None:
    """How sizes or checksums of ``path`` differ from ``expected``; None if they do not."""
    try:
        present = record_of(path)
    except FileNotFoundError:
        return f"{path} is missing"
    except OSError as error:
        return f"{path} cannot be read ({error.strerror})"
    if present["files"] != expected["files"]:
        return f"{path} holds {counted(present['files'], 'file')} instead of {expected['files']}"
    if present["size_bytes"] != expected["size_bytes"]:
        size = counted(present["size_bytes"], "byte")
        return f"{path} has {size} instead of {expected['size_bytes']}"
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
        yield from pool.map(lambda job: job(), jobs)


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
    """Images in files, one folder per class.

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

    def encoded(self, sample_id: int) -> tuple[str, Path | bytes]:
        """As of :class:`EncodedSplit`, but the file's path in place of its bytes."""
        path = self.path(sample_id)
        return str(path), path


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
        return max(0, len(self.tokens) - 1) // self.length  # the last label is a token, too

    def part(self, split: str) -> TokenSplit:
        """A split of tokens that have none for validation: the last tenth is held out for it."""
        end = (len(self) - len(self) // HELD_OUT) * self.length
        return replace(self, tokens=self.tokens[end:] if split == "val" else self.tokens[: end + 1])


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
    encoded: Callable[[int], tuple[str, Path | bytes]]

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


MANIFEST_NAME = "manifest.json"
SCHEMA_VERSION = 1


def _request_facts(request: DataRequest) -> dict[str, Any]:
    """Fields of a manifest that ``request`` decides."""
    return {
        "dataset": request.dataset,
        "format": request.format,
        "scale": request.scale,
        "seed": request.seed,
        "source": request.source,
        "content_version": CONTENT_VERSION,
    }


def source_folder(request: DataRequest) -> Path:
    """Absolute path of the user's own data.

    Raises:
        DataError: it has a variable that is not set here.
    """
    try:
        return data_path(request.source, f"real_data.{request.dataset}")
    except ConfigError as error:
        raise DataError(str(error)) from error


@dataclass(frozen=True)
class Manifest(Form):
    """Description of a folder of synthetic data.

    Args:
        schema_version: of this file.
        dataset, format, scale, seed, source: of the request.
        content_version: of the generator.
        images: images of each split.
        total_bytes: sum over all files, the manifest itself excluded.
        files: path relative to the folder -> record; JPEG files have one record per class folder.
        created: when, ISO 8601 with time zone.
        generation_s: how long it took, in seconds.
    """

    schema_version: int
    dataset: str
    format: str
    scale: float
    seed: int
    source: str
    content_version: int
    images: dict[str, int]
    total_bytes: int
    files: Records
    created: str
    generation_s: float

    @property
    def digest(self) -> str:
        """64 hex digits that identify the contents, whenever and wherever they were made."""
        facts = asdict(self)
        for circumstance in ("created", "generation_s"):
            del facts[circumstance]
        return hashlib.blake2b(
            json.dumps(facts, sort_keys=True).encode(), digest_size=32
        ).hexdigest()

    @classmethod
    def of(
        cls,
        request: DataRequest,
        files: Records,
        *,
        images: dict[str, int],
        generation_s: float,
    ) -> Manifest:
        """Manifest of ``files``, written just now for ``request``."""
        return cls(
            schema_version=SCHEMA_VERSION,
            **_request_facts(request),
            images=images,
            total_bytes=sum(record["size_bytes"] for record in files.values()),
            files=files,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            generation_s=generation_s,
        )

    def write(self, folder: Path) -> None:
        write_json(folder / MANIFEST_NAME, asdict(self))

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Reads the manifest of ``folder``.

        Raises:
            DataError: there is none, or it is not one of this version.
        """
        path = folder / MANIFEST_NAME
        try:
            manifest = cls.from_dict(read_object(path))
        except OSError as error:
            raise DataError(f"{path} cannot be read ({error.strerror}); stage the data") from error
        except ValueError as error:
            raise DataError(f"{path} is not a dataset manifest; stage the data again") from error
        if manifest.schema_version != SCHEMA_VERSION:
            raise DataError(
                f"{path} has schema version {manifest.schema_version}, not {SCHEMA_VERSION}; "
                "stage the data again"
            )
        return manifest

    def mismatch(self, request: DataRequest) -> str | None:
        """How this differs from the data of ``request``; None if it does not."""
        for name, wanted in _request_facts(request).items():
            if getattr(self, name) != wanted:
                return f"it was made for {name} {getattr(self, name)!r}, not {wanted!r}"
        return None

    def damage(self, folder: Path, *, workers: int) -> str | None:
        """What is missing or changed in ``folder``, else None; reads all its bytes."""
        jobs = [partial(_check_record, folder / path, kept) for path, kept in self.files.items()]
        return next(filter(None, in_parallel(jobs, workers)), None)


def is_verified(folder: Path) -> bool:
    """Whether these very files had the right checksums since this node was started."""
    try:
        return _note_of(folder).read_text("ascii") == _state_now(folder)
    except (OSError, ValueError):  # none, or damaged
        return False


def note_verified(folder: Path) -> None:
    """Remember the files as they are now; if that fails, they are read again next time."""
    with suppress(OSError):
        write_text(_note_of(folder), _state_now(folder))


def forget_verified(folder: Path) -> None:
    """Remember nothing of a folder."""
    _note_of(folder).unlink(missing_ok=True)


def _note_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.verified")


def _state_now(folder: Path) -> str:
    """The boot and a digest of all files."""
    digest = hashlib.blake2b(digest_size=16)
    for name, state in _files_below(folder):
        kept = (name, state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino)
        digest.update(repr(kept).encode())
    if not boot_id():
        raise OSError("the system does not tell its boots apart")
    return f"{boot_id()} {digest.hexdigest()}\n"
