"""Every case of an experiment put to the recommender: what to train each network with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ddlbench.experiment.paths import RESULTS
from ddlbench.experiment.site import Site
from ddlbench.planning.matrix import MatrixRow
from ddlbench.predict.inputs import Inputs
from ddlbench.predict.prediction_request import PredictionRequest
from ddlbench.predict.recommend import recommend

__all__ = ["recommendations"]

_NAMED = (
    "dataset", "network", "nodes", "devices_per_node", "batch_size", "fabric", "precision",
    "threads_per_device",
)  # fmt: skip
COLUMNS = (
    *_NAMED, "place", "recommended", "strategy", "predictor", "predicted_step_s", "samples_per_s",
    "memory_bytes", "fits", "why",
)  # fmt: skip


def recommendations(
    rows: Sequence[MatrixRow], site: Site, results_root: Path = RESULTS
) -> pd.DataFrame:
    """Rank all strategies for every network, dataset, geometry and batch of a matrix.

    Strategies have their default options, whatever the matrix gives them. ``place`` counts from 1
    and is empty for what cannot run, has no prediction, or does not fit.

    Args:
        rows: the expanded matrix; its cells of one device are no case.
        site: where.
        results_root: the folder that holds the site's profiles and links.

    Raises:
        ConfigError: a profile or the links are missing or wrong.
    """
    inputs = Inputs(site.name, results_root)
    cells = (row.cell for row in rows if row.unsupported is None and row.cell.devices > 1)
    cases = dict.fromkeys(tuple(getattr(cell, name) for name in _NAMED) for cell in cells)
    records: list[dict[str, Any]] = []
    for case in cases:
        named = dict(zip(_NAMED, case, strict=True))
        found = recommend(_question(named), site, inputs)
        for place, candidate in enumerate(found.ranking, start=1):
            told = candidate.to_dict()
            able = candidate.prediction is not None and candidate.fits is not False
            records.append(
                {
                    **named,
                    **{name: told[name] for name in COLUMNS if name in told},
                    "place": place if able else None,
                    "recommended": candidate is found.best,
                }
            )
    return pd.DataFrame(records, columns=list(COLUMNS)).astype(
        {"place": "Int64", "memory_bytes": "Int64"}
    )


def _question(named: dict[str, Any]) -> PredictionRequest:
    settings = ("fabric", "precision", "threads_per_device")
    return PredictionRequest(
        **{name: value for name, value in named.items() if name not in settings},
        settings={name: named[name] for name in settings},
        options={},
    )
