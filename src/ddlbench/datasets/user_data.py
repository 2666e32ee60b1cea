"""The user's own data: images in torchvision's layout, tables, archives or files of tokens.

It is looked at before it is used, and read in its place.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from ddlbench.common.quantities import counted
from ddlbench.datasets import cifar
from ddlbench.datasets.class_folders import left_out_text, lies_there, listed
from ddlbench.datasets.files import (
    ArraySplit,
    DataError,
    EncodedSplit,
    FileSplit,
    Split,
    TokenSplit,
    available_cpus,
    crc_of_pieces,
    in_parallel,
    reading,
    record_of,
    source_folder,
)
from ddlbench.datasets.formats import SPLITS, format_of
from ddlbench.experiment.dataset_spec import DataRequest

_SAMPLED_IMAGES = 4096  # files of a split whose sizes and ends enter the digest, at least
_IMAGE_END_BYTES = 4096
_ENDS_BYTES = 1 << 20  # at either end of a large file, whose contents enter the digest
_PIECES = 64  # of a large file between its ends


@dataclass(frozen=True)
class UserData:
    """The user's own data.

    Args:
        folder: its absolute path; a file's folder.
        digest: 64 hex digits: of the contents of idx, cifar and token files; of image folders, of
            all names, and the size, beginning and end of some thousand files (reading 150 GB would
            take longer than many a run); of tables and archives, of names, sizes, labels,
            beginnings, ends and pieces between them.
        samples: in each split.
        classes: labels that occur in training, or could; of tokens 0.
        left_out: files that are not read, by ending.
        not_classes: folders beside class folders that are not read.
        empty_classes: classes without an image in training.
    """

    folder: Path
    digest: str
    samples: dict[str, int]
    classes: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    not_classes: tuple[str, ...] = ()
    empty_classes: tuple[str, ...] = ()

    def train_samples(self, scale: float) -> int:
        """Training samples that are read at a scale."""
        return max(1, round(self.samples["train"] * min(scale, 1)))

    def described(self) -> str:
        """``36 images in 3 classes (12 for validation), 6 files left out: .heic``."""
        train, val = self.samples["train"], self.samples["val"]
        if not self.classes:
            return f"{counted(train, 'sequence')} ({val:,} for validation)"
        plural = "class" if self.classes == 1 else "classes"
        text = f"{counted(train, 'image')} in {self.classes:,} {plural} ({val:,} for validation)"
        if self.left_out:
            number, _, kinds = left_out_text(self.left_out).partition(":")
            text += f", {number} left out:{kinds}"
        if self.not_classes:
            text += f"; no class: {listed(list(self.not_classes))}"
        if self.empty_classes:
            text += f"; without images: {listed(list(self.empty_classes))}"
        return text


def inspect_user_data(request: DataRequest) -> UserData:
    """Checks that the data ``request`` points to can be read.

    Every idx, cifar and token file is read; of image folders the names are listed and one image
    a split is decoded.

    Raises:
        DataError: something is missing or cannot be read.
    """
    root = source_folder(request)
    if not root.is_dir() and not (request.format == "tokens" and root.is_file()):
        raise DataError(f"{root} is not a folder: {lies_there(root)}; give the folder of the data")
    splits = {split: _split(request, root, split) for split in SPLITS}
    with suppress(ModuleNotFoundError):  # a login node without Pillow: the nodes decode
        for data in splits.values():
            if isinstance(data, FileSplit | EncodedSplit):
                _decode(request, data, 0)
    folder = root.parent if root.is_file() else root
    samples = {split: len(data) for split, data in splits.items()}
    train = splits["train"]
    if isinstance(train, FileSplit):
        return _of_class_folders(request, folder, splits, samples)
    whole = not isinstance(train, EncodedSplit)
    facts = {file: _crc_of(folder / file, whole) for file in _files_of(request, root)}
    if isinstance(train, TokenSplit):
        return UserData(folder, _digest(request, facts), samples)
    for split, data in splits.items():
        assert not isinstance(data, TokenSplit)
        facts[f"labels of {split}"] = zlib.crc32(data.labels.astype("<i8").tobytes())
    names = train.classes if isinstance(train, EncodedSplit) else None
    classes = len(names) if names is not None else int(train.labels.max()) + 1
    seen = set(np.unique(train.labels).tolist())
    empty = [names[k] if names else str(k) for k in range(classes) if k not in seen]
    digest = _digest(request, facts)
    return UserData(folder, digest, samples, classes, empty_classes=tuple(empty))


def _digest(request: DataRequest, facts: Mapping[str, object]) -> str:
    spec = request.spec
    read_as = [spec.shape, spec.num_classes] if spec.source else []  # others are fixed
    text = json.dumps([request.dataset, request.format, *read_as, facts], sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=32).hexdigest()


def _files_of(request: DataRequest, root: Path) -> list[str]:
    own_files = format_of(request).own_files
    assert own_files is not None
    names: list[str] = []
    for split in SPLITS:
        try:
            names += own_files(root, split)
        except DataError:  # validation samples are held out of the training split
            if split == "train" or not request.spec.source:
                raise
    extra = f"{cifar.FOLDER}/{cifar.META}"
    if request.format == "cifar" and (root / extra).exists():
        names.append(extra)
    return list(dict.fromkeys(name or root.name for name in names))


def _of_class_folders(
    request: DataRequest, folder: Path, splits: dict[str, Split], samples: dict[str, int]
) -> UserData:
    facts: dict[str, object] = {}
    left_out: Counter[str] = Counter()
    not_classes: dict[str, None] = {}
    for split, data in splits.items():
        assert isinstance(data, FileSplit)
        crcs = dict.fromkeys(data.classes, 0)
        for label, name in zip(data.labels.tolist(), data.names.tolist(), strict=True):
            key = data.classes[label]
            crcs[key] = zlib.crc32(b"/" + name, crcs[key])
        facts.update({f"{split}/{name}": crc for name, crc in crcs.items()})
        facts[f"images of {split}"] = _images_digest(data)
        left_out += data.left_out
        not_classes.update(dict.fromkeys(data.not_classes))
    train = splits["train"]
    assert isinstance(train, FileSplit)
    seen = set(np.unique(train.labels).tolist())
    return UserData(
        folder,
        _digest(request, facts),
        samples,
        len(train.classes),
        left_out,
        tuple(not_classes),
        tuple(name for label, name in enumerate(train.classes) if label not in seen),
    )


def _images_digest(data: FileSplit) -> int:
    """CRC-32 of sizes, beginnings and ends of evenly spaced files.

    Other images may have the same names and even sizes. Times do not count: copies have others.
    """
    kept = range(0, len(data), max(1, len(data) // _SAMPLED_IMAGES))
    jobs = [partial(crc_of_pieces, data.path(k), _IMAGE_END_BYTES) for k in kept]
    with reading():
        crcs = list(in_parallel(jobs, available_cpus()))
    return zlib.crc32(np.array(crcs, "<u4").tobytes())


def _split(request: DataRequest, root: Path, split: str) -> Split:
    """One split, of which labels of arrays and all tokens are checked."""
    data_format = format_of(request)
    if data_format.check_own is not None:
        data_format.check_own(root, request.spec, split)
    data = data_format.read(root, request.spec, split)
    if isinstance(data, ArraySplit):
        _check_labels(request, root, split, data.labels)
    return data


def _decode(request: DataRequest, data: FileSplit | EncodedSplit, sample_id: int) -> None:
    from ddlbench.datasets.decoding import decode  # noqa: PLC0415 - needs Pillow

    decode(*data.encoded(sample_id), request.spec)


def _check_labels(request: DataRequest, root: Path, split: str, labels: np.ndarray) -> None:
    low, top = int(labels.min()), int(labels.max())
    if low < 0 or top >= request.spec.num_classes:
        raise DataError(
            f"{root} has label {top if low >= 0 else low} in {split}, but {request.spec.label} has "
            f"{request.spec.num_classes} classes; check the data source"
        )


def _crc_of(path: Path, whole: bool) -> int:
    """CRC-32 of a file; where not ``whole``, of its size, its ends and some pieces."""
    if whole:
        return record_of(path)["crc32"]
    return crc_of_pieces(path, _ENDS_BYTES, _PIECES)


def faults(request: DataRequest) -> Iterator[str | None]:
    """Opens every file of the user's own data once.

    Yields for each sample a sentence that says what is wrong, or None if it is read. Of splits in
    arrays and of tokens, all is read at once.
    """
    try:
        root = source_folder(request)
        if not root.exists():
            raise DataError(f"{root} is not there: {lies_there(root)}")
    except DataError as error:
        yield str(error)
        return
    for split in SPLITS:
        try:
            data = _split(request, root, split)
        except DataError as error:
            yield str(error)
            continue
        if isinstance(data, FileSplit | EncodedSplit):
            jobs = [partial(_fault, request, data, sample_id) for sample_id in range(len(data))]
            yield from in_parallel(jobs, available_cpus())
        else:
            yield from itertools.repeat(None, len(data))


def _fault(request: DataRequest, data: FileSplit | EncodedSplit, sample_id: int) -> str | None:
    try:
        _decode(request, data, sample_id)
    except DataError as error:
        return str(error)
    return None
