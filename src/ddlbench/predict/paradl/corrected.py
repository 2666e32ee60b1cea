"""The oracle with its faults mended: contention explicit, weight update counted, halo right.

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

Filter and channel split convolutions. Which gradients meet (ChainerMN's optimizer reduces every
parameter of a communicator):

    data          |w|                        over p     flows of a node: 1
    data+filter   |w| split / p2 + replicated  over p1  flows of a node: p2, one a ring
    filter, channel  replicated              over p
    spatial       |w|                        over p
    data+spatial  |w|  in the node, then     over p1 leaders

So it is for what ParaDL ran. A question with ``own`` is of this project's strategies: they split
linear layers too, by the fullest device's share (gathers are padded to it), and send no gradient
of what all devices of a group compute alike; rows are in :mod:`ddlbench.predict.paradl.own_rows`.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from ddlbench.predict.paradl.collectives import all_gather_s, all_reduce_s, send_s
from ddlbench.predict.paradl.configuration import Configuration
from ddlbench.predict.paradl.costs import (
    activation_link,
    computation,
    gradients_s,
    layer_times,
    row_link,
)
from ddlbench.predict.paradl.layers import Layer
from ddlbench.predict.paradl.own_rows import own_rows
from ddlbench.predict.paradl.platform import Link, Platform
from ddlbench.predict.paradl.published import ITEM_BYTES, Terms
from ddlbench.predict.paradl.stages import cut_evenly
from ddlbench.predict.paradl.workload import Workload

__all__ = ["TERMS", "stage_bounds", "weight_shares"]


def weight_shares(workload: Workload, asked: Configuration) -> list[float]:
    """What a device has of each layer's filters or channels; 1 where the layer is whole."""
    if asked.own is not None:
        return list(asked.own.shares)
    return [1 / asked.inside if _is_split(layer, asked) else 1.0 for layer in workload.layers]


def _is_split(layer: Layer, asked: Configuration) -> bool:
    """Whether filter or channel parallelism cuts this layer: a convolution that is wide enough."""
    width = layer.channels if asked.strategy == "channel" else layer.filters
    return layer.kind == "conv" and asked.inside > 1 and width >= asked.inside


def _serial(workload: Workload, platform: Platform, asked: Configuration) -> Terms:
    times = layer_times(workload, platform)
    return computation(platform, asked.batch, times, workload.weights), {}


def _data(workload: Workload, platform: Platform, asked: Configuration) -> Terms:
    times = layer_times(workload, platform)
    compute = computation(platform, asked.group_batch, times, workload.weights)
    gradients = gradients_s(platform, asked, asked.devices, workload.weights)
    return compute, {"gradients": gradients}


def _layer_split(workload: Workload, platform: Platform, asked: Configuration) -> Terms:
    """Filter, channel, and what data+filter does inside a node."""
    p, batch = asked.inside, asked.group_batch
    link = activation_link(platform, p)
    times, shares = layer_times(workload, platform), weight_shares(workload, asked)
    activations, split, kept = 0.0, 0.0, 0.0
    for index, (layer, share) in enumerate(zip(workload.layers, shares, strict=True)):
        if share == 1:
            kept += layer.weights
            continue
        split += layer.weights * share
        activations += _exchange_s(layer, asked, link, share, first=index == 0)
    shared = [time * share for time, share in zip(times, shares, strict=True)]
    compute = computation(platform, batch, shared, split + kept)
    if asked.groups > 1:
        rings = min(p, platform.devices_per_node)
        gradients = gradients_s(platform, asked, asked.groups, split + kept, flows=rings)
    else:
        gradients = gradients_s(platform, asked, p, kept) if asked.own is None else 0.0
    return compute, {"activations": activations, "gradients": gradients}


def _exchange_s(layer: Layer, asked: Configuration, link: Link, share: float, first: bool) -> float:
    """Collectives of one split layer, forward and backward; every part is sent as the largest."""
    p, batch = asked.inside, asked.group_batch

    def gather_s(items: int) -> float:
        return all_gather_s(p, ITEM_BYTES * batch * items * p * share, link)

    def total_s(items: int) -> float:
        return all_reduce_s(p, ITEM_BYTES * batch * items, link)

    forward_s, backward_s = gather_s, total_s
    if asked.strategy == "channel":
        forward_s, backward_s = total_s, gather_s
    return forward_s(layer.y) + (0.0 if first else backward_s(layer.x))


def _spatial(workload: Workload, platform: Platform, asked: Configuration) -> Terms:
    """Spatial, and data+spatial with its two all-reduces one after the other."""
    if asked.own is not None:
        return own_rows(workload, platform, asked, asked.own)
    p, batch = asked.inside, asked.group_batch
    link = row_link(platform, p)
    shared = [
        time / p if index < workload.spatial_layers else time
        for index, time in enumerate(layer_times(workload, platform))
    ]
    compute = computation(platform, batch, shared, workload.weights)
    split = workload.layers[: workload.spatial_layers]
    halo = sum(
        2
        * (2 * link.latency_s + ITEM_BYTES * batch * layer.halo_rows * layer.row * link.s_per_byte)
        for layer in split
        if layer.halo_rows
    )
    return compute, {
        "halo": halo if p > 1 else 0.0,
        "gather": 2 * all_gather_s(p, ITEM_BYTES * batch * split[-1].y, link),
        "gradients": _spatial_gradients_s(workload, platform, asked),
    }


def _spatial_gradients_s(workload: Workload, platform: Platform, asked: Configuration) -> float:
    if asked.groups == 1:
        return gradients_s(platform, asked, asked.devices, workload.weights)
    node = platform.level(asked.inside)
    within = all_reduce_s(asked.inside, ITEM_BYTES * workload.weights, node)
    return within + gradients_s(platform, asked, asked.groups, workload.weights)


def stage_bounds(workload: Workload, platform: Platform, stages: int) -> list[tuple[int, int]]:
    """First layer and one past the last of each stage of a pipeline."""
    ends = cut_evenly(layer_times(workload, platform), stages)
    return list(pairwise([0, *ends]))


def _pipeline(workload: Workload, platform: Platform, asked: Configuration) -> Terms:
    """Eq. 12 and 13; the hop between two stages is that between their devices."""
    segments, layers = asked.segments, workload.layers
    times = layer_times(workload, platform)
    micro = asked.batch / segments
    bounds = stage_bounds(workload, platform, asked.devices)
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
