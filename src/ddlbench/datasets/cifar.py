"""CIFAR-10's own format: pickled dictionaries in ``cifar-10-batches-py``.

A pickle can make its reader run any code, and real CIFAR files come from the network. So the
unpickler here builds arrays of numbers and plain containers, and refuses everything else.
"""

from __future__ import annotations

import io
import operator
import pickle
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ddlbench.datasets.class_folders import deeper, lies_there, listed, names_in, unpack_hint
from ddlbench.datasets.files import (
    ArraySplit,
    DataError,
    Record,
    Records,
    in_parallel,
    reading,
    write_checked,
)
from ddlbench.datasets.synthetic import Content
from ddlbench.experiment.dataset_spec import DatasetSpec

FOLDER = "cifar-10-batches-py"
META = "batches.meta"
BATCHES = {"train": tuple(f"data_batch_{k}" for k in range(1, 6)), "val": ("test_batch",)}
_LAYOUTS: dict[str, dict[str, tuple[str, ...]]] = {
    FOLDER: BATCHES,
    "cifar-100-python": {"train": ("train",), "val": ("test",)},
}
_LABELS = ("labels", "fine_labels")  # of CIFAR-10 and CIFAR-100
_PROTOCOL = 4  # the first that stores bytes as they are


def own_files(root: Path, split: str) -> list[str]:
    """Batches of ``split`` of the user's own data, as CIFAR-10 or CIFAR-100 has them."""
    return [f"{_folder(root)}/{name}" for name in _LAYOUTS[_folder(root)][split]]


def _folder(root: Path) -> str:
    """The folder of the batches under ``root``; CIFAR-10's where neither is there."""
    return next((folder for folder in _LAYOUTS if (root / folder).is_dir()), FOLDER)


def recognises(root: Path) -> bool:
    """Whether CIFAR's batches lie under ``root``, packed ones too."""
    return any((root / folder).is_dir() for folder in _LAYOUTS) or any(root.glob("cifar-10*.gz"))


def write(
    content: Content, root: Path, images: dict[str, int], workers: int, keep_fds: tuple[int, ...]
) -> Records:
    """Writes all splits under ``root``; see :mod:`ddlbench.datasets.formats`."""
    (root / FOLDER).mkdir()
    jobs: list[Callable[[], tuple[str, Record]]] = []
    for split, count in images.items():
        edges = np.linspace(0, count, len(BATCHES[split]) + 1).astype(int).tolist()
        for number in range(len(BATCHES[split])):
            span = edges[number], edges[number + 1]
            jobs.append(partial(_write_batch, content, root, split, number, span))
    jobs.append(partial(_write_meta, content.spec, root))
    return dict(in_parallel(jobs, workers))


def _write_batch(
    content: Content, root: Path, split: str, number: int, span: tuple[int, int]
) -> tuple[str, Record]:
    first, end = span
    recipe = content.recipe(split, first, end - first)
    images = content.draw(recipe).reshape(end - first, -1)
    labels = recipe.labels.tolist()
    names = [f"{split}_{index:08d}.png" for index in range(first, end)]
    title = f"{split} batch {number + 1} of {len(BATCHES[split])}"
    batch = {"batch_label": title, "labels": labels, "data": images, "filenames": names}
    return _dump(root, BATCHES[split][number], batch)


def _write_meta(spec: DatasetSpec, root: Path) -> tuple[str, Record]:
    names = [f"class {label}" for label in range(spec.num_classes)]
    meta = {"num_cases_per_batch": 10000, "label_names": names, "num_vis": spec.image_bytes}
    return _dump(root, META, meta)


def _dump(root: Path, name: str, value: dict[str, Any]) -> tuple[str, Record]:
    return write_checked(root, f"{FOLDER}/{name}", pickle.dumps(value, protocol=_PROTOCOL))


def read(root: Path, spec: DatasetSpec, split: str) -> ArraySplit:
    """Reads one split of CIFAR-like batches under ``root`` into memory.

    Raises:
        DataError: a file is missing, damaged, not a CIFAR batch, or holds forbidden objects.
    """
    first = BATCHES[split][0]
    if not (root / FOLDER).is_dir() and (root / first).is_file():
        whole = f"{root.parent}, the folder that holds it" if root.name == FOLDER else "its parent"
        raise DataError(f"{root} is the folder of the batches; name it {FOLDER} and give {whole}")
    shards, labels = [], []
    for name in own_files(root, split):
        path = root / name
        batch = load_pickle(path)
        numbers = batch[_label_key(path, batch)]
        images = _images(path, batch["data"], spec)
        shards.append(images.reshape(-1, *spec.shape))
        labels.append(_labels(path, numbers, len(images), spec))
    all_labels = np.concatenate(labels)
    if not len(all_labels):
        raise DataError(f"{root / _folder(root)} holds no {split} images; replace it")
    return ArraySplit([np.concatenate(shards)], all_labels)


