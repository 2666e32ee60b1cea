"""What the corrected terms are made of: times of layers, the weight update, rings of gradients.

A ring that goes *direct* gets ``ring_efficiency`` of a link; f flows on a node's L links slow
each other by 1 + ``contention`` (f / L - 1). A *staged* one goes through host memory at
``staged_bytes_per_s``. Time of a layer, where none is measured, is spread by a roofline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ddlbench.predict.paradl.collectives import all_reduce_s
from ddlbench.predict.paradl.configuration import Configuration
from ddlbench.predict.paradl.layers import Layer
from ddlbench.predict.paradl.platform import Link, Platform
from ddlbench.predict.paradl.published import ITEM_BYTES
from ddlbench.predict.paradl.workload import Workload

__all__ = ["activation_link", "computation", "gradients_s", "layer_times", "row_link"]

PASSES = {"batchnorm": 8, "relu": 5, "add": 5, "dropout": 5, "pool": 4}
"""How often a layer without weights walks over its activations, forward and backward."""


def layer_times(workload: Workload, platform: Platform) -> Sequence[float]:
    """FW + BW of each layer for one sample, seconds."""
    return workload.times_s(_roofline(platform))


def _roofline(platform: Platform) -> Callable[[Layer], float]:
    """Seconds of a layer at the device's own rates: the weight that spreads a network's time."""
    flops, memory = platform.device["flops_per_s"], platform.device["memory_bytes_per_s"]

    def seconds(layer: Layer) -> float:
        walked = PASSES.get(layer.kind, 3) * ITEM_BYTES * (layer.x + layer.y) / 2
        return max(6 * layer.multiply_adds / flops, walked / memory)

    return seconds


def computation(
    platform: Platform, batch: float, shares: Sequence[float], weights: float
) -> dict[str, float]:
    """Layers of one device, each with its seconds a sample, and the update of its weights."""
    least = platform.constant("layer_overhead_s") * len(shares)
    states = platform.device["optimizer_states"]
    update = (3 + 2 * states) * ITEM_BYTES * weights / platform.device["memory_bytes_per_s"]
    return {"layers": max(batch * sum(shares), least), "weight update": update}


def gradients_s(
    platform: Platform, asked: Configuration, ranks: int, weights: float, flows: int = 1
) -> float:
    """All-reduce of gradients over ``ranks``, that lie side by side or one a node."""
    if ranks == 1 or not weights:
        return 0.0
    return all_reduce_s(ranks, ITEM_BYTES * weights, _gradient_link(platform, asked, flows))


def _gradient_link(platform: Platform, asked: Configuration, flows: int) -> Link:
    level = platform.level(asked.devices)
    if platform.staged(asked.strategy):
        return Link(level.latency_s, 1 / platform.constant("staged_bytes_per_s"))
    if asked.devices <= platform.devices_per_node:
        return level
    shared = max(1.0, flows / platform.links_per_node)
    slower = 1 + platform.constant("contention") * (shared - 1)
    return level.slower(slower / platform.constant("ring_efficiency"))


def activation_link(platform: Platform, ranks: int) -> Link:
    """Collectives of activations use all links of a node."""
    level = platform.level(ranks)
    if ranks <= platform.devices_per_node:
        return level
    links = platform.links_per_node * platform.constant("activation_efficiency")
    return level.slower(1 / links)


def row_link(platform: Platform, ranks: int) -> Link:
    """Halos and gathers of rows: through the host's memory inside a node."""
    return platform.host if ranks <= platform.devices_per_node else platform.level(ranks)
