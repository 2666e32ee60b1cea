"""Names of networks, datasets and strategies as tables and figures show them."""

from __future__ import annotations

from collections.abc import Iterable

from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.registry import LIBRARIES, NETWORKS
from ddlbench.planning.strategy import known_strategy


def network_label(name: str) -> str:
    """The network's label; of an unregistered network, its name without the module."""
    if name in NETWORKS:
        return NETWORKS[name].label
    word, _, rest = name.rpartition(":")
    return f"{rest} ({word})" if word in LIBRARIES else rest


def dataset_label(name: str) -> str:
    """The dataset's label, or its name."""
    return DATASETS[name].label if name in DATASETS else name


def in_dataset_order(names: Iterable[str]) -> list[str]:
    """Each name once, in the order of ``DATASETS`` (smallest image first); unknown ones last."""
    order = list(DATASETS)
    unique = dict.fromkeys(names)
    return sorted(unique, key=lambda n: order.index(n) if n in order else len(order))


def strategy_label(name: str, variant: str = "") -> str:
    """The strategy's label, then ``(variant)`` if there is one."""
    label = known_strategy(name).label
    return f"{label} ({variant})" if variant else label
