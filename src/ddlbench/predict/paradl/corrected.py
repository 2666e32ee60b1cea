"""The oracle with its faults mended: contention explicit, weight update counted, halo right.

Terms of one iteration; b samples of a group, p1 groups, p2 devices inside, p = p1 p2, 4-byte items.

    layers       b sum_l t_l / (p2 if layer l is split), at least ``layer_overhead_s`` a layer
    weight update  (3 + 2 states) 4 |w| / memory rate   read w, g, states; write w, states
    activations  filter:  all-gather of y_l forward, all-reduce of dL/dx_l backward
                 channel: all-reduce of y_l forward, all-gather of dL/dx_l backward
                 split convolutions only; no dL/dx of the first layer
    halo         2 messages forward, 2 backward for each split layer with kernel > stride,
                 together (kernel - stride) rows each way
    gather       all-gather before the first unsplit layer, scatter of its gradient
    gradients    ring over those that hold the same weights

Which gradients meet (ChainerMN's optimizer reduces every parameter of a communicator):

    data          |w|                        over p     flows of a node: 1
    data+filter   |w| split / p2 + replicated  over p1  flows of a node: p2, one a ring
    filter, channel  replicated              over p
    spatial       |w|                        over p
    data+spatial  |w|  in the node, then     over p1 leaders

A ring that goes *direct* gets ``ring_efficiency`` of a link; f flows on a node's L links slow
each other by 1 + ``contention`` (f / L - 1). A *staged* one goes through host memory at
``staged_bytes_per_s``. Time of a layer, where none is measured, is spread by a roofline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from ddlbench.predict.paradl.collectives import all_gather_s, all_reduce_s, send_s
from ddlbench.predict.paradl.layers import Layer
from ddlbench.predict.paradl.platform import Link, Platform
from ddlbench.predict.paradl.published import ITEM_BYTES, Terms
from ddlbench.predict.paradl.question import Question
from ddlbench.predict.paradl.stages import cut_evenly
from ddlbench.predict.paradl.workload import Workload

__all__ = ["TERMS", "halo_layers", "is_split", "stage_bounds"]

Collective = Callable[[int, float, Link], float]

PASSES = {"batchnorm": 8, "relu": 5, "add": 5, "dropout": 5, "pool": 4}
"""How often a layer without weights walks over its activations, forward and backward."""


def roofline(platform: Platform) -> Callable[[Layer], float]:
    """Seconds of a layer at the device's own rates: the weight that spreads a network's time."""
    flops, memory = platform.device["flops_per_s"], platform.device["memory_bytes_per_s"]

    def seconds(layer: Layer) -> float:
        walked = PASSES.get(layer.kind, 3) * ITEM_BYTES * (layer.x + layer.y) / 2
        return max(6 * layer.multiply_adds / flops, walked / memory)

    return seconds


def is_split(layer: Layer, asked: Question) -> bool:
    """Whether filter or channel parallelism cuts this layer: a convolution that is wide enough."""
    width = layer.channels if asked.strategy == "channel" else layer.filters
    return layer.kind == "conv" and asked.inside > 1 and width >= asked.inside


def _layers(workload: Workload, platform: Platform) -> list[tuple[Layer, float]]:
    times = workload.times_s(roofline(platform))
    return list(zip(workload.layers, times, strict=True))


def _computation(
    platform: Platform, batch: float, shares: Sequence[float], weights: float
) -> dict[str, float]:
    """Layers of one device, each with its seconds a sample, and the update of its weights."""
    least = platform.constant("layer_overhead_s") * len(shares)
    states = platform.device["optimizer_states"]
    update = (3 + 2 * states) * ITEM_BYTES * weights / platform.device["memory_bytes_per_s"]
    return {"layers": max(batch * sum(shares), least), "weight update": update}


def _gradients_s(
    platform: Platform, asked: Question, ranks: int, weights: float, flows: int = 1
) -> float:
    """All-reduce of gradients over ``ranks``, that lie side by side or one a node."""
    if ranks == 1 or not weights:
        return 0.0
    return all_reduce_s(ranks, ITEM_BYTES * weights, _gradient_link(platform, asked, ranks, flows))


def _gradient_link(platform: Platform, asked: Question, ranks: int, flows: int) -> Link:
    level = platform.level(asked.devices)
    if platform.staged(asked.strategy):
        return Link(level.latency_s, 1 / platform.constant("staged_bytes_per_s"))
    if asked.devices <= platform.devices_per_node:
        return level
    shared = max(1.0, flows / platform.links_per_node)
    slower = 1 + platform.constant("contention") * (shared - 1)
    return level.slower(slower / platform.constant("ring_efficiency"))


def _activation_link(platform: Platform, ranks: int) -> Link:
    """Collectives of activations use all links of a node."""
    level = platform.level(ranks)
    if ranks <= platform.devices_per_node:
        return level
    links = platform.links_per_node * platform.constant("activation_efficiency")
    return level.slower(1 / links)


def _serial(workload: Workload, platform: Platform, asked: Question) -> Terms:
    times = workload.times_s(roofline(platform))
    return _computation(platform, asked.batch, times, workload.weights), {}


def _data(workload: Workload, platform: Platform, asked: Question) -> Terms:
    times = workload.times_s(roofline(platform))
    compute = _computation(platform, asked.group_batch, times, workload.weights)
    gradients = _gradients_s(platform, asked, asked.devices, workload.weights)
    return compute, {"gradients": gradients}


def _layer_split(workload: Workload, platform: Platform, asked: Question) -> Terms:
    """Filter, channel, and what data+filter does inside a node."""
    p, batch = asked.inside, asked.group_batch
    link = _activation_link(platform, p)
    shares, activations, split, kept = [], 0.0, 0.0, 0.0
    for index, (layer, time) in enumerate(_layers(workload, platform)):
        cut = is_split(layer, asked)
        shares.append(time / p if cut else time)
        split, kept = (split + layer.weights, kept) if cut else (split, kept + layer.weights)
        if cut:
            activations += _exchange_s(layer, asked, link, batch, first=index == 0)
    compute = _computation(platform, batch, shares, split / p + kept)
    if asked.groups > 1:
        gradients = _gradients_s(platform, asked, asked.groups, split / p + kept, flows=p)
    else:
        gradients = _gradients_s(platform, asked, p, kept)
    return compute, {"activations": activations, "gradients": gradients}


def _exchange_s(layer: Layer, asked: Question, link: Link, batch: float, first: bool) -> float:
    """Collectives of one split layer, forward and backward."""
    p = asked.inside
    pair: tuple[Collective, Collective] = (all_gather_s, all_reduce_s)
    forward, backward = reversed(pair) if asked.strategy == "channel" else pair
    seconds = forward(p, ITEM_BYTES * batch * layer.y, link)
    return seconds if first else seconds + backward(p, ITEM_BYTES * batch * layer.x, link)


def halo_layers(workload: Workload) -> list[Layer]:
    """Layers of the spatial part whose windows reach into the neighbour's part."""
    return [layer for layer in workload.layers[: workload.spatial_layers] if layer.halo_rows]


