"""What a split strategy divides of a profile's layers: how far rows go, whose weights are dealt.

The rules are the runtime's (``strategies/tensor_parallel``), on the shapes that a profile holds:
rows end at the head, at a block that the cell names, or with ``until: auto`` before the first block
in which a device would have none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ddlbench.experiment.errors import ConfigError
from ddlbench.planning.plan import Plan
from ddlbench.predict.workload import Workload
from ddlbench.strategies.tensor_parallel.descriptor import grid_of

__all__ = [
    "ROWS",
    "WEIGHTS",
    "dealt_share",
    "dealt_shares",
    "first_dealt",
    "row_grid",
    "rows_end",
    "rows_share",
    "shape_of",
]

ROWS = ("spatial", "data-spatial")
WEIGHTS = ("filter", "channel", "data-filter")
_HEADS = ("Linear", "Flatten", "Adaptive")
_DEALT = ("Conv1d", "Conv2d", "Conv3d", "Linear")


def shape_of(entry: Mapping[str, Any], network: str) -> Mapping[str, Any]:
    """The shape of a layer.

    Raises:
        ConfigError: the profile is older than shapes.
    """
    shape: Mapping[str, Any] | None = entry.get("shape")
    if shape is None:
        raise ConfigError(f"the profile of {network} has no shapes of layers; make it again")
    return shape


def row_grid(plan: Plan) -> dict[int, int]:
    """Devices along each split dimension, counted from the last."""
    return grid_of(str(plan.details.get("split", "height")), int(plan.details["group"]))


def rows_end(workload: Workload, plan: Plan) -> int:
    """Index of the first block that every device computes whole again.

    Raises:
        ConfigError: the profile has no shapes, or the cell names a block that it has not.
    """
    until, grid = str(plan.details.get("until", "head")), row_grid(plan)
    blocks: dict[int, list[Mapping[str, Any]]] = {}
    for entry in workload.layer_entries:
        blocks.setdefault(entry["block"], []).append(entry)
    names = {index: layers[0]["block_name"] for index, layers in blocks.items()}
    if until not in ("head", "auto", *names.values()):
        raise ConfigError(f"until: {until} names no block of the profile of {workload.network}")
    for index, layers in sorted(blocks.items()):
        shapes = [shape_of(layer, workload.network) for layer in layers]
        named = until == names[index]
        thin = until == "auto" and any(_is_thin(shape, grid) for shape in shapes)
        if named or thin or any(_is_head(one) for one in layers):
            return index
    return len(blocks)


def rows_share(extents: Sequence[int], grid: Mapping[int, int]) -> float:
    """Of an activation, with the fullest device; 1 where it has no rows."""
    share = 1.0
    for dim, size in grid.items():
        if len(extents) > -dim:
            share *= -(-extents[dim] // size) / extents[dim]
    return share


def dealt_shares(workload: Workload, plan: Plan) -> dict[str, float]:
    """What the fullest device has of each layer's weights, by the layer's name.

    Raises:
        ConfigError: the profile has no shapes.
    """
    entries = workload.layer_entries
    if plan.cell.strategy in ROWS or int(plan.details["group"]) == 1:
        return {entry["name"]: 1.0 for entry in entries}
    first = first_dealt(entries)
    return {
        entry["name"]: dealt_share(entry, plan, entry["name"] == first, workload.network)
        for entry in entries
    }


def dealt_share(entry: Mapping[str, Any], plan: Plan, first: bool, network: str) -> float:
    """Share of a layer's weights that the fullest device has, of filters or channels.

    Args:
        entry: a layer of the profile.
        plan: of a strategy of :data:`WEIGHTS`.
        first: it is the network's first one with weights to deal, which channels leave whole.
        network: for messages.
    """
    by_channel = plan.cell.strategy == "channel"
    if entry["kind"] not in _DEALT or (by_channel and first):
        return 1.0
    extents = shape_of(entry, network)["input" if by_channel else "output"]
    if not extents:
        return 1.0
    features = int(extents[-1 if entry["kind"] == "Linear" else 0])
    group = int(plan.details["group"])
    return -(-features // group) / features


def first_dealt(entries: Iterable[Mapping[str, Any]]) -> str:
    """Name of the first layer with weights to deal; empty where there is none."""
    return next((str(entry["name"]) for entry in entries if entry["kind"] in _DEALT), "")


def _is_head(entry: Mapping[str, Any]) -> bool:
    shape = entry["shape"]
    return str(entry["kind"]).startswith(_HEADS) or len(shape["output"]) != len(shape["input"])


def _is_thin(shape: Mapping[str, Any], grid: Mapping[int, int]) -> bool:
    """Some device would have no row of the input or of the output."""
    return any(
        len(extents) > -dim and extents[dim] < size
        for extents in (shape["input"], shape["output"])
        for dim, size in grid.items()
    )
