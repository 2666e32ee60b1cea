"""The on-disk formats, MNIST's among them; a dataset may name another package's as ``codec``.

A writer is ``write(content, root, images, workers, keep_fds) -> Records``: it writes
``images[split]`` images of each split into the empty folder ``root``, using ``workers`` threads
or processes (which hold ``keep_fds`` open), and its bytes do not depend on ``workers``. A reader
is ``read(root, spec, split) -> Split`` and raises :class:`~ddlbench.datasets.files.DataError`.

MNIST's format, ``idx``, has ``MNIST/raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte``. A file
is a big-endian header (two zero bytes, type 8 = unsigned byte, number of dimensions, then each
dimension as 32 bits) and the bytes.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ddlbench.common.entry_points import load_target
from ddlbench.common.errors import ConfigError
from ddlbench.datasets import (
    cifar,
    class_folders,
    huggingface,
    imagefolder,
    raw,
    tokens,
    webdataset,
)
from ddlbench.datasets.class_folders import deeper, lies_there, listed, unpack_hint
from ddlbench.datasets.files import (
    ArraySplit,
    CheckedFile,
    DataError,
    Manifest,
    Record,
    Records,
    Split,
    available_cpus,
    in_parallel,
    reading,
)
from ddlbench.datasets.synthetic import Content
from ddlbench.experiment.dataset_spec import DataRequest, DatasetSpec

SPLITS = ("train", "val")

_FOLDER = "MNIST/raw"
_PREFIX = {"train": "train", "val": "t10k"}
_UNSIGNED_BYTE = 8
_GZIP = b"\x1f\x8b"
_IMAGES_A_BLOCK = 2048


@dataclass(frozen=True)
class Format:
    """Writer and reader of a format.

    Args:
        write, read: as the top of this module says.
        content: what is written, of a dataset and a seed; ``write`` gets it.
        own_files: names of the files of a split of the user's own data, in a folder; None if the
            format has a folder per class, or is not read as own data.
        check_own: reads a split of the user's own data whole; raises DataError. None where
            ``read`` is enough.
        recognises: whether files of this format lie in a folder; None where nothing tells it.
    """

    write: Callable[[Any, Path, dict[str, int], int, tuple[int, ...]], Records]
    read: Callable[[Path, DatasetSpec, str], Split]
    content: Callable[[DatasetSpec, int], Any] = Content
    own_files: Callable[[Path, str], list[str]] | None = None
    check_own: Callable[[Path, DatasetSpec, str], None] | None = None
    recognises: Callable[[Path], bool] | None = None


def _idx_paths(split: str) -> tuple[str, str]:
    """Image and label file of ``split``, relative to the root."""
    prefix = f"{_FOLDER}/{_PREFIX[split]}"
    return f"{prefix}-images-idx3-ubyte", f"{prefix}-labels-idx1-ubyte"


def _idx_files(root: Path, split: str) -> list[str]:
    """Image and label file of ``split``, relative to the root, where the user's own data has them.

    They may lie in ``MNIST/raw``, in another dataset's ``<name>/raw`` if that is the only one, in
    ``raw``, or in the root itself, and may be called ``train-images.idx3-ubyte``.
    """
    return [_own_file(root, path) for path in _idx_paths(split)]


def _own_file(root: Path, path: str) -> str:
    """The file of which ``path`` is MNIST's; its name may have a beginning, or say ``test``."""
    name = Path(path).name
    others = sorted(f"{raw.parent.name}/raw" for raw in root.glob("*/raw") if raw.is_dir())
    folders = [_FOLDER, *(others if len(others) == 1 else []), "raw", "."]
    spellings = [name, name.replace("-idx", ".idx")]
    spellings += [f"*[-_.]{spelling}" for spelling in spellings]
    spellings += [spelling.replace("t10k", "test") for spelling in spellings if "t10k" in name]
    for ending in ("", ".gz"):
        for folder in folders:
            for spelling in spellings:
                places = sorted((root / folder).glob(spelling + ending))
                if len(places) > 1:
                    names = listed([file.name for file in places])
                    raise DataError(f"{root / folder} holds {names}; leave one of them there")
                if not places:
                    continue
                if ending:
                    raise DataError(
                        f"{places[0].with_suffix('')} is packed as {places[0].name}; run gunzip -k "
                        f"{places[0]}"
                    )
                return f"{folder}/{places[0].name}".removeprefix("./")
    raise DataError(_missing(root, path, others))


def _missing(root: Path, path: str, others: list[str]) -> str:
    wanted = f"{root / path} is missing"
    if _FOLDER not in others and len(others) > 1:
        return f"{wanted}: {root} holds {listed(others)}; leave the folder of one dataset there"
    holder = deeper(root, lambda folder: any(folder.glob("*train-images*idx3-ubyte*")))
    if holder is not None:
        return f"{wanted}: {lies_there(holder)}; give {holder}"
    raw = next((root / folder for folder in (_FOLDER, *others) if (root / folder).is_dir()), root)
    if (hint := unpack_hint(raw)) is not None:
        return f"{wanted}; {hint}"
    return f"{wanted}: {lies_there(raw)}; name the files as MNIST's are"


def _header(*dims: int) -> bytes:
    return struct.pack(f">HBB{len(dims)}I", 0, _UNSIGNED_BYTE, len(dims), *dims)


def _write_idx(
    content: Content, root: Path, images: dict[str, int], workers: int, keep_fds: tuple[int, ...]
) -> Records:
    (root / _FOLDER).mkdir(parents=True)
    jobs = [partial(_write_split, content, root, split, count) for split, count in images.items()]
    return {path: record for records in in_parallel(jobs, workers) for path, record in records}


