"""Digests of the measurements that a plan is made from: a result says which ones they were."""

from __future__ import annotations

import json
from pathlib import Path

from ddlbench.experiment.atomic import digest_of
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.paths import RESULTS
from ddlbench.planning.strategy import strategy_of

__all__ = ["measured_digests"]


def measured_digests(cell: Cell, site: str, results_root: Path = RESULTS) -> dict[str, str | None]:
    """``links_digest`` and ``profile_digest`` of a cell's plan, were it made now.

    Args:
        cell: the cell.
        site: where it runs.
        results_root: the folder that holds the site's measurements.

    Returns:
        None for a file that the plan is not made from, or that is not there.
    """
    digests: dict[str, str | None] = {"links_digest": None, "profile_digest": None}
    for path in strategy_of(cell.strategy).measured_inputs(cell, site):
        digests[f"{path.stem}_digest"] = _digest(results_root / path.relative_to(RESULTS))
    return digests


def _digest(path: Path) -> str | None:
    try:
        return digest_of(json.loads(path.read_bytes()))
    except (OSError, ValueError):
        return None
