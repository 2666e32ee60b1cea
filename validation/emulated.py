"""Every strategy on emulated accelerators, against every predictor.

Computation takes the time of a profile (docs/links.md); processes, messages and
schedules are real. Three networks, up to eight devices, on one node or two. Nothing is fitted:
predictors know the site's profiles and links only, and no cell. Writes docs/validation/emulated/;
with ``--report``, from what was measured before.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from bed_study import ROOT, Study
from cells import errors_of, keep_cells

OUT = ROOT / "docs" / "validation" / "emulated"
SITE = "accelerators"
DATA_PARALLEL = ["ddp", "horovod"]
TWO_STAGES = ["pipe-gpipe", "pipe-1f1b"]
FOUR_STAGES = ["pipe-interleaved", "pipe-zb", "pipe-zbv", "pipedream", "model-parallel-p2p"]
STAGED = [*TWO_STAGES, *FOUR_STAGES]
EXPERIMENT: dict[str, Any] = {
    "experiment": "emulated",
    "site": SITE,
    "matrix": {
        "dataset": ["cifar10"],
        "network": ["stack", "vgg11", "mobilenetv2"],
        "strategy": ["sequential", *DATA_PARALLEL, *STAGED, "parameter-server"],
        "geometry": ["1x2", "1x4", "2x2", "2x4"],
    },
    "settings": {
        "batch_size": 24,
        "data_scale": 0.005,
        "epochs": 1,
        "warmup_steps": 2,
        "max_steps": 6,
    },
    "overrides": [
        {"when": {"geometry": ["2x2", "2x4"]}, "set": {"fabric": "gigabit"}},
        # PipeDream needs as many steps as stages to fill and to drain: the steady state is between.
        # As many as the data has, as another amount of data has no base.
        {"when": {"strategy": "pipedream"}, "set": {"max_steps": 10}},
    ],
    "exclude": [
        {"strategy": FOUR_STAGES, "geometry": "1x2"},
        {"strategy": STAGED, "geometry": "2x4"},
        {"strategy": "parameter-server", "geometry": ["1x2", "2x4"]},
    ],
    "profile": {"budget_s": 30},
}
# The steady state of pipelines on four equal devices, against the bound of their schedule.
STEADY: dict[str, Any] = {
    **EXPERIMENT,
    "experiment": "steady",
    "matrix": {
        "dataset": ["cifar10"],
        "network": ["stack"],
        "strategy": ["sequential", "pipe-gpipe", "pipe-1f1b", "pipedream"],
        "geometry": ["1x4"],
    },
    "repeats": 3,
    "overrides": [],
    "exclude": [],
}
# A pipeline of two stages on each node: the sums of both stages meet on one network card.
REPLICATED_PIPELINES = ["pipe-gpipe", "pipe-1f1b", "pipe-zb"]
REPLICATED: dict[str, Any] = {
    **EXPERIMENT,
    "experiment": "replicated",
    "matrix": {
        "dataset": ["cifar10"],
        "network": ["stack", "vgg11"],
        "strategy": ["sequential", *REPLICATED_PIPELINES],
        "geometry": ["2x2"],
        "fabric": ["gigabit"],
    },
    "settings": {
        "batch_size": 48,
        "data_scale": 0.02,
        "data_format": "raw",
        "epochs": 1,
        "warmup_steps": 1,
        "max_steps": 5,
    },
    "strategies": {name: {"chunks": 4, "replicas": 2} for name in REPLICATED_PIPELINES},
    "repeats": 2,
    "overrides": [],
    "exclude": [],
}
# Cases to choose in: four networks, three or four batches, two and four devices of one node, and
# two nodes over a link. Without PipeDream, whose weights are old, so that no choice may name it.
CASES: dict[str, Any] = {
    **EXPERIMENT,
    "experiment": "cases",
    "matrix": {
        "dataset": ["cifar10"],
        "network": ["stack", "vgg11", "mobilenetv2", "resnet18"],
        "strategy": [
            *("sequential", "ddp", "horovod", "parameter-server", "model-parallel-p2p"),
            *(name for name in STAGED if name not in ("pipedream", "model-parallel-p2p")),
        ],
        "geometry": ["1x2", "1x4", "2x2"],
        "fabric": ["default", "gigabit"],
        "batch_size": [12, 24, 36, 48],
    },
    # Computation is the same in every step, so that few are enough.
    "settings": {
        **EXPERIMENT["settings"],
        "data_scale": 0.01,
        "warmup_steps": 1,
        "max_steps": 4,
    },
    "overrides": [],
    "exclude": [
        {"geometry": ["1x2", "1x4"], "fabric": "gigabit"},
        {"geometry": "2x2", "fabric": "default"},
        {"batch_size": 36, "network": ["vgg11", "resnet18"]},
        {"strategy": "parameter-server", "geometry": "1x2"},
    ],
}
SITE_KEYS = {
    "interconnect": {"largest_bytes": 2**25, "sweep_budget_s": 6.0, "budget_s": 1200},
    "cell_timeout_s": 900,
}


def main() -> None:
    """Measure, predict, keep one row per cell."""
    _study_of_all_strategies()
    _study_of_steady_states()
    _study_of_replicated_pipelines()


def _study_of_all_strategies() -> None:
    study = _studied(EXPERIMENT, "links", "profiles", "cells")
    results = Path("results") / SITE / "emulated"
    predictions = study.folder / results / "predictions.json"
    cells = keep_cells("emulated", predictions, "all", OUT / "cells.csv")
    errors_of(cells).to_csv(OUT / "errors.csv", float_format="%.4g")
    places = cells["geometry"].str.startswith("1x").map({True: "one node", False: "two nodes"})
    by_nodes = errors_of(cells.assign(where=cells["strategy"] + ", " + places), by="where")
    by_nodes.to_csv(OUT / "errors_by_nodes.csv", float_format="%.4g")
    learnt = json.loads(study.ddlbench("calibrate", "--configfile", "experiment.yaml", "--json"))
    scores = pd.DataFrame(learnt["scores"])
    scores.to_csv(OUT / "calibration.csv", index=False, float_format="%.4g")
    figures = results / "figures"
    study.keep(figures / "predictions" / "accuracy.png", OUT / "accuracy.png")
    study.keep(figures / "speedup.png", OUT / "speedup.png")


def _study_of_steady_states() -> None:
    study = _studied(STEADY, "cells")
    results = Path("results") / SITE / "steady"
    study.keep(results / "figures" / "pipelines.csv", OUT / "steady.csv")
    _without_messages(study.folder / results / "predictions.json").to_csv(
        OUT / "steady_bound.csv", index=False, float_format="%.4g"
    )


def _study_of_replicated_pipelines() -> None:
    study = _studied(REPLICATED, "links", "profiles", "cells")
    results, kept = study.folder / "results" / SITE, OUT / "replicated"
    keep_cells("replicated", results / "replicated" / "predictions.json", "all", kept / "cells.csv")
    study.keep(results / "links" / "gigabit" / "links.json", kept / "links.json")
    for network in REPLICATED["matrix"]["network"]:
        profile = results / "profiles" / "cifar10" / network / "fp32-1t" / "profile.json"
        study.keep(profile, kept / f"profile-{network}.json")


def described(experiment: dict[str, Any]) -> Study:
    """The study of an experiment, with this study's keys in the site file."""
    study = Study("emulated", experiment)
    site_file = study.folder / "config" / "sites" / f"{SITE}.yaml"
    site = yaml.safe_load(site_file.read_text(encoding="utf-8"))
    site_file.write_text(yaml.safe_dump({**site, **SITE_KEYS}), encoding="utf-8")
    return study


