"""Every predictor against measured cells, and cases to choose in, on a real SLURM of virtual nodes.

Networks on CIFAR-10; 1x4, 4x1 and 2x2 devices with equal shares of CPU; links of 1 Gbit/s (fabric
``default``) and of 100 Mbit/s (fabric ``slow``, 4x1 only). Profiles, links and cells are separate
jobs. This machine has states that last for minutes, so the repeats of different cells take turns::

    links | for each run 1, 2, 3: profiles, then cells on both links | pooled profiles | accuracy

The first run has every cell. The others have the candidates that may be the fastest of their case
(network, geometry, fabric): they took at most ``CONTENDS`` times the fastest in the first run; and
sequential training. Two more runs of the cells of ``ACCURACY`` come last.

A part is a batch of networks, because all that is compared must be measured on one machine within
hours: about two hours a batch. What was measured of it is kept in measured.tar.xz: profiles, links
and results. From there ``--report`` makes the tables and figures anew on any machine, so that a
better predictor needs no new cells, and ablation.py and choices.py read the same.

No predictor has seen a cell, except in calibration.csv, where constants are learnt from the cells
of all other networks, or of all other geometries. Writes docs/validation/prediction/.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from bed_study import ROOT, Part, Study, chosen_parts, has_results
from cells import errors_of, keep_cells
from testbed import Options

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.config import parse_experiment
from ddlbench.experiment.paths import result_file
from ddlbench.experiment.registry import BASE
from ddlbench.experiment.site import load_site
from ddlbench.planning.matrix import expand
from ddlbench.predict.calibration import CalibrationCell, cells_of, scores
from ddlbench.predict.evaluate import Outcome, measure, predictions
from ddlbench.predict.prediction import DEFAULT_PREDICTOR

OUT = ROOT / "docs" / "validation" / "prediction"
SITE = "share-040"
LINKS = {"default": "1gbit", "slow": "100mbit"}
SITE_KEYS = {"interconnect": {"sweep_budget_s": 2.5}}
REPEATS = 3
BATCHES = {
    "stack-vgg16": ["stack", "vgg16"],
    "mobilenetv2-resnet18": ["mobilenetv2", "resnet18"],
}
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
CONTENDS = 1.2
# Makes the experiment of a batch from its networks.
ExperimentOf = Callable[[list[str]], dict[str, Any]]
KEPT = {
    "fast-link": ("accuracy.csv", "accuracy.png", "table_8_2.csv"),
    "slow-link": ("accuracy.csv", "accuracy.png"),
}


def _experiment(
    name: str,
    networks: list[str],
    strategies: list[str],
    geometry: list[str],
    settings: dict[str, Any],
) -> dict[str, Any]:
    """What both experiments of a batch have in common."""
    return {
        "experiment": name,
        "site": SITE,
        "repeats": REPEATS,
        "matrix": {
            "dataset": ["cifar10"],
            "network": networks,
            "strategy": strategies,
            "geometry": geometry,
        },
        "settings": {"batch_size": 24, "data_scale": 0.01, "epochs": 1, **settings},
        "strategies": {
            name: {"chunks": 4}
            for name in ("gpipe", "pipe-gpipe", "pipe-1f1b", "pipe-interleaved", "pipe-zb")
            if name in strategies
        },
        "profile": {"budget_s": 30, "runs": REPEATS},
        # A pass of a micro-batch must be longer than a period of the test bed's quotas; the stack
        # computes little.
        "overrides": [{"when": {"network": "stack"}, "set": {"batch_size": 48}}],
    }


def fast(networks: list[str]) -> dict[str, Any]:
    """The experiment of 1 Gbit/s."""
    common = _experiment(
        "fast-link",
        networks,
        ["sequential", *CANDIDATES, "pipedream", "gpipe"],
        ["1x4", "4x1", "2x2"],
        {"fabric": "default", "warmup_steps": 1, "max_steps": 5},
    )
    return {
        **common,
        # torchgpipe is one process.
        "exclude": [
            {"strategy": "gpipe", "geometry": ["4x1", "2x2"]},
            {"strategy": "pipedream", "geometry": "2x2"},
        ],
        # PipeDream needs as many steps as stages to fill and to drain: the steady state is between.
        "overrides": [
            *common["overrides"],
            {"when": {"strategy": "pipedream"}, "set": {"max_steps": 14}},
        ],
    }


def slow(networks: list[str]) -> dict[str, Any]:
    """The experiment of 100 Mbit/s."""
    settings = {"fabric": "slow", "warmup_steps": 1, "max_steps": 4}
    return _experiment("slow-link", networks, ["sequential", *CANDIDATES], ["4x1"], settings)


def _options(experiment: dict[str, Any]) -> Options:
    """Describe the test bed of an experiment: 1.6 of this machine's cores are shared out.

    The slow link is measured with one device a node, as only 4x1 uses it: sixteen ranks at 100
    Mbit/s would take half an hour.
    """
    fabric = experiment["settings"]["fabric"]
    devices = 1 if fabric == "slow" else 4
    return Options(nodes=4, devices=devices, cpu_share=0.4, bandwidth=LINKS[fabric])


def main() -> None:
    """Measure, predict, compare."""
    chosen = chosen_parts(__doc__, BATCHES)
    for batch in chosen.parts:
        if not chosen.report:
            _measure(batch)
        if has_results(_name(batch)):
            _folder(batch, fast).archive(archive_of(batch))
        if batch in kept_batches():
            _report(batch)
        else:
            print(f"{batch} is left out: it has not been measured")
    for name in KEPT:
        tables = [pd.read_csv(path) for path in sorted(OUT.glob(f"*/{name}/cells.csv"))]
        cells = pd.concat(tables)
        errors_of(cells).to_csv(OUT / f"errors_{name}.csv", float_format="%.4g")
    _repeats("fast-link").to_csv(OUT / "repeats_fast-link.csv", float_format="%.4g")
    # Of the slow link there is one cell a strategy and network, which teaches next to nothing.
    scores(_to_calibrate(fast)).to_csv(OUT / "calibration.csv", index=False, float_format="%.4g")


def _repeats(name: str) -> pd.DataFrame:
    """What repeats say of each strategy, over all batches that have some.

    Returns:
        ``cells`` with more than one run, by how much these differ, what a perfect model would score
        with so much noise, and the error of a few steps of the first run (``first_run_error``).
    """
    tables = []
    for folder in sorted(OUT.glob(f"*/{name}")):
        cells = pd.read_csv(folder / "cells.csv")
        ours = cells[(cells["predictor"] == DEFAULT_PREDICTOR) & (cells["repeats"] > 1)]
        table = pd.read_csv(folder / "accuracy.csv").set_index(["predictor", "strategy"])
        counts = ours.groupby("strategy", sort=False).size()
        counts["all"] = len(ours)
        noise = table.loc[DEFAULT_PREDICTOR][["repeat_spread", "noise_floor"]]
        first = table.loc["data-extrapolation"]["mean_absolute_error"].rename("first_run_error")
        tables.append(noise.join(first).loc[counts.index].assign(cells=counts))
    every = pd.concat(tables).reset_index()
    means = every.groupby("strategy", sort=False).apply(
        lambda group: pd.Series(
            {key: np.average(group[key], weights=group["cells"]) for key in every.columns[1:-1]}
        ),
        include_groups=False,
    )
    return means.assign(cells=every.groupby("strategy", sort=False)["cells"].sum())


def _to_calibrate(experiment_of: ExperimentOf) -> list[CalibrationCell]:
    """The measured cells of all batches, which teach each other constants."""
    calibration: list[CalibrationCell] = []
    for folder, experiment in parts(experiment_of):
        os.chdir(folder().folder)
        site = load_site(SITE)
        rows = expand(parse_experiment(experiment, "the study"), site)
        calibration += cells_of(
            predictions(rows, site, names=[DEFAULT_PREDICTOR]), DEFAULT_PREDICTOR
        )
    return calibration


def archive_of(batch: str) -> Path:
    """What was measured of a batch."""
    return OUT / batch / "measured.tar.xz"


def kept_batches() -> list[str]:
    """The batches that have been measured."""
    return [batch for batch in BATCHES if archive_of(batch).is_file()]


def _report(batch: str) -> None:
    """Tables and figures of a batch."""
    for experiment_of in (fast, slow):
        study, name = described(batch, experiment_of), experiment_of(BATCHES[batch])["experiment"]
        study.ddlbench("report", "--configfile", "experiment.yaml")
        study.ddlbench("predict", "accuracy", "--configfile", "experiment.yaml", "--figures")
        results, out = Path("results") / SITE / name, OUT / batch / name
        for path in sorted((study.folder / results).rglob("*")):
            if path.name in KEPT[name]:
                study.keep(path.relative_to(study.folder), out / path.name)
        predicted = study.folder / results / "predictions.json"
        keep_cells(name, predicted, "all", out / "cells.csv")
    computed = _computed_link(described(batch, slow), slow(BATCHES[batch]))
    computed.to_csv(OUT / batch / "slow-link" / "computed.csv", float_format="%.4g")


def described(batch: str, experiment_of: ExperimentOf) -> Study:
    """The folder of an experiment with its site file: measured here, or else what is kept."""
    experiment = experiment_of(BATCHES[batch])
    if has_results(_name(batch)):
        study = _folder(batch, experiment_of)
    else:
        study = Study(f"{_name(batch)}-kept", experiment, SITE_KEYS)
        study.unpack(archive_of(batch))
    study.describe_site(SITE, _options(experiment))
    return study


def parts(experiment_of: ExperimentOf) -> list[Part]:
    """Of each batch that has been measured."""
    return [
        (partial(described, batch, experiment_of), experiment_of(BATCHES[batch]))
        for batch in kept_batches()
    ]


def _computed_link(study: Study, experiment: dict[str, Any]) -> pd.DataFrame:
    """The slow cells predicted without a measured slow link: computed from its rate alone."""
    site_file = study.folder / "config" / "sites" / f"{SITE}.yaml"
    keys = yaml.safe_load(site_file.read_text(encoding="utf-8"))
    fabric = {"bandwidth_mbit_per_s": 100, "latency_ms": 0}
    os.chdir(study.folder)
    rows = expand(parse_experiment(experiment, "the study"), load_site(SITE))
    site_file.write_text(yaml.safe_dump({**keys, "fabrics": {"slow": fabric}}), encoding="utf-8")
    root = study.folder / "computed"
    for measured in ("cells", "profiles", "links/default"):
        link = root / SITE / measured
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.is_symlink():
            link.symlink_to(study.folder / "results" / SITE / measured)
    frame = predictions(rows, load_site(SITE), root, names=[DEFAULT_PREDICTOR])
    predicted = frame[frame["signed_error"].notna()]
    return predicted.groupby("strategy", sort=False)["signed_error"].agg(
        n="size", mean_absolute_error=lambda errors: errors.abs().mean(), mean_signed_error="mean"
    )


def _name(batch: str) -> str:
    """The study's name of a batch."""
    return f"prediction-{batch}"


