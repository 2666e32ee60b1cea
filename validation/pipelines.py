"""Every pipeline strategy against its own bound, and what stale weights cost.

A quarter of a core a device, links of 1 Gbit/s. Parts: three repeats of PipeDream and the plain
schedules on 1x4 and 4x1 of the balanced stack; every strategy at two and four workers on one, two
and four nodes; the partitioner's prediction from profile and links measured on this test bed; a
longer run for the loss.
Writes docs/validation/pipelines/; with ``--report``, from what was measured before.
"""

from __future__ import annotations

import csv
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bed_study import ROOT, Study
from cells import keep_cells, say_device
from testbed import Options

from ddlbench.experiment.links import read_links
from ddlbench.experiment.profile import read_profile
from ddlbench.planning.partition import Level, chain_of_profile, partition
from ddlbench.planning.partition.stages import Reach, bandwidth_of

OUT = ROOT / "docs" / "validation" / "pipelines"
SITE = "share-025"
BED = Options(nodes=4, devices=4, cpu_share=0.25, bandwidth="1gbit")
# Messages between stages have 1 MB and less.
SITE_KEYS = {"interconnect": {"largest_bytes": 2**23, "sweep_budget_s": 1}}
POINT_TO_POINT = [
    *("pipedream", "model-parallel-p2p"),
    *("pipe-gpipe", "pipe-1f1b", "pipe-interleaved", "pipe-zb", "pipe-zbv"),
]
SETTINGS = {"batch_size": 32, "data_scale": 0.05, "epochs": 1, "warmup_steps": 4, "max_steps": 12}
CHUNKS = {name: {"chunks": 8} for name in ("gpipe", *POINT_TO_POINT[2:])}


def experiment(
    name: str, networks: list[str], strategies: list[str], geometry: list[str], **more: Any
) -> dict[str, Any]:
    """One part of the study."""
    return {
        "experiment": name,
        "site": SITE,
        "matrix": {
            "dataset": ["cifar10"],
            "network": networks,
            "strategy": ["sequential", *strategies],
            "geometry": geometry,
        },
        "settings": SETTINGS,
        "strategies": {s: options for s, options in CHUNKS.items() if s in strategies},
        **more,
    }


PARTS = [
    experiment(
        "repeated",
        ["stack"],
        ["pipedream", "pipe-gpipe", "pipe-1f1b"],
        ["1x4", "4x1"],
        repeats=3,
    ),
    experiment(
        "four-workers",
        ["vgg16"],
        [*POINT_TO_POINT, "gpipe", "model-parallel"],
        ["1x4", "4x1"],
    ),
    experiment(
        "every-geometry",
        ["stack"],
        [*POINT_TO_POINT, "gpipe", "model-parallel"],
        ["1x2", "2x1", "1x4", "2x2", "4x1"],
    ),
]
LOSS = experiment("loss", ["stack"], ["pipedream", "pipe-1f1b"], ["1x4"])
LOSS["settings"] = {**SETTINGS, "max_steps": 150, "data_scale": 0.1}
# Half the rate, where stale weights may train; 1F1B stands for all that use current weights.
SLOWER = experiment("loss-half-rate", ["stack"], ["pipedream", "pipe-1f1b"], ["1x4"])
SLOWER["matrix"]["strategy"] = ["pipe-1f1b", "pipedream"]
SLOWER["settings"] = {**LOSS["settings"], "learning_rate": 0.005, "max_steps": 250}
BASES = experiment("bases", ["stack", "vgg16"], ["pipedream"], ["1x4"])


@dataclass(frozen=True)
class Promise:
    """What the partitioner says of a network on four devices, with the link measured there."""

    network: str
    geometry: str
    repeats: int
    bandwidth_bytes_per_s: float
    sizes: tuple[int, ...]
    period_s: float

    def experiment(self) -> dict[str, Any]:
        """The stages that it found, by hand."""
        name = f"promised-{self.network}-{self.geometry}"
        part = experiment(name, [self.network], ["pipedream"], [self.geometry])
        part["repeats"] = self.repeats
        part["matrix"]["strategy"] = ["pipedream"]
        part["strategies"] = {"pipedream": {"balance": "+".join(map(str, self.sizes))}}
        return part


