"""The oracle in its authors' code: how that evaluates Table III of Kahira et al. (report of 2020).

It keeps these faults, which ``corrected.py`` mends:

* a network has one time, which is spread over layers by a count of operations that charges pooling
  with channels x filters; there is no weight update;
* projections of shortcuts are left out; biases and batch normalisations have no weights;
* filter and channel: each convolution, also the first, is charged three rounds of its output;
* data+filter exchanges all weights in each group (Table III has a share of them), and its
  contention is a literal divisor of the bandwidth, as is that of data+spatial;
* gradients of layers that all devices hold are not exchanged by filter and channel;
* layers after the split of data+spatial cost nothing;
* memory counts inputs and outputs twice, and no state of an optimizer;
* halo: (K-1)/2 rows both ways for every kernel above 1, whatever its stride.

Collectives go round a ring (Kahira et al., section IV-B; Thakur et al. 2005). Every step takes as
long as the slowest hop of the ring: Hockney's latency and bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from ddlbench.predict.hardware import Link, Platform
from ddlbench.predict.paradl.configuration import Configuration
from ddlbench.predict.paradl.workload import Layer, Workload

HALVINGS = 60
"""Bisection steps: the slowest stage to a share of 2^-60 of the whole, below rounding."""


def cut_evenly(times_s: Sequence[float], stages: int) -> list[int]:
    """The end of each stage (one past its last layer) such that the slowest stage is shortest.

    A stage has at least one layer. With more stages than layers the last stages are left out.
    """
    stages = min(stages, len(times_s))
    low, high = max(times_s), sum(times_s)
    if len(_filled(times_s, low)) > stages:
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            if len(_filled(times_s, middle)) > stages:
                low = middle
            else:
                high = middle
    else:
        high = low
    ends = _filled(times_s, high)
    free = [end for end in range(1, len(times_s)) if end not in ends]
    return sorted([*ends, *free[: stages - len(ends)]])  # more ends make no stage slower


def _filled(times_s: Sequence[float], most_s: float) -> list[int]:
    """Ends of stages, each with as many layers as fit into ``most_s``."""
    ends, held = [], 0.0
    for index, time in enumerate(times_s):
        if held and held + time > most_s:
            ends.append(index)
            held = 0.0
        held += time
    return [*ends, len(times_s)]


def send_s(size_bytes: float, link: Link) -> float:
    """Seconds of one message."""
    return link.latency_s + size_bytes * link.s_per_byte


def all_gather_s(ranks: int, total_bytes: float, link: Link) -> float:
    """All ranks get ``total_bytes``, a p-th part from each: (p-1)(alpha + m/p beta)."""
    return (ranks - 1) * send_s(total_bytes / ranks, link)


def all_reduce_s(ranks: int, size_bytes: float, link: Link) -> float:
    """A buffer of ``size_bytes`` is summed over all ranks: 2(p-1)(alpha + m/p beta)."""
    return 2 * all_gather_s(ranks, size_bytes, link)


ITEM_BYTES = 4
"""delta: fp32."""

HOST_LATENCY_S = 3.00011e-3
"""Latency of a message without GPUDirect, measured by the authors (``PLX_CABLE_LAT2``)."""

Terms = tuple[dict[str, float], dict[str, float]]
"""Seconds of computation and of communication, by term."""


def spread(layer: Layer) -> float:
    """Operations, the weight of a layer in a network's time (``estimate_layer_flop``)."""
    window = layer.kernel ** len(layer.input[1:])
    forward = {
        "conv": 2 * layer.multiply_adds,
        "pool": layer.channels * layer.y * window,
        "batchnorm": 4 * layer.x,
        "linear": kernel_weights(layer),
        "relu": layer.y,
        "add": layer.y,
        "dropout": 0,
    }[layer.kind]
    return 2 * forward + kernel_weights(layer)


def kernel_weights(layer: Layer) -> int:
    """|w| without biases."""
    if layer.kind == "conv":
        return layer.channels * layer.filters * layer.kernel ** len(layer.input[1:])
    return layer.x * layer.filters if layer.kind == "linear" else 0


def layers_of(workload: Workload) -> list[tuple[Layer, float]]:
    """Layers without projections of shortcuts, with FW + BW seconds of one sample."""
    kept = [layer for layer in workload.layers if not layer.shortcut]
    weights = [spread(layer) for layer in kept]
    whole = sum(weights)
    return [
        (layer, workload.time_s * weight / whole)
        for layer, weight in zip(kept, weights, strict=True)
    ]


def _before_the_head(workload: Workload) -> list[tuple[Layer, float]]:
    """The layers of :func:`layers_of` that a spatial split divides."""
    # `spatial_layers` counts the projections of shortcuts, too.
    split = workload.layers[: workload.spatial_layers]
    return layers_of(workload)[: sum(not layer.shortcut for layer in split)]


def weight_bytes(workload: Workload) -> float:
    """Bytes of all weights, without biases and without projections of shortcuts."""
    return ITEM_BYTES * sum(kernel_weights(layer) for layer, _ in layers_of(workload))


