"""Numbers printed in the thesis, to draw beside ours; they are of other hardware.

M. Jansen, thesis on a performance-based recommender, 2020. Each row of ``thesis2020/*.csv`` names
its figure or table (``where``), its ``hardware`` and ``how`` the number was read.
"""

from __future__ import annotations

import io
from importlib.resources import files

import pandas as pd

CITATION = "Jansen 2020"


def deviations(strategy: str, predictor: str, geometry: str) -> pd.DataFrame:
    """Signed errors of one predictor (Figures 4.1, 5.1, 5.2 and 6.2).

    Of a predictor that is printed for one geometry only, these stand for any.

    Returns:
        ``network``, ``dataset``, ``geometry``, ``signed_error`` (predicted over measured, less 1),
        ``where``, ``hardware``, ``how``; empty if the thesis has no such figure.
    """
    rows = _rows("deviations")
    rows = rows[(rows["strategy"] == strategy) & (rows["predictor"] == predictor)]
    if rows["geometry"].nunique() > 1:
        rows = rows[rows["geometry"] == geometry]
    # Figure 5.2 shows 4 GPUs a second time; the first is the figure of that geometry.
    return rows.drop_duplicates(["network", "dataset"]).reset_index(drop=True)


def micro_batches() -> pd.DataFrame:
    """Table 6.1: epochs of torchgpipe at five pairs of micro-batch and number of them."""
    return _rows("micro_batches")


def choices() -> pd.DataFrame:
    """Table 8.1: recommended, fastest, and the extra time of a wrong choice as a share."""
    return _rows("choices")


def speedups() -> pd.DataFrame:
    """Figures 3.1 and 3.2: speed-up over one GPU; NaN for runs that failed."""
    return _rows("speedups")


def speedups_of(shown: pd.DataFrame) -> pd.DataFrame:
    """The printed speed-ups of cells of ours: same strategy, network, dataset and geometry."""
    keys = ["strategy", "network", "dataset", "geometry"]
    printed = speedups().dropna(subset="speedup")
    return printed.merge(shown[keys].drop_duplicates(), on=keys)


def label(printed: pd.DataFrame) -> str:
    """The paper, its figures and its hardware."""
    places = ", ".join(dict.fromkeys(printed["where"]))
    hardware = ", ".join(dict.fromkeys(printed["hardware"]))
    return f"{CITATION}, {places} ({hardware})"


def _rows(name: str) -> pd.DataFrame:
    text = files("ddlbench.report").joinpath("thesis2020", f"{name}.csv").read_text("utf-8")
    return pd.read_csv(io.StringIO(text))
