"""The verdicts of the claims ledger on what docs/validation and docs/papers keep.

Measures nothing. Writes docs/papers/claims.csv, a row per claim and bed. With ``--repeats`` also
docs/validation/emulated/repeats.csv: by how much runs of one cell differ that several studies on
emulated accelerators have measured; ddlbench/report/papers_page.py declares what follows.
"""

from __future__ import annotations

import sys
from collections import Counter
from itertools import combinations
from statistics import mean

import pandas as pd
from bed_study import ROOT

from ddlbench.report.kept_verdicts import ACCELERATOR
from ddlbench_claims.command import write_csv
from ddlbench_claims.evidence import CONFIGURATION, rows_of_tables
from ddlbench_claims.ledger import judge, read_claims

DOCS = ROOT / "docs"
TABLES = (
    "validation/emulated/cells.csv",
    "validation/speedup/summary.csv",
    "validation/large_images/*/summary.csv",
    "validation/pipelines/repeated.csv",
    "validation/prediction/*/*/cells.csv",
    "validation/splits/here-cells.csv",
    "validation/splits/oracle.csv",
    "validation/networking/published/latency.csv",
    "validation/networking/published/bandwidth.csv",
    "validation/networking/published/packet_loss.csv",
    "validation/choices_by_way.csv",
    "papers/*/cells.csv",
    "papers/*/*/cells.csv",  # of further scales
    "papers/*/table_8_1_published.csv",
    "papers/*/gpipe_step.csv",
)


def main() -> None:
    """Judge all claims on all kept rows."""
    rows = rows_of_tables([path for name in TABLES for path in sorted(DOCS.glob(name))])
    judged = judge(read_claims(), rows)
    write_csv(judged, DOCS / "papers" / "claims.csv")
    verdicts = Counter((each.bed, each.finding.verdict) for each in judged)
    for (bed, verdict), count in sorted(verdicts.items()):
        print(f"{bed}: {count} {verdict}")
    if "--repeats" in sys.argv[1:]:
        repeats = repeats_of(rows[(rows["bed"] == ACCELERATOR) & (rows["kind"] == "speed")])
        target = DOCS / "validation" / "emulated" / "repeats.csv"
        repeats.to_csv(target, index=False, float_format="%.4g")


def repeats_of(rows: pd.DataFrame) -> pd.DataFrame:
    """How far apart the steps of two runs of a configuration are, on average, of each strategy."""
    deviations: dict[str, list[float]] = {}
    for _, runs in rows.groupby(list(CONFIGURATION), dropna=False):
        steps = runs["step_s"].dropna().round(6).unique()  # a run that two tables keep is one
        pairs = [abs(first / other - 1) for first, other in combinations(steps, 2)]
        if pairs:
            deviations.setdefault(str(runs["strategy"].iloc[0]), []).append(mean(pairs))
    table = [
        {"strategy": name, "difference": mean(shares), "cells": len(shares)}
        for name, shares in sorted(deviations.items())
    ]
    return pd.DataFrame(table)


if __name__ == "__main__":
    main()
