"""Every predictor against measured cells, on a real SLURM of virtual nodes.

Three networks on CIFAR-10; 1 node x 4 devices and 4 nodes x 1, with equal shares of CPU; links of
1 Gbit/s (fabric ``default``) and of 100 Mbit/s (fabric ``slow``, 4x1 only). Profiles, links and
cells are separate jobs. Every profile and every cell is the median of three jobs. This machine has
states that last for minutes, so the repeats of different cells take turns::

    links | profiles run 1, cells rep0 | run 2, rep1 | run 3, rep2 | pooled profiles | slow cells

No predictor has seen a cell, except in calibration.csv, where constants are learnt from the cells
of other networks, or of other geometries. Writes docs/validation/prediction/; with ``--report``,
from what was measured before.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from bed_study import ROOT, Study
from cells import errors_of, keep_cells
from testbed import Options

from ddlbench.experiment.config import parse_experiment
from ddlbench.experiment.site import load_site
from ddlbench.planning.matrix import expand
from ddlbench.predict.evaluate import predictions
from ddlbench.predict.prediction import DEFAULT_PREDICTOR

OUT = ROOT / "docs" / "validation" / "prediction"
SITE = "share-040"
LINKS = {"default": "1gbit", "slow": "100mbit"}
SITE_KEYS = {"interconnect": {"sweep_budget_s": 4.0}}
REPEATS = 3
NETWORKS = ["stack", "vgg16", "mobilenetv2"]
DATA_PARALLEL = ["ddp", "horovod", "parameter-server"]
PIPELINES = ["pipe-gpipe", "pipe-1f1b", "pipedream"]
KEPT = {
    "fast-link": ("accuracy.csv", "accuracy.png", "table_8_2.csv"),
    "slow-link": ("accuracy.csv", "accuracy.png"),
}


def experiment(
    name: str, strategies: list[str], geometry: list[str], fabric: str = "default"
) -> dict[str, Any]:
    """One part of the study."""
    return {
        "experiment": name,
        "site": SITE,
        "repeats": REPEATS,
        "matrix": {
            "dataset": ["cifar10"],
            "network": NETWORKS,
            "strategy": strategies,
            "geometry": geometry,
        },
        "settings": {
            "batch_size": 16,
            "data_scale": 0.01,
            "epochs": 1,
            "warmup_steps": 2,
            "max_steps": 6,
            "fabric": fabric,
        },
        "profile": {"budget_s": 30, "runs": REPEATS},
    }


# torchgpipe is one process, so it has no 4x1.
FAST = {
    **experiment("fast-link", ["sequential", *DATA_PARALLEL, *PIPELINES, "gpipe"], ["1x4", "4x1"]),
    "strategies": {name: {"chunks": 4} for name in ("gpipe", "pipe-gpipe", "pipe-1f1b")},
    "exclude": [{"strategy": "gpipe", "geometry": "4x1"}],
    "overrides": [
        # PipeDream needs as many steps as stages to fill and to drain: the steady state is between.
        {"when": {"strategy": "pipedream"}, "set": {"max_steps": 14}},
        # Three workers and a server: four images a worker, as with four workers.
        {"when": {"strategy": "parameter-server"}, "set": {"batch_size": 12}},
    ],
}
SLOW = {
    **experiment("slow-link", ["sequential", *DATA_PARALLEL], ["4x1"], fabric="slow"),
    "overrides": [FAST["overrides"][1]],
}
PARTS = (FAST, SLOW)


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
    for part in PARTS:
        study = _study(part)
        study.describe_site(SITE, options(part["settings"]["fabric"]))
        study.ddlbench("report", "--configfile", "experiment.yaml")
        study.ddlbench("accuracy", "--configfile", "experiment.yaml", "--figures")
        results, out = Path("results") / SITE / part["experiment"], OUT / part["experiment"]
        for path in sorted((study.folder / results).rglob("*")):
            if path.name in KEPT[part["experiment"]]:
                study.keep(path.relative_to(study.folder), out / path.name)
        predictions = study.folder / results / "predictions.json"
        cells = keep_cells(part["experiment"], predictions, "all", out / "cells.csv")
        errors_of(cells).to_csv(out / "errors.csv", float_format="%.4g")
        errors_of(cells, by="network").to_csv(out / "errors_by_network.csv", float_format="%.4g")
        learnt = study.ddlbench("calibrate", "--configfile", "experiment.yaml", "--json")
        scores = pd.DataFrame(json.loads(learnt)["scores"])
        scores.to_csv(out / "calibration.csv", index=False, float_format="%.4g")
    study = _study(SLOW)
    study.describe_site(SITE, options("slow"))
    _computed_link(study).to_csv(OUT / "slow-link" / "computed.csv", float_format="%.4g")


def described() -> Study:
    """The study's folder, with the site file that both parts share."""
    study = _study(FAST)
    study.describe_site(SITE, options("default"))
    return study


def _computed_link(study: Study) -> pd.DataFrame:
    """The slow cells predicted without a measured slow link: computed from its rate alone."""
    site_file = study.folder / "config" / "sites" / f"{SITE}.yaml"
    keys = yaml.safe_load(site_file.read_text(encoding="utf-8"))
    fabric = {"bandwidth_mbit_per_s": 100, "latency_ms": 0}
    os.chdir(study.folder)
    rows = expand(parse_experiment(SLOW, "the study"), load_site(SITE))
    site_file.write_text(yaml.safe_dump({**keys, "fabrics": {"slow": fabric}}), encoding="utf-8")
    root = study.folder / "computed"
    for part in ("cells", "profiles", "links/default"):
        link = root / SITE / part
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(study.folder / "results" / SITE / part)
    frame = predictions(rows, load_site(SITE), root, names=[DEFAULT_PREDICTOR])
    told = frame[frame["signed_error"].notna()]
    return told.groupby("strategy", sort=False)["signed_error"].agg(
        n="size", mean_absolute_error=lambda errors: errors.abs().mean(), mean_signed_error="mean"
    )


def _study(part: dict[str, Any], repeats: int = REPEATS) -> Study:
    """A part of the study up to some repeat; what is there already is not measured again."""
    return Study("prediction", {**part, "repeats": repeats}, SITE_KEYS)


def _measure() -> None:
    """Measure what is missing, so that the repeats of different cells take turns."""
    for part in PARTS:
        _study(part).run(SITE, options(part["settings"]["fabric"]), "links")
    for repeat in range(1, REPEATS + 1):
        profiles = [
            f"results/{SITE}/profiles/cifar10/{network}/fp32-1t/run-{repeat}/profile.json"
            for network in NETWORKS
        ]
        _study(FAST, repeat).run(SITE, options("default"), *profiles, "cells")
    _study(FAST).run(SITE, options("default"), "profiles")
    for repeat in range(1, REPEATS + 1):
        _study(SLOW, repeat).run(SITE, options("slow"), "cells")


if __name__ == "__main__":
    main()
