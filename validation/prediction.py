"""Every predictor and baseline against measured cells, on a real SLURM of virtual nodes.

Four networks, two datasets, five strategies; 1 node x 4 devices and 4 nodes x 1, with equal shares
of CPU; links of 1 Gbit/s and of 100 Mbit/s. Profiles, links and cells are separate jobs. Sequential
cells are repeated, so that the sequential predictor can be held against the spread of repeats.
Writes docs/validation/prediction/.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bed_study import ROOT, Study
from testbed import Options

OUT = ROOT / "docs" / "validation" / "prediction"
SITES = {"link-1000": "1gbit", "link-100": "100mbit"}
SETTINGS = {
    "batch_size": 16,
    "data_scale": 0.01,
    "epochs": 1,
    "warmup_steps": 2,
    "max_steps": 6,
}
NETWORKS = ["resnet18", "vgg11", "vgg16", "mobilenetv2"]
KEPT = ("accuracy.csv", "table_8_1.csv", "table_8_2.csv", "predictions.json")


def experiment(site: str, strategies: list[str], geometry: list[str], **more: Any) -> dict:
    """Write the experiment for one part of the study."""
    return {
        "experiment": "prediction",
        "site": site,
        "matrix": {
            "dataset": ["mnist", "cifar10"],
            "network": NETWORKS,
            "strategy": strategies,
            "geometry": geometry,
        },
        "settings": SETTINGS,
        **more,
    }


ALL = ["sequential", "horovod", "ddp", "gpipe", "model-parallel"]
PARTS = {
    # On one node the link between nodes plays no part, so the slow site has 4x1 only.
    "link-1000": experiment("link-1000", ALL, ["1x4", "4x1"]),
    "link-100": experiment("link-100", ["sequential", "horovod", "ddp"], ["4x1"]),
}
REPEATED = experiment("link-1000", ["sequential"], ["1x4"], repeats=3, experiment="repeatability")


def options(site: str) -> Options:
    """Describe the test bed behind a site: 1.6 of this machine's cores are shared out."""
    return Options(nodes=4, devices=4, cpu_share=0.4, bandwidth=SITES[site])


def main() -> None:
    """Measure, predict, compare."""
    for site, part in PARTS.items():
        Study("prediction", part).run(site, options(site), "links", "profiles", "cells")
    Study("prediction", REPEATED).run("link-1000", options("link-1000"), "cells")
    for part in (*PARTS.values(), REPEATED):
        site = part["site"]
        study = Study("prediction", part)
        study.describe_site(site, options(site))
        study.ddlbench("report", "--configfile", "experiment.yaml")
        study.ddlbench("accuracy", "--configfile", "experiment.yaml")
        folder = Path("results") / site / part["experiment"]
        for path in sorted((study.folder / folder).rglob("*")):
            if path.name in KEPT or path.suffix == ".png":
                study.keep(path.relative_to(study.folder), OUT / folder.name / site / path.name)


if __name__ == "__main__":
    main()
