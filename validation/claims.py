"""The verdicts of the claims ledger on what docs/validation and docs/papers keep.

Measures nothing. Writes docs/papers/claims.csv; its column ``why_here`` is from claims_reasons.csv,
which people write: why a claim that is refuted here may hold on the papers' clusters.
"""

from __future__ import annotations

import pandas as pd
from bed_study import ROOT

from ddlbench.claims.evidence import rows_of_tables
from ddlbench.claims.ledger import judge, read_claims
from ddlbench.commands.claims import write_csv

KEPT = ROOT / "docs" / "validation"
REASONS = ROOT / "validation" / "claims_reasons.csv"
# What each study was measured on -> its tables.
STUDIES = {
    "emulated accelerators": ["emulated/cells.csv"],
    "CPU test bed": [
        "speedup/summary.csv",
        "large_images/datasets/summary.csv",
        "large_images/memory/summary.csv",
        "pipelines/repeated.csv",
        "prediction/*/fast-link/cells.csv",
        "prediction/*/slow-link/cells.csv",
    ],
    "CPUs, emulated links": [
        "networking/published/latency.csv",
        "networking/published/bandwidth.csv",
        "networking/published/packet_loss.csv",
    ],
}
# What each site of the kept figures is.
SITES = {
    "local": "CPUs of one machine",
    "accelerators": "emulated accelerators",
    "accelerators-half": "emulated accelerators",
    "emulated": "CPUs, emulated links",
}


def main() -> None:
    """Judge all claims on all kept rows."""
    frames = [
        rows_of_tables([path for name in names for path in sorted(KEPT.glob(name))], here)
        for here, names in STUDIES.items()
    ]
    figures = rows_of_tables(sorted((ROOT / "docs" / "papers").glob("*/cells.csv")), here="")
    frames.append(figures.assign(here=figures["site"].map(SITES)))
    rows = pd.concat(frames, ignore_index=True)
    # A figure of latency and one of bandwidth both show the base: each cell counts once.
    keys = ["here", "kind", "dataset", "network", "strategy", "predictor", "geometry", "fabric"]
    rows = rows.drop_duplicates([*keys, "batch_size", "chunks", "step_s", "samples_per_s"])
    out = ROOT / "docs" / "papers" / "claims.csv"
    write_csv(judge(read_claims(), rows), out)
    told = pd.read_csv(out)
    refuted = told["verdict"] == "refuted"
    reasons = pd.read_csv(REASONS).set_index("id")["why_here"]
    told["why_here"] = told["id"].map(reasons).where(refuted)
    told.to_csv(out, index=False, float_format="%.4g")
    for name in told.loc[refuted & told["why_here"].isna(), "id"]:
        print(f"{name} is refuted: say in {REASONS.name} why that may be the bed's doing")


if __name__ == "__main__":
    main()
