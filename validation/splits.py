"""Split strategies at two and four workers, ParaDL's oracle and ``ddlbench`` against them.

``test-bed``: ResNet-18 and VGG-11 on CIFAR-10, 0.4 core a device, links of 1 Gbit/s. ``here``: two
workers of this machine, MobileNetV2 too, ten minutes. Profile and links are measured on the same
machine; nothing is fitted. Writes docs/validation/splits/; with ``--report``, from what was
measured before.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from bed_study import ROOT, Study, chosen_parts
from cells import errors_of, keep_cells
from testbed import Options

OUT = ROOT / "docs" / "validation" / "splits"
SITE = "share-040-two"
BED = Options(nodes=2, devices=4, cpu_share=0.4, bandwidth="1gbit")
# The oracle reads latency and bandwidth of single messages; nothing longer is needed.
SITE_KEYS = {"interconnect": {"largest_bytes": 2**24, "sweep_budget_s": 1}}
ORACLE = ("paradl-authors", "paradl-corrected")


def experiment(name: str, strategies: list[str], geometry: list[str]) -> dict[str, Any]:
    """One part of the study."""
    return {
        "experiment": name,
        "site": SITE,
        "matrix": {
            "dataset": ["cifar10"],
            "network": ["resnet18", "vgg11"],
            "strategy": ["sequential", *strategies],
            "geometry": geometry,
        },
        "settings": {
            "batch_size": 16,
            "data_scale": 0.01,
            "epochs": 1,
            "warmup_steps": 1,
            "max_steps": 6,
        },
        # VGG-11 has a single row before its head: rows end where a layer has too few.
        "strategies": {
            strategy: {"until": "auto"}
            for strategy in ("spatial", "data-spatial")
            if strategy in strategies
        },
    }


ON_BED = [
    experiment("one-node", ["ddp", "spatial", "filter", "channel", "pipe-gpipe"], ["1x2", "1x4"]),
    experiment("two-nodes", ["ddp", "data-filter", "data-spatial"], ["2x2"]),
]
HERE: dict[str, Any] = {
    **experiment("here", ["ddp", "spatial", "filter", "channel"], ["1x2"]),
    "site": "local",
    "repeats": 2,
}
HERE["matrix"]["network"] = ["resnet18", "vgg11", "mobilenetv2"]


def main() -> None:
    """Measure, project, compare."""
    chosen = chosen_parts(__doc__, ("test-bed", "here"))
    if "test-bed" in chosen.parts:
        _on_bed(chosen.report)
    if "here" in chosen.parts:
        _here(chosen.report)


def _on_bed(report: bool) -> None:
    for part in () if report else ON_BED:
        Study("splits", part, SITE_KEYS).run(SITE, BED, "links", "profiles", "cells")
    tables = []
    for part in ON_BED:
        study = Study("splits", part, SITE_KEYS)
        study.describe_site(SITE, BED)
        folder = _reported(study, part)
        figure = folder / "figures" / "predictions" / "oracle.png"
        study.keep(figure, OUT / f"{part['experiment']}-oracle.png")
        tables.append(pd.read_json(study.folder / folder / "predictions.json")["predictions"])
    _projections(pd.DataFrame([row for rows in tables for row in rows]))


def _here(report: bool) -> None:
    study = Study("splits", HERE)
    if not report:
        study.run_here("links", "profiles", "cells")
    _reported(study, HERE)
    errors = errors_of(pd.read_csv(OUT / "here-cells.csv"))
    errors.to_csv(OUT / "here-errors.csv", float_format="%.4g")


def _reported(study: Study, part: dict[str, Any]) -> Path:
    """Draw, predict, keep one row per cell; returns the folder of the experiment's results."""
    study.ddlbench("report", "--configfile", "experiment.yaml")
    study.ddlbench("predict", "accuracy", "--configfile", "experiment.yaml", "--figures")
    name = part["experiment"]
    folder = Path("results") / part["site"] / name
    study.keep(folder / "figures" / "speedup.png", OUT / f"{name}-speedup.png")
    keep_cells(name, study.folder / folder / "predictions.json", "all", OUT / f"{name}-cells.csv")
    return folder


def _projections(rows: pd.DataFrame) -> None:
    """Time and memory of every cell beside both variants of the oracle."""
    rows = rows[rows["predictor"].isin(ORACLE) & rows["measured_step_s"].notna()].copy()
    rows["memory_error"] = rows["predicted_memory_bytes"] / rows["measured_memory_bytes"] - 1
    rows["geometry"] = rows["nodes"].astype(str) + "x" + rows["devices_per_node"].astype(str)
    columns = [
        "network", "strategy", "geometry", "predictor", "measured_step_s", "predicted_step_s",
        "signed_error", "compute_s", "communication_s", "measured_memory_bytes",
        "predicted_memory_bytes", "memory_error",
    ]  # fmt: skip
    OUT.mkdir(parents=True, exist_ok=True)
    scored = rows.sort_values(columns[:4])[columns].assign(device="cpu")
    scored.to_csv(OUT / "oracle.csv", index=False)


if __name__ == "__main__":
    main()