def _studied(experiment: dict[str, Any], *targets: str) -> Study:
    """Measure what is missing, unless only a report is wanted; draw and predict."""
    study = described(experiment)
    if "--report" not in sys.argv[1:]:
        study.run_here(*targets)
    study.ddlbench("report", "--configfile", "experiment.yaml")
    study.ddlbench("predict", "accuracy", "--configfile", "experiment.yaml", "--figures")
    return study


def _without_messages(predictions: Path) -> pd.DataFrame:
    """The share of its step in which each strategy does what its schedule needs, messages aside."""
    rows = pd.DataFrame(pd.read_json(predictions)["predictions"].tolist())
    rows = rows[(rows["predictor"] == "ddlbench") & rows["measured_step_s"].notna()].copy()
    rows["bound_s"] = rows["compute_s"] + rows["bubble_s"]
    rows["messages_s"] = rows["exposed_communication_s"]
    # The longest measured step gives the smallest share.
    for share, step in (("share", "step"), ("share_low", "high"), ("share_high", "low")):
        rows[share] = rows["bound_s"] / (rows[f"measured_{step}_s"] - rows["messages_s"])
    kept = ["strategy", "repeats", "measured_step_s", "bound_s", "messages_s"]
    return rows[[*kept, "share", "share_low", "share_high"]]


if __name__ == "__main__":
    main()
