"""Specifications of datasets (DDLBench's Table I, volumes, tokens, own data), and disk space.

The space is known before anything is written, so a login node can check that the data fit.
:mod:`ddlbench.datasets` writes, stages and loads them. A dataset of one's own is a line of an
experiment or of a site file::

    data:                                    photos is a dataset as cifar10 is:
      photos: {folder: ~/photos, size: 96}   matrix: {dataset: [photos], ...}

A declared dataset is looked at when its facts are first needed: its classes and samples are
counted. Processes that this one starts, such as the ranks of a cell, get the counted facts in the
environment, so that all of them know the same dataset.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from typing import Annotated, Any, Literal, get_args

from annotated_types import Ge, Le, Len

from ddlbench.common.entry_points import Registry, load_target, why_no_target
from ddlbench.common.errors import ConfigError, shown
from ddlbench.common.form import Count, Form, InFile, Name, Natural, Share, WrongForm
from ddlbench.common.schema import file_schema

OwnFormat = Literal["idx", "cifar", "imagefolder", "tokens", "huggingface", "webdataset"]
"""Formats in which own data is read."""
DataFormat = Literal[OwnFormat, "raw"]
Kind = Literal["images", "volumes", "tokens"]
SYNTHETIC = "synthetic"
_TOKENS_OF_16_BITS = 1 << 16


@dataclass(frozen=True)
class DatasetSpec(Form):
    """One dataset: images or volumes with a class each, or sequences of tokens.

    Each token is the label of the one before.

    Args:
        name: key in configurations and paths.
        label: how figures write it.
        num_classes: number of labels; of tokens the vocabulary.
        channels, height, width: shape of one image, or of a slice of a volume; 0 for tokens.
        num_train, num_val: images, volumes or sequences at scale 1.
        native_format: the on-disk format of the original dataset: "idx", "cifar",
            "imagefolder", "raw", "tokens", or a name of its own where ``codec`` is given.
        depth: slices of a volume; None for images.
        sequence_length: tokens of a sequence; None for images and volumes.
        codec: ``module:attribute`` of the :class:`ddlbench.datasets.formats.Format` that writes
            and reads a native format of its own; empty for the five formats above.
        white: share of white that figures mix into a strategy's colour, 0 to 1.
        hatch: of its bars, as matplotlib writes it.
        source: folder or file of own data that a configuration declares; empty for others.
        image_key, label_key: columns of a table, or endings in an archive, that hold a sample's
            image (or tokens) and label; empty where the reader knows them by their usual names.
    """

    name: Name
    label: Name
    num_classes: Count
    channels: Natural
    height: Natural
    width: Natural
    num_train: Count
    num_val: Natural
    native_format: Name
    depth: Count | None = None
    codec: str = ""
    white: Share = 0.6
    hatch: str = "xxxxx"
    sequence_length: Count | None = None
    source: str = ""
    image_key: str = ""
    label_key: str = ""

    @property
    def kind(self) -> Kind:
        """The kind of input for networks."""
        if self.sequence_length is not None:
            return "tokens"
        return "images" if self.depth is None else "volumes"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one image, (C, H, W), volume, (C, D, H, W), or sequence, (T,)."""
        if self.sequence_length is not None:
            return (self.sequence_length,)
        depth = () if self.depth is None else (self.depth,)
        return (self.channels, *depth, self.height, self.width)

    @property
    def target_shape(self) -> tuple[int, ...]:
        """Shape of one sample's labels: () for a class, (T,) for a token a position."""
        return () if self.sequence_length is None else (self.sequence_length,)

    @property
    def input_dtype(self) -> Literal["float32", "int64"]:
        """Type of one sample as a network reads it; integers have no gradient."""
        return "float32" if self.sequence_length is None else "int64"

    @property
    def input_bytes(self) -> int:
        """Bytes of one sample as a network reads it."""
        return math.prod(self.shape) * {"float32": 4, "int64": 8}[self.input_dtype]

    @property
    def token_bytes(self) -> int:
        """Bytes of a token in files: those of uint16 if the vocabulary allows, else of uint32."""
        return 2 if self.num_classes <= _TOKENS_OF_16_BITS else 4

    @property
    def rows(self) -> int:
        """Rows of one channel: the height, times the slices of a volume."""
        return self.height * (self.depth or 1)

    @property
    def image_bytes(self) -> int:
        """Bytes of one decoded image or volume (uint8), or of a sequence in its file."""
        if self.sequence_length is not None:
            return self.sequence_length * self.token_bytes
        return self.channels * self.rows * self.width

    def num_images(self, split: str, scale: float) -> int:
        """Images in ``split`` ("train" or "val") times ``scale``; at least one."""
        full = self.num_train if split == "train" else self.num_val
        return max(1, round(full * scale))


