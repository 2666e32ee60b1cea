"""Columns of tables that hold images, labels or tokens: which they are, and what is in them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ddlbench.common.errors import shown
from ddlbench.datasets.class_folders import listed
from ddlbench.datasets.files import DataError
from ddlbench.datasets.shards import USUAL_IMAGES, USUAL_LABELS, Labels, only
from ddlbench.datasets.tables import Array, Table

_USUAL_TOKENS = ("input_ids", "tokens", "token_ids", "ids")


def _described(table: Table) -> str:
    return listed([f"{field.name} ({_kind(table, field)})" for field in table.schema])


def _kind(table: Table, field: Any) -> str:
    feature = table.features.get(field.name)
    name = type(feature).__name__
    return str(field.type) if feature is None or name in ("Value", "dict", "list") else name


def _of_key(root: Path, table: Table, key: str) -> str:
    if key not in table.schema.names:
        raise DataError(f"{root} has no column {shown(key)}; it has {_described(table)}")
    return key


def image_column(root: Path, table: Table, key: str) -> str:
    """The column of encoded images: ``key``, or the one that its name or type tells.

    Raises:
        DataError: there is none, or it cannot be told which.
    """
    able = [field.name for field in table.schema if _holds_images(table, field)]
    if key:
        if _of_key(root, table, key) in able:
            return key
        raise DataError(_no_image(root, table, key))
    images = [name for name in able if type(table.features.get(name)).__name__ == "Image"] or able
    usual = [name for name in images if name.lower() in USUAL_IMAGES]
    if len(usual) == 1:
        return usual[0]
    if images:
        return only(root, usual or images, "columns of images", "image")
    wrong = [name for name in table.schema.names if name.lower() in USUAL_IMAGES]
    if wrong:
        raise DataError(_no_image(root, table, wrong[0]))
    raise DataError(f"{root} has no column of images; it has {_described(table)}")


def _holds_images(table: Table, field: Any) -> bool:
    feature = table.features.get(field.name)
    if feature is not None and type(feature).__name__ not in ("Image", "Value", "dict"):
        return False  # of sound, video, ...
    if str(field.type).startswith("struct"):
        parts = map(field.type.field, range(field.type.num_fields))
        types = {part.name: part.type for part in parts}
        return (
            bool(types.keys() & {"bytes", "path"})
            and ("bytes" not in types or _is_bytes(types["bytes"]))
            and ("path" not in types or _is_text(types["path"]) or _is_empty(types["path"]))
            and any(not _is_empty(types[part]) for part in ("bytes", "path") if part in types)
        )
    return _is_bytes(field.type)


def _no_image(root: Path, table: Table, name: str) -> str:
    field = table.schema.field(name)
    advice = "give a column of images' files (JPEG, PNG, ...) as bytes"
    if _is_text(field.type):
        advice = f"if it names files, save data.cast_column({name!r}, datasets.Image()) again"
    elif "Image(" in str(table.features.get(name)):
        advice = "write one image a row"
    elif "list" in str(field.type) or "extension" in str(field.type):
        advice = (
            f"of pixels, save data.cast_column({name!r}, datasets.Image()) or PNG files as bytes"
        )
    return f"{root}: column {name} holds {_kind(table, field)}, no encoded images; {advice}"


def labels_of(root: Path, table: Table, key: str) -> Labels:
    """The labels of all rows, in the column ``key``, or the one that its name or type tells.

    Raises:
        DataError: there is no such column, it cannot be told which, or it holds something else.
    """
    import pyarrow as pa  # noqa: PLC0415 - an extra

    name = _of_key(root, table, key) if key else _label_column(root, table)
    pieces = []
    row = 0
    for piece in table.column(name):
        if pa.types.is_dictionary(piece.type):
            piece = piece.dictionary_decode()  # noqa: PLW2901
        if piece.null_count:
            missing = row + int(np.argmax(piece.is_null().to_numpy(zero_copy_only=False)))
            raise DataError(
                f"{table.place(missing)} has no label in column {name}; leave such rows out"
            )
        pieces.append(_label_values(root, table, name, piece))
        row += len(piece)
    feature = table.features.get(name)
    names = getattr(feature, "names", None)  # of a ClassLabel
    return Labels(np.concatenate(pieces), table.place, tuple(names) if names else None)


def _label_values(root: Path, table: Table, name: str, piece: Array) -> np.ndarray:
    import pyarrow as pa  # noqa: PLC0415 - an extra

    if _is_text(piece.type):
        return np.array(piece.to_pylist(), object)
    kind = _kind(table, table.schema.field(name))
    is_float = pa.types.is_floating(piece.type)
    if not (is_float or pa.types.is_integer(piece.type) or pa.types.is_boolean(piece.type)):
        raise DataError(
            f"{root}: column {name} holds {kind}, no labels; "
            "write one whole number from 0, or one text, a row"
        )
    try:  # pandas makes floating-point numbers of a column that lacked a value
        return np.asarray((piece.cast(pa.float64()) if is_float else piece).cast(pa.int64()))
    except pa.ArrowInvalid:
        wrong = f"{kind} that are not whole" if is_float else "numbers of 64 bits"
        raise DataError(
            f"{root}: column {name} holds {wrong}, no labels; number the classes from 0"
        ) from None


def _label_column(root: Path, table: Table) -> str:
    names = table.schema.names
    classes = [name for name in names if type(table.features.get(name)).__name__ == "ClassLabel"]
    usual = [name for name in names if name.lower() in USUAL_LABELS]
    likely = usual or classes
    if len(likely) > 1:
        likely = [name for name in likely if name in classes] or likely
    if likely:
        return only(root, likely, "columns of labels", "label")
    raise DataError(
        f"{root} has no column of labels; it has {_described(table)}; "
        "write which: columns: {label: NAME}"
    )


def token_column(root: Path, table: Table, key: str) -> str:
    """The column of tokens: ``key``, or the one that its name tells.

    Raises:
        DataError: there is none, or it cannot be told which.
    """
    if key:
        return _of_key(root, table, key)
    usual = [name for name in table.schema.names if name.lower() in _USUAL_TOKENS]
    if usual:
        return only(root, usual, "columns of tokens", "image")
    texts = [field.name for field in table.schema if _is_text(field.type)]
    if texts:
        raise DataError(
            f"{root} has text in column {texts[0]}, but no tokens; tokenise it first, into a "
            "column input_ids"
        )
    raise DataError(f"{root} has no column of tokens (input_ids); it has {_described(table)}")


def token_pieces(table: Table, name: str) -> Iterator[np.ndarray]:
    """Tokens of each piece of a column, as they lie in memory.

    Raises:
        DataError: the column holds something else, or a token is missing.
    """
    row = 0
    for piece in table.column(name):
        values = piece.flatten() if "list" in str(piece.type).partition("<")[0] else piece
        if not str(values.type).startswith(("int", "uint")):
            advice = "tokenise it first" if _is_text(piece.type) else "write lists of whole numbers"
            raise DataError(
                f"{table.place(row)}: column {name} holds {piece.type}, no tokens; {advice}"
            )
        if piece.null_count or values.null_count:
            raise DataError(
                f"{table.place(row)}, or a row soon after it, lacks a token in column {name}; "
                "leave such rows out"
            )
        row += len(piece)
        if len(values):
            yield values.to_numpy()


class Stream:
    """Arrays of tokens as one, without a copy: it is read by slices and by arrays of places."""

    ndim = 1

    def __init__(self, pieces: list[np.ndarray]) -> None:
        self._pieces = pieces
        self._ends = np.cumsum([len(piece) for piece in pieces])
        self.dtype = np.result_type(*{piece.dtype for piece in pieces})

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, places: Any) -> Any:
        if isinstance(places, slice):
            return self._slice(*places.indices(len(self)))
        flat = np.asarray(places)
        which = np.searchsorted(self._ends, flat, side="right")
        out = np.empty(flat.shape, self.dtype)
        for number in np.unique(which):
            mine = which == number
            piece = self._pieces[number]
            out[mine] = piece[flat[mine] - (self._ends[number] - len(piece))]
        return out

    def _slice(self, first: int, end: int, step: int) -> Any:
        if step != 1 or first >= end:
            return self[np.arange(first, end, step)]
        begins = self._ends - [len(piece) for piece in self._pieces]
        cut = [
            piece[max(0, first - begin) : end - begin]
            for piece, begin in zip(self._pieces, begins.tolist(), strict=True)
            if begin < end and begin + len(piece) > first
        ]
        return cut[0] if len(cut) == 1 else Stream(cut)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.concatenate(self._pieces).astype(dtype or self.dtype, copy=False)


def _is_bytes(kind: Any) -> bool:
    return str(kind).startswith(("binary", "large_binary", "fixed_size_binary"))


def _is_empty(kind: Any) -> bool:
    return str(kind) == "null"  # pandas writes a part so that is None in all rows


def _is_text(kind: Any) -> bool:
    return str(kind) in ("string", "large_string", "string_view")
