"""ResNet-18, ResNet-50, ResNet-101 and ResNet-152 (He et al. 2016), torchvision's.

Blocks: ``conv1``, ``bn1``, ``relu``, ``maxpool``, the residual blocks ``layer1_0`` ...
``layer4_2``, ``avgpool``, ``flatten``, ``fc``. Small images: the first convolution is 3x3 with
stride 1 and there is no ``maxpool``, as in DDLBench (benchmark/{mnist,cifar10}).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from ddlbench.experiment.dataset_spec import DatasetSpec
from ddlbench.networks.flatten import flatten, initialize, is_small
from ddlbench.networks.torchvision_compat import models


def _resnet(torchvision_model: Callable[..., nn.Module], spec: DatasetSpec) -> nn.Sequential:
    """(N, C, H, W) -> (N, num_classes)."""
    small = is_small(spec)  # first, as it refuses some images
    model = torchvision_model(num_classes=spec.num_classes)
    if small:
        model.conv1 = nn.Conv2d(spec.channels, 64, kernel_size=3, padding=1, bias=False)
        initialize(model.conv1)
        del model.maxpool
    return flatten(model, head="fc")


resnet18 = partial(_resnet, models.resnet18)
resnet50 = partial(_resnet, models.resnet50)
resnet101 = partial(_resnet, models.resnet101)
resnet152 = partial(_resnet, models.resnet152)
