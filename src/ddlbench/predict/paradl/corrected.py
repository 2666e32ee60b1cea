"""The oracle with its faults mended: explicit contention, the weight update, the right halo.

Terms of one iteration; b samples of a group, p1 groups, p2 devices inside, p = p1 p2, 4-byte items.

    layers       b sum_l t_l / (p2 if layer l is split), at least ``layer_overhead_s`` a layer
    weight update  (3 + 2 states) 4 |w| / memory rate   read w, g, states; write w, states
    activations  filter:  all-gather of y_l forward, all-reduce of dL/dx_l backward
                 channel: all-reduce of y_l forward, all-gather of dL/dx_l backward
                 split layers only; no dL/dx of the first layer
    halo         2 messages forward, 2 backward for each split layer with kernel > stride,
                 together (kernel - stride) rows each way
    gather       all-gather before the first unsplit layer, scatter of its gradient
    gradients    ring over those that hold the same weights

Filter and channel split convolutions. Gradients that are all-reduced (ChainerMN's optimizer reduces
every parameter of a communicator):

    data          |w|                        over p     flows of a node: 1
    data+filter   |w| split / p2 + replicated  over p1  flows of a node: p2, one a ring
    filter, channel  replicated              over p
    spatial       |w|                        over p
    data+spatial  |w|  in the node, then     over p1 leaders

These are the strategies that ParaDL ran. A configuration with ``project_split`` is of a strategy
of this project. Those also split linear layers, by the fullest device's share (gathers are padded
to it), and send no gradient that all devices of a group compute alike.

A *direct* ring gets ``ring_efficiency`` of a link. f flows on a node's L links slow each other down
by 1 + ``contention`` (f / L - 1). A *staged* ring goes through host memory at
``staged_bytes_per_s``. Without measured times of layers a roofline spreads the network's time.

Terms of rows that this project's strategies split (``strategies/splits``), one iteration;
where they differ from those above:

    layers      by the fullest device's rows
    halo        along every split dimension; of two devices each has one neighbour, of more two;
                the image of the first layer gets no gradient
    statistics  batch normalisation: all-gather of 2 C forward, all-reduce of 2 C backward
    gather      forward alone, as each device takes its part of the gradient; or the all-reduce
                of a mean over all positions
    gradients   of split layers over p, of the layers after them between groups:

        group 0   rank 0 --- rank 1     split layers: one ring over all ranks
                     |         |        after them all ranks of a group have the same gradient:
        group 1   rank 2 --- rank 3     p2 rings between groups (|), at the same time
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod

from ddlbench.predict.hardware import Link, Platform
from ddlbench.predict.paradl.authors_code import (
    ITEM_BYTES,
    Terms,
    all_gather_s,
    all_reduce_s,
    cut_evenly,
    send_s,
)
from ddlbench.predict.paradl.configuration import Configuration, OwnSplit
from ddlbench.predict.paradl.workload import Layer, Workload

PASSES = {"batchnorm": 8, "relu": 5, "add": 5, "dropout": 5, "pool": 4}
"""How often a layer without weights reads or writes its activations, forward and backward."""


def layer_times(workload: Workload, platform: Platform) -> Sequence[float]:
    """FW + BW of each layer for one sample, seconds."""
    return workload.times_s(_roofline(platform))


def _roofline(platform: Platform) -> Callable[[Layer], float]:
    """Seconds of a layer at the device's own rates, by which a network's time is spread."""
    flops, memory = platform.device.flops_per_s, platform.device.memory_bytes_per_s

    def seconds(layer: Layer) -> float:
        walked = PASSES.get(layer.kind, 3) * ITEM_BYTES * (layer.x + layer.y) / 2
        return max(6 * layer.multiply_adds / flops, walked / memory)

    return seconds


def computation(
    platform: Platform, batch: float, shares: Sequence[float], weights: float
) -> dict[str, float]:
    """Seconds of the layers of one device and of the update of its weights.

    Args:
        platform: the rates of a device.
        batch: samples.
        shares: seconds per sample of each of its layers.
        weights: of the device.
    """
    least = platform.constant("layer_overhead_s") * len(shares)
    states = platform.device.optimizer_states
    update = (3 + 2 * states) * ITEM_BYTES * weights / platform.device.memory_bytes_per_s
    return {"layers": max(batch * sum(shares), least), "weight update": update}


def gradients_s(
    platform: Platform, config: Configuration, ranks: int, weights: float, flows: int = 1
) -> float:
    """All-reduce of gradients over ``ranks`` that lie side by side, or one on each node."""
    if ranks == 1 or not weights:
        return 0.0
    return all_reduce_s(ranks, ITEM_BYTES * weights, _gradient_link(platform, config, flows))


def _gradient_link(platform: Platform, config: Configuration, flows: int) -> Link:
    level = platform.level(config.devices)
    if platform.staged(config.strategy):
        return Link(level.latency_s, 1 / platform.constant("staged_bytes_per_s"))
    if config.devices <= platform.devices_per_node:
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
    return platform.paths.host.link if ranks <= platform.devices_per_node else platform.level(ranks)


def own_rows(
    workload: Workload, platform: Platform, config: Configuration, project_split: OwnSplit
) -> Terms:
    """Seconds of computation and of communication, by term."""
    p, batch = config.inside, config.group_batch
    times = layer_times(workload, platform)
    shared = [time * share for time, share in zip(times, project_split.shares, strict=True)]
    compute = computation(platform, batch, shared, workload.weights)
    link = row_link(platform, p)
    split = workload.layers[: workload.spatial_layers]
    halo = sum(_halo_s(layer, project_split, batch, link) for layer in split)
    halo += sum(_halo_s(layer, project_split, batch, link) for layer in split[1:])  # backward
    communication = {
        "halo": halo,
        "statistics": sum(_statistics_s(layer, p, link) for layer in split),
        "gather": _gather_s(split[-1], project_split, batch, link),
        "gradients": _gradients_s(workload, platform, config),
    }
    return compute, communication


def _halo_s(layer: Layer, split: OwnSplit, batch: float, link: Link) -> float:
    """Seconds of the rows of the neighbours, one way."""
    seconds = 0.0
    for dim, devices in split.grid:
        if devices == 1 or not layer.halo_rows:
            continue
        neighbours = min(2, devices - 1)
        rows = layer.halo_rows if neighbours == 2 else -(-layer.halo_rows // 2)
        # Along the other dimension of a grid a device has its part alone.
        items = batch * rows * layer.slice_items(dim) * devices / _parts(split)
        latency_s = min(neighbours, rows) * link.latency_s
        seconds += latency_s + ITEM_BYTES * items * link.s_per_byte
    return seconds


def _statistics_s(layer: Layer, p: int, link: Link) -> float:
    """Mean and variance of each channel of all devices, then the sums of their gradients."""
    if layer.kind != "batchnorm":
        return 0.0
    size = ITEM_BYTES * 2 * layer.channels
    return all_gather_s(p, p * size, link) + all_reduce_s(p, size, link)


def _gather_s(last: Layer, split: OwnSplit, batch: float, link: Link) -> float:
    """All-reduce of the mean of all rows, or all-gather along each dimension, the last first."""
    parts = _parts(split)
    if split.by_mean:
        return all_reduce_s(parts, ITEM_BYTES * batch * last.filters, link)
    seconds, items = 0.0, batch * last.y / parts
    for dim, devices in reversed(split.grid):
        items *= devices
        extent = last.output[dim]
        sent = items * -(-extent // devices) * devices / extent  # parts as large as the largest
        seconds += all_gather_s(devices, ITEM_BYTES * sent, link)
    return seconds


def _gradients_s(workload: Workload, platform: Platform, config: Configuration) -> float:
    if config.inside == 1:
        return gradients_s(platform, config, config.groups, workload.weights)
    split = sum(layer.weights for layer in workload.layers[: workload.spatial_layers])
    rings = min(config.inside, platform.devices_per_node)
    seconds = gradients_s(platform, config, config.devices, split)
    return seconds + gradients_s(platform, config, config.groups, workload.weights - split, rings)


def _parts(split: OwnSplit) -> int:
    return prod(devices for _, devices in split.grid)


def weight_shares(workload: Workload, config: Configuration) -> list[float]:
    """A device's share of each layer's filters or channels; 1 if the layer is whole."""
    if config.project_split is not None:
        return list(config.project_split.shares)
    width = "channels" if config.strategy == "channel" else "filters"
    return [
        1 / config.inside
        if layer.kind == "conv" and getattr(layer, width) >= config.inside
        else 1.0
        for layer in workload.layers
    ]


def _serial(workload: Workload, platform: Platform, config: Configuration) -> Terms:
    times = layer_times(workload, platform)
    return computation(platform, config.batch, times, workload.weights), {}


def _data(workload: Workload, platform: Platform, config: Configuration) -> Terms:
    times = layer_times(workload, platform)
    compute = computation(platform, config.group_batch, times, workload.weights)
    gradients = gradients_s(platform, config, config.devices, workload.weights)
    return compute, {"gradients": gradients}


def _layer_split(workload: Workload, platform: Platform, config: Configuration) -> Terms:
    """Filter, channel, and data+filter, which splits filters inside a group."""
    p, batch = config.inside, config.group_batch
    link = activation_link(platform, p)
    times, shares = layer_times(workload, platform), weight_shares(workload, config)
    activations, split, kept = 0.0, 0.0, 0.0
    for index, (layer, share) in enumerate(zip(workload.layers, shares, strict=True)):
        if share == 1:
            kept += layer.weights
            continue
        split += layer.weights * share
        activations += _exchange_s(layer, config, link, share, first=index == 0)
    shared = [time * share for time, share in zip(times, shares, strict=True)]
    compute = computation(platform, batch, shared, split + kept)
    if config.groups > 1:
        rings = min(p, platform.devices_per_node)
        gradients = gradients_s(platform, config, config.groups, split + kept, flows=rings)
    else:
        gradients = gradients_s(platform, config, p, kept) if config.project_split is None else 0.0
    return compute, {"activations": activations, "gradients": gradients}


def _exchange_s(
    layer: Layer, config: Configuration, link: Link, share: float, first: bool
) -> float:
    """Collectives of one split layer, forward and backward; parts are padded to the largest."""
    p, batch = config.inside, config.group_batch

    def gather_s(items: int) -> float:
        return all_gather_s(p, ITEM_BYTES * batch * items * p * share, link)

    def total_s(items: int) -> float:
        return all_reduce_s(p, ITEM_BYTES * batch * items, link)

    forward_s, backward_s = gather_s, total_s
    if config.strategy == "channel":
        forward_s, backward_s = total_s, gather_s
    return forward_s(layer.y) + (0.0 if first else backward_s(layer.x))


def _spatial(workload: Workload, platform: Platform, config: Configuration) -> Terms:
    """Spatial, and data+spatial with its two all-reduces one after the other."""
    if config.project_split is not None:
        return own_rows(workload, platform, config, config.project_split)
    p, batch = config.inside, config.group_batch
    link = row_link(platform, p)
    shared = [
        time / p if index < workload.spatial_layers else time
        for index, time in enumerate(layer_times(workload, platform))
    ]
    compute = computation(platform, batch, shared, workload.weights)
    split = workload.layers[: workload.spatial_layers]
    halo = sum(
        2
        * (
            2 * link.latency_s
            + ITEM_BYTES * batch * layer.halo_rows * layer.slice_items(1) * link.s_per_byte
        )
        for layer in split
        if layer.halo_rows
    )
    return compute, {
        "halo": halo if p > 1 else 0.0,
        "gather": 2 * all_gather_s(p, ITEM_BYTES * batch * split[-1].y, link),
        "gradients": _spatial_gradients_s(workload, platform, config),
    }


def _spatial_gradients_s(workload: Workload, platform: Platform, config: Configuration) -> float:
    if config.groups == 1:
        return gradients_s(platform, config, config.devices, workload.weights)
    node = platform.level(config.inside)
    within = all_reduce_s(config.inside, ITEM_BYTES * workload.weights, node)
    return within + gradients_s(platform, config, config.groups, workload.weights)


def stage_bounds(workload: Workload, platform: Platform, stages: int) -> list[tuple[int, int]]:
    """First layer and one past the last of each stage of a pipeline."""
    ends = cut_evenly(layer_times(workload, platform), stages)
    return list(pairwise([0, *ends]))


def _pipeline(workload: Workload, platform: Platform, config: Configuration) -> Terms:
    """Eq. 12 and 13, with the hop between the devices of two stages."""
    segments, layers = config.segments, workload.layers
    times = layer_times(workload, platform)
    micro = config.batch / segments
    bounds = stage_bounds(workload, platform, config.devices)
    stages, slowest = len(bounds), {"layers": 0.0, "weight update": 0.0}
    for start, end in bounds:
        weights = sum(layer.weights for layer in layers[start:end])
        stage = computation(platform, micro, times[start:end], weights)
        slowest = {name: max(slowest[name], stage[name]) for name in stage}
    hops = [
        send_s(
            ITEM_BYTES * micro * layers[end - 1].y,
            platform.level(platform.devices_per_node)
            if number % platform.devices_per_node
            else platform.level(stages),
        )
        for number, (_, end) in enumerate(bounds[:-1], start=1)
    ]
    slowest["layers"] *= stages + segments - 1
    return slowest, {"stages": 2 * (stages + segments - 2) * max(hops, default=0.0)}


TERMS: dict[str, Callable[[Workload, Platform, Configuration], Terms]] = {
    "serial": _serial,
    "data": _data,
    "spatial": _spatial,
    "filter": _layer_split,
    "channel": _layer_split,
    "data+filter": _layer_split,
    "data+spatial": _spatial,
    "pipeline": _pipeline,
}
