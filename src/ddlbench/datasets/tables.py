"""Tables of Hugging Face datasets and of Parquet files, read by row.

::

    save_to_disk:   data-00000.arrow   | batch | batch | ... |          mapped into memory
    Parquet:        train-00000.parquet   | row group | row group | ... |   the last few are kept

A batch is read where it lies. A row group is decoded whole for each of its rows, because Parquet
has no smaller piece that its library reads; so a process keeps the row groups that it used last.
"""

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from ddlbench.common.errors import shown
from ddlbench.datasets.files import DataError, reading
from ddlbench.datasets.shards import check_pointer

STATE = "state.json"
INFO = "dataset_info.json"

KEPT_BYTES = 512 << 20
"""Decoded images of row groups that a process keeps; five of the largest that `datasets` writes."""

_FILES_OPEN = 128
_POINTER_BYTES = 64
_OF_IMAGE = ("bytes", "path")

Array = Any  # pyarrow.Array; the library is not there everywhere


class Table(ABC):
    """A table in files, one after the other, whose rows are read in any order.

    Attributes:
        schema: its columns, a pyarrow.Schema.
        features: what `datasets` knows of them, by name; empty where it does not.

    Args:
        root: of the dataset.
        parts: its files, as paths from there.
        rows: of each file.
    """

    schema: Any
    features: dict[str, Any]

    def __init__(self, root: Path, parts: Sequence[str], rows: Sequence[int]) -> None:
        self._root, self._parts = root, parts
        self._file_starts, self._length = _starts(rows), sum(rows)

    def __len__(self) -> int:
        return self._length

    def place(self, row: int) -> str:
        """Where a row lies, for messages."""
        file = bisect_right(self._file_starts, row) - 1
        return f"{self._root.name}/{self._parts[file]}, row {row - self._file_starts[file]}"

    def folder(self, row: int) -> Path:
        """The folder that holds the row's file."""
        return (self._root / self._parts[bisect_right(self._file_starts, row) - 1]).parent

    @abstractmethod
    def column(self, name: str) -> Iterator[Array]:
        """A whole column, piece by piece."""

    @abstractmethod
    def piece(self, name: str, row: int) -> tuple[Array, int]:
        """A piece of a column that holds ``row``, and where in it."""

    @abstractmethod
    def check_images(self, name: str) -> None:
        """Looks for rows without an image, where that is cheap, and for too large pieces.

        Raises:
            DataError: there are some.
        """


def arrow_files(folder: Path) -> list[str]:
    """Names of the tables in a folder that `save_to_disk` wrote.

    Raises:
        DataError: one is missing, or the state does not name them.
    """
    if not (folder / STATE).exists():
        raise DataError(
            f"{folder} has no {STATE}, so it was not saved whole; write it with save_to_disk"
        )
    with reading(folder / STATE):
        text = (folder / STATE).read_text("utf-8", errors="replace")
    try:
        state = json.loads(text)
        names = [entry["filename"] for entry in state["_data_files"]]
        if not all(isinstance(name, str) and Path(name).name == name for name in names):
            raise DataError(f"{folder / STATE} names files of another folder; save the data again")
        if state.get("_indices_data_files"):
            raise DataError(
                f"{folder} was saved by an old `datasets`, which kept the order of rows apart; "
                "load it there and save data.flatten_indices()"
            )
    except (ValueError, TypeError, KeyError, RecursionError):
        raise DataError(
            f"{folder / STATE} does not list the files of a dataset; write it with save_to_disk"
        ) from None
    for name in names:
        if not (folder / name).is_file():
            raise DataError(f"{folder / name} is missing; copy the folder again, with all files")
    return names


def _unreadable(path: Path, error: Exception) -> DataError:
    text = " ".join(str(error).split()) or type(error).__name__
    return DataError(
        f"{path} cannot be read ({shown(text)}); copy or write it again, or update `datasets`"
    )


def _check_file(path: Path) -> None:
    with reading(path), path.open("rb") as file:
        check_pointer(path, file.read(_POINTER_BYTES))


