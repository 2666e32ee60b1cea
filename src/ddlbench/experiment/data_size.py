"""What data a cell asks for, and how much room it takes: known before anything is written.

A planner on a login node answers "does it fit?" from this module alone; the writers in
:mod:`ddlbench.datasets` refuse to begin when the answer is no.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from ddlbench.experiment.dataset_spec import DATASETS, DataFormat, DatasetSpec
from ddlbench.experiment.errors import ConfigError

__all__ = ["SYNTHETIC", "DataRequest", "estimate_bytes", "format_problem"]

SYNTHETIC = "synthetic"

# Our JPEG files, by channels: measured over all image sizes, rounded up.
_JPEG_BYTES_PER_PIXEL = {1: 0.55, 3: 0.40}
_JPEG_HEADER_BYTES = {1: 360, 3: 660}
_BLOCK_BYTES = 4096  # what the smallest file occupies on common file systems


def format_problem(spec: DatasetSpec, data_format: str) -> str | None:
    """Why ``spec`` cannot be written as ``data_format``; None when it can."""
    if spec.codec and data_format == spec.native_format:
        return None
    if spec.depth is not None and data_format != "raw":
        return "volumes are written as raw only"
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
        dataset: a key of :data:`~ddlbench.experiment.dataset_spec.DATASETS`.
        data_format: on-disk format, or "native" for the dataset's own.
        scale: share of the dataset's images, over 0; 1 is the whole of it.
        seed: of the synthetic content; at least 0.
        source: "synthetic", or the folder of the user's own data in torchvision's layout.
        copy_to_scratch: copy the user's own data to the scratch folder instead of reading it
            where it is.

    Raises:
        ConfigError: a field is out of range, or the dataset cannot have that format.

    """

    dataset: str
    data_format: DataFormat | Literal["native"] = "native"
    scale: float = 1.0
    seed: int = 0
    source: str = SYNTHETIC
    copy_to_scratch: bool = False

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
        if not self.is_synthetic and self.format not in ("idx", "cifar", "imagefolder"):
            raise ConfigError(
                f"data source {self.source!r}: own data is read in torchvision's layouts "
                f"(idx, cifar, imagefolder), not as {self.format!r}"
            )

    @property
    def spec(self) -> DatasetSpec:
        """The dataset's facts."""
        return DATASETS[self.dataset]

    @property
    def format(self) -> str:
        """The on-disk format, with "native" resolved."""
        return self.spec.native_format if self.data_format == "native" else self.data_format

    @property
    def is_synthetic(self) -> bool:
        """Whether we make the images."""
        return self.source == SYNTHETIC

    def num_images(self, split: str) -> int:
        """Images of ``split`` ("train" or "val") in the synthetic dataset at this scale."""
        return self.spec.num_images(split, self.scale)


def estimate_bytes(request: DataRequest) -> int:
    """Room on disk, in bytes, that the synthetic data of ``request`` takes; a little too much.

    Exact to a few KiB for idx, cifar and raw; a format of another package is taken to hold decoded
    images and 64 bytes more of each. JPEG sizes are estimated, and each file rounded
    up to the 4 KiB a file system gives it.
    """
    spec = request.spec
    images = request.num_images("train") + request.num_images("val")
    if request.format == "imagefolder":
        pixels = spec.height * spec.width
        jpeg = _JPEG_HEADER_BYTES[spec.channels] + _JPEG_BYTES_PER_PIXEL[spec.channels] * pixels
        on_disk = math.ceil(jpeg / _BLOCK_BYTES) * _BLOCK_BYTES
        folders = 2 * spec.num_classes * _BLOCK_BYTES
        return images * (on_disk + 64) + folders + 512 * 1024
    label_and_name = {"idx": 1, "cifar": 32, "raw": 4}.get(request.format, 64)
    return images * (spec.image_bytes + label_and_name) + 128 * 1024
