"""The oracle as printed: Table III of Kahira et al. (report of 2020, page 6), one iteration.

::

    computation     B / p sum_l (FW_l + BW_l)           every layer is divided, also linear ones
    data            2 (p-1) [alpha + |w| / p delta beta]
    filter, channel 3 (p-1) sum_{l<G} [alpha + B |y_l| / p delta beta]
    data+filter     the same with p2 - 1 rounds, and 2 (p1-1) [alpha + |w| / p delta beta]
    spatial         data's, and 2 sum_l [2 alpha + B (halo(x_l) + halo(dL/dy_l)) delta beta]
    pipeline        (p+S-1) B/S max_i (FW_i + BW_i), 2 (p+S-2) max_i [alpha + B/S |y_i| delta beta]

The table has no row for data+spatial. Read into it: layers are those with weights, without
projections of shortcuts; a halo is (K-1)/2 rows; the weight update, for which the authors print no
time, is 0; the largest maxima of forward and backward are of one stage.
"""

from __future__ import annotations

from collections.abc import Callable

from ddlbench.predict.hardware import Link, Platform
from ddlbench.predict.paradl import authors_code
from ddlbench.predict.paradl.authors_code import (
    ITEM_BYTES,
    Terms,
    all_reduce_s,
    kernel_weights,
    weight_bytes,
)
from ddlbench.predict.paradl.configuration import Configuration
from ddlbench.predict.paradl.workload import Layer, Workload


def _layers(workload: Workload) -> list[Layer]:
    """Layers with weights; their last one is G."""
    return [layer for layer in workload.layers if kernel_weights(layer) and not layer.shortcut]


def _divided(workload: Workload, config: Configuration) -> dict[str, float]:
    return {"layers": config.batch * workload.time_s / config.devices}


def _data(workload: Workload, platform: Platform, config: Configuration) -> Terms:
    ring = platform.level(config.devices)
    gradients = all_reduce_s(config.devices, weight_bytes(workload), ring)
    return _divided(workload, config), {"gradients": gradients}


def _rounds_s(workload: Workload, config: Configuration, rounds: int, ring: Link) -> float:
    """3 (rounds) sum_{l<G} [alpha + B |y_l| / p delta beta]."""
    outputs = [layer.y for layer in _layers(workload)[:-1]]
    sizes = [ITEM_BYTES * config.batch * y / config.devices for y in outputs]
    return 3 * rounds * sum(ring.latency_s + size * ring.s_per_byte for size in sizes)


def _layer_split(workload: Workload, platform: Platform, config: Configuration) -> Terms:
    ring = platform.level(config.devices)
    activations = _rounds_s(workload, config, config.devices - 1, ring)
    return _divided(workload, config), {"activations": activations}


def _data_filter(workload: Workload, platform: Platform, config: Configuration) -> Terms:
    inside, between = platform.level(config.inside), platform.level(config.devices)
    activations = _rounds_s(workload, config, config.inside - 1, inside)
    # Each group holds a p2-th of the weights: |w| / p2 over a ring of p1.
    gradients = all_reduce_s(config.groups, weight_bytes(workload) / config.inside, between)
    return _divided(workload, config), {"activations": activations, "gradients": gradients}


def _spatial(workload: Workload, platform: Platform, config: Configuration) -> Terms:
    compute, communication = _data(workload, platform, config)
    ring = platform.level(config.devices)
    halos = 0.0
    for layer in workload.layers[: workload.spatial_layers]:
        if layer.kernel > 1 and not layer.shortcut:
            # Of one sample the input's rows cross a border, and those of the output's gradient.
            rows = (layer.kernel - 1) // 2
            items = rows * (layer.x // layer.input[1] + layer.y // layer.output[1])
            size = ITEM_BYTES * config.batch * items
            halos += 2 * (2 * ring.latency_s + size * ring.s_per_byte)
    return compute, {**communication, "halo": halos}


TERMS: dict[str, Callable[[Workload, Platform, Configuration], Terms]] = {
    "serial": authors_code.TERMS["serial"],
    "data": _data,
    "spatial": _spatial,
    "filter": _layer_split,
    "channel": _layer_split,
    "data+filter": _data_filter,
    "pipeline": authors_code.TERMS["pipeline"],
}