def _of_package(name: str, target: str) -> DatasetSpec:
    spec = load_target(name, target)
    if not isinstance(spec, DatasetSpec) or spec.name != name:
        raise ConfigError(f"dataset {shown(name)}: {target} is no DatasetSpec of that name")
    try:
        DatasetSpec.from_dict(asdict(spec))
    except WrongForm as error:
        raise ConfigError(f"dataset {shown(name)} ({target}): {error}") from error
    if not spec.codec and spec.native_format not in get_args(DataFormat):
        raise ConfigError(
            f"dataset {shown(name)} ({target}): format {shown(spec.native_format)} is none of "
            f"{', '.join(get_args(DataFormat))}; write one of these, or name the code that writes "
            "and reads it as codec"
        )
    if spec.codec and (why := why_no_target(spec.codec)):
        raise ConfigError(f"dataset {shown(name)} ({target}): codec: {why}")
    if spec.sequence_length is None and not math.prod(spec.shape):
        raise ConfigError(
            f"dataset {shown(name)} ({target}): images of shape {spec.shape} hold nothing; give "
            "channels, height and width of 1 or more"
        )
    return spec


_NO_CLASSES = (
    "Dataset and IterableDataset classes cannot be used; save their samples as class folders of "
    "images, Parquet files, tar shards or a file of tokens, and declare these "
    "(docs/networks.md, Your own data)"
)

# From the smallest image to the largest, as in figures. Table I of Jansen et al. 2020 gives the sum
# of train and test, but of ImageNet 1,280,000, about the 1,281,167 of train alone. The split is
# that of its generator.
DATASETS: Registry[DatasetSpec] = Registry(
    "ddlbench.datasets",
    {
        spec.name: spec
        for spec in (
            DatasetSpec(
                "mnist", "MNIST", 10, 1, 28, 28, 60_000, 10_000, "idx", white=0.0, hatch=""
            ),
            DatasetSpec(
                "cifar10", "CIFAR-10", 10, 3, 32, 32, 50_000, 10_000, "cifar",
                white=0.45, hatch="/////",
            ),
            DatasetSpec(
                "imagenet", "ImageNet-1000", 1000, 3, 224, 224, 1_281_167, 50_000, "imagefolder",
                white=0.72, hatch="",
            ),
            DatasetSpec(
                "highres", "Highres", 1000, 3, 512, 512, 50_000, 10_000, "imagefolder",
                white=0.88, hatch=".....",
            ),
            # Not in Table I: the data on which ParaDL trains CosmoFlow, with its four parameters as
            # classes. ParaDL gives no validation set; we take a tenth.
            DatasetSpec("cosmoflow", "CosmoFlow", 4, 4, 256, 256, 1_584, 176, "raw", depth=256),
            # Of ours: short sequences for one core, and those that GPT-2 reads.
            DatasetSpec(
                "tokens", "Tokens", 256, 0, 0, 0, 50_000, 5_000, "tokens",
                sequence_length=128, white=0.3, hatch="++",
            ),
            DatasetSpec(
                "tokens-gpt2", "Tokens (GPT-2)", 50_257, 0, 0, 0, 100_000, 1_000, "tokens",
                sequence_length=1024, white=0.8, hatch="++",
            ),
        )
    },
    _of_package,
    _NO_CLASSES,
)  # fmt: skip

_READ_ONLY = ("huggingface", "webdataset")


def format_problem(spec: DatasetSpec, data_format: str) -> str | None:
    """Why ``spec`` cannot be written as ``data_format``; None if it can."""
    if data_format == "native" or (spec.codec and data_format == spec.native_format):
        return None
    if spec.source:
        same = data_format == spec.native_format
        return None if same else f"it lies there as {spec.native_format}"
    if data_format in _READ_ONLY:
        return "such files are read only"
    if (spec.kind == "tokens") != (data_format == "tokens"):
        return f"{spec.kind} are not written as {data_format}"
    if spec.kind == "volumes":
        return None if data_format == "raw" else "volumes are written as raw only"
    return _image_problem(spec, data_format)


def _image_problem(spec: DatasetSpec, data_format: str) -> str | None:
    """Why images of ``spec`` cannot be written in one of the four formats; None if they can."""
    if data_format == "idx" and (spec.channels != 1 or spec.num_classes > 256):
        return "idx holds grey images of at most 256 classes"
    if data_format == "cifar" and (spec.shape != (3, 32, 32) or spec.num_classes > 256):
        return "cifar batches hold 3x32x32 images of at most 256 classes"
    if data_format == "imagefolder" and spec.channels not in (1, 3):
        return "JPEG files hold grey or RGB images"
    return None


