"""What a plan of this project splits of the oracle's layers: shares, rows, and how rows end."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ddlbench.planning.layer_split import rows_share
from ddlbench.planning.plan import Plan
from ddlbench.planning.strategy import strategy_of
from ddlbench.planning.workload import Workload
from ddlbench.predict.paradl.configuration import OwnSplit
from ddlbench.predict.paradl.layers import Layer
from ddlbench.predict.paradl.shapes import split_layers
from ddlbench.predict.prediction import NotPredictable

__all__ = ["own_split", "spatial_layers"]


def own_split(workload: Workload, plan: Plan, layers: Sequence[Layer]) -> OwnSplit | None:
    """How the plan's strategy splits; None of a strategy that splits no layer.

    Args:
        workload: the profile.
        plan: of the cell.
        layers: the oracle's, of this profile.

    Raises:
        NotPredictable: rows end before the first layer.
        ConfigError: the profile has no shapes.
    """
    split = strategy_of(plan.cell.strategy).layer_split(workload, plan)
    if split is None:
        return None
    if split.end is None:
        return OwnSplit(tuple(split.weight_shares[layer.name] for layer in layers))
    count = _split_rows(workload, split.end, layers)
    shares = [rows_share(layer.output, split.grid) for layer in layers[:count]]
    return OwnSplit(
        shares=(*shares, *(1.0 for _ in layers[count:])),
        grid=tuple(split.grid.items()),
        by_mean=_by_mean(workload, split.end),
    )


def spatial_layers(workload: Workload, plan: Plan, layers: Sequence[Layer]) -> int:
    """How many of the oracle's layers have their rows split: as this plan ends them.

    Raises:
        NotPredictable: none has.
    """
    split = strategy_of(plan.cell.strategy).layer_split(workload, plan)
    if split is None or split.end is None:
        return split_layers(layers)
    return _split_rows(workload, split.end, layers)


def _split_rows(workload: Workload, end: int, layers: Sequence[Layer]) -> int:
    """How many of the oracle's layers stand before the first whole block."""
    blocks = {entry["name"]: entry["block"] for entry in workload.layer_entries}
    count = sum(blocks[layer.name] < end for layer in layers)
    if not count:
        raise NotPredictable("no layer stands before where rows end, so none is split")
    return count


def _by_mean(workload: Workload, end: int) -> bool:
    """Whether the first whole block is a mean over all positions, as in ResNet."""
    block = [entry for entry in workload.layer_entries if entry["block"] == end]
    return (
        len(block) == 1
        and str(block[0]["kind"]).startswith("AdaptiveAvgPool")
        and prod(block[0]["shape"]["output"][1:]) == 1
    )
