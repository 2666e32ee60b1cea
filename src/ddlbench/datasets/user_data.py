"""The user's own data, images in torchvision's layout or files of tokens: inspected, or copied."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
import zlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ddlbench.datasets import cifar
from ddlbench.datasets.files import (
    ArraySplit,
    DataError,
    FileSplit,
    Record,
    Split,
    in_parallel,
    record_of,
)
from ddlbench.datasets.formats import SPLITS, format_of
from ddlbench.datasets.imagefolder import decode, first_image
from ddlbench.datasets.manifest import Manifest, source_folder
from ddlbench.experiment.dataset_spec import DataRequest


@dataclass(frozen=True)
class UserData:
    """The user's own data.

    Args:
        folder: its absolute path.
        parts: its files, or its class folders, as paths from ``folder``.
        digest: 64 hex digits of the contents of idx, cifar and token files, or of the names of
            image files (reading 150 GB for a digest would take longer than many a run).
    """

    folder: Path
    parts: list[str]
    digest: str

    def size_bytes(self, workers: int) -> int:
        """Sum of the sizes of all files, from the file system."""
        jobs = [partial(record_of, self.folder / part, contents=False) for part in self.parts]
        return sum(record["size_bytes"] for record in in_parallel(jobs, workers))


def inspect_user_data(request: DataRequest) -> UserData:
    """Checks that the data ``request`` points to can be read.

    Every idx, cifar and token file is read; of image folders the names are listed and one image
    a split is decoded.

    Raises:
        DataError: something is missing or cannot be read.
    """
    folder = source_folder(request)
    if not folder.is_dir():
        raise DataError(f"data source {folder} is not a folder; give one, or 'synthetic'")
    facts: dict[str, object] = {}
    parts: list[str] = []
    for split in SPLITS:
        data = _checked_split(request, folder, split)
        if isinstance(data, FileSplit):
            decode(data.path(0), request.spec)
            crcs = dict.fromkeys(data.classes, 0)
            for label, name in zip(data.labels.tolist(), data.names.tolist(), strict=True):
                key = data.classes[label]
                crcs[key] = zlib.crc32(b"/" + name, crcs[key])
            facts.update({f"{split}/{name}": crc for name, crc in crcs.items()})
            parts.extend(f"{split}/{name}" for name in data.classes)
            continue
        own_files = format_of(request).own_files
        assert own_files is not None
        parts.extend(own_files(folder, split))
    if not facts:
        extra = f"{cifar.FOLDER}/{cifar.META}"
        if request.format == "cifar" and (folder / extra).exists():
            parts.append(extra)
        facts.update({part: record_of(folder / part, contents=True)["crc32"] for part in parts})
    text = json.dumps([request.dataset, request.format, facts], sort_keys=True)
    return UserData(folder, parts, hashlib.blake2b(text.encode(), digest_size=32).hexdigest())


def count_user_data(request: DataRequest) -> int:
    """Checks the data ``request`` points to without a digest, and counts its training samples.

    Idx, cifar and token files are read. Of image folders, which may be huge, one image a split is
    decoded, and the names of no other class are listed: their number is that of the dataset.

    Raises:
        DataError: something is missing or cannot be read.
    """
    folder = source_folder(request)
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; give the folder of {request.spec.label}")
    if request.format == "imagefolder":
        for split in SPLITS:
            decode(first_image(folder, request.spec, split), request.spec)
        return request.num_images("train")
    counts = [len(_checked_split(request, folder, split)) for split in SPLITS]
    return max(1, round(counts[0] * min(request.scale, 1)))


def _checked_split(request: DataRequest, folder: Path, split: str) -> Split:
    """One split, the labels of idx and cifar files and all tokens checked."""
    data_format = format_of(request)
    if data_format.check_own is not None:
        data_format.check_own(folder, request.spec, split)
    data = data_format.read(folder, request.spec, split)
    if not isinstance(data, ArraySplit):
        return data
    low, top = int(data.labels.min()), int(data.labels.max())
    if low < 0 or top >= request.spec.num_classes:
        raise DataError(
            f"{folder} has label {top} in {split}, but {request.spec.label} has "
            f"{request.spec.num_classes} classes; check the data source"
        )
    return data


def copy_user_data(request: DataRequest, own: UserData, folder: Path, workers: int) -> Manifest:
    """Copies ``own`` into the new folder ``folder``, manifest last.

    Raises:
        OSError: a file could not be read or written.
    """
    begin = time.perf_counter()
    folder.mkdir(parents=True)
    jobs = [partial(_copy, own.folder / part, folder / part) for part in own.parts]
    records = dict(zip(own.parts, in_parallel(jobs, workers), strict=True))
    manifest = Manifest.of(
        request,
        records,
        images={},
        generation_s=time.perf_counter() - begin,
        source_digest=own.digest,
    )
    manifest.write(folder)
    return manifest


def _copy(source: Path, target: Path) -> Record:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        target.mkdir()
        for file in source.iterdir():
            if file.is_file():
                shutil.copyfile(file, target / file.name)
    else:
        shutil.copyfile(source, target)
    expected = record_of(source, contents=False)
    copied = record_of(target, contents=True)
    if (copied["files"], copied["size_bytes"]) != (expected["files"], expected["size_bytes"]):
        raise DataError(f"{source} changed while it was copied; stage the data again")
    return copied
