"""Terms of the rows that our strategies split (``strategies/tensor_parallel``), one iteration.

Unlike ParaDL's implementation, as :mod:`ddlbench.predict.paradl.corrected` has it:

    layers      by the fullest device's rows
    halo        along every split dimension; of two devices each has one neighbour, of more two;
                the image of the first layer gets no gradient
    statistics  batch normalisation: all-gather of 2 C forward, all-reduce of 2 C backward
    gather      forward alone, as each device takes its part of the gradient; or the all-reduce
                of a mean over all positions
    gradients   of split layers over p, of the layers behind them between groups:

        group 0   rank 0 --- rank 1     split layers: one ring over all ranks
                     |         |        behind them all ranks of a group have the same gradient:
        group 1   rank 2 --- rank 3     p2 rings between groups (|), at the same time
"""

from __future__ import annotations

from math import prod

from ddlbench.predict.paradl.collectives import all_gather_s, all_reduce_s
from ddlbench.predict.paradl.configuration import Configuration, OwnSplit
from ddlbench.predict.paradl.costs import computation, gradients_s, layer_times, row_link
from ddlbench.predict.paradl.layers import Layer
from ddlbench.predict.paradl.platform import Link, Platform
from ddlbench.predict.paradl.published import ITEM_BYTES, Terms
from ddlbench.predict.paradl.workload import Workload

__all__ = ["own_rows"]


def own_rows(workload: Workload, platform: Platform, asked: Configuration, own: OwnSplit) -> Terms:
    """Seconds of computation and of communication, by term."""
    p, batch = asked.inside, asked.group_batch
    times = layer_times(workload, platform)
    shared = [time * share for time, share in zip(times, own.shares, strict=True)]
    compute = computation(platform, batch, shared, workload.weights)
    link = row_link(platform, p)
    split = workload.layers[: workload.spatial_layers]
    halo = sum(_halo_s(layer, own, batch, link) for layer in split)
    halo += sum(_halo_s(layer, own, batch, link) for layer in split[1:])  # backward
    communication = {
        "halo": halo,
        "statistics": sum(_statistics_s(layer, p, link) for layer in split),
        "gather": _gather_s(split[-1], own, batch, link),
        "gradients": _gradients_s(workload, platform, asked),
    }
    return compute, communication


def _halo_s(layer: Layer, own: OwnSplit, batch: float, link: Link) -> float:
    """Rows of the neighbours, one way, line by line."""
    seconds = 0.0
    for dim, devices in own.grid:
        if devices == 1 or not layer.halo_rows:
            continue
        neighbours = min(2, devices - 1)
        rows = layer.halo_rows if neighbours == 2 else -(-layer.halo_rows // 2)
        # Along the other dimension of a grid a device has its part alone.
        items = batch * rows * layer.slice_items(dim) * devices / _parts(own)
        latency_s = min(neighbours, rows) * link.latency_s
        seconds += latency_s + ITEM_BYTES * items * link.s_per_byte
    return seconds


def _statistics_s(layer: Layer, p: int, link: Link) -> float:
    """Mean and variance of each channel, of all devices; then the sums of their gradients."""
    if layer.kind != "batchnorm":
        return 0.0
    size = ITEM_BYTES * 2 * layer.channels
    return all_gather_s(p, p * size, link) + all_reduce_s(p, size, link)


def _gather_s(last: Layer, own: OwnSplit, batch: float, link: Link) -> float:
    """How rows become whole: by their mean, or line by line, the last line first."""
    parts = _parts(own)
    if own.by_mean:
        return all_reduce_s(parts, ITEM_BYTES * batch * last.filters, link)
    seconds, items = 0.0, batch * last.y / parts
    for dim, devices in reversed(own.grid):
        items *= devices
        extent = last.output[dim]
        sent = items * -(-extent // devices) * devices / extent  # parts as large as the largest
        seconds += all_gather_s(devices, ITEM_BYTES * sent, link)
    return seconds


def _gradients_s(workload: Workload, platform: Platform, asked: Configuration) -> float:
    if asked.inside == 1:
        return gradients_s(platform, asked, asked.groups, workload.weights)
    split = sum(layer.weights for layer in workload.layers[: workload.spatial_layers])
    rings = min(asked.inside, platform.devices_per_node)
    seconds = gradients_s(platform, asked, asked.devices, split)
    return seconds + gradients_s(platform, asked, asked.groups, workload.weights - split, rings)


def _parts(own: OwnSplit) -> int:
    """Devices of the grid."""
    return prod(devices for _, devices in own.grid)
