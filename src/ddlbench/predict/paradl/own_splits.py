"""What a plan of this project splits of the oracle's layers: shares, rows, and how rows end."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ddlbench.planning.plan import Plan
from ddlbench.predict.paradl.layers import Layer
from ddlbench.predict.paradl.question import OwnSplit
from ddlbench.predict.paradl.shapes import split_layers
from ddlbench.predict.prediction import NotPredictable
from ddlbench.predict.split_layers import (
    ROWS,
    WEIGHTS,
    dealt_shares,
    row_grid,
    rows_end,
    rows_share,
)
from ddlbench.predict.workload import Workload

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
    if plan.cell.strategy in WEIGHTS:
        shares = dealt_shares(workload, plan)
        return OwnSplit(tuple(shares[layer.name] for layer in layers))
    if plan.cell.strategy not in ROWS:
        return None
    grid, count = row_grid(plan), spatial_layers(workload, plan, layers)
    split = [rows_share(layer.output, grid) for layer in layers[:count]]
    return OwnSplit(
        shares=(*split, *(1.0 for _ in layers[count:])),
        grid=tuple(grid.items()),
        by_mean=_by_mean(workload, plan),
    )


def spatial_layers(workload: Workload, plan: Plan, layers: Sequence[Layer]) -> int:
    """How many of the oracle's layers have their rows split: as this plan ends them.

    Raises:
        NotPredictable: none has.
    """
    if plan.cell.strategy not in ROWS:
        return split_layers(layers)
    end = rows_end(workload, plan)
    blocks = {entry["name"]: entry["block"] for entry in workload.layer_entries}
    count = sum(blocks[layer.name] < end for layer in layers)
    if not count:
        raise NotPredictable("no layer stands before where rows end, so none is split")
    return count


def _by_mean(workload: Workload, plan: Plan) -> bool:
    """Whether the first whole block is a mean over all positions, as in ResNet."""
    end = rows_end(workload, plan)
    block = [entry for entry in workload.layer_entries if entry["block"] == end]
    return (
        len(block) == 1
        and str(block[0]["kind"]).startswith("AdaptiveAvgPool")
        and prod(block[0]["shape"]["output"][1:]) == 1
    )
