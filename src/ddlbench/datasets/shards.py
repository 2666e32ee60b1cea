"""Files of tables and archives that people bring along: of which split, and what a label means.

::

    train-00000-of-00002.parquet    a word of a folder's or the file's name is that of a split
    data/validation/0.parquet
    photos-000.tar, photos-001.tar  no such word: one split, of which every tenth sample is held out

Splits have the names of :data:`~ddlbench.datasets.class_folders.SPLIT_NAMES`; the first that is
there counts, so a test split is read only where there is no other for validation.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ddlbench.common.errors import shown
from ddlbench.common.quantities import counted
from ddlbench.datasets.class_folders import SPLIT_NAMES, is_hidden, lies_there, listed
from ddlbench.datasets.files import HELD_OUT, DataError, of_split, reading
from ddlbench.experiment.dataset_spec import DatasetSpec

USUAL_IMAGES = ("image", "images", "img", "picture", "photo", "jpg", "jpeg", "png", "webp")
"""Names of columns that hold images."""

USUAL_LABELS = (
    "label", "labels", "cls", "class", "target", "category", "fine_label", "class_id", "label_id",
    "class_label", "category_id",
)  # fmt: skip
"""Names of columns, or of fields of JSON, that hold labels."""

_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
_KNOWN = frozenset(name for names in SPLIT_NAMES.values() for name in names)
_POINTER = b"version https://git-lfs"


def split_word(name: str) -> str | None:
    """The split's name in the name of a file or folder, in small letters; None if it has none."""
    words = (word.lower() for word in _WORDS.findall(name))
    return next((word for word in words if word in _KNOWN), None)


@dataclass(frozen=True)
class Shards:
    """The parts (files or folders) of both splits, as paths from a root, in order.

    Args:
        train: of the training split.
        val: of the validation split; none where its samples are held out of ``train``.
    """

    train: tuple[str, ...]
    val: tuple[str, ...]

    def of(self, split: str) -> tuple[str, ...]:
        """Parts in which the samples of a split lie."""
        return self.train if split == "train" else self.val or self.train

    def parts(self, split: str) -> list[str]:
        """Parts of a split; none for "val" where it has none but those of "train"."""
        return list(self.train if split == "train" else self.val)

    def ids(self, count: int, split: str, root: Path) -> np.ndarray:
        """Which of the ``count`` samples in the parts of a split belong to it; int64.

        Raises:
            DataError: they are too few to hold any out.
        """
        if self.val:
            return np.arange(count)
        if count < HELD_OUT:
            raise DataError(
                f"{root} has {counted(count, 'sample')} and no validation split; give it one, or "
                f"write {HELD_OUT} samples or more, of which the tenth is held out"
            )
        return of_split(count, split)


def shards_of(root: Path, parts: Sequence[str]) -> Shards:
    """Parts by the split that their names tell.

    Raises:
        DataError: no part is of the training split, or it cannot be told which are.
    """
    groups: dict[str | None, list[str]] = {}
    folders: dict[str | None, set[str]] = {}
    for part in sorted(parts, key=_natural):
        word, folder = _split_and_folder(part)
        groups.setdefault(word, []).append(part)
        folders.setdefault(word, set()).add(folder)
    unnamed = groups.pop(None, [])
    train, val = (_first(groups, split) for split in ("train", "val"))
    used = [word for word in (train, val) if word]
    holders = set().union(*(folders[w] for w in [*used, *([None] if unnamed else [])]))
    if len(holders) > 1:
        names = [name or "the folder itself" for name in sorted(holders)]
        raise DataError(
            f"{root} holds several datasets, in {listed(names)}; give the folder of one of them"
        )
    if not unnamed:
        if train or len(groups) == 1:
            return Shards(tuple(groups[train or val]), tuple(groups[val]) if train and val else ())
        raise DataError(
            f"{root} has no training split: it has {listed(sorted(map(str, groups)))}; name its "
            "files train"
        )
    if train:
        raise DataError(
            f"{root} holds {listed(unnamed)}, which names no split, beside files of {train}; add "
            "the split's name to it, or move it elsewhere"
        )
    return Shards(tuple(unnamed), tuple(groups[val]) if val else ())


def _first(groups: dict[str | None, list[str]], split: str) -> str | None:
    return next((name for name in SPLIT_NAMES[split] if name in groups), None)


def _natural(part: str) -> list[tuple[int, str]]:
    """A key by which ``b-10`` comes after ``b-9``."""
    pieces = re.split(r"(\d+)", part)
    return [(int(piece), "") if k % 2 else (0, piece) for k, piece in enumerate(pieces)]


def _split_and_folder(part: str) -> tuple[str | None, str]:
    """The split's name in a path, and the folder that holds what is named so."""
    pieces = part.split("/")
    for depth, piece in enumerate(pieces):
        if (word := split_word(piece)) is not None:
            return word, "/".join(pieces[:depth])
    return None, "/".join(pieces[:-1])


