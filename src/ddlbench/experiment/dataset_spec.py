"""What each dataset is: DDLBench's Table I, as data.

Only facts that a login node needs (counts, shapes, sizes) stand here; writing, staging and
loading live in :mod:`ddlbench.datasets`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["DATASETS", "DataFormat", "DatasetSpec"]

DataFormat = Literal["idx", "cifar", "imagefolder", "raw"]


@dataclass(frozen=True)
class DatasetSpec:
    """One image-classification dataset.

    Args:
        name: key in configurations and paths.
        label: how figures write it.
        num_classes: number of labels.
        channels, height, width: shape of one image.
        num_train, num_val: images at scale 1.
        native_format: the on-disk format of the original dataset.
    """

    name: str
    label: str
    num_classes: int
    channels: int
    height: int
    width: int
    num_train: int
    num_val: int
    native_format: DataFormat

    @property
    def shape(self) -> tuple[int, int, int]:
        """Shape of one image, (C, H, W)."""
        return (self.channels, self.height, self.width)

    @property
    def image_bytes(self) -> int:
        """Bytes of one decoded image (uint8)."""
        return self.channels * self.height * self.width

    def num_images(self, split: str, scale: float) -> int:
        """Images in ``split`` ("train" or "val") once shrunk by ``scale``; at least one."""
        full = self.num_train if split == "train" else self.num_val
        return max(1, round(full * scale))


# Jansen et al. 2020, Table I gives train and test together; the split is that of its generator.
DATASETS: dict[str, DatasetSpec] = {
    spec.name: spec
    for spec in (
        DatasetSpec("mnist", "MNIST", 10, 1, 28, 28, 60_000, 10_000, "idx"),
        DatasetSpec("cifar10", "CIFAR-10", 10, 3, 32, 32, 50_000, 10_000, "cifar"),
        DatasetSpec(
            "imagenet", "ImageNet-1000", 1000, 3, 224, 224, 1_281_167, 50_000, "imagefolder"
        ),
        DatasetSpec("highres", "Highres", 1000, 3, 512, 512, 50_000, 10_000, "imagefolder"),
    )
}
