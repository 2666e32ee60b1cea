"""The same experiment on several sites: one line a strategy and site (DDLBench, Figures 5 and 6).

A speed-up is over the site's own sequential training, so a faster site may show the smaller one;
the base of each site stands below the figure and in the table.
"""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.figure import Figure

from ddlbench.experiment.errors import ConfigError
from ddlbench.report.footer import Context, interval_sentence, marks, origin
from ddlbench.report.labels import dataset_label, network_label
from ddlbench.report.scaling import (
    TABLE,
    draw_lines,
    missing_sentence,
    per_node_lines,
    without_base,
)
from ddlbench.report.tables import Tables, rows_of

__all__ = ["draw_sites"]


def draw_sites(
    tables: Mapping[str, Tables], contexts: Mapping[str, Context]
) -> tuple[Figure, pd.DataFrame]:
    """Compare sites.

    Args:
        tables: of each site, by its name.
        contexts: what each site is.

    Raises:
        ConfigError: there is nothing to compare.
    """
    if len(tables) < 2:
        raise ConfigError("one site alone compares with nothing: name another with --also-site")
    parts = []
    for site, own in tables.items():
        part = without_base(own.summary)
        lines = per_node_lines(part)
        part["line"] = [", ".join(filter(None, [site, line])) for line in lines]
        parts.append(part)
    shown = pd.concat(parts, ignore_index=True)
    below = [
        "Base: each site's own sequential training on one device; dashed: linear speed-up.",
        *_bases(shown),
        *filter(None, [interval_sentence(shown, ratio=True)]),
        *missing_sentence(shown),
        *marks(shown),
        *(origin(part, contexts[site]) for site, part in zip(tables, parts, strict=True)),
    ]
    figure = draw_lines(shown, "Speed-up by number of workers, site by site", below)
    return figure, shown[["site", *TABLE]]


def _bases(shown: pd.DataFrame) -> list[str]:
    """Absolute speed of the bases, which speed-ups hide."""
    known = shown[shown["base_samples_per_s"].notna()]
    speeds = []
    for (dataset, network), part in known.groupby(["dataset", "network"], sort=False):
        each = ", ".join(
            f"{row.base_samples_per_s:.3g} on {row.site}"
            for row in rows_of(part.drop_duplicates("site"))
        )
        speeds.append(f"{network_label(str(network))} on {dataset_label(str(dataset))} {each}")
    return [f"Base in samples/s: {'; '.join(speeds)}."] if speeds else []
