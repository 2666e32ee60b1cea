"""The on-disk formats; a dataset of another package may name its own as ``codec``.

A writer is ``write(content, root, images, workers, keep_fds) -> Records``: it writes
``images[split]`` images of each split into the empty folder ``root``, using ``workers`` threads
or processes (which hold ``keep_fds`` open), and its bytes do not depend on ``workers``. A reader
is ``read(root, spec, split) -> Split`` and raises :class:`~ddlbench.datasets.files.DataError`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddlbench.common.entry_points import load_target
from ddlbench.common.errors import ConfigError
from ddlbench.datasets import cifar, huggingface, idx, imagefolder, raw, tokens, webdataset
from ddlbench.datasets.files import Records, Split, available_cpus
from ddlbench.datasets.manifest import Manifest
from ddlbench.datasets.synthetic import Content
from ddlbench.experiment.dataset_spec import DataRequest, DatasetSpec

SPLITS = ("train", "val")


@dataclass(frozen=True)
class Format:
    """Writer and reader of a format.

    Args:
        write, read: see above.
        content: what is written, of a dataset and a seed; ``write`` gets it.
        own_files: names of the files of a split of the user's own data, in a folder; None if the
            format has a folder a class, or is not read as own data.
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


def _read_only(*_: object) -> Records:
    raise ConfigError(
        "tables and archives of other libraries are read, and not written; take another data format"
    )


FORMATS: dict[str, Format] = {
    "idx": Format(idx.write, idx.read, own_files=idx.own_files, recognises=idx.recognises),
    "cifar": Format(
        cifar.write, cifar.read, own_files=cifar.own_files, recognises=cifar.recognises
    ),
    "imagefolder": Format(imagefolder.write, imagefolder.read, recognises=imagefolder.recognises),
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
