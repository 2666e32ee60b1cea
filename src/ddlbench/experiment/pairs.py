"""Which built-in network reads which dataset: images, or volumes."""

from __future__ import annotations

from ddlbench.experiment.dataset_spec import DATASETS, DatasetSpec
from ddlbench.experiment.registry import NETWORKS
from ddlbench.experiment.status import Reason

__all__ = ["mismatch", "pairs"]

_READ_VOLUMES = ("cosmoflow",)


def mismatch(network: str, dataset: str) -> str | None:
    """Why a built-in network cannot read a dataset; None when it can, or is none of ours."""
    if network not in NETWORKS:
        return None
    has_volumes = DATASETS[dataset].depth is not None
    if has_volumes == (network in _READ_VOLUMES):
        return None
    wants, has = ("images", "volumes") if has_volumes else ("volumes", "images")
    return Reason(
        "network_dataset_mismatch",
        f"network {network} reads {wants}, but dataset {dataset} has {has}",
    )


def pairs() -> list[tuple[str, DatasetSpec]]:
    """Every built-in network with every dataset that it reads."""
    return [
        (network, spec)
        for network in NETWORKS
        for spec in DATASETS.values()
        if mismatch(network, spec.name) is None
    ]