def _label_key(path: Path, batch: dict[str, Any]) -> str:
    known = _LABELS if path.parent.name != FOLDER else _LABELS[:1]
    key = next((key for key in known if key in batch), None)
    missing = [name for name, there in (("data", "data" in batch), (known[-1], key)) if not there]
    if key is None or missing:
        keys = ", ".join(repr(key) for key in batch) or "nothing"
        raise DataError(
            f"{path} has no key {' and no key '.join(map(repr, missing))}; it has {keys}; "
            f"a CIFAR batch is a dictionary of 'data' and '{known[-1]}'"
        )
    return key


def _images(path: Path, data: Any, spec: DatasetSpec) -> np.ndarray:
    """The images of a batch, uint8 (N, bytes of an image)."""
    is_array = isinstance(data, np.ndarray)
    if is_array and data.dtype == np.uint8 and data.shape[1:] == (spec.image_bytes,):
        return np.ascontiguousarray(data)
    form = f"an array of {data.dtype} of shape {data.shape}" if is_array else type(data).__name__
    size = "x".join(map(str, spec.shape))
    raise DataError(
        f"{path}: 'data' is {form}; write a numpy array of uint8 of shape (N, {spec.image_bytes}): "
        f"each row is one image of {size}, channel after channel"
    )


def _labels(path: Path, numbers: Any, images: int, spec: DatasetSpec) -> np.ndarray:
    """The labels of a batch, int64 (N,)."""
    try:
        labels = np.array([operator.index(number) for number in numbers], np.int64)
    except (TypeError, OverflowError):
        raise DataError(f"{path}: 'labels' is no list of whole numbers; write one") from None
    if len(labels) != images:
        raise DataError(
            f"{path} has {images} images in 'data' and {len(labels)} numbers in 'labels'; "
            "write one label an image"
        )
    wrong = labels[(labels < 0) | (labels >= spec.num_classes)]
    if len(wrong):
        raise DataError(
            f"{path} has the label {wrong[0]}, but {spec.label} has {spec.num_classes} classes; "
            f"write labels from 0 to {spec.num_classes - 1}"
        )
    return labels


def load_pickle(path: Path) -> dict[str, Any]:
    """Reads the dictionary pickled in ``path``; keys of bytes become text.

    Raises:
        DataError: the file is missing or damaged, or needs more than arrays and containers.
    """
    if not path.exists():
        raise DataError(_missing(path))
    with reading(path):
        content = path.read_bytes()
    try:
        value = _DataUnpickler(io.BytesIO(content), encoding="latin1").load()
    except DataError as error:
        raise DataError(f"{path} {error}") from None
    except Exception as error:  # a damaged pickle may raise nearly anything
        why = str(error) or type(error).__name__
        raise DataError(f"{path} is not a readable CIFAR file ({why}); replace it") from error
    if not isinstance(value, dict):
        raise DataError(f"{path} is not a CIFAR file: it holds no dictionary; replace it")
    return {k.decode("latin1") if isinstance(k, bytes) else k: v for k, v in value.items()}


def _missing(path: Path) -> str:
    wanted, folder = f"{path} is missing", path.parent
    if folder.is_dir():
        binary = [name for name in names_in(folder) if name.endswith(".bin")]
        if binary:
            return f"{wanted}: {folder} holds {listed(binary)}; take CIFAR's version for Python"
        return f"{wanted}: {lies_there(folder)}; check the data source"
    if (hint := unpack_hint(folder.parent)) is not None:
        return f"{wanted}; {hint}"
    holder = deeper(folder.parent, lambda below: (below / FOLDER).is_dir())
    if holder is not None:
        return f"{wanted}; give {holder}, which holds {FOLDER}"
    return f"{wanted}: {lies_there(folder)}; give the folder that holds {FOLDER}"


def _latin1(text: str, encoding: str) -> bytes:
    """Replaces ``codecs.encode``, by which Python 3 pickles bytes for Python 2."""
    if encoding != "latin1":
        raise DataError(f"asks for the encoding {encoding!r}; it is not CIFAR data, do not use it")
    return text.encode("latin1")


def _number_type(name: str, *_: object) -> np.dtype:
    """Replaces ``numpy.dtype``; images and labels are numbers, and no objects."""
    if not re.fullmatch(r"[|<>=]?[iuf][1248]", name):
        raise DataError(f"holds an array of {name!r}; it is not CIFAR data, do not use it")
    return np.dtype(name, copy=True)  # the reader of a pickle sets its byte order


def _array_parts() -> dict[tuple[str, str], Any]:
    # What numpy names when it pickles an array, under its module's old and new name.
    array, number = np.empty(0), np.int64(0)
    parts: dict[tuple[str, str], Any] = {
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): _number_type,
        ("_codecs", "encode"): _latin1,
    }
    for core in ("numpy.core", "numpy._core"):
        parts[f"{core}.multiarray", "_reconstruct"] = array.__reduce__()[0]
        parts[f"{core}.multiarray", "scalar"] = number.__reduce__()[0]
        parts[f"{core}.numeric", "_frombuffer"] = array.__reduce_ex__(5)[0]
    return parts


class _DataUnpickler(pickle.Unpickler):
    """Rebuilds numpy arrays and numbers; refuses any other name before it is imported."""

    _known = _array_parts()

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._known:
            raise DataError(
                f"asks for {module}.{name}, which is not image data; do not use this file"
            )
        return self._known[module, name]