def main() -> None:
    """Measure, draw, keep."""
    study = Study("pipelines", BASES, SITE_KEYS)
    measure = "--report" not in sys.argv[1:]
    if measure:
        study.run(SITE, BED, "links", "profiles")
    promises = [
        _promise(study, network, geometry, repeats)
        for network, repeats in (("stack", 3), ("vgg16", 1))
        for geometry in ("1x4", "4x1")
    ]
    order = (
        *PARTS[:1],
        *(promise.experiment() for promise in promises),
        PARTS[1],
        LOSS,
        SLOWER,
        *PARTS[2:],
    )
    for part in order if measure else ():
        Study("pipelines", part, SITE_KEYS).run(SITE, BED, "cells")
    for part, figure in (
        *((part, "pipelines") for part in PARTS),
        *((part, "loss") for part in (LOSS, SLOWER)),
    ):
        study = _reported(part)
        for suffix in ("png", "csv"):
            made = Path("results") / SITE / part["experiment"] / "figures" / f"{figure}.{suffix}"
            study.keep(made, OUT / f"{part['experiment']}.{suffix}")
        say_device(OUT / f"{part['experiment']}.csv", "cpu")
        if figure == "pipelines":
            study.ddlbench("predict", "accuracy", "--configfile", "experiment.yaml")
            accuracy = made.parents[1] / "tables" / "accuracy.csv"
            study.keep(accuracy, OUT / f"{part['experiment']}-accuracy.csv")
            predictions = study.folder / made.parents[1] / "predictions.json"
            cells = OUT / f"{part['experiment']}-cells.csv"
            keep_cells(part["experiment"], predictions, "all", cells)
    _keep_promises(promises)


def _reported(part: dict[str, Any]) -> Study:
    study = Study("pipelines", part, SITE_KEYS)
    study.describe_site(SITE, BED)
    study.ddlbench("report", "--configfile", "experiment.yaml")
    return study


def _promise(study: Study, network: str, geometry: str, repeats: int) -> Promise:
    """PipeDream's partitioner, straight, with the cost model of the paper."""
    results = study.folder / "results" / SITE
    profile = next((results / "profiles" / "cifar10" / network).glob("*/profile.json"))
    links = results / "links" / "default" / "links.json"
    level: Reach = "network" if geometry == "4x1" else "node"
    bandwidth = bandwidth_of(read_links(links), level, str(links))
    chain = chain_of_profile(read_profile(profile), SETTINGS["batch_size"])
    cut = partition(chain, [Level(4, bandwidth)], "paper", True, None)
    sizes = tuple(stage.last - stage.first for stage in cut.stages)
    return Promise(network, geometry, repeats, bandwidth, sizes, cut.period_s)


def _keep_promises(promises: list[Promise]) -> None:
    """Predicted period over measured step: 1 and more keeps the promise."""
    OUT.mkdir(parents=True, exist_ok=True)
    with (OUT / "partitioner.csv").open("w", newline="") as opened:
        writer = csv.writer(opened, lineterminator="\n")
        writer.writerow(
            ["network", "geometry", "bandwidth_bytes_per_s", "blocks_of_stages",
             "predicted_period_s", "repeats", "measured_step_s", "share_of_prediction"]
        )  # fmt: skip
        for promise in promises:
            part = promise.experiment()
            study = _reported(part)
            table = study.folder / "results" / SITE / part["experiment"] / "tables" / "summary.csv"
            with table.open() as opened_table:
                rows = [row for row in csv.DictReader(opened_table) if row["n"] != "0"]
            for row in rows:
                if row["strategy"] == "pipedream":
                    step_s = float(row["step_median_s"])
                    writer.writerow(
                        [promise.network, promise.geometry,
                         f"{promise.bandwidth_bytes_per_s:.4g}", "+".join(map(str, promise.sizes)),
                         f"{promise.period_s:.4g}", row["n"], f"{step_s:.4g}",
                         f"{promise.period_s / step_s:.3f}"]
                    )  # fmt: skip


if __name__ == "__main__":
    main()
