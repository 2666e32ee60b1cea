"""Numbers printed in the papers, to draw beside ours; they are of other hardware.

M. Jansen, thesis on a performance-based recommender, 2020; Cheng, Liu, Kurihana, "Performance
Evaluation of Distributed Deep Learning: A Networking Perspective". Each row of ``thesis2020/*.csv``
and ``cheng/*.csv`` names its figure, table or section (``where``) and ``how`` the number was read,
those of the thesis also their ``hardware``.
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
    rows = all_deviations()
    rows = rows[(rows["strategy"] == strategy) & (rows["predictor"] == predictor)]
    if rows["geometry"].nunique() > 1:
        rows = rows[rows["geometry"] == geometry]
    # Figure 5.2 shows 4 GPUs a second time; the first is the figure of that geometry.
    return rows.drop_duplicates(["network", "dataset"]).reset_index(drop=True)


def all_deviations() -> pd.DataFrame:
    """Figures 4.1, 5.1, 5.2 and 6.2: signed errors of every predictor."""
    return _rows("deviations")


def micro_batches() -> pd.DataFrame:
    """Table 6.1: epochs of torchgpipe at five pairs of micro-batch and number of them."""
    return _rows("micro_batches")


def choices() -> pd.DataFrame:
    """Table 8.1: recommended, fastest, and the extra time of a wrong choice as a share."""
    return _rows("choices")


def speedups() -> pd.DataFrame:
    """Figures 3.1 and 3.2: speed-up over one GPU; NaN for runs that failed."""
    return _rows("speedups")


def throughputs() -> pd.DataFrame:
    """The networking study's images a second, with the batch and the links of each."""
    return _rows("throughput", "cheng")


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


def _rows(name: str, folder: str = "thesis2020") -> pd.DataFrame:
    text = files("ddlbench.report").joinpath(folder, f"{name}.csv").read_text("utf-8")
    return pd.read_csv(io.StringIO(text))
