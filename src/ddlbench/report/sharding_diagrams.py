"""Who holds what of a layer under each strategy, and what is sent when: what pictures are drawn of.

After Figure 2 of ParaDL (Kahira et al. 2021), for four devices, as our strategies run
(``strategies/tensor_parallel``, Horovod, DDP, pipelines). Communication is that of their Table III,
but for data+spatial, where all devices add up gradients together (there: one of a node,
then leaders).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ddlbench.predict.paradl.configuration import STRATEGIES

__all__ = ["ALL", "DEVICES", "PICTURES", "SAMPLES", "SIDE", "Held", "Owners", "Picture", "one"]

DEVICES = 4
SAMPLES = 4
SIDE = 4
"""Image rows, and channels and filters, of the layer that is drawn."""

Owners = frozenset[int]
ALL: Owners = frozenset(range(DEVICES))
Held = Callable[[int, int, int], Owners]


@dataclass(frozen=True)
class Picture:
    """One strategy.

    Args:
        question: the title.
        inputs, outputs: who computes with (sample, row, channel).
        weights: who holds (filter, channel); the first argument is not used.
        told: sentences: forward, backward, end of a step, what is held, limit.
        layers: the stages of a pipeline are drawn instead of one layer.
        everyone: what the legend says of cells of all devices.
    """

    question: str
    inputs: Held
    weights: Held
    outputs: Held
    told: tuple[tuple[str, str], ...]
    layers: bool = False
    everyone: str = "every device, the same values"


def _everyone(*_: int) -> Owners:
    return ALL


def one(device: int, *_: int) -> Owners:
    """That device alone; whatever the place."""
    return frozenset((device,))


def _group(sample: int) -> Owners:
    """Devices of the group, two to a group, that has a sample."""
    first = 2 * (sample // 2)
    return frozenset((first, first + 1))


def _told(
    forward: str, backward: str, end: str, holds: str, limit: str
) -> tuple[tuple[str, str], ...]:
    names = ("Forward", "Backward", "End of step", "A device holds", "At most")
    return tuple(zip(names, (forward, backward, end, holds, limit), strict=True))


PICTURES: dict[str, Picture] = {
    "serial": Picture(
        "Serial: one device has everything",
        lambda *_: one(0), lambda *_: one(0), lambda *_: one(0),
        _told("nothing is sent.", "nothing is sent.", "the weights are updated.",
              "everything.", "1 device."),
    ),
    "data": Picture(
        "Data: each device has its samples, and all weights",
        lambda n, *_: one(n), _everyone, lambda n, *_: one(n),
        _told("nothing is sent.", "nothing is sent.",
              "all-reduce of the gradients of all weights.",
              "1/p of the activations, all weights.", "as many devices as samples in the batch."),
    ),
    "spatial": Picture(
        "Spatial: each device has its rows of every image, and all weights",
        lambda _n, h, _c: one(h), _everyone, lambda _n, h, _c: one(h),
        _told("the halo, rows that a neighbour's kernel reads, before every layer that looks "
              "beyond its rows; rows are gathered where the network's head begins.",
              "gradients of the halo go back to its owner.",
              "all-reduce of the gradients of the split layers' weights.",
              "1/p of the split layers' activations, all weights.",
              "as many devices as the smallest split layer has rows."),
    ),
    "filter": Picture(
        "Filter: each device has its filters, so its channels of every output",
        _everyone, lambda _n, f, _c: one(f), lambda _n, _h, f: one(f),
        _told("all-gather of the output: the next layer reads all of it.",
              "all-reduce of the gradient of the input: each device knows its filters' share.",
              "nothing: each device has all gradients of its own weights.",
              "whole activations, 1/p of the weights.",
              "as many devices as the narrowest layer has filters."),
    ),
    "channel": Picture(
        "Channel: each device reads its channels, and has part of every filter",
        lambda _n, _h, c: one(c), lambda _n, _f, c: one(c), _everyone,
        _told("all-reduce of the output: each device has a partial sum of all of it.",
              "all-gather of the gradient of the input: each device knows its channels.",
              "nothing: each device has all gradients of its own weights.",
              "whole activations, 1/p of the weights (but the first layer's).",
              "as many devices as the narrowest layer but the first has channels."),
        everyone="every device: partial sums, the same values once they are added up",
    ),
    "data+filter": Picture(
        "Data + filter: groups share the samples, devices of a group the filters",
        lambda n, *_: _group(n),
        lambda _n, f, _c: frozenset((f // 2, 2 + f // 2)),
        lambda n, _h, f: one(2 * (n // 2) + f // 2),
        _told("all-gather of the output within the group.",
              "all-reduce of the gradient of the input within the group.",
              "all-reduce of own gradients with the devices of other groups that have the same "
              "filters.",
              "activations of its group whole, 1/p2 of the weights.",
              "samples times the filters of the narrowest layer."),
    ),
    "data+spatial": Picture(
        "Data + spatial: groups share the samples, devices of a group the rows",
        lambda n, h, _c: one(2 * (n // 2) + h // 2), _everyone,
        lambda n, h, _c: one(2 * (n // 2) + h // 2),
        _told("the halo within the group.", "gradients of the halo go back to its owner.",
              "all-reduce of the gradients of the split layers' weights over all devices, of the "
              "others' over groups.",
              "1/p of the split layers' activations, all weights.",
              "samples times the rows of the smallest split layer."),
    ),
    "pipeline": Picture(
        "Pipeline: each device has its layers; micro-batches follow each other",
        lambda *_: ALL, lambda *_: ALL, lambda *_: ALL,
        _told("each stage sends its output to the next.",
              "each stage sends the gradient of its input to the one before.",
              "nothing: each device has all gradients of its own layers.",
              "activations of its layers for the micro-batches under way, its weights.",
              "as many devices as layers."),
        layers=True,
    ),
}  # fmt: skip
assert tuple(PICTURES) == STRATEGIES
