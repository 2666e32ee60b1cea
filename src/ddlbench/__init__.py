"""Measure, predict and choose how to parallelise DNN training on a cluster."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    import pandas as pd

__all__ = ["__version__", "load"]

__version__ = "1.0.0"


def load(
    results: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = "results",
) -> pd.DataFrame:
    """Read trees of results as one table: a row for each cell that has a result or has failed.

    ``docs/reference/columns.csv`` lists the columns, with units and meanings. A cell whose
    ``status`` is not ``ok`` has a ``reason`` and empty numbers. A file that is damaged is a
    warning, and a row of status ``invalid``. Only text is read, and nothing is written.

    The base of a speed-up is that of the experiment whose tables lie in the tree. Without them it
    is the cell of one device of the same data, network, batch and settings.

    Args:
        results: a folder of results, of a site or of one cell; or several of these.

    Raises:
        ValueError: a folder is missing, or nothing was measured in any; one sentence.
    """
    # Imported here, so that importing the package stays instant.
    frame: pd.DataFrame = import_module("ddlbench.report.tree_tables").load(results)
    return frame