def files_below(
    root: Path, endings: tuple[str, ...], within: str = "", depth: int = 0
) -> Iterator[str]:
    """Files with one of these endings, as paths from ``root``; hidden ones are left out.

    It looks into ``root``, into its folders, and into folders of splits in those.

    Raises:
        OSError: a folder cannot be read.
    """
    folders = []
    with os.scandir(root / within) as entries:
        for entry in entries:
            if entry.name.lower().endswith(endings):
                if not is_hidden(entry.name) and entry.is_file():
                    yield within + entry.name
            elif depth < 2 and not is_hidden(entry.name) and entry.is_dir():
                folders.append(entry.name)
    for name in sorted(folders):
        if depth == 0 or split_word(name) is not None:
            yield from files_below(root, endings, f"{within}{name}/", depth + 1)


def found_below(root: Path, endings: tuple[str, ...]) -> list[str]:
    """All of :func:`files_below`.

    Raises:
        DataError: ``root`` is no folder, or cannot be read.
    """
    if not root.is_dir():
        raise DataError(f"{root} is not a folder: {lies_there(root)}; give the folder of the data")
    with reading():
        return list(files_below(root, endings))


def only(root: Path | str, names: Sequence[str], what: str, key: str) -> str:
    """The name among those that may be meant; empty without any.

    Raises:
        DataError: there are several, and the user must write which under ``key``.
    """
    if len(names) > 1:
        raise DataError(
            f"{root} has several {what}, {listed([*names])}; "
            f"write which: columns: {{{key}: {names[0]}}}"
        )
    return names[0] if names else ""


def check_pointer(path: Path, beginning: bytes) -> None:
    """Refuses what Git LFS leaves in the place of a large file.

    Raises:
        DataError: ``beginning``, the first bytes of ``path``, is such a pointer.
    """
    if beginning.startswith(_POINTER):
        raise DataError(
            f"{path} is a pointer of Git LFS, not the file itself; run git lfs pull in its folder"
        )


@dataclass(frozen=True)
class Labels:
    """Labels as files hold them.

    Args:
        values: int64 of shape (N,), or text as objects.
        place: of a sample's label, for messages.
        names: of the classes that numbers stand for; None where files do not tell.
    """

    values: np.ndarray
    place: Callable[[int], str]
    names: tuple[str, ...] | None = None

    @property
    def are_text(self) -> bool:
        return self.values.dtype == object


def numbered(
    labels: Labels, train: Labels, spec: DatasetSpec, root: Path
) -> tuple[list[str], np.ndarray]:
    """Classes, and the labels as places in them; int64 of shape (N,).

    The training split decides: text is numbered in sorted order, and numbers without names are
    classes from 0 to the largest.

    Raises:
        DataError: a label is no class of the training split, or there are more than ``spec`` has.
    """
    if labels.are_text != train.are_text:
        raise DataError(
            f"{root} has text as labels in one split and numbers in another; write the same in both"
        )
    if labels.names != train.names:
        raise DataError(
            f"{root} has other names of classes in val than in train; give both splits the same "
            "ClassLabel"
        )
    if labels.are_text:
        return _of_text(labels, train, spec, root)
    for each in (train, labels):
        _check_not_negative(each)
    count = int(train.values.max()) + 1 if train.names is None else len(train.names)
    _check_count(count, spec, root)
    if int(labels.values.max()) >= count:
        row = int(np.argmax(labels.values >= count))
        known = "train's labels" if train.names is None else "its names of classes"
        raise DataError(
            f"{labels.place(row)} has label {labels.values[row]}, but {known} end at {count - 1}; "
            "number the classes of all splits alike, from 0"
        )
    return list(train.names or map(str, range(count))), labels.values


def _of_text(
    labels: Labels, train: Labels, spec: DatasetSpec, root: Path
) -> tuple[list[str], np.ndarray]:
    import pandas as pd  # noqa: PLC0415 - takes long, and every cell reads this module

    classes = sorted(pd.unique(train.values))
    _check_count(len(classes), spec, root)
    places = pd.Index(classes, dtype=object).get_indexer(pd.Index(labels.values, dtype=object))
    if (places < 0).any():
        row = int(np.argmax(places < 0))
        raise DataError(
            f"{labels.place(row)} has label {shown(labels.values[row])}, which train lacks; label "
            "both splits alike, or remove what cannot be learnt"
        )
    return classes, places.astype(np.int64)


def _check_not_negative(labels: Labels) -> None:
    if int(labels.values.min()) < 0:
        row = int(np.argmax(labels.values < 0))
        raise DataError(
            f"{labels.place(row)} has label {labels.values[row]}, which is no class (-1 often "
            "means: not labelled); leave such samples out, or give another split for validation"
        )


def _check_count(count: int, spec: DatasetSpec, root: Path) -> None:
    if count > spec.num_classes:
        raise DataError(
            f"{root} has labels of {count} classes, but {spec.label} has {spec.num_classes}; "
            "number the classes from 0, or correct classes"
        )


def check_library(name: str, what: str) -> None:
    """Import the library of an extra that reads some data.

    Raises:
        DataError: it is not installed, or does not import; ``what`` begins the sentence.
    """
    try:
        importlib.import_module(name)
    except ImportError as error:
        missing = "is not installed" if error.name == name else f"does not import ({error})"
        raise DataError(f"{what}, and `{name}` {missing}; pip install 'ddlbench[data]'") from error
