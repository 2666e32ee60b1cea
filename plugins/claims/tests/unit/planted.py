"""Tidy rows with planted numbers."""

from __future__ import annotations

import pandas as pd

from ddlbench.report.kept_verdicts import CPU
from ddlbench_claims.evidence import COLUMNS

USUAL = {
    "kind": "speed", "bed": CPU, "device": "cpu", "site": "s", "dataset": "mnist",
    "network": "vgg11", "strategy": "ddp", "geometry": "1x4", "nodes": 1, "devices": 4,
    "batch_size": 32, "fabric": "default", "status": "ok", "at_once": True, "inside": False,
    "runs": 1,
}  # fmt: skip


def rows(*entries: dict) -> pd.DataFrame:
    """Rows of evidence: what is usual, and what is told of each."""
    return pd.DataFrame([{**USUAL, **row} for row in entries]).reindex(columns=list(COLUMNS))


def exact(strategy: str, speedup: float, spread: float = 0.0, **more: object) -> dict:
    """A row whose speed-up is known to lie within ``spread``."""
    return {
        "strategy": strategy, "speedup": speedup, "speedup_low": speedup - spread,
        "speedup_high": speedup + spread, **more,
    }  # fmt: skip