def _folder(batch: str, experiment_of: ExperimentOf, repeats: int = REPEATS) -> Study:
    """Where a batch is measured, up to some repeat; what is there is not measured again."""
    return Study(_name(batch), {**experiment_of(BATCHES[batch]), "repeats": repeats}, SITE_KEYS)


def _measure(batch: str) -> None:
    """Measure what is missing, so that the repeats of different cells take turns."""
    networks = BATCHES[batch]
    options = {experiment_of: _options(experiment_of(networks)) for experiment_of in (fast, slow)}
    for experiment_of in (fast, slow):
        _folder(batch, experiment_of).run(SITE, options[experiment_of], "links")
    for run in range(1, REPEATS + 1):
        profiles = [
            f"results/{SITE}/profiles/cifar10/{network}/fp32-1t/run-{run}/profile.json"
            for network in networks
        ]
        _folder(batch, fast).run(SITE, options[fast], *profiles)
        for experiment_of in (fast, slow):
            if run == 1:
                _folder(batch, experiment_of, 1).run(SITE, options[experiment_of], "cells")
            else:
                _again(batch, experiment_of, run - 1, _contenders)
    _folder(batch, fast).run(SITE, options[fast], "profiles")
    for repeat in range(1, REPEATS):
        _again(batch, fast, repeat, _of_accuracy)


def _again(
    batch: str,
    experiment_of: ExperimentOf,
    repeat: int,
    chosen: Callable[[list[Outcome]], Iterable[Cell]],
) -> None:
    """Measure a later repeat of the cells that are chosen by the outcomes of the first."""
    study, experiment = _folder(batch, experiment_of), experiment_of(BATCHES[batch])
    os.chdir(study.folder)
    study.describe_site(SITE, _options(experiment))
    rows = expand(parse_experiment({**experiment, "repeats": 1}, "the study"), load_site(SITE))
    cells = [cell.with_(repeat=repeat) for cell in chosen(measure(rows, SITE))]
    paths = sorted(str(result_file(SITE, cell.id)) for cell in cells)
    study.run(SITE, _options(experiment), *paths)


def _contenders(outcomes: Iterable[Outcome]) -> list[Cell]:
    """Sequential training, and the candidates that may be the fastest of their case.

    The first repeat is the judge.
    """
    steps: dict[str, dict[Cell, float]] = {}
    for outcome in outcomes:
        cell, step_s = outcome.cell, outcome.step_s.get(0)
        if cell.strategy in (BASE, *CANDIDATES, "gpipe") and step_s is not None:
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
