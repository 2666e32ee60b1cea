"""What each network is called and reads, and where it is built; needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ddlbench.experiment.dataset_spec import DATASETS, DatasetSpec
from ddlbench.experiment.entry_points import Registry, load_target
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.status import Reason

__all__ = ["NETWORKS", "NetworkSpec", "mismatch", "pairs"]


@dataclass(frozen=True)
class NetworkSpec:
    """One network.

    Args:
        name: key in configurations and paths.
        label: how figures write it.
        build: ``module:callable``; it takes a DatasetSpec and returns an ``nn.Sequential``.
        reads: the kind of input, or None where it is not known.
    """

    name: str
    label: str
    build: str
    reads: Literal["images", "volumes"] | None = "images"

    def __call__(self, spec: DatasetSpec) -> Any:
        """Build the network for a dataset; needs torch.

        Raises:
            ConfigError: its builder cannot be imported.
        """
        return load_target(self.name, self.build)(spec)


def _of_package(name: str, target: str) -> NetworkSpec:
    """The entry of another package: its NetworkSpec, or a callable that builds the network."""
    try:
        found = load_target(name, target)
    except ConfigError:  # a login node has no torch: the name says enough to plan
        found = None
    if isinstance(found, NetworkSpec):
        if found.name != name:
            raise ConfigError(
                f"network {name!r} ({target}): its NetworkSpec is called {found.name!r}; "
                "give it the name of the entry point"
            )
        return found
    return NetworkSpec(name, name, target, reads=None)


_NETWORKS = "ddlbench.networks"
NETWORKS: Registry[NetworkSpec] = Registry(
    "ddlbench.networks",
    {
        spec.name: spec
        for spec in (
            NetworkSpec("resnet18", "ResNet-18", f"{_NETWORKS}.resnet:resnet18"),
            NetworkSpec("resnet50", "ResNet-50", f"{_NETWORKS}.resnet:resnet50"),
            NetworkSpec("resnet152", "ResNet-152", f"{_NETWORKS}.resnet:resnet152"),
            NetworkSpec("vgg11", "VGG-11", f"{_NETWORKS}.vgg:vgg11"),
            NetworkSpec("vgg16", "VGG-16", f"{_NETWORKS}.vgg:vgg16"),
            NetworkSpec("mobilenetv2", "MobileNetV2", f"{_NETWORKS}.mobilenetv2:mobilenetv2"),
            NetworkSpec("alexnet", "AlexNet", f"{_NETWORKS}.alexnet:alexnet"),
            NetworkSpec("cosmoflow", "CosmoFlow", f"{_NETWORKS}.cosmoflow:cosmoflow", "volumes"),
            NetworkSpec("mlp", "MLP", f"{_NETWORKS}.mlp:mlp"),
            NetworkSpec("stack", "stack", f"{_NETWORKS}.stack:stack"),
        )
    },
    _of_package,
)


def mismatch(network: str, dataset: str) -> str | None:
    """Why a network cannot read a dataset; None when it can, or when nobody says what it reads."""
    reads = NETWORKS[network].reads if network in NETWORKS else None
    has = DATASETS[dataset].kind
    if reads in (None, has):
        return None
    return Reason(
        "network_dataset_mismatch",
        f"network {network} reads {reads}, but dataset {dataset} has {has}",
    )


def pairs() -> list[tuple[str, DatasetSpec]]:
    """Every built-in network with every built-in dataset that it reads."""
    return [
        (network, spec)
        for network in NETWORKS.built_in
        for spec in DATASETS.built_in.values()
        if mismatch(network, spec.name) is None
    ]