def _data(workload: Workload, platform: Platform, config: Configuration) -> Terms:
    ring = platform.level(config.devices)
    gradients = all_reduce_s(config.devices, weight_bytes(workload), ring)
    return {"layers": config.group_batch * workload.time_s}, {"gradients": gradients}


def _layer_split(workload: Workload, platform: Platform, config: Configuration) -> Terms:
    """Filter and channel have the same formula."""
    p, batch, ring = config.inside, config.group_batch, platform.level(config.inside)
    layers = layers_of(workload)
    compute = batch * sum(time / (p if layer.kind == "conv" else 1) for layer, time in layers)
    rounds = sum(
        1.5 * all_reduce_s(p, ITEM_BYTES * batch * layer.y, ring)
        for layer, _ in layers
        if layer.kind == "conv"
    )
    return {"layers": compute}, {"activations": rounds}


def _data_filter(workload: Workload, platform: Platform, config: Configuration) -> Terms:
    compute, communication = _layer_split(workload, platform, config)
    contended = platform.level(config.devices).slower(config.inside)
    gradients = all_reduce_s(config.groups, weight_bytes(workload), contended)
    return compute, {**communication, "gradients": gradients}


def _spatial_parts(
    workload: Workload, config: Configuration, halo: Link, gather: Link
) -> tuple[float, float, float]:
    """Seconds of the split layers, of their halos, and of gathering and scattering after them."""
    p, batch = config.inside, config.group_batch
    split = _before_the_head(workload)
    dim = config.split_dims[0]
    halos = sum(
        4 * send_s(ITEM_BYTES * batch * ((layer.kernel - 1) // 2) * layer.slice_items(dim), halo)
        for layer, _ in split
        if layer.kernel > 1
    )
    exposed_s = 2 * all_gather_s(p, ITEM_BYTES * batch * split[-1][0].y, gather)
    return batch * sum(time for _, time in split) / p, halos, exposed_s


def _spatial(workload: Workload, platform: Platform, config: Configuration) -> Terms:
    ring = platform.level(config.devices)
    compute, halos, exposed_s = _spatial_parts(workload, config, ring, ring)
    split = sum(time for _, time in _before_the_head(workload))
    rest = config.batch * max(0.0, workload.time_s - split)
    gradients = all_reduce_s(config.devices, weight_bytes(workload), ring)
    return {"layers": compute + rest}, {"halo": halos, "gather": exposed_s, "gradients": gradients}


def _data_spatial(workload: Workload, platform: Platform, config: Configuration) -> Terms:
    host = Link(HOST_LATENCY_S, platform.paths.host.link.s_per_byte)
    compute, halos, exposed_s = _spatial_parts(
        workload, config, host.slower(2 * config.inside), host.slower(2)
    )
    weights = weight_bytes(workload)
    leaders = platform.level(config.devices).slower(2 * config.inside)
    gradients = all_reduce_s(config.inside, weights, platform.level(config.inside))
    gradients += all_reduce_s(config.groups, weights, leaders)
    return {"layers": compute}, {"halo": halos, "gather": exposed_s, "gradients": gradients}


def _pipeline(workload: Workload, platform: Platform, config: Configuration) -> Terms:
    """Table III; the code has only a stub."""
    p, segments = config.devices, config.segments
    layers = layers_of(workload)
    ends = cut_evenly([time for _, time in layers], p)
    slowest = max(sum(time for _, time in layers[start:end]) for start, end in pairwise([0, *ends]))
    largest = max((layers[end - 1][0].y for end in ends[:-1]), default=0)
    hop = send_s(ITEM_BYTES * config.batch / segments * largest, platform.level(p))
    steps = p + segments - 2
    return (
        {"layers": config.batch * (p + segments - 1) / segments * slowest},
        {"stages": 2 * steps * hop if p > 1 else 0.0},
    )


TERMS: dict[str, Callable[[Workload, Platform, Configuration], Terms]] = {
    "serial": lambda workload, _, config: ({"layers": config.batch * workload.time_s}, {}),
    "data": _data,
    "spatial": _spatial,
    "filter": _layer_split,
    "channel": _layer_split,
    "data+filter": _data_filter,
    "data+spatial": _data_spatial,
    "pipeline": _pipeline,
}


def memory_bytes(workload: Workload, _: Platform, config: Configuration) -> float:
    """Table III: 2 delta (samples (|x| + |y|) + |w|); split terms are divided by p."""
    p, batch = config.inside, config.group_batch
    layers = [layer for layer, _ in layers_of(workload)]
    both = [batch * (layer.x + layer.y) for layer in layers]
    weights = [kernel_weights(layer) for layer in layers]
    if config.strategy in ("filter", "channel", "data+filter"):
        return 2 * ITEM_BYTES * (sum(both) + sum(weights) / p)
    if config.strategy in ("spatial", "data+spatial"):
        return 2 * ITEM_BYTES * (sum(both) / p + sum(weights))
    if config.strategy == "pipeline":
        ends = cut_evenly([time for _, time in layers_of(workload)], p)
        stages = pairwise([0, *ends])
        fullest = max(sum(both[start:end]) + sum(weights[start:end]) for start, end in stages)
        return 2 * ITEM_BYTES * fullest
    return 2 * ITEM_BYTES * (sum(both) + sum(weights))