class MappedTable(Table):
    """A folder that `Dataset.save_to_disk` wrote.

    Raises:
        DataError: a file is missing or damaged, or has other columns than the first.
    """

    def __init__(self, root: Path, part: str) -> None:
        import datasets  # noqa: PLC0415 - an extra

        parts = [str(Path(part) / name) for name in arrow_files(root / part)]
        self._tables = []
        self.features = {}
        for name in parts:
            _check_file(root / name)
            try:
                # In memory it would be once in each process.
                opened = datasets.Dataset.from_file(str(root / name), in_memory=False)
            except Exception as error:  # a damaged file may raise nearly anything
                raise _unreadable(root / name, error) from error
            self._tables.append(opened.data.table)
            self.features = self.features or dict(opened.features)
        if not self._tables:
            raise DataError(f"{root / part / STATE} lists no files; save the data again")
        super().__init__(root, parts, [len(table) for table in self._tables])
        self.schema = self._tables[0].schema
        _check_columns([(root / n, t.schema) for n, t in zip(parts, self._tables, strict=True)])
        self._batches = [batch for table in self._tables for batch in table.to_batches()]
        self._starts = _starts([len(batch) for batch in self._batches])

    def column(self, name: str) -> Iterator[Array]:
        for table in self._tables:
            yield from table.column(name).chunks

    def piece(self, name: str, row: int) -> tuple[Array, int]:
        number = bisect_right(self._starts, row) - 1
        return self._batches[number].column(name), row - self._starts[number]

    def check_images(self, name: str) -> None:
        row = 0
        for piece in self.column(name):
            missing = _without_image(piece)
            if missing.any():
                raise DataError(
                    f"{self.place(row + int(np.argmax(missing)))} has no image in column {name}; "
                    "leave such rows out"
                )
            row += len(piece)


class ParquetTable(Table):
    """Parquet files, one after the other.

    Raises:
        DataError: a file is missing or damaged, or has other columns than the first.
    """

    def __init__(self, root: Path, parts: Sequence[str]) -> None:
        import datasets  # noqa: PLC0415 - an extra

        self._paths = [root / part for part in parts]
        self._metadata = [_metadata(path) for path in self._paths]
        super().__init__(root, parts, [m.num_rows for m in self._metadata])
        self.schema = self._metadata[0].schema.to_arrow_schema()
        self.features = {}
        if b"huggingface" in (self.schema.metadata or {}):
            try:
                self.features = dict(datasets.Features.from_arrow_schema(self.schema))
            except Exception as error:  # features of another version
                raise _unreadable(self._paths[0], error) from error
        schemas = (metadata.schema.to_arrow_schema() for metadata in self._metadata)
        _check_columns(list(zip(self._paths, schemas, strict=True)))
        groups = [
            (file, k) for file, m in enumerate(self._metadata) for k in range(m.num_row_groups)
        ]
        rows = [self._metadata[file].row_group(k).num_rows for file, k in groups]
        self._groups, self._starts = groups, _starts(rows)
        self._open = lru_cache(maxsize=_FILES_OPEN)(self._opened)
        self._kept: OrderedDict[tuple[str, int], Array] = OrderedDict()
        self._lock = threading.Lock()

    def column(self, name: str) -> Iterator[Array]:
        for number in range(len(self._groups)):
            yield self._decoded(name, number)

    def piece(self, name: str, row: int) -> tuple[Array, int]:
        number = bisect_right(self._starts, row) - 1
        with self._lock:
            piece = self._kept.get((name, number))
            if piece is None:
                piece = self._decoded(name, number)
                self._keep((name, number), piece)
            self._kept.move_to_end((name, number))
        return piece, row - self._starts[number]

    def _keep(self, key: tuple[str, int], piece: Array) -> None:
        room = KEPT_BYTES - piece.nbytes
        while self._kept and sum(kept.nbytes for kept in self._kept.values()) > room:
            self._kept.popitem(last=False)
        self._kept[key] = piece

    def _decoded(self, name: str, number: int) -> Array:
        file, group = self._groups[number]
        try:
            table = self._open(file).read_row_group(group, columns=[name], use_threads=False)
            chunks = table.column(name).combine_chunks()
        except Exception as error:  # a damaged file may raise nearly anything
            raise _unreadable(self._paths[file], error) from error
        return chunks

    def _opened(self, file: int) -> Any:
        from pyarrow import parquet  # noqa: PLC0415 - an extra

        return parquet.ParquetFile(
            self._paths[file], metadata=self._metadata[file], memory_map=True
        )

    def check_images(self, name: str) -> None:
        for (file, group), start in zip(self._groups, self._starts, strict=True):
            leaves = self._leaves(name, file, group)
            size_bytes = sum(leaf.total_uncompressed_size for leaf in leaves)
            if self._lacks_image(name, leaves, self._metadata[file].row_group(group).num_rows):
                raise DataError(
                    f"{self.place(start)}, or a row soon after it, has no image in column {name}; "
                    "leave such rows out"
                )
            if size_bytes > KEPT_BYTES:
                raise DataError(
                    f"{self._paths[file]} has {size_bytes >> 20} MiB of column {name} in one row "
                    "group, all of which would be decoded for one sample; write it with "
                    f"row_group_size=100 (at most {KEPT_BYTES >> 20} MiB), or with save_to_disk"
                )

    def _lacks_image(self, name: str, leaves: list[Any], rows: int) -> bool:
        """Whether the counts of missing values leave no other way; False where some are unknown."""
        known = (name, *(f"{name}.{part}" for part in _OF_IMAGE))
        statistics = [leaf.statistics for leaf in leaves if leaf.path_in_schema in known]
        if not statistics or any(s is None or s.null_count is None for s in statistics):
            return False
        # A row with an image lacks fewer than all parts.
        return bool(sum(s.null_count for s in statistics) > rows * (len(statistics) - 1))

    def _leaves(self, name: str, file: int, group: int) -> list[Any]:
        """Descriptions of a column's parts in a row group, such as bytes and path."""
        metadata = self._metadata[file].row_group(group)
        columns = map(metadata.column, range(metadata.num_columns))
        return [c for c in columns if f"{c.path_in_schema}.".startswith(f"{name}.")]


