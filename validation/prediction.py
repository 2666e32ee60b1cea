"""Every predictor against measured cells, and cases to choose in, on a real SLURM of virtual nodes.

Four networks on CIFAR-10; 1x4, 4x1 and 2x2 devices with equal shares of CPU; links of 1 Gbit/s
(fabric ``default``) and of 100 Mbit/s (fabric ``slow``, 4x1 only). Profiles, links and cells are
separate jobs. This machine has states that last for minutes, so the repeats of different cells take
turns::

    links | for each run 1, 2, 3: profiles, then cells on both links | pooled profiles | accuracy

The first run has every cell. The others have the candidates that may be the fastest of their case
(network, geometry, fabric): they took at most ``CONTENDS`` times the fastest in the first run. Two
more runs of the cells of ``ACCURACY`` come last. All of it takes three hours.

No predictor has seen a cell, except in calibration.csv, where constants are learnt from the cells
of other networks, or of other geometries. Writes docs/validation/prediction/; with ``--report``,
from what was measured before. choices.py replays the choices.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from bed_study import ROOT, Study
from cells import errors_of, keep_cells
from testbed import Options

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.config import parse_experiment
from ddlbench.experiment.paths import result_file
from ddlbench.experiment.site import load_site
from ddlbench.planning.matrix import expand
from ddlbench.predict.evaluate import Outcome, measure, predictions
from ddlbench.predict.prediction import DEFAULT_PREDICTOR

OUT = ROOT / "docs" / "validation" / "prediction"
SITE = "share-040"
LINKS = {"default": "1gbit", "slow": "100mbit"}
SITE_KEYS = {"interconnect": {"sweep_budget_s": 2.5}}
REPEATS = 3
NETWORKS = ["stack", "vgg16", "mobilenetv2", "resnet18"]
CANDIDATES = [
    *("ddp", "horovod", "parameter-server", "model-parallel-p2p"),
    *("pipe-gpipe", "pipe-1f1b", "pipe-interleaved", "pipe-zb"),
]
# Run three times, however fast they are, so that errors and the noise floor rest on repeats.
ACCURACY = {
    "network": ["stack", "vgg16", "mobilenetv2"],
    "strategy": [
        *("sequential", "ddp", "horovod", "parameter-server"),
        *("pipe-gpipe", "pipe-1f1b", "pipedream", "gpipe"),
    ],
    "geometry": ["1x1", "1x4", "4x1"],
}
CONTENDS = 1.3
KEPT = {
    "fast-link": ("accuracy.csv", "accuracy.png", "table_8_2.csv"),
    "slow-link": ("accuracy.csv", "accuracy.png"),
}


def experiment(
    name: str, strategies: list[str], geometry: list[str], settings: dict[str, Any]
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
        # Much of a micro-batch is longer than a period of the test bed's quotas.
        "settings": {"batch_size": 48, "data_scale": 0.01, "epochs": 1, **settings},
        "strategies": {
            name: {"chunks": 4}
            for name in ("gpipe", "pipe-gpipe", "pipe-1f1b", "pipe-interleaved", "pipe-zb")
            if name in strategies
        },
        "profile": {"budget_s": 30, "runs": REPEATS},
    }


FAST = {
    **experiment(
        "fast-link",
        ["sequential", *CANDIDATES, "pipedream", "gpipe"],
        ["1x4", "4x1", "2x2"],
        {"fabric": "default", "warmup_steps": 2, "max_steps": 6},
    ),
    # torchgpipe is one process.
    "exclude": [
        {"strategy": "gpipe", "geometry": ["4x1", "2x2"]},
        {"strategy": "pipedream", "geometry": "2x2"},
    ],
    # PipeDream needs as many steps as stages to fill and to drain: the steady state is between.
    "overrides": [{"when": {"strategy": "pipedream"}, "set": {"max_steps": 14}}],
}
SLOW = experiment(
    "slow-link",
    ["sequential", *CANDIDATES],
    ["4x1"],
    {"fabric": "slow", "warmup_steps": 1, "max_steps": 4},
)
PARTS = (FAST, SLOW)


def _options(part: dict[str, Any]) -> Options:
    """Describe the test bed of a part: 1.6 of this machine's cores are shared out.

    The slow link is measured with one device a node, as only 4x1 uses it: sixteen ranks at 100
    Mbit/s would take half an hour.
    """
    fabric = part["settings"]["fabric"]
    devices = 1 if fabric == "slow" else 4
    return Options(nodes=4, devices=devices, cpu_share=0.4, bandwidth=LINKS[fabric])


def main() -> None:
    """Measure, predict, compare."""
    if "--report" not in sys.argv[1:]:
        _measure()
    for part in PARTS:
        study = _study(part)
        study.describe_site(SITE, _options(part))
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
    study.describe_site(SITE, _options(SLOW))
    _computed_link(study).to_csv(OUT / "slow-link" / "computed.csv", float_format="%.4g")


def described() -> Study:
    """The study's folder, with the site file that both parts share."""
    study = _study(FAST)
    study.describe_site(SITE, _options(FAST))
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
        _study(part).run(SITE, _options(part), "links")
    for run in range(1, REPEATS + 1):
        profiles = [
            f"results/{SITE}/profiles/cifar10/{network}/fp32-1t/run-{run}/profile.json"
            for network in NETWORKS
        ]
        _study(FAST).run(SITE, _options(FAST), *profiles)
        for part in PARTS:
            if run == 1:
                _study(part, 1).run(SITE, _options(part), "cells")
            else:
                _again(part, run - 1, _contenders)
    _study(FAST).run(SITE, _options(FAST), "profiles")
    for repeat in range(1, REPEATS):
        _again(FAST, repeat, _of_accuracy)


def _again(
    part: dict[str, Any], repeat: int, chosen: Callable[[list[Outcome]], Iterable[Cell]]
) -> None:
    """Measure a later repeat of the cells that are chosen by the outcomes of the first."""
    study = _study(part)
    os.chdir(study.folder)
    study.describe_site(SITE, _options(part))
    rows = expand(parse_experiment({**part, "repeats": 1}, "the study"), load_site(SITE))
    cells = [cell.with_(repeat=repeat) for cell in chosen(measure(rows, SITE))]
    study.run(SITE, _options(part), *sorted(str(result_file(SITE, cell.id)) for cell in cells))


def _contenders(outcomes: Iterable[Outcome]) -> list[Cell]:
    """The candidates that may be the fastest of their case, judged by the first repeat."""
    steps: dict[str, dict[Cell, float]] = {}
    for outcome in outcomes:
        cell, step_s = outcome.cell, outcome.step_s.get(0)
        if cell.strategy in (*CANDIDATES, "gpipe") and step_s is not None:
            steps.setdefault(f"{cell.network} {cell.geometry}", {})[cell] = step_s
    return [
        cell
        for case in steps.values()
        for cell, step_s in case.items()
        if step_s <= CONTENDS * min(case.values())
    ]


def _of_accuracy(outcomes: Iterable[Outcome]) -> list[Cell]:
    """The cells of :data:`ACCURACY`."""
    cells = [outcome.cell for outcome in outcomes]
    return [
        cell
        for cell in cells
        if all(getattr(cell, key) in values for key, values in ACCURACY.items())
    ]


if __name__ == "__main__":
    main()
