"""Shards of WebDataset: tar files in which the members of a sample lie one after the other.

::

    photos/train-000000.tar   | cat1.jpg | cat1.cls | dog7.jpg | dog7.cls | ...
    photos/val-000000.tar     | ...
                                key  ending

The library says which members are a sample and what a ``.cls`` means; Python's tarfile says where
they lie. Their places are listed once, labels too; then a sample is one read from its file. Members
are never written to disk, and none is unpickled.
"""

from __future__ import annotations

import json
import os
import re
import resource
import tarfile
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ddlbench.common.errors import shown
from ddlbench.datasets.class_folders import EXTENSIONS, listed
from ddlbench.datasets.files import DataError, EncodedSplit, reading
from ddlbench.datasets.shards import (
    USUAL_LABELS,
    Labels,
    Shards,
    check_library,
    check_pointer,
    files_below,
    found_below,
    numbered,
    only,
    shards_of,
)
from ddlbench.experiment.dataset_spec import DatasetSpec

_TAR = (".tar",)
_COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
# What a compressed file begins with, and what unpacks it.
_MAGIC = {
    b"\x1f\x8b": "gunzip", b"BZh": "bunzip2", b"\xfd7zXZ": "unxz", b"\x28\xb5\x2f\xfd": "unzstd"
}  # fmt: skip
_NUMBERS = ("cls", "cls2", "index", "inx", "id")  # whole numbers, as the library decodes them
_JSON = ("json", "jsn")
_LABELS = ("cls", "cls2", "label", "class")
_OF_CODE = ("pkl", "pickle", "pyd", "pth", "npy", "npz")
_META = re.compile(r"__[^/]*__($|/)")  # members that the library skips
_FIRST_MEMBERS = 32
_BEGINNING_BYTES = 64

Members = dict[str, Any]
"""Of a sample: its key as ``__key__``, and of each ending the place and size of the member."""


def recognises(root: Path) -> bool:
    """Whether images with keys lie in the first tar file under ``root``, compressed ones too."""
    try:
        names = sorted(files_below(root, _TAR + _COMPRESSED))
        return bool(names) and _begins_with_samples(root / names[0])
    except OSError:
        return False


def _begins_with_samples(path: Path) -> bool:
    try:
        with tarfile.open(path) as tar:
            return any(
                member.isreg() and _ending(member.name.lower()) in (*_IMAGES, *_LABELS)
                for member in islice(tar, _FIRST_MEMBERS)
            )
    except Exception:  # a damaged or foreign file may raise nearly anything; reading tells more
        return path.name.lower().endswith(_TAR)


def own_files(root: Path, split: str) -> list[str]:
    """Shards of a split of the user's own data, all of them of "train" where splits share them.

    Raises:
        DataError: they are not there.
    """
    return _shards(root).parts(split)


def read(root: Path, spec: DatasetSpec, split: str) -> EncodedSplit:
    """Lists the samples of one split under ``root``, and reads their labels.

    Raises:
        DataError: a shard is missing, compressed or damaged, a sample lacks an image or a label,
            or the library is not installed.
    """
    check_library("webdataset", f"{root} holds shards of WebDataset")
    if spec.sequence_length is not None:
        raise DataError(f"{root} holds tar files; tokens are read from train.bin or from Parquet")
    shards = _shards(root)
    samples = _Samples(root, shards.of(split), spec)
    labels = samples.labels()
    train = labels
    if split != "train" and shards.val:
        train = _Samples(root, shards.train, spec).labels()
    classes, values = numbered(labels, train, spec, root)
    ids = shards.ids(len(values), split, root)

    def encoded(sample_id: int) -> tuple[str, bytes]:
        return samples.encoded(int(ids[sample_id]))

    return EncodedSplit(classes, values[ids], encoded)


def _shards(root: Path) -> Shards:
    names = found_below(root, _TAR + _COMPRESSED)
    compressed = [name for name in names if name.lower().endswith(_COMPRESSED)]
    if compressed:
        raise DataError(_compressed(root / compressed[0]))
    if not names:
        raise DataError(f"{root} holds no tar file; give the folder of the shards")
    return shards_of(root, names)