def _without_image(piece: Array) -> np.ndarray:
    """Whether rows have neither the bytes of an image nor the path of one; bool of shape (N,)."""
    kind = piece.type
    if not str(kind).startswith("struct"):
        return _nulls(piece)
    fields = [kind.field(k).name for k in range(kind.num_fields)]
    parts = zip(fields, piece.flatten(), strict=True)
    return np.logical_and.reduce([_nulls(part) for name, part in parts if name in _OF_IMAGE])


def _nulls(piece: Array) -> np.ndarray:
    if not piece.null_count:
        return np.zeros(len(piece), bool)
    return np.asarray(piece.is_null().to_numpy(zero_copy_only=False))


def _metadata(path: Path) -> Any:
    from pyarrow import parquet  # noqa: PLC0415 - an extra

    _check_file(path)
    try:
        return parquet.read_metadata(path, memory_map=True)
    except Exception as error:  # a damaged file may raise nearly anything
        raise _unreadable(path, error) from error


def _check_columns(files: Sequence[tuple[Path, Any]]) -> None:
    """Raises DataError if files, with their schemas, have other columns than the first."""
    first, expected = files[0]
    twice = [name for name in expected.names if expected.names.count(name) > 1]
    if twice:
        raise DataError(f"{first} has two columns {shown(twice[0])}; rename one of them")
    for path, schema in files[1:]:
        for field in expected:
            other = schema.field(field.name) if field.name in schema.names else None
            if other is None or other.type != field.type:
                has = "lacks it" if other is None else f"has {other.type}"
                raise DataError(
                    f"{first} has column {shown(field.name)} of {field.type}, but {path} {has}; "
                    "give all files the same columns"
                )


def _starts(lengths: Sequence[int]) -> list[int]:
    """First row of each piece."""
    return [0, *accumulate(lengths)][:-1]
