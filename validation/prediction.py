"""Every predictor and baseline against measured cells, on a real SLURM of virtual nodes.

Four networks, two datasets, five strategies; 1 node x 4 devices and 4 nodes x 1, with equal shares
of CPU; links of 1 Gbit/s (fabric ``default``) and of 100 Mbit/s (fabric ``slow``). Profiles, links
and cells are separate jobs. Sequential cells are repeated, so that the sequential predictor can be
held against the spread of repeats. Writes docs/validation/prediction/; with ``--report``, from what
was measured before.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pandas as pd
from bed_study import ROOT, Study
from cells import keep_cells
from testbed import Options

OUT = ROOT / "docs" / "validation" / "prediction"
SITE = "share-040"
LINKS = {"default": "1gbit", "slow": "100mbit"}
SETTINGS = {"batch_size": 16, "data_scale": 0.01, "epochs": 1, "warmup_steps": 1, "max_steps": 5}
ALL = ["sequential", "horovod", "ddp", "gpipe", "model-parallel"]
KEPT = ("accuracy.csv", "table_8_1.csv", "table_8_2.csv")
_STRATEGIES = ("sequential", "horovod", "ddp", "gpipe", "model_parallel")
PICTURES = {
    "fast-link": [
        "accuracy.png",
        *(f"deviation_{name}.png" for name in _STRATEGIES),
        *(f"parts_{name}.png" for name in _STRATEGIES[1:]),
    ],
    "slow-link": ["accuracy.png", "parts_horovod.png", "parts_ddp.png"],
    "repeatability": ["deviation_sequential.png"],
    "sizes": ["accuracy.png"],
}


def experiment(
    name: str, strategies: list[str], geometry: list[str], fabric: str = "default", repeats: int = 1
) -> dict[str, Any]:
    """One part of the study."""
    return {
        "experiment": name,
        "site": SITE,
        "repeats": repeats,
        "matrix": {
            "dataset": ["mnist", "cifar10"],
            "network": ["resnet18", "vgg11", "vgg16", "mobilenetv2"],
            "strategy": strategies,
            "geometry": geometry,
        },
        "settings": {**SETTINGS, "fabric": fabric},
    }


# On one node the link between nodes plays no part, so the slow one has 4x1 only.
FAST = experiment("fast-link", ALL, ["1x4", "4x1"])
SLOW = experiment("slow-link", ["sequential", "horovod", "ddp"], ["4x1"], fabric="slow")
REPEATED = experiment("repeatability", ["sequential"], ["1x4"], repeats=3)
# Fewer and more devices, which predictors that carry measurements over need; two networks.
SIZES = experiment("sizes", ALL, ["1x2", "2x1", "1x4", "2x2", "4x1"])
SIZES["matrix"] = {**SIZES["matrix"], "dataset": ["cifar10"], "network": ["vgg11", "mobilenetv2"]}


def options(fabric: str) -> Options:
    """Describe the test bed behind a fabric: 1.6 of this machine's cores are shared out.

    The slow link is measured with one device a node, as only 4x1 uses it: sixteen ranks at 100
    Mbit/s would take half an hour.
    """
    devices = 1 if fabric == "slow" else 4
    return Options(nodes=4, devices=devices, cpu_share=0.4, bandwidth=LINKS[fabric])


def main() -> None:
    """Measure, predict, compare."""
    if "--report" not in sys.argv[1:]:
        _measure()
    for part in (FAST, SLOW, REPEATED, SIZES):
        study = Study("prediction", part)
        study.describe_site(SITE, options(part["settings"]["fabric"]))
        study.ddlbench("report", "--configfile", "experiment.yaml")
        study.ddlbench("accuracy", "--configfile", "experiment.yaml", "--figures")
        folder = Path("results") / SITE / part["experiment"]
        for path in sorted((study.folder / folder).rglob("*")):
            if path.name in (*KEPT, *PICTURES[folder.name]):
                study.keep(path.relative_to(study.folder), OUT / folder.name / path.name)
        predictions = study.folder / folder / "predictions.json"
        keep_cells(folder.name, predictions, "all", OUT / folder.name / "cells.csv")
        _further_tables(predictions, OUT / folder.name)


def _measure() -> None:
    """Measure what is missing."""
    Study("prediction", FAST).run(SITE, options("default"), "links", "profiles", "cells")
    Study("prediction", SLOW).run(SITE, options("slow"), "links", "cells")
    Study("prediction", REPEATED).run(SITE, options("default"), "cells")
    Study("prediction", SIZES).run(SITE, options("default"), "cells")


def _further_tables(predictions: Path, out: Path) -> None:
    """What docs/validation/README.md says beyond the accuracy tables."""
    rows = pd.DataFrame(pd.read_json(predictions)["predictions"].tolist())
    rows["geometry"] = rows["nodes"].astype(str) + "x" + rows["devices_per_node"].astype(str)
    rows["speedup"] = rows["base_step_s"] / rows["measured_step_s"]
    rows["beyond_compute_s"] = rows["measured_step_s"] - rows["compute_s"]
    rows["memory_error"] = rows["predicted_memory_bytes"] / rows["measured_memory_bytes"] - 1
    rows["absolute_error"] = rows["signed_error"].abs()
    keys = ["predictor", "strategy", "geometry"]
    shown = ["exposed_communication_s", "beyond_compute_s", "memory_error", "speedup"]
    told = rows[rows["signed_error"].notna()]
    ranges = told.groupby(keys)[shown].agg(["min", "max"])
    ranges.columns = ["_".join(names) for names in ranges.columns]
    errors = told.groupby(keys).agg(
        n=("signed_error", "size"),
        mean_absolute_error=("absolute_error", "mean"),
        mean_signed_error=("signed_error", "mean"),
    )
    errors.join(ranges).to_csv(out / "by_geometry.csv", float_format="%.4g")


if __name__ == "__main__":
    main()
