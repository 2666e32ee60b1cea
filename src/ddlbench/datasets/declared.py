"""The facts of a dataset that a configuration declares, counted from its files.

What was counted is kept in ``results/.own-data.json``, and counted again when a folder or file has
changed. So figures of results can be drawn after the data is gone.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from ddlbench.common.document import read_object, write_json
from ddlbench.common.errors import ConfigError
from ddlbench.datasets import formats, huggingface
from ddlbench.datasets.class_folders import EXTENSIONS, lies_there
from ddlbench.datasets.files import ArraySplit, DataError, EncodedSplit, FileSplit, Split
from ddlbench.datasets.formats import FORMATS, SPLITS
from ddlbench.experiment.dataset_spec import DatasetSpec, OwnDataset
from ddlbench.experiment.paths import RESULTS, data_path

_KEPT = RESULTS / ".own-data.json"
_MOST_CLASSES = 1 << 20
_CIFAR_PIXELS = 32


def counted_spec(name: str, entry: OwnDataset, place: str) -> DatasetSpec:
    """The facts of a declared dataset; ``place`` is in the configuration, for messages.

    Raises:
        ConfigError: the data is not there and its numbers are not written, or it cannot be read.
    """
    root = data_path(str(entry.folder or entry.tokens), place)
    key = json.dumps([name, str(root), entry.to_dict()], sort_keys=True)
    kept = _kept().get(key, {})
    there = root.exists()
    if entry.folder and root.is_file():
        raise ConfigError(f"{place}.folder: {root} is a file; write the folder that holds the data")
    state = _state(root) if there else None
    if kept and state in (None, kept.get("state")):
        with suppress(TypeError):  # of another version
            return DatasetSpec(**kept["spec"])
    if not there:
        return _as_written(name, entry, root, place)
    try:
        spec = _count(_basis(name, entry, root, place), entry, root)
    except DataError as error:
        raise ConfigError(f"{place}: {error}") from error
    with suppress(OSError):
        write_json(_KEPT, {**_kept(), key: {"state": state, "spec": asdict(spec)}})
    return spec


def _kept() -> dict[str, Any]:
    try:
        return dict(read_object(_KEPT))
    except (OSError, ValueError):
        return {}


def _state(root: Path) -> str:
    """A digest of folders' times, and of times and sizes of files that are no images."""
    digest = hashlib.blake2b(digest_size=16)
    for line in _seen(root, 3):
        digest.update(line.encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _seen(path: Path, depth: int) -> Iterator[str]:
    state, is_folder = path.stat(), path.is_dir()
    yield f"{path} {state.st_mtime_ns} {0 if is_folder else state.st_size}\n"
    if depth and is_folder:
        with os.scandir(path) as entries:
            names = sorted(entry.name for entry in entries)
        for name in names:
            if not name.lower().endswith(EXTENSIONS):
                with suppress(OSError):
                    yield from _seen(path / name, depth - 1)


def _as_written(name: str, entry: OwnDataset, root: Path, place: str) -> DatasetSpec:
    """The facts of data that this machine does not see."""
    needed = ("samples",) if entry.tokens else ("samples", "classes", "format")
    missing = [key for key in needed if getattr(entry, key) is None]
    if missing or entry.samples is None:
        raise ConfigError(
            f"{place}: {root} is not on this machine: {lies_there(root)}; correct the path, or, if "
            f"only the nodes see it, write {' and '.join(missing)} too"
        )
    spec = _basis(name, entry, root, place)
    train, val = entry.samples
    classes = entry.classes or spec.num_classes
    return replace(spec, num_train=train, num_val=val, num_classes=classes)


def _basis(name: str, entry: OwnDataset, root: Path, place: str) -> DatasetSpec:
    """The facts but for the numbers that have to be counted."""
    data_format = entry.format or _format_of(entry, root)
    columns, title = entry.columns, entry.title or name
    further: dict[str, Any] = {
        "source": str(root),
        "image_key": columns.image,
        "label_key": columns.label,
    }
    if entry.vocabulary and entry.sequence:
        classes, shape = entry.vocabulary, (0, 0, 0)
        further["sequence_length"] = entry.sequence
    else:
        classes = entry.classes or _MOST_CLASSES
        shape = _shape(entry, data_format, root, place)
    return DatasetSpec(name, title, classes, *shape, 1, 1, data_format, **further)


def _format_of(entry: OwnDataset, root: Path) -> str:
    if entry.tokens:
        return "huggingface" if huggingface.recognises(root) else "tokens"
    for name, data_format in FORMATS.items():
        if data_format.recognises is not None and data_format.recognises(root):
            return name
    return "imagefolder"


def _shape(entry: OwnDataset, data_format: str, root: Path, place: str) -> tuple[int, int, int]:
    """Channels, height and width; those of arrays are fixed by their files."""
    wanted = (entry.size, entry.size) if isinstance(entry.size, int) else entry.size
    fixed: tuple[int, int, int] | None = None
    if data_format == "cifar":
        fixed = (3, _CIFAR_PIXELS, _CIFAR_PIXELS)
    elif data_format == "idx" and root.exists():
        fixed = (1, *formats.idx_shape(root))
    if fixed is None:
        if wanted is None:
            raise ConfigError(
                f"{place}: size is missing; write the height and width that the network reads, "
                "such as size: 224"
            )
        return (entry.colours or (1 if data_format == "idx" else 3), wanted[0], wanted[1])
    channels, height, width = fixed
    if wanted not in (None, (height, width)) or entry.colours not in (None, channels):
        raise ConfigError(
            f"{place}: the files of {root} hold images of {channels}x{height}x{width}; leave size "
            "and colours out"
        )
    return fixed


def _count(spec: DatasetSpec, entry: OwnDataset, root: Path) -> DatasetSpec:
    data_format = FORMATS[spec.native_format]
    splits = {split: data_format.read(root, spec, split) for split in SPLITS}
    train, val = (len(splits[split]) for split in SPLITS)
    if entry.samples is not None and entry.samples != (train, val):
        raise DataError(
            f"{root} has {train} training and {val} validation samples, not {entry.samples[0]} and "
            f"{entry.samples[1]}; write samples: [{train}, {val}], or leave it out"
        )
    spec = replace(spec, num_train=train, num_val=val)
    if spec.sequence_length is not None:
        return spec
    classes = _classes(splits["train"])
    if _classes(splits["val"]) > classes:
        raise DataError(
            f"{root} has label {_classes(splits['val']) - 1} in val, but labels of train end at "
            f"{classes - 1}; give train samples of it, or remove it from val"
        )
    if entry.classes is not None and entry.classes < classes:
        raise DataError(f"{root} has more classes than {entry.classes}: {classes}; correct classes")
    return replace(spec, num_classes=entry.classes or classes)


def _classes(split: Split) -> int:
    if isinstance(split, FileSplit | EncodedSplit):
        return len(split.classes)
    assert isinstance(split, ArraySplit)
    return int(np.max(split.labels)) + 1