def _compressed(path: Path, tool: str = "") -> str:
    by_ending = {"gz": "gunzip", "tgz": "gunzip", "bz2": "bunzip2", "xz": "unxz", "zst": "unzstd"}
    tool = tool or by_ending[_ending(path.name.lower())]
    return (
        f"{path} is compressed, so no sample in it can be read by itself; run {tool} on each shard "
        "(images are compressed already)"
    )


def _ending(name: str) -> str:
    return name.rpartition(".")[2]


_IMAGES = tuple(map(_ending, EXTENSIONS))


@dataclass(frozen=True)
class Index:
    """The samples of a shard.

    Args:
        names: of the members that hold images, bytes of shape (N,).
        offsets, sizes: where they lie in the file, in bytes; int64 of shape (N,).
        labels: int64, or text as objects, of shape (N,).
    """

    names: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray
    labels: np.ndarray


class _Samples:
    """The samples of shards, one shard after the other."""

    def __init__(self, root: Path, parts: tuple[str, ...], spec: DatasetSpec) -> None:
        self._root, self._parts = root, parts
        self._indexes = [_index_of(root / part, spec) for part in parts]
        self._starts = np.cumsum([0, *(len(index.names) for index in self._indexes)]).tolist()
        self._files = OpenFiles([root / part for part in parts])

    def labels(self) -> Labels:
        parts = [index.labels for index in self._indexes if len(index.labels)]
        if not parts:
            raise DataError(f"{self._root} has no samples in {listed(list(self._parts))}")
        if len({part.dtype for part in parts}) > 1:
            raise DataError(
                f"{self._root} has text as labels in one shard and numbers in another; write the "
                "same in all"
            )
        return Labels(np.concatenate(parts), self.place)

    def _shard_of(self, sample: int) -> tuple[int, int]:
        shard = bisect_right(self._starts, sample) - 1
        return shard, sample - self._starts[shard]

    def place(self, sample: int) -> str:
        shard, within = self._shard_of(sample)
        name = os.fsdecode(bytes(self._indexes[shard].names[within]))
        return f"{self._root.name}/{self._parts[shard]}, {name}"

    def encoded(self, sample: int) -> tuple[str, bytes]:
        shard, within = self._shard_of(sample)
        index = self._indexes[shard]
        place = self.place(sample)
        size = int(index.sizes[within])
        with reading(self._root / self._parts[shard]):
            content = self._files.read(shard, int(index.offsets[within]), size)
        if len(content) != size:
            raise DataError(f"{place} ends early: the shard has changed; start again")
        return place, content


