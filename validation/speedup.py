"""Speed-up of data parallelism on a real SLURM of virtual nodes, and two such sites compared.

ResNet-18 on CIFAR-10, 32 images a worker, links of 1 Gbit/s. Site ``share-025`` gives every device
a quarter of a core, ``share-0125`` an eighth. Writes docs/validation/speedup/.
"""

from __future__ import annotations

from pathlib import Path

from bed_study import ROOT, Study
from testbed import Options

OUT = ROOT / "docs" / "validation" / "speedup"
EXPERIMENT = {
    "experiment": "speedup",
    "site": "share-025",
    "repeats": 3,
    "matrix": {
        "dataset": ["cifar10"],
        "network": ["resnet18"],
        "strategy": ["sequential", "horovod", "ddp"],
        "geometry": ["1x4", "2x1", "2x2", "4x1"],
    },
    "settings": {
        "batch_per_device": 32,
        "data_scale": 0.05,
        "epochs": 1,
        "warmup_steps": 1,
        "max_steps": 5,
    },
}
SECOND = {
    **EXPERIMENT,
    "site": "share-0125",
    "repeats": 1,
    "matrix": {**EXPERIMENT["matrix"], "geometry": ["2x1", "4x1"]},
}
TABLES = Path("results/share-025/speedup/tables")
FIGURES = Path("results/share-025/speedup/figures")


def main() -> None:
    """Run both sites and keep tables and figures."""
    study = Study("speedup", EXPERIMENT)
    study.run("share-025", Options(nodes=4, devices=4, cpu_share=0.25, bandwidth="1gbit"))
    second = Study("speedup", SECOND)
    second.run("share-0125", Options(nodes=4, devices=1, cpu_share=0.125, bandwidth="1gbit"))
    # Figures 5 and 6 of the paper: one device a node, so the same two geometries on both.
    study.describe_site("share-025", Options(nodes=4, devices=4, cpu_share=0.25, bandwidth="1gbit"))
    second.ddlbench(
        *("report", "--configfile", "experiment.yaml", "--site", "share-025"),
        *("--also-site", "share-0125"),
    )
    for name in ("sites.png", "sites.csv"):
        second.keep(FIGURES / name, OUT / name)
    again = Study("speedup", EXPERIMENT)
    again.describe_site("share-025", Options(nodes=4, devices=4, cpu_share=0.25, bandwidth="1gbit"))
    again.ddlbench("report", "--configfile", "experiment.yaml")
    for name in ("scaling.png", "scaling.csv", "speedup.png", "speedup.csv"):
        again.keep(FIGURES / name, OUT / name)
    again.keep(TABLES / "summary.csv", OUT / "summary.csv")


if __name__ == "__main__":
    main()
