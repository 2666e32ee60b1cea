"""The oracle as published: Table III of Kahira et al. (report of 2020), as its code evaluates it.

Kept with its faults, which ``corrected.py`` mends and ``docs/oracle.md`` lists:

* one number for a network's time, spread over layers by a count of operations that charges pooling
  with channels x filters; the weight update is nowhere;
* projections of shortcuts are left out; biases and batch normalisations have no weights;
* filter and channel: each convolution is charged three rounds of its output, the first too;
* data+filter exchanges all weights in each group (Table III has a share of them), and its
  contention is a literal divisor of the bandwidth, as is that of data+spatial;
* layers after the split of data+spatial cost nothing;
* halo: (K-1)/2 rows both ways for every kernel above 1, whatever its stride.

Collectives go round a ring (Kahira et al., section IV-B; Thakur et al. 2005). Every step costs what
the slowest hop of the ring costs, Hockney's latency and bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ddlbench.predict.paradl.configuration import Configuration
from ddlbench.predict.paradl.platform import Link, Platform
from ddlbench.predict.paradl.workload import Layer, Workload

HALVINGS = 60
"""Bisection steps: the slowest stage to a share of 2^-60 of the whole, below rounding."""


def cut_evenly(times_s: Sequence[float], stages: int) -> list[int]:
    """Where each stage ends (one past its last layer), the slowest stage as short as possible.

    A stage has at least one layer; with more stages than layers the last stages are left out.
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
    return _with_more(_filled(times_s, high), stages)


def _filled(times_s: Sequence[float], most_s: float) -> list[int]:
    """Ends of stages that take layers as long as they stay within ``most_s``."""
    ends, held = [], 0.0
    for index, time in enumerate(times_s):
        if held and held + time > most_s:
            ends.append(index)
            held = 0.0
        held += time
    return [*ends, len(times_s)]


def _with_more(ends: list[int], stages: int) -> list[int]:
    """Further ends until there are ``stages``: the slowest stage gets no slower by them."""
    missing = stages - len(ends)
    free = [end for end in range(1, ends[-1]) if end not in ends]
    return sorted([*ends, *free[:missing]]) if missing > 0 else ends


def send_s(size_bytes: float, link: Link) -> float:
    """One message."""
    return link.latency_s + size_bytes * link.s_per_byte


def all_gather_s(ranks: int, total_bytes: float, link: Link) -> float:
    """Everyone gets ``total_bytes``, a part of it from each: (p-1)(alpha + m/p beta)."""
    return (ranks - 1) * send_s(total_bytes / ranks, link)


def all_reduce_s(ranks: int, size_bytes: float, link: Link) -> float:
    """A buffer of ``size_bytes`` is summed over all: 2(p-1)(alpha + m/p beta)."""
    return 2 * all_gather_s(ranks, size_bytes, link)


ITEM_BYTES = 4
"""delta: fp32."""

HOST_LATENCY_S = 3.00011e-3
"""Of a message without GPUDirect, as measured by the code's authors (``PLX_CABLE_LAT2``)."""

Terms = tuple[dict[str, float], dict[str, float]]
"""Seconds of computation and of communication, by term."""


def spread(layer: Layer) -> float:
    """Operations by which the code spreads a network's time (``estimate_layer_flop``)."""
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
    """The layers its files have, with FW + BW of one sample."""
    kept = [layer for layer in workload.layers if not layer.shortcut]
    weights = [spread(layer) for layer in kept]
    return [
        (layer, workload.time_s * weight / sum(weights))
        for layer, weight in zip(kept, weights, strict=True)
    ]


def _before_the_head(workload: Workload) -> list[tuple[Layer, float]]:
    """Those of ``layers_of`` that a spatial split takes: shortcuts count in ``spatial_layers``."""
    split = workload.layers[: workload.spatial_layers]
    return layers_of(workload)[: sum(not layer.shortcut for layer in split)]


def _weight_bytes(workload: Workload) -> float:
    return ITEM_BYTES * sum(kernel_weights(layer) for layer, _ in layers_of(workload))


def _serial(workload: Workload, _: Platform, asked: Configuration) -> Terms:
    return {"layers": asked.batch * workload.time_s}, {}


def _data(workload: Workload, platform: Platform, asked: Configuration) -> Terms:
    ring = platform.level(asked.devices)
    gradients = all_reduce_s(asked.devices, _weight_bytes(workload), ring)
    return {"layers": asked.group_batch * workload.time_s}, {"gradients": gradients}


def _layer_split(workload: Workload, platform: Platform, asked: Configuration) -> Terms:
    """Filter and channel: the same formula for both."""
    p, batch, ring = asked.inside, asked.group_batch, platform.level(asked.inside)
    layers = layers_of(workload)
    compute = batch * sum(time / (p if layer.kind == "conv" else 1) for layer, time in layers)
    rounds = sum(
        1.5 * all_reduce_s(p, ITEM_BYTES * batch * layer.y, ring)
        for layer, _ in layers
        if layer.kind == "conv"
    )
    return {"layers": compute}, {"activations": rounds}


