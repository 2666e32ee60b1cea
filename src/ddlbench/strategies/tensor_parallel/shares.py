"""What a split strategy divides of a profile's layers: how far rows go, whose weights are dealt.

The rules are the runtime's (``strategies/tensor_parallel``), on the shapes that a profile holds:
rows end at the head, at a block that the cell names, or with ``until: auto`` before the first block
in which a device would have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from ddlbench.experiment.errors import ConfigError
from ddlbench.planning.layer_split import LayerSplit

if TYPE_CHECKING:
    from ddlbench.planning.workload import Workload

__all__ = ["By", "layer_split", "shape_of"]

By = Literal["rows", "filter", "channel"]
_HEADS = ("Linear", "Flatten", "Adaptive")
_DEALT = ("Conv1d", "Conv2d", "Conv3d", "Linear")


def layer_split(
    workload: Workload, by: By, group: int, grid: Mapping[int, int], until: str
) -> LayerSplit:
    """How a group of devices splits a profiled network.

    Args:
        workload: the profile, with the shapes of its layers.
        by: what is split.
        group: devices that compute the same samples.
        grid: devices along each dimension, of rows.
        until: "head", "auto", or the name of the first block that is whole again, of rows.

    Raises:
        ConfigError: the profile has no shapes, or ``until`` names no block of it.
    """
    whole = {entry["name"]: 1.0 for entry in workload.layer_entries}
    if by == "rows":
        return LayerSplit(whole, grid, _rows_end(workload, grid, until))
    if group == 1:
        return LayerSplit(whole)
    entries = workload.layer_entries
    first = next((str(entry["name"]) for entry in entries if entry["kind"] in _DEALT), "")
    return LayerSplit(
        {
            entry["name"]: _dealt_share(entry, by, group, entry["name"] == first, workload.network)
            for entry in entries
        }
    )


def shape_of(entry: Mapping[str, Any], network: str) -> Mapping[str, Any]:
    """The shape of a layer.

    Raises:
        ConfigError: the profile is older than shapes.
    """
    shape: Mapping[str, Any] | None = entry.get("shape")
    if shape is None:
        raise ConfigError(f"the profile of {network} has no shapes of layers; make it again")
    return shape


def _rows_end(workload: Workload, grid: Mapping[int, int], until: str) -> int:
    """Index of the first block that every device computes whole again."""
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


def _dealt_share(entry: Mapping[str, Any], by: By, group: int, first: bool, network: str) -> float:
    """Share of a layer's weights that the fullest device has, of filters or channels.

    ``first``: it is the first layer with weights to deal; a split by channels leaves it whole.
    """
    by_channel = by == "channel"
    if entry["kind"] not in _DEALT or (by_channel and first):
        return 1.0
    extents = shape_of(entry, network)["input" if by_channel else "output"]
    if not extents:
        return 1.0
    features = int(extents[-1 if entry["kind"] == "Linear" else 0])
    return -(-features // group) / features


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
