"""What each dataset is, as data: DDLBench's Table I, and volumes for CosmoFlow.

Only facts that a login node needs (counts, shapes, sizes) stand here; writing, staging and
loading live in :mod:`ddlbench.datasets`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ddlbench.experiment.entry_points import Registry, load_target
from ddlbench.experiment.errors import ConfigError

__all__ = ["DATASETS", "DataFormat", "DatasetSpec"]

DataFormat = Literal["idx", "cifar", "imagefolder", "raw"]


@dataclass(frozen=True)
class DatasetSpec:
    """One classification dataset, of images or of volumes.

    Args:
        name: key in configurations and paths.
        label: how figures write it.
        num_classes: number of labels.
        channels, height, width: shape of one image, or of a slice of a volume.
        num_train, num_val: images at scale 1.
        native_format: the on-disk format of the original dataset: "idx", "cifar",
            "imagefolder", "raw", or a name of its own where ``codec`` is given.
        depth: slices of a volume; None for images.
        codec: ``module:attribute`` of the :class:`ddlbench.datasets.formats.Format` that writes
            and reads a native format of its own; empty for the four formats above.
        white: share of white that figures mix into a strategy's colour, 0 to 1.
        hatch: of its bars, as matplotlib writes it.
    """

    name: str
    label: str
    num_classes: int
    channels: int
    height: int
    width: int
    num_train: int
    num_val: int
    native_format: str
    depth: int | None = None
    codec: str = ""
    white: float = 0.6
    hatch: str = "xxxxx"

    @property
    def kind(self) -> Literal["images", "volumes"]:
        """What a network reads from it."""
        return "images" if self.depth is None else "volumes"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one image, (C, H, W), or volume, (C, D, H, W)."""
        depth = () if self.depth is None else (self.depth,)
        return (self.channels, *depth, self.height, self.width)

    @property
    def rows(self) -> int:
        """Rows of one channel: an image's height; a volume's slices stand one below the other."""
        return self.height * (self.depth or 1)

    @property
    def image_bytes(self) -> int:
        """Bytes of one decoded image or volume (uint8)."""
        return self.channels * self.rows * self.width

    def num_images(self, split: str, scale: float) -> int:
        """Images in ``split`` ("train" or "val") once shrunk by ``scale``; at least one."""
        full = self.num_train if split == "train" else self.num_val
        return max(1, round(full * scale))


def _of_package(name: str, target: str) -> DatasetSpec:
    """The entry of another package."""
    found = load_target(name, target)
    if not isinstance(found, DatasetSpec) or found.name != name:
        raise ConfigError(f"dataset {name!r}: {target} is no DatasetSpec of that name")
    return found


# From the smallest image to the largest, the order of figures. Jansen et al. 2020, Table I gives
# train and test together; the split is that of its generator.
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
            # Not in Table I: what ParaDL trains CosmoFlow on, its four parameters as four classes;
            # a tenth of all is for validation, of which ParaDL says nothing.
            DatasetSpec("cosmoflow", "CosmoFlow", 4, 4, 256, 256, 1_584, 176, "raw", depth=256),
        )
    },
    _of_package,
)  # fmt: skip
