"""Panels that several figures share: one for each network, in sections of one dataset each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from ddlbench.report.labels import dataset_label, in_dataset_order, network_label
from ddlbench.report.layout import Panel, Section


def unique(column: pd.Series) -> list[Any]:
    """The values of a column, each once, in the order of their first rows."""
    return list(dict.fromkeys(column))


def network_panels(rows: pd.DataFrame, networks: Sequence[str]) -> list[Panel]:
    """One panel for each of ``networks``; its data are the rows of that network."""
    return [Panel(network_label(n), data=rows[rows["network"] == n]) for n in networks]


def dataset_sections(rows: pd.DataFrame) -> list[Section]:
    """One section for each dataset, with a panel for each network of any dataset."""
    networks = unique(rows["network"])
    return [
        Section(dataset_label(dataset), network_panels(rows[rows["dataset"] == dataset], networks))
        for dataset in in_dataset_order(rows["dataset"])
    ]