def _data_filter(workload: Workload, platform: Platform, asked: Configuration) -> Terms:
    compute, communication = _layer_split(workload, platform, asked)
    contended = platform.level(asked.devices).slower(asked.inside)
    gradients = all_reduce_s(asked.groups, _weight_bytes(workload), contended)
    return compute, {**communication, "gradients": gradients}


def _spatial_parts(
    workload: Workload, asked: Configuration, halo: Link, gather: Link
) -> tuple[float, float, float]:
    """Seconds of the split layers, of their halos, and of gathering and scattering behind them."""
    p, batch = asked.inside, asked.group_batch
    split = _before_the_head(workload)
    dim = asked.split_dims[0]
    halos = sum(
        4 * send_s(ITEM_BYTES * batch * ((layer.kernel - 1) // 2) * layer.slice_items(dim), halo)
        for layer, _ in split
        if layer.kernel > 1
    )
    behind = 2 * all_gather_s(p, ITEM_BYTES * batch * split[-1][0].y, gather)
    return batch * sum(time for _, time in split) / p, halos, behind


def _spatial(workload: Workload, platform: Platform, asked: Configuration) -> Terms:
    ring = platform.level(asked.devices)
    compute, halos, behind = _spatial_parts(workload, asked, ring, ring)
    split = sum(time for _, time in _before_the_head(workload))
    rest = asked.batch * max(0.0, workload.time_s - split)
    gradients = all_reduce_s(asked.devices, _weight_bytes(workload), ring)
    return {"layers": compute + rest}, {
        "halo": halos,
        "gather": behind,
        "gradients": gradients,
    }


def _data_spatial(workload: Workload, platform: Platform, asked: Configuration) -> Terms:
    host = Link(HOST_LATENCY_S, platform.host.s_per_byte)
    compute, halos, behind = _spatial_parts(
        workload, asked, host.slower(2 * asked.inside), host.slower(2)
    )
    weights = _weight_bytes(workload)
    leaders = platform.level(asked.devices).slower(2 * asked.inside)
    gradients = all_reduce_s(asked.inside, weights, platform.level(asked.inside))
    gradients += all_reduce_s(asked.groups, weights, leaders)
    return {"layers": compute}, {"halo": halos, "gather": behind, "gradients": gradients}


def _pipeline(workload: Workload, platform: Platform, asked: Configuration) -> Terms:
    """Table III; the code has only a stub."""
    p, segments = asked.devices, asked.segments
    layers = layers_of(workload)
    ends = cut_evenly([time for _, time in layers], p)
    starts = [0, *ends[:-1]]
    slowest = max(
        sum(time for _, time in layers[start:end]) for start, end in zip(starts, ends, strict=True)
    )
    largest = max((layers[end - 1][0].y for end in ends[:-1]), default=0)
    hop = send_s(ITEM_BYTES * asked.batch / segments * largest, platform.level(p))
    steps = p + segments - 2
    return (
        {"layers": asked.batch * (p + segments - 1) / segments * slowest},
        {"stages": 2 * steps * hop if p > 1 else 0.0},
    )


TERMS: dict[str, Callable[[Workload, Platform, Configuration], Terms]] = {
    "serial": _serial,
    "data": _data,
    "spatial": _spatial,
    "filter": _layer_split,
    "channel": _layer_split,
    "data+filter": _data_filter,
    "data+spatial": _data_spatial,
    "pipeline": _pipeline,
}


def memory_bytes(workload: Workload, _: Platform, asked: Configuration) -> float:
    """Table III: 2 delta (samples (|x| + |y|) + |w|), what is split divided."""
    p, batch = asked.inside, asked.group_batch
    layers = [layer for layer, _ in layers_of(workload)]
    both = [batch * (layer.x + layer.y) for layer in layers]
    weights = [kernel_weights(layer) for layer in layers]
    if asked.strategy in ("filter", "channel", "data+filter"):
        return 2 * ITEM_BYTES * (sum(both) + sum(weights) / p)
    if asked.strategy in ("spatial", "data+spatial"):
        return 2 * ITEM_BYTES * (sum(both) / p + sum(weights))
    if asked.strategy == "pipeline":
        return 2 * ITEM_BYTES * _fullest_stage(layers_of(workload), both, weights, p)
    return 2 * ITEM_BYTES * (sum(both) + sum(weights))


def _fullest_stage(
    layers: Sequence[tuple[Layer, float]], both: Sequence[float], weights: Sequence[int], p: int
) -> float:
    ends = cut_evenly([time for _, time in layers], p)
    starts = [0, *ends[:-1]]
    return max(
        sum(both[start:end]) + sum(weights[start:end])
        for start, end in zip(starts, ends, strict=True)
    )