def _spatial(workload: Workload, platform: Platform, asked: Question) -> Terms:
    """Spatial, and data+spatial with its two all-reduces one after the other."""
    p, batch = asked.inside, asked.group_batch
    inside_node = p <= platform.devices_per_node
    link = platform.host if inside_node else platform.level(p)
    layers = _layers(workload, platform)
    shares = [
        time / p if index < workload.spatial_layers else time
        for index, (_, time) in enumerate(layers)
    ]
    compute = _computation(platform, batch, shares, workload.weights)
    last = workload.layers[workload.spatial_layers - 1]
    halo = sum(
        2
        * (2 * link.latency_s + ITEM_BYTES * batch * layer.halo_rows * layer.row * link.s_per_byte)
        for layer in halo_layers(workload)
    )
    return compute, {
        "halo": halo if p > 1 else 0.0,
        "gather": 2 * all_gather_s(p, ITEM_BYTES * batch * last.y, link),
        "gradients": _spatial_gradients_s(workload, platform, asked),
    }


def _spatial_gradients_s(workload: Workload, platform: Platform, asked: Question) -> float:
    if asked.groups == 1:
        return _gradients_s(platform, asked, asked.devices, workload.weights)
    node = platform.level(asked.inside)
    within = all_reduce_s(asked.inside, ITEM_BYTES * workload.weights, node)
    return within + _gradients_s(platform, asked, asked.groups, workload.weights)


def stage_bounds(workload: Workload, platform: Platform, stages: int) -> list[tuple[int, int]]:
    """First layer and one past the last of each stage of a pipeline."""
    ends = cut_evenly(workload.times_s(roofline(platform)), stages)
    return list(pairwise([0, *ends]))


def _pipeline(workload: Workload, platform: Platform, asked: Question) -> Terms:
    """Eq. 12 and 13; the hop between two stages is that between their devices."""
    segments, layers = asked.segments, _layers(workload, platform)
    micro = asked.batch / segments
    bounds = stage_bounds(workload, platform, asked.devices)
    stages, slowest = len(bounds), {"layers": 0.0, "weight update": 0.0}
    for start, end in bounds:
        weights = sum(layer.weights for layer, _ in layers[start:end])
        stage = _computation(platform, micro, [time for _, time in layers[start:end]], weights)
        slowest = {name: max(slowest[name], stage[name]) for name in stage}
    hops = [
        send_s(
            ITEM_BYTES * micro * layers[end - 1][0].y,
            platform.level(platform.devices_per_node)
            if number % platform.devices_per_node
            else platform.level(stages),
        )
        for number, (_, end) in enumerate(bounds[:-1], start=1)
    ]
    slowest["layers"] *= stages + segments - 1
    return slowest, {"stages": 2 * (stages + segments - 2) * max(hops, default=0.0)}


TERMS: dict[str, Callable[[Workload, Platform, Question], Terms]] = {
    "serial": _serial,
    "data": _data,
    "spatial": _spatial,
    "filter": _layer_split,
    "channel": _layer_split,
    "data+filter": _layer_split,
    "data+spatial": _spatial,
    "pipeline": _pipeline,
}
