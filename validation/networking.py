"""Training over slow links on this machine: part of Cheng et al.'s matrix, and other strategies.

Two parts. ``small`` is config/experiments/networking-small.yaml as it stands. ``published`` is the
part of networking.yaml that a machine of two cores measures in about an hour: MNIST with three
networks and the batches that fit, ImageNet with one, three workers under some conditions. Nothing
is drawn of the rest. Needs user namespaces and /dev/net/tun (docs/links.md#slow-links), no SLURM.
Writes docs/validation/networking/; with ``--report``, from what was measured before.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from bed_study import ROOT, Study
from cells import device_of_site, keep_cells, say_device

OUT = ROOT / "docs" / "validation" / "networking"
SITE = "emulated-study"
# A cell that takes longer is a result, as it was for the study (30 to 40 minutes there).
SITE_KEYS = {"cell_timeout_s": 240, "hang_timeout_s": 600}
FIGURES = ("latency", "bandwidth", "packet_loss")
KEYS = ["dataset", "network", "strategy", "geometry", "batch_size"]

SMALL = yaml.safe_load((ROOT / "config" / "experiments" / "networking-small.yaml").read_text())
PUBLISHED: dict[str, Any] = {
    "experiment": "networking-published",
    "site": SITE,
    "matrix": {
        "dataset": ["mnist", "imagenet"],
        "network": ["mlp", "mobilenetv2", "resnet50"],
        "strategy": ["sequential", "parameter-server"],
        "geometry": ["2x1", "4x1"],
        "batch_size": [32, 128, 1024],
        "fabric": ["base", "lat10", "lat100", "bw500", "bw250", "loss1", "loss10"],
    },
    "settings": {"epochs": 1, "warmup_steps": 1, "max_steps": 6, "data_scale": 0.15},
    "overrides": [
        {"when": {"geometry": "4x1", "batch_size": 32}, "set": {"batch_size": 96}},
        {"when": {"dataset": "imagenet"}, "set": {"data_scale": 0.0005, "max_steps": 4}},
    ],
    "exclude": [
        {"network": ["mobilenetv2"], "batch_size": 1024},
        {"network": ["resnet50"], "batch_size": [128, 1024]},
        {"geometry": "4x1", "batch_size": [128, 1024]},
        {"geometry": "4x1", "fabric": ["bw500", "loss10"]},
        {"geometry": "4x1", "network": "resnet50", "fabric": ["lat10", "lat100", "loss1"]},
        {"dataset": "imagenet", "network": ["mlp", "resnet50"]},
        {"dataset": "imagenet", "batch_size": 128},
        {"dataset": "imagenet", "geometry": "4x1"},
        {"dataset": "imagenet", "fabric": ["lat10", "bw500", "loss10"]},
    ],
}
# What no conclusion can miss comes first, in case the study is stopped.
FIRST = {
    **PUBLISHED,
    "matrix": {**PUBLISHED["matrix"], "dataset": ["mnist"], "batch_size": [32]},
}


def main() -> None:
    """Measure, predict, draw, keep."""
    measure = "--report" not in sys.argv[1:]
    for name, site, keys, parts in (
        ("small", "emulated", {}, [SMALL]),
        ("published", SITE, SITE_KEYS, [FIRST, PUBLISHED]),
    ):
        began = time.monotonic()
        for part in parts:
            study = Study("networking", part, keys)
            if keys:
                study.describe_own_site(site, like="emulated")
            if measure:
                study.run_here("cells")
        print(f"{name}: cells in {(time.monotonic() - began) / 60:.1f} min", flush=True)
        study.ddlbench("report", "--configfile", "experiment.yaml")
        if part is SMALL:  # predicted, too
            if measure:
                study.run_here("profiles")
            study.ddlbench("predict", "accuracy", "--configfile", "experiment.yaml", "--figures")
        _keep(study, Path("results") / site / part["experiment"], OUT / name)


def _keep(study: Study, folder: Path, out: Path) -> None:
    # Claims read the numbers of the published networks; those of the small ones are in shapes.csv.
    suffixes = (".png", ".csv") if out.name == "published" else (".png",)
    for path in sorted((study.folder / folder).rglob("*")):
        if path.stem in (*FIGURES, "conditions") and path.suffix in suffixes:
            study.keep(path.relative_to(study.folder), out / path.name)
            if path.suffix == ".csv":
                say_device(out / path.name, device_of_site(study.folder, folder.parent.name))
    if (study.folder / folder / "tables" / "accuracy.csv").is_file():
        study.keep(folder / "tables" / "accuracy.csv", out / "accuracy.csv")
        predictions = study.folder / folder / "predictions.json"
        keep_cells("networking", predictions, "all", out / "cells.csv")
    summary = pd.read_csv(study.folder / folder / "tables" / "summary.csv")
    summary = summary[summary["strategy"] != "sequential"]
    shapes = summary.pivot_table("samples_per_s", index=KEYS, columns="fabric")
    for fabric in shapes.columns.drop("base"):
        shapes[f"{fabric}_of_base"] = shapes[fabric] / shapes["base"]
    out.mkdir(parents=True, exist_ok=True)
    shapes.reset_index().to_csv(out / "shapes.csv", index=False, float_format="%.4g")
    _three_workers(summary).to_csv(out / "three_workers.csv", index=False, float_format="%.4g")


def _three_workers(summary: pd.DataFrame) -> pd.DataFrame:
    """Images a second with three workers over those with one.

    At the same batch of a worker, or of all workers; both batches of a worker stand beside.
    """
    served = summary[(summary["strategy"] == "parameter-server") & (summary["status"] == "ok")]
    single, three = (served[served["geometry"] == geometry] for geometry in ("2x1", "4x1"))
    both = single.merge(three, on=["dataset", "network", "fabric"], suffixes=("_one", "_three"))
    both = both.assign(
        batch_of_a_worker_one=both["batch_size_one"],
        batch_of_a_worker_three=both["batch_size_three"] / 3,
        ratio=both["samples_per_s_three"] / both["samples_per_s_one"],
    )
    same_worker = both["batch_of_a_worker_one"] == both["batch_of_a_worker_three"]
    both = both[same_worker | (both["batch_size_one"] == both["batch_size_three"])]
    columns = ["dataset", "network", "fabric", "batch_of_a_worker_one", "batch_of_a_worker_three",
               "samples_per_s_one", "samples_per_s_three", "ratio"]  # fmt: skip
    return both[columns]


if __name__ == "__main__":
    main()
