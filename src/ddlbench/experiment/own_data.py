"""Datasets of one's own, a line of an experiment or of a site file each.

::

    data:                                    photos is a dataset as cifar10 is:
      photos: {folder: ~/photos, size: 96}   matrix: {dataset: [photos], ...}

A declared dataset is looked at when its facts are first needed: its classes and samples are
counted. Processes that this one starts, such as the ranks of a cell, get the counted facts in the
environment, so that all of them know the same dataset.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, Len

from ddlbench.common.entry_points import load_target
from ddlbench.common.errors import ConfigError
from ddlbench.common.form import Count, Form, InFile, Name
from ddlbench.common.schema import file_schema
from ddlbench.experiment.dataset_spec import DATASETS, OWN_DATA, DatasetSpec, OwnFormat

_COUNT = "ddlbench.datasets.declared:counted"  # reads files, which this folder does not
_Pixels = Annotated[int, Ge(1), Le(16_384)]
_TITLE = {"type": "string", "minLength": 1, "maxLength": 40, "pattern": "^[^$\\n]*$"}
_NAME = {
    "pattern": "^[A-Za-z0-9][A-Za-z0-9_-]{0,39}$",
    "description": "Name of a dataset, of up to 40 letters, digits, dashes and underscores",
}


@dataclass(frozen=True, kw_only=True)
class Columns(Form):
    """Columns of a table, or endings in tar shards."""

    image: Name = ""
    """Of the image, or of the tokens; empty: one of the usual names."""
    label: Name = ""
    """Of the class; empty: one of the usual names."""


@dataclass(frozen=True, kw_only=True)
class OwnDataset(Form):
    """A dataset of one's own."""

    folder: Name | None = None
    """Folder of images: class folders, MNIST's or CIFAR's files, Parquet, a saved Hugging Face
    dataset, tar shards."""
    tokens: Name | None = None
    """File of token numbers, or a folder that holds `train.bin` and `val.bin`; uint16, or uint32
    for vocabularies over 65536."""
    size: _Pixels | Annotated[tuple[_Pixels, ...], Len(2, 2)] | None = None
    """Height and width of an image as the network reads it, in pixels: `96`, or `[96, 128]`; idx
    and CIFAR files have their own."""
    colours: Literal[1, 3] | None = None
    """Channels of an image: 3 for RGB, 1 for grey; empty: 1 of idx files, else 3."""
    classes: Annotated[int, Ge(1), Le(1_000_000)] | None = None
    """Number of classes; counted if left out."""
    samples: Annotated[tuple[Count, ...], Len(2, 2)] | None = None
    """Training and validation samples, as `[3600, 400]`; counted if left out. Only needed where
    this machine does not see the data."""
    vocabulary: Annotated[int, Ge(2), Le(2**32)] | None = None
    """Number of different tokens."""
    sequence: Annotated[int, Ge(1), Le(2**24)] | None = None
    """Tokens that the network reads at once."""
    format: OwnFormat | None = None
    """How the files are written, one of the names below; seen from them if left out."""
    columns: Columns = field(default_factory=Columns)
    """Columns of a table, or endings in tar shards, where they have no usual name, as
    `{image: picture, label: species}`."""
    title: Annotated[Name, InFile(_TITLE)] | None = None
    """Name in tables and figures; the dataset's if left out."""


def _by_name() -> Mapping[str, Any]:
    entry: Any = OwnDataset  # a class has a hash, which mypy does not know of dataclasses
    return {"type": "object", "propertyNames": _NAME, "additionalProperties": file_schema(entry)}


OwnDatasets = Annotated[Mapping[str, OwnDataset], InFile(_by_name)]
"""The key ``data`` of a file."""


def declare(data: Mapping[str, OwnDataset], where: str, *, replace: bool = True) -> None:
    """Add declared datasets to the registry.

    Args:
        data: by name.
        where: the file's name, for messages.
        replace: also those that are declared already.

    Raises:
        ConfigError: keys do not fit each other, or a name is another dataset's.
    """
    for name, entry in data.items():
        place = f"{where}: data.{name}"
        _check_entry(entry, place)
        if name in DATASETS.declared and not replace:
            continue
        try:
            DATASETS.declare(name, partial(_counted, name, entry, f"data.{name}"))
        except ConfigError as error:
            raise ConfigError(f"{place}: {error}") from error
        _FILES[name] = where


_FILES: dict[str, str] = {}  # which file declared a dataset


def declaring_file(names: Iterable[str]) -> str | None:
    """The file that declared a dataset, of which one name is among these; None if there is none."""
    return next((_FILES[name] for name in names if name in _FILES), None)


def _check_entry(entry: OwnDataset, place: str) -> None:
    if (entry.folder is None) == (entry.tokens is None):
        raise ConfigError(
            f"{place}: write either folder, of images, or tokens, a file of token numbers"
        )
    of_tokens = entry.tokens is not None or entry.format == "tokens"
    numbers, of_images = ("vocabulary", "sequence"), ("size", "colours", "classes")
    for key in numbers if of_tokens else ():
        if getattr(entry, key) is None:
            raise ConfigError(
                f"{place}: {key} is missing; tokens have a vocabulary (number of different tokens) "
                "and a sequence (tokens that the network reads at once)"
            )
    for key in of_images if of_tokens else numbers:
        if getattr(entry, key) is not None:
            raise ConfigError(
                f"{place}: {key} belongs to {'images' if of_tokens else 'tokens'}; leave it out"
            )


def _counted(name: str, entry: OwnDataset, place: str) -> DatasetSpec:
    spec: DatasetSpec = load_target(name, _COUNT)(name, entry, place)
    own = [json.loads(text) for text in (os.environ.get(OWN_DATA),) if text]
    others = [facts for facts in (own[0] if own else []) if facts["name"] != name]
    os.environ[OWN_DATA] = json.dumps([*others, asdict(spec)])
    return spec
