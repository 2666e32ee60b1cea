"""Datasets of Hugging Face's `datasets` on disk, and Parquet files: images or tokens in columns.

::

    photos/dataset_dict.json                what DatasetDict.save_to_disk writes
    photos/train/data-00000-of-00001.arrow, state.json, dataset_info.json
    photos/validation/...                   or one such folder alone

    photos/data/train-00000-of-00002.parquet, validation-...    a repository of the Hub
    photos/train.parquet, photos/train/0.parquet                or any files that name their split

The library describes the columns; nothing is copied into its cache, nothing fetched, and no code
of the data is run. Images stay encoded: a column of files' bytes, or the library's Image, whose
struct holds the bytes or a path.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from ddlbench.common.errors import printable, shown
from ddlbench.common.quantities import counted
from ddlbench.datasets.class_folders import lies_there, listed, names_in
from ddlbench.datasets.columns import Stream, image_column, labels_of, token_column, token_pieces
from ddlbench.datasets.files import HELD_OUT, DataError, EncodedSplit, TokenSplit
from ddlbench.datasets.shards import (
    Shards,
    check_library,
    files_below,
    found_below,
    numbered,
    shards_of,
    split_word,
)
from ddlbench.datasets.tables import INFO, STATE, MappedTable, ParquetTable, Table, arrow_files
from ddlbench.datasets.tokens import check_vocabulary
from ddlbench.experiment.dataset_spec import DatasetSpec

_DICT = "dataset_dict.json"
_PARQUET = (".parquet",)


def recognises(root: Path) -> bool:
    """Whether ``root`` holds a saved dataset, or Parquet files."""
    try:
        return _is_saved(root) or next(files_below(root, _PARQUET), None) is not None
    except OSError:
        return False


def own_files(root: Path, split: str) -> list[str]:
    """Files of a split of the user's own data, all of them of "train" where splits share them.

    Raises:
        DataError: they are not there.
    """
    if not _is_saved(root):
        return _parquet_shards(root).parts(split)
    parts = _saved_shards(root).parts(split)
    names = [
        str(Path(part) / name)
        for part in parts
        for name in (*arrow_files(root / part), STATE, INFO)
        if (root / part / name).is_file()
    ]
    return names + ([_DICT] if split == "train" and (root / _DICT).is_file() else [])


def read(root: Path, spec: DatasetSpec, split: str) -> EncodedSplit | TokenSplit:
    """Reads one split under ``root``: of images all labels, of tokens where they lie.

    Raises:
        DataError: a file is missing or damaged, a column cannot be told or is of no use, or the
            library is not installed.
    """
    if not root.is_dir():
        raise DataError(f"{root} is not a folder: {lies_there(root)}; give the folder of the data")
    check_library("datasets", f"{root} is a Hugging Face dataset")
    shards = _saved_shards(root) if _is_saved(root) else _parquet_shards(root)
    table = _table(root, shards.of(split))
    if not len(table):
        raise DataError(f"{root} has no rows in {split}; write some, or remove its files")
    if spec.sequence_length is not None:
        return _token_split(root, spec, split, shards, table)
    return _image_split(root, spec, split, shards, table)


def check(root: Path, spec: DatasetSpec, split: str) -> None:
    """Reads all tokens of a split of the user's own; of images nothing.

    Raises:
        DataError: as :func:`read`, or a token is outside the vocabulary.
    """
    if spec.sequence_length is None:
        return
    data = read(root, spec, split)
    assert isinstance(data, TokenSplit)
    check_vocabulary(data.tokens, spec, root)


def _is_saved(root: Path) -> bool:
    """Whether `save_to_disk` wrote ``root``, perhaps not all of it."""
    if (root / _DICT).is_file() or _is_dataset(root):
        return True
    return any(split_word(name) and _is_dataset(root / name) for name in names_in(root))


def _is_dataset(folder: Path) -> bool:
    if (folder / STATE).is_file():
        return True
    return (folder / INFO).is_file() and any(n.endswith(".arrow") for n in names_in(folder))


def _saved_shards(root: Path) -> Shards:
    parts = [name for name in names_in(root) if _is_dataset(root / name)]
    parts += [name for name in _in_dictionary(root) if name not in parts]
    if (root / STATE).is_file() or not parts:
        return Shards(("",), ())
    unnamed = [part for part in parts if split_word(part) is None]
    if len(unnamed) > 1:
        raise DataError(
            f"{root} holds several datasets, in {listed(unnamed)}; give the folder of one of them"
        )
    shards = shards_of(root, parts)
    for part in shards.train + shards.val:
        if not (root / part).is_dir():
            raise DataError(
                f"{root / _DICT} lists the split {shown(part)}, whose folder is missing; copy the "
                "folder again, with all files"
            )
    return shards


def _in_dictionary(root: Path) -> list[str]:
    try:
        names = json.loads((root / _DICT).read_text("utf-8"))["splits"]
        if all(isinstance(name, str) and Path(name).name == name for name in names):
            return list(names)
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        pass
    raise DataError(
        f"{root / _DICT} does not list the splits of a dataset; write the data with save_to_disk "
        "again"
    )


def _parquet_shards(root: Path) -> Shards:
    parts = found_below(root, _PARQUET)
    if not parts:
        raise DataError(
            f"{root} holds no dataset of save_to_disk and no Parquet file: {lies_there(root)}; "
            "give the folder that does"
        )
    return shards_of(root, parts)


def _table(root: Path, parts: tuple[str, ...]) -> Table:
    if parts[0].lower().endswith(_PARQUET):
        return ParquetTable(root, parts)
    return MappedTable(root, parts[0])


def _image_split(
    root: Path, spec: DatasetSpec, split: str, shards: Shards, table: Table
) -> EncodedSplit:
    column = image_column(root, table, spec.image_key)
    table.check_images(column)
    labels = labels_of(root, table, spec.label_key)
    train = labels
    if split != "train" and shards.val:
        train = labels_of(root, _table(root, shards.train), spec.label_key)
    classes, values = numbered(labels, train, spec, root)
    ids = shards.ids(len(table), split, root)

    def encoded(sample_id: int) -> tuple[str, bytes]:
        return _encoded(root, table, column, int(ids[sample_id]))

    return EncodedSplit(classes, values[ids], encoded)


def _encoded(root: Path, table: Table, column: str, row: int) -> tuple[str, bytes]:
    """The place and the bytes of an image; paths of files count from ``root``."""
    piece, within = table.piece(column, row)
    value = piece[within].as_py()
    place = table.place(row)
    if isinstance(value, bytes):
        return place, value
    content = value and value.get("bytes")
    if content is not None:
        return place, content
    path = value and value.get("path")
    if not path:
        raise DataError(f"{place} has no image in column {column}; leave such rows out")
    for folder in (root, table.folder(row)):
        try:
            if (folder / path).is_file():  # a pipe or device has no end
                return f"{place} ({printable(path)})", (folder / path).read_bytes()
        except (OSError, ValueError):
            break
    raise DataError(
        f"{place} names the image file {printable(path)}, which cannot be read; write the data "
        "again with the images in it (save_to_disk and to_parquet embed files that are there)"
    )


def _token_split(
    root: Path, spec: DatasetSpec, split: str, shards: Shards, table: Table
) -> TokenSplit:
    assert spec.sequence_length is not None
    name = token_column(root, table, spec.image_key)
    pieces: list[Any] = []
    for piece in token_pieces(table, name):
        if isinstance(table, ParquetTable):  # decoded anew in each process, so kept narrow
            check_vocabulary(piece, spec, root, sum(map(len, pieces)))
            pieces.append(piece.astype(f"<u{spec.token_bytes}"))
        else:
            pieces.append(piece)
    tokens: Any = np.empty(0, np.int64)
    if pieces:
        tokens = pieces[0] if len(pieces) == 1 else Stream(pieces)
    whole = TokenSplit(tokens, spec.sequence_length)
    wanted = 1 if shards.val else HELD_OUT
    if len(whole) < wanted:
        without = "" if shards.val else " and no validation split"
        raise DataError(
            f"{root} has {counted(len(tokens), 'token')} in "
            f"{split if shards.val else 'all'}{without}, but "
            f"{counted(wanted, 'sequence')} of {spec.label} take "
            f"{wanted * spec.sequence_length + 1}, the last label included; write more tokens"
        )
    return whole if shards.val else whole.part(split)