@dataclass(frozen=True)
class DataRequest:
    """The data of a cell.

    Args:
        dataset: a key of :data:`DATASETS`.
        data_format: on-disk format, or "native" for the dataset's own.
        scale: share of the dataset's images, over 0; 1 is the whole of it.
        seed: of the synthetic content; at least 0.
        source: "synthetic", or the folder of the user's own data in torchvision's layout.

    Raises:
        ConfigError: a field is out of range, or the dataset cannot have that format.
    """

    dataset: str
    data_format: DataFormat | Literal["native"] = "native"
    scale: float = 1.0
    seed: int = 0
    source: str = SYNTHETIC

    def __post_init__(self) -> None:
        DATASETS.check(self.dataset)
        formats = ("native", *get_args(DataFormat), *([self.format] if self.spec.codec else []))
        if self.data_format not in formats:
            raise ConfigError(
                f"unknown data format {self.data_format!r}; known: {', '.join(formats)}"
            )
        problem = format_problem(self.spec, self.format)
        if problem:
            raise ConfigError(
                f"dataset {self.dataset!r} cannot be written as {self.format!r}: {problem}"
            )
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise ConfigError(f"data scale must be a number over 0, not {self.scale!r}")
        if self.seed < 0:
            raise ConfigError(f"data seed must be 0 or more, not {self.seed!r}")
        readable = get_args(OwnFormat)
        if not self.is_synthetic and self.format not in readable:
            raise ConfigError(
                f"data source {self.source!r}: own data is read as {', '.join(readable)}, not as "
                f"{self.format!r}"
            )

    @property
    def spec(self) -> DatasetSpec:
        return DATASETS[self.dataset]

    @property
    def format(self) -> str:
        """The on-disk format, with "native" resolved."""
        return self.spec.native_format if self.data_format == "native" else self.data_format

    @property
    def is_synthetic(self) -> bool:
        return self.source == SYNTHETIC

    def num_images(self, split: str) -> int:
        """Images of ``split`` ("train" or "val") in the synthetic dataset at this scale."""
        return self.spec.num_images(split, self.scale)


# Measured on our JPEG files of all sizes and rounded up, by channels.
_JPEG_BYTES_PER_PIXEL = {1: 0.55, 3: 0.40}
_JPEG_HEADER_BYTES = {1: 360, 3: 660}
_BLOCK_BYTES = 4096  # of common file systems; the smallest file takes one


def estimate_bytes(request: DataRequest) -> int:
    """Upper estimate of the bytes on disk of synthetic data.

    It is exact to a few KiB for idx, cifar, raw and tokens. JPEG files are rounded up to blocks of
    4 KiB. For formats of other packages we assume decoded images with 64 further bytes each.
    """
    spec = request.spec
    images = request.num_images("train") + request.num_images("val")
    if request.format == "imagefolder":
        pixels = spec.height * spec.width
        jpeg = _JPEG_HEADER_BYTES[spec.channels] + _JPEG_BYTES_PER_PIXEL[spec.channels] * pixels
        on_disk = math.ceil(jpeg / _BLOCK_BYTES) * _BLOCK_BYTES
        folders = 2 * spec.num_classes * _BLOCK_BYTES
        return images * (on_disk + 64) + folders + 512 * 1024
    label_and_name = {"idx": 1, "cifar": 32, "raw": 4, "tokens": 0}.get(request.format, 64)
    return images * (spec.image_bytes + label_and_name) + 128 * 1024


_COUNT = "ddlbench.datasets.declared:counted_spec"  # reads files, which this folder does not
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
    """Format of the files ([docs/networks.md](../docs/networks.md#your-own-data)); recognised if
    left out."""
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


def refuse_classes(data: object, where: str) -> None:
    """Refuse classes of datasets in the key ``data`` of a file, before its form is checked.

    Raises:
        ConfigError: an entry is, or has as value of an unknown key, a ``module:attribute``.
    """
    for name, entry in data.items() if isinstance(data, Mapping) else ():
        inner = entry if isinstance(entry, Mapping) else {"": entry}
        for key, value in inner.items():
            if key not in _OWN_KEYS and isinstance(value, str) and _TARGET.fullmatch(value):
                place = ".".join(str(part) for part in (name, key) if part)
                raise ConfigError(
                    f"{where}: data.{place}: {shown(value)} is no data that is read; {_NO_CLASSES}"
                )


_OWN_KEYS = frozenset(part.name for part in fields(OwnDataset))
_TARGET = re.compile(r"[\w.]+:\w+")


def declare(data: Mapping[str, OwnDataset], where: str, *, replace: bool = True) -> None:
    """Add declared datasets to the registry; with ``replace`` also those that are there already.

    ``where`` is the file's name, for messages.

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
            kind, instead = (
                ("images", "")
                if of_tokens
                else ("tokens", f", or write tokens: {entry.folder} in place of folder")
            )
            raise ConfigError(f"{place}: {key} belongs to {kind}; leave it out{instead}")


def _counted(name: str, entry: OwnDataset, place: str) -> DatasetSpec:
    spec: DatasetSpec = load_target(name, _COUNT)(name, entry, place)
    declared = [json.loads(text) for text in (os.environ.get(OWN_DATA),) if text]
    others = [facts for facts in (declared[0] if declared else []) if facts["name"] != name]
    os.environ[OWN_DATA] = json.dumps([*others, asdict(spec)])
    return spec


OWN_DATA = "DDLBENCH_OWN_DATA"
"""Variable that tells processes the datasets that a configuration declares, as JSON."""


def _declare_inherited() -> None:
    """Declare the datasets of the process that started this one."""
    try:
        declared = [DatasetSpec(**facts) for facts in json.loads(os.environ.get(OWN_DATA) or "[]")]
    except (TypeError, ValueError):
        return
    for spec in declared:
        DATASETS.declare(spec.name, partial(replace, spec))


_declare_inherited()
