"""Speed-up of data parallelism on a real SLURM of virtual nodes, and two such sites compared.

ResNet-18 on CIFAR-10, 32 images a worker, links of 1 Gbit/s. Site ``share-025`` gives every device
a quarter of a core, ``share-040`` two fifths. Writes docs/validation/speedup/.
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
        "geometry": ["1x4", "2x2", "4x1"],
    },
    "settings": {
        "batch_per_device": 32,
        "data_scale": 0.05,
        "epochs": 1,
        "warmup_steps": 1,
        "max_steps": 5,
    },
}
# Figures 5 and 6 of the paper: one device a node, one, two and four nodes, two clusters.
NODES = {
    **EXPERIMENT,
    "experiment": "nodes",
    "repeats": 1,
    "matrix": {**EXPERIMENT["matrix"], "geometry": ["2x1", "4x1"]},
}
SITES = {
    "share-025": Options(nodes=4, devices=4, cpu_share=0.25, bandwidth="1gbit"),
    "share-040": Options(nodes=4, devices=1, cpu_share=0.4, bandwidth="1gbit"),
}
RESULTS = Path("results/share-025")


def main() -> None:
    """Run both experiments and keep tables and figures."""
    study = Study("speedup", EXPERIMENT)
    study.run("share-025", SITES["share-025"])
    for name in ("speedup.png", "speedup.csv"):
        study.keep(RESULTS / "speedup" / "figures" / name, OUT / name)
    study.keep(RESULTS / "speedup" / "tables" / "summary.csv", OUT / "summary.csv")

    study = Study("speedup", NODES)
    for site, options in SITES.items():
        study.run(site, options)
    for site, options in SITES.items():
        study.describe_site(site, options)
    study.ddlbench(
        *("report", "--configfile", "experiment.yaml", "--site", "share-025"),
        *("--also-site", "share-040"),
    )
    for name in ("sites.png", "sites.csv"):
        study.keep(RESULTS / "nodes" / "figures" / name, OUT / name)


if __name__ == "__main__":
    main()
