"""Tables of Megatron-style GPTs, scored with the fitted platform that knows them best.

The model of :mod:`.step` has constants for kernels and softmax that those runs tell; with
``--software`` the model from data sheets (:mod:`.decoder_time`) is scored on them instead.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ddlbench.common.errors import ConfigError
from ddlbench.predict.measured_steps import Accelerators, Array, read_table
from ddlbench.predict.transformer.configurations import configurations
from ddlbench.predict.transformer.runs import MANY_NODES, ONE_NODE, Runs, held_out_s

PLATFORM = "a100-80gb"
COLUMNS: Mapping[str, str] = {"model": "hidden_size", "gpus": "devices"}
"""What is held out, as a column."""


def gpt_seconds(table: pd.DataFrame, hold_out: str) -> Array:
    """Predicted seconds of a step of each run, (n,).

    Args:
        table: of GPTs' runs.
        hold_out: as :class:`ddlbench.predict.run_tables.ScoreQuestion`; the shipped rows are
            fitted, too, those of the kind left out.

    Raises:
        ConfigError: the table does not say who or what is to be held out.
    """
    runs, platform = _runs(table), Accelerators.load(PLATFORM)
    if hold_out == "none":
        return runs.predicted_s(platform)
    if hold_out not in COLUMNS:
        known = ", ".join(("none", *COLUMNS))
        raise ConfigError(f"--hold-out {hold_out}: the table has no such column; write {known}")
    known_rows = pd.concat([read_table(path, ()) for path in (ONE_NODE, MANY_NODES)])
    others = _absent(known_rows, table)
    also = _runs(others) if len(others) else None
    return held_out_s(runs, platform, COLUMNS[hold_out], also)


def _runs(table: pd.DataFrame) -> Runs:
    seconds = pd.to_numeric(table["step_s"]).to_numpy(dtype=float)
    return Runs(configurations(table, "the table"), seconds)


def _absent(rows: pd.DataFrame, table: pd.DataFrame) -> pd.DataFrame:
    """``rows`` without those of the table."""
    shared = [name for name in rows.columns if name in table.columns]
    marks = set(map(tuple, table[shared].astype(float).to_numpy().tolist()))
    fresh = [tuple(row) not in marks for row in rows[shared].astype(float).to_numpy().tolist()]
    return rows[np.array(fresh, dtype=bool)].reset_index(drop=True)
