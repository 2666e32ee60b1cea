"""Every strategy on emulated accelerators, against every predictor.

Computation takes the time of a profile (docs/emulated_accelerators.md); processes, messages and
schedules are real. Three networks, up to eight devices. Nothing is fitted: predictors know the
site's profiles and links only, and no cell. Writes docs/validation/emulated/; with ``--report``,
from what was measured before.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import yaml
from bed_study import ROOT, Study
from cells import cells_of, errors_of

OUT = ROOT / "docs" / "validation" / "emulated"
SITE = "accelerators"
DATA_PARALLEL = ["ddp", "horovod"]
PIPELINES = ["pipe-gpipe", "pipe-1f1b", "pipe-interleaved", "pipe-zb", "pipe-zbv"]
STAGED = [*PIPELINES, "pipedream", "model-parallel-p2p"]
EXPERIMENT: dict[str, Any] = {
    "experiment": "emulated",
    "site": SITE,
    "matrix": {
        "dataset": ["cifar10"],
        "network": ["stack", "vgg11", "mobilenetv2"],
        "strategy": ["sequential", *DATA_PARALLEL, *STAGED, "parameter-server"],
        "geometry": ["1x2", "1x4", "2x4"],
    },
    "settings": {
        "batch_size": 24,
        "data_scale": 0.005,
        "epochs": 1,
        "warmup_steps": 2,
        "max_steps": 6,
    },
    "exclude": [
        {"strategy": STAGED, "geometry": "2x4"},
        {"strategy": "parameter-server", "geometry": ["1x2", "2x4"]},
    ],
    "profile": {"budget_s": 30},
}
# A slower device would need longer sweeps; these take three minutes.
INTERCONNECT = {"largest_bytes": 2**25, "sweep_budget_s": 1.5}


def main() -> None:
    """Measure, predict, keep one row a cell."""
    study = Study("emulated", EXPERIMENT)
    site_file = study.folder / "config" / "sites" / f"{SITE}.yaml"
    site = yaml.safe_load(site_file.read_text(encoding="utf-8"))
    site_file.write_text(yaml.safe_dump({**site, "interconnect": INTERCONNECT}), encoding="utf-8")
    if "--report" not in sys.argv[1:]:
        study.run_here("links", "profiles", "cells")
    study.ddlbench("report", "--configfile", "experiment.yaml")
    study.ddlbench("accuracy", "--configfile", "experiment.yaml", "--figures")
    results = Path("results") / SITE / "emulated"
    cells = cells_of("emulated", study.folder / results / "predictions.json", "all")
    OUT.mkdir(parents=True, exist_ok=True)
    cells.to_csv(OUT / "cells.csv", index=False, float_format="%.6g")
    errors_of(cells).to_csv(OUT / "errors.csv", float_format="%.4g")
    study.keep(results / "figures" / "accuracy.png", OUT / "accuracy.png")
    study.keep(results / "figures" / "speedup.png", OUT / "speedup.png")


if __name__ == "__main__":
    main()
