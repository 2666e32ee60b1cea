"""Which of its two variants a network takes for a dataset.

DDLBench has two: torchvision's, for ImageNet and Highres, and one for the small images of MNIST
and CIFAR-10, which would be a single pixel long before the end of torchvision's.
"""

from __future__ import annotations

from ddlbench.experiment.dataset_spec import DatasetSpec
from ddlbench.experiment.errors import ConfigError

__all__ = ["is_small"]

_LARGEST_SMALL_SIDE = 64


def is_small(spec: DatasetSpec) -> bool:
    """Whether images of ``spec`` take the variant for small images.

    Raises:
        ConfigError: large images whose channels torchvision's networks do not read.

    """
    if max(spec.height, spec.width) <= _LARGEST_SMALL_SIDE:
        return True
    if spec.channels != 3:
        raise ConfigError(
            f"the networks for images larger than {_LARGEST_SMALL_SIDE} pixels read 3 channels, "
            f"but dataset {spec.name!r} has {spec.channels}"
        )
    return False