def _write_split(content: Content, root: Path, split: str, count: int) -> list[tuple[str, Record]]:
    image_path, label_path = _idx_paths(split)
    recipe = content.recipe(split, 0, count)
    with CheckedFile(root / image_path) as image_file:
        image_file.write(_header(count, content.spec.height, content.spec.width))
        for first in range(0, count, _IMAGES_A_BLOCK):
            image_file.write(content.draw(recipe[first : first + _IMAGES_A_BLOCK]))
    with CheckedFile(root / label_path) as label_file:
        label_file.write(_header(count))
        label_file.write(recipe.labels.astype(np.uint8))
    return [(image_path, image_file.record), (label_path, label_file.record)]


def _read_idx(root: Path, spec: DatasetSpec, split: str) -> ArraySplit:
    """Maps one split of MNIST-like files under ``root`` into memory."""
    image_path, label_path = _idx_files(root, split)
    images = _map(root / image_path, 3)
    labels = _map(root / label_path, 1)
    if images.shape[1:] != (spec.height, spec.width) or len(images) != len(labels):
        raise DataError(
            f"{root / image_path} holds {images.shape} images for {len(labels)} labels, "
            f"not images of {spec.height}x{spec.width}; give the folder of {spec.label}"
        )
    return ArraySplit([images[:, None]], labels.astype(np.int64))


def _is_idx(root: Path) -> bool:
    """Whether MNIST-like files lie under ``root``, packed ones too."""
    folders = (_FOLDER, "*/raw", "raw", ".")
    return any(any(root.glob(f"{folder}/*train-images*idx3-ubyte*")) for folder in folders)


def idx_shape(root: Path) -> tuple[int, int]:
    """Height and width of the training images under ``root``.

    Raises:
        DataError: a file is missing or damaged.
    """
    height, width = _map(root / _idx_files(root, "train")[0], 3).shape[1:]
    return height, width


def _map(path: Path, num_dims: int) -> np.ndarray:
    """Maps the array in ``path``, copy-on-write, so that nothing can change the file."""
    header_bytes = 4 * (1 + num_dims)
    with reading(path), path.open("rb") as file:
        header = file.read(header_bytes)
        size = os.fstat(file.fileno()).st_size
    if header[:2] == _GZIP:
        raise DataError(f"{path} is still packed; run mv {path} {path}.gz && gunzip {path}.gz")
    magic = struct.pack(">HBB", 0, _UNSIGNED_BYTE, num_dims)
    if len(header) < header_bytes or header[:4] != magic:
        raise DataError(f"{path} is not an idx file of {num_dims}-dimensional bytes; replace it")
    dims = struct.unpack(f">{num_dims}I", header[4:])
    if size != header_bytes + int(np.prod(dims, dtype=np.int64)):
        raise DataError(f"{path} has {size} bytes, not what its header says; replace it")
    if 0 in dims:
        raise DataError(f"{path} holds no images; replace it")
    return np.asarray(np.memmap(path, np.uint8, "c", offset=header_bytes, shape=dims))


def _read_only(*_: object) -> Records:
    raise ConfigError(
        "tables and archives of other libraries are read, and not written; take another data format"
    )


FORMATS: dict[str, Format] = {
    "idx": Format(_write_idx, _read_idx, own_files=_idx_files, recognises=_is_idx),
    "cifar": Format(
        cifar.write, cifar.read, own_files=cifar.own_files, recognises=cifar.recognises
    ),
    "imagefolder": Format(
        imagefolder.write, class_folders.read, recognises=class_folders.recognises
    ),
    "raw": Format(raw.write, raw.read),
    "tokens": Format(
        tokens.write, tokens.read, tokens.TokenContent, tokens.own_files, tokens.check
    ),
    "huggingface": Format(
        _read_only,
        huggingface.read,
        own_files=huggingface.own_files,
        check_own=huggingface.check,
        recognises=huggingface.recognises,
    ),
    "webdataset": Format(
        _read_only,
        webdataset.read,
        own_files=webdataset.own_files,
        recognises=webdataset.recognises,
    ),
}


def format_of(request: DataRequest) -> Format:
    """The format of the data of ``request``.

    Raises:
        ConfigError: the dataset's codec cannot be imported, or is no :class:`Format`.
    """
    if request.format in FORMATS:
        return FORMATS[request.format]
    codec = load_target(request.dataset, request.spec.codec)
    if not isinstance(codec, Format):
        raise ConfigError(
            f"dataset {request.dataset!r}: codec {request.spec.codec} is no "
            "ddlbench.datasets.formats.Format"
        )
    return codec


def write_dataset(
    request: DataRequest,
    folder: Path,
    *,
    workers: int | None = None,
    keep_fds: tuple[int, ...] = (),
) -> Manifest:
    """Writes synthetic data into a new or empty folder, and returns its manifest.

    The files are the same, byte for byte, for any number of ``workers`` (threads or processes;
    None for as many as there are CPUs). Helper processes hold ``keep_fds`` open, too.

    Raises:
        OSError: a file could not be written.
    """
    begin = time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    data_format = format_of(request)
    content = data_format.content(request.spec, request.seed)
    images = {split: request.num_images(split) for split in SPLITS}
    records = data_format.write(content, folder, images, workers or available_cpus(), keep_fds)
    manifest = Manifest.of(
        request, records, images=images, generation_s=time.perf_counter() - begin
    )
    manifest.write(folder)
    return manifest