class OpenFiles:
    """Files that are read at any place; those used last stay open.

    Of all files that a process may have open they take a quarter.
    """

    def __init__(self, paths: list[Path]) -> None:
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = max(1, limit // 4) if limit > 0 else len(paths)
        self._opened = lru_cache(maxsize=most)(lambda number: _Descriptor(paths[number]))

    def read(self, number: int, offset: int, size: int) -> bytes:
        """``size`` bytes of a file from ``offset`` on; fewer where it ends.

        Raises:
            OSError: as the system reports it.
        """
        file = self._opened(number)
        parts = []
        while size > 0 and (part := os.pread(file.number, size, offset)):
            parts.append(part)
            offset, size = offset + len(part), size - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


class _Descriptor:
    """An open file, closed when no reader holds it any more."""

    def __init__(self, path: Path) -> None:
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if hasattr(self, "number"):
            os.close(self.number)


def _index_of(path: Path, spec: DatasetSpec) -> Index:
    with reading(path):
        state = path.stat()
    return _indexed(path, (state.st_size, state.st_mtime_ns), spec.image_key, spec.label_key)


@cache  # training and validation split may share a shard, and its labels
def _indexed(path: Path, _state: tuple[int, int], image_key: str, label_key: str) -> Index:
    names, places, labels = [], [], []
    endings: set[str] = set()
    choice = _Choice(path, image_key, label_key)
    with path.open("rb", buffering=0) as file:
        for members in _samples(path):
            endings.update(members)
            image, label, field = choice.of(members)
            if not image or not label:
                continue
            key = members["__key__"]
            names.append(os.fsencode(f"{key}.{image}"))
            places.append(members[image])
            content = os.pread(file.fileno(), members[label][1], members[label][0])
            labels.append(_label(f"{path}, {key}.{label}", label, field, content))
    if not names and endings:
        known = sorted(ending for ending in endings if not ending.startswith("__"))
        raise DataError(
            f"{path} has no image with a label among its members, which end in {listed(known)}; "
            "write each image as KEY.jpg and its class as KEY.cls"
        )
    kinds = {type(label) for label in labels}
    if len(kinds) > 1:
        raise DataError(f"{path} has both text and numbers as labels; write one of the two")
    offsets, sizes = np.array(places, np.int64).reshape(-1, 2).T
    values = np.array(labels, object if kinds == {str} else np.int64)
    return Index(np.array(names, np.bytes_), offsets, sizes, values)


def _samples(path: Path) -> Iterator[Members]:
    from webdataset.tariterators import group_by_keys  # noqa: PLC0415 - an extra

    try:
        yield from group_by_keys(_members(path))
    except DataError:
        raise
    except ValueError as error:  # the library's, of members that are there twice
        text = str(error.args[0]).partition(":")[0]
        raise DataError(
            f"{path}: {shown(text)} is there twice within a sample; give each sample its own key"
        ) from error


def _members(path: Path) -> Iterator[dict[str, Any]]:
    """Name, place and size of each file in a tar, as the library takes them."""
    with reading(path), path.open("rb") as file:
        beginning = file.read(_BEGINNING_BYTES)
    check_pointer(path, beginning)
    for magic, tool in _MAGIC.items():
        if beginning.startswith(magic):
            raise DataError(_compressed(path, tool))
    try:
        with reading(path), tarfile.open(path, "r:") as tar:
            while (member := tar.next()) is not None:
                tar.members = []  # type: ignore[attr-defined]  # a large shard has millions
                if member.issparse():
                    raise DataError(f"{path}, {member.name} is stored with holes; write it anew")
                if member.isreg() and not _META.match(member.name):
                    place = (member.offset_data, member.size)
                    yield {"fname": member.name, "data": place, "__url__": str(path)}
            _check_end(path, tar.offset)
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        raise DataError(
            f"{path} is no whole tar file ({shown(str(error))}); copy or write it again"
        ) from error


def _check_end(path: Path, offset: int) -> None:
    """Refuses a shard whose members do not end at an end mark: tarfile stops in silence."""
    with path.open("rb") as file:
        file.seek(offset)
        mark = file.read(tarfile.BLOCKSIZE)
    if any(mark):
        raise DataError(f"{path} is damaged at byte {offset}; copy or write it again")
    if len(mark) < tarfile.BLOCKSIZE:
        raise DataError(
            f"{path} ends without tar's end mark, as a file that was cut off between two members; "
            "copy or write it again; if it is whole, add the mark: truncate --size=+1024"
        )


class _Choice:
    """Which members of a sample are its image and its label."""

    def __init__(self, path: Path, image_key: str, label_key: str) -> None:
        self._path = path
        self._image_keys = [key.lower().strip().lstrip(".") for key in image_key.split(";") if key]
        self._label_key = label_key
        self._known: dict[tuple[str, ...], tuple[str, str, str]] = {}

    def of(self, members: Members) -> tuple[str, str, str]:
        """Endings of image and label, and the field of a JSON label; empty where there is neither.

        Raises:
            DataError: one of them is missing, or it cannot be told which it is.
        """
        endings = tuple(ending for ending in members if not ending.startswith("__"))
        if endings not in self._known:
            place = f"{self._path}, {members['__key__']}"
            image = self._image(place, endings)
            label, field = self._label(endings)
            if image and not label:
                raise DataError(self._no_label(place, endings))
            if label and not image and label not in _JSON:
                raise DataError(
                    f"{place} has {listed(list(endings))}, but no image; write it as "
                    f"KEY.{(self._image_keys or ['jpg'])[0]} next to KEY.{label}: the members of a "
                    "sample lie one after the other"
                )
            self._known[endings] = image, label, field
        return self._known[endings]

    def _image(self, place: str, endings: tuple[str, ...]) -> str:
        if self._image_keys:
            return next((key for key in self._image_keys if key in endings), "")
        images = [ending for ending in endings if _ending(ending) in _IMAGES]
        plain = [ending for ending in images if "." not in ending]
        return only(place, plain or images, "images", "image")

    def _label(self, endings: tuple[str, ...]) -> tuple[str, str]:
        key = self._label_key.lstrip(".")
        if key.lower() in endings:
            return key.lower(), ""
        of_json = next((ending for ending in _JSON if ending in endings), "")
        if key:
            return (
                (of_json, key) if of_json and key.lower() not in (*_NUMBERS, *_JSON) else ("", "")
            )
        plain = next((ending for ending in _LABELS if ending in endings), of_json)
        dotted = [ending for ending in endings if _ending(ending) in _LABELS]
        return plain or (dotted[0] if len(dotted) == 1 else ""), ""

    def _no_label(self, place: str, endings: tuple[str, ...]) -> str:
        has = f"{place} has {listed(list(endings))}, but no label"
        if self._label_key:
            return f"{has} {shown(self._label_key)}; write it into each sample, or correct columns"
        code = [ending for ending in endings if _ending(ending) in _OF_CODE]
        if code:
            return f"{has} that is read: .{code[0]} may run code; write the class as KEY.cls"
        others = [ending for ending in endings if _ending(ending) not in _IMAGES]
        if others:
            return f"{has}; name the ending that has it: columns: {{label: {others[0]}}}"
        return (
            f"{has}; write its class as KEY.cls (a whole number) or KEY.json right after it; tar "
            "--sort=name orders members so"
        )


def _label(place: str, ending: str, field: str, content: bytes) -> int | str:
    from webdataset.autodecode import decoders  # noqa: PLC0415 - an extra

    last = _ending(ending)
    if last in _OF_CODE:
        raise DataError(f"{place} may run code and is not read; write the class as KEY.cls")
    try:
        if last in _NUMBERS:
            return _in_range(place, decoders[last](content))
        text = content.decode("utf-8")
        value = _of_json(place, field, json.loads(text)) if last in _JSON else text.strip()
    except (ValueError, RecursionError):
        kind = "a whole number" if last in _NUMBERS else "JSON" if last in _JSON else "text"
        raise DataError(
            f"{place} holds {shown(content[:_BEGINNING_BYTES].decode('utf-8', 'replace'))}, not "
            f"{kind}; write the class as {kind}"
        ) from None
    if isinstance(value, bool) or not isinstance(value, int | str) or value == "":
        raise DataError(f"{place} has label {shown(value)}; write a whole number from 0, or a text")
    return value if isinstance(value, str) else _in_range(place, value)


def _in_range(place: str, number: int) -> int:
    if abs(number) >> 63:
        raise DataError(f"{place} has label {shown(number)}; number the classes from 0")
    return number


def _of_json(place: str, field: str, value: Any) -> Any:
    """The label in a JSON value: the value itself, or a field of an object."""
    if not isinstance(value, dict):
        return value
    likely = [name for name in value if name == field or (not field and name in USUAL_LABELS)]
    if name := only(place, likely, "fields that may be the label", "label"):
        return value[name]
    raise DataError(
        f"{place} has the fields {listed(list(value))}, but no "
        f"{shown(field) if field else 'label'}; write it, or name the field that has it: "
        "columns: {label: NAME}"
    )
