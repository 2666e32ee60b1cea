"""Transformers: sharded, replicated and cut into stages, measured beside predictions.

Two networks, a ViT on images and a GPT on tokens, with 24 samples a step::

    emulated          accelerators of one core, 2 and 4 of them, one node and two
    emulated-office   two nodes over 200 Mbit/s
    computed          two CPU workers of this machine
    computed-bw250    the same over an emulated link of 250 Mbit/s

``ddlbench`` predicts every cell from profiles and links, nothing fitted. The oracle of transformers
knows shapes only: it is scored with what a data sheet suggests, and with constants that are fitted
to the emulated cells: in sample there, held out on the computed ones. Writes
docs/validation/transformers/<part>/, with the errors of predicted memory and what a message takes
longer after a computation.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from bed_study import ROOT, Study, chosen_parts
from cells import errors_of, keep_cells, memory_errors_of

from ddlbench.experiment.links import read_links
from ddlbench.predict.links import LinkTable
from ddlbench.predict.prediction import DEFAULT_PREDICTOR

OUT = ROOT / "docs" / "validation" / "transformers"
PLATFORM = ROOT / "config" / "transformers" / "one-core.yaml"
# The parts that the oracle is scored on, and how much faster their device is than the platform's.
# It is fitted to the first: holding out one of its networks leaves fewer rows than constants.
ORACLE = {"emulated": 1.0, "computed": 4.0}
FITTED_TO = "emulated"
# What the table says of each cell, beside its step.
COLUMNS = (
    "network", "strategy", "options", "geometry", "fabric", "status", "reason", "samples_per_s",
    "step_median_s", "speedup", "peak_memory_bytes", "sent_bytes", "mfu", "cpu_utilisation",
)  # fmt: skip


def experiment(
    site: str, strategies: list[str], geometry: list[str], fabric: str
) -> dict[str, Any]:
    """Both networks, each on its own dataset."""
    return {
        "experiment": f"transformers-{fabric}",
        "site": site,
        "matrix": {
            "dataset": ["cifar10", "tokens"],
            "network": ["vit-tiny", "gpt-tiny"],
            "strategy": ["sequential", *strategies],
            "geometry": geometry,
        },
        "strategies": {
            "ddp": {"shard": ["none", "optimizer"]},
            "fsdp": {"reshard_after_forward": [True, False]},
            "pipe-1f1b": {"chunks": 6},
        },
        "settings": {
            "batch_size": 24,
            "data_scale": 0.005,
            "epochs": 1,
            "warmup_steps": 1,
            "max_steps": 5,
        },
        "overrides": [
            {"when": {"geometry": [shape]}, "set": {"fabric": fabric}}
            for shape in geometry
            if not shape.startswith("1x") and fabric != "default"
        ],
        "exclude": [
            {"dataset": "cifar10", "network": "gpt-tiny"},
            {"dataset": "tokens", "network": "vit-tiny"},
        ],
        "profile": {"budget_s": 25},
    }


REPLICAS = ["ddp", "fsdp", "pipe-1f1b"]
# The oracle knows one link between nodes, so each link is a part.
PARTS = {
    "emulated": experiment("accelerators", REPLICAS, ["1x2", "1x4", "2x2"], "gigabit"),
    "emulated-office": experiment("accelerators", REPLICAS, ["2x2"], "office"),
    "computed": experiment("local", [*REPLICAS, "tensor-parallel"], ["1x2"], "default"),
    "computed-bw250": experiment("emulated", [*REPLICAS, "tensor-parallel"], ["2x1"], "bw250"),
}
# As validation/emulated.py has them, so that both studies share their links.
SITE_KEYS = {
    "interconnect": {"largest_bytes": 2**25, "sweep_budget_s": 6.0, "budget_s": 1200},
    "cell_timeout_s": 900,
}
# As many nodes, and devices over the office's link, as the cells use: more take long to sweep.
NODES = {"emulated": 2}
DEVICES = {"transformers-office": 2}


def main() -> None:
    """Measure, predict, keep one row per cell; score the oracle."""
    chosen = chosen_parts(__doc__, PARTS)
    for part in chosen.parts:
        content, out = PARTS[part], OUT / part
        study = described(content)
        if not chosen.report:
            study.run_here("links", "profiles", "cells")
        study.ddlbench("report", "--configfile", "experiment.yaml")
        study.ddlbench("predict", "accuracy", "--configfile", "experiment.yaml", "--figures")
        results = Path("results") / content["site"] / content["experiment"]
        predictions = study.folder / results / "predictions.json"
        cells = keep_cells(f"transformers, {part}", predictions, "all", out / "cells.csv")
        errors_of(cells).to_csv(out / "errors.csv", float_format="%.4g")
        memory = memory_errors_of(predictions, DEFAULT_PREDICTOR)
        memory.to_csv(out / "memory.csv", float_format="%.4g")
        _delays(study, content).to_csv(out / "delays.csv", index=False, float_format="%.4g")
        measured = pd.read_csv(study.folder / results / "tables" / "measurements.csv")
        measured = measured.reindex(columns=list(COLUMNS))
        measured.to_csv(out / "measured.csv", index=False, float_format="%.6g")
        study.keep(results / "figures" / "speedup.png", out / "speedup.png")
        if part in ORACLE:
            _score_oracle(study, part, out)


def described(content: dict[str, Any]) -> Study:
    """The study of a part, with the emulated study's keys in the site file."""
    study = Study("emulated", content)
    site_file = study.folder / "config" / "sites" / f"{content['site']}.yaml"
    site = yaml.safe_load(site_file.read_text(encoding="utf-8"))
    site |= {
        **SITE_KEYS,
        "nodes": NODES.get(content["site"], site["nodes"]),
        "devices_per_node": DEVICES.get(content["experiment"], site["devices_per_node"]),
    }
    site_file.write_text(yaml.safe_dump(site), encoding="utf-8")
    return study


def _delays(study: Study, content: dict[str, Any]) -> pd.DataFrame:
    """What a short message takes after a computation, and in the sweep, of each group of ranks."""
    rows = []
    for path in sorted((study.folder / "results" / content["site"] / "links").glob("*/links.json")):
        links = read_links(path)
        table = LinkTable(links, str(path))
        for delay in links.delays:
            shape = (delay.nodes, delay.devices_per_node)
            added_s = table.delay_s(delay.operation, delay.transport, *shape)
            rows.append({"fabric": links.fabric, **delay.to_dict(), "added_s": added_s})
    columns = ["fabric", "operation", "transport", "nodes", "devices_per_node", "ranks"]
    return pd.DataFrame(rows, columns=[*columns, "message_bytes", "after_s", "added_s"])


def _score_oracle(study: Study, part: str, out: Path) -> None:
    """Own cells as runs of the oracle: by a data sheet, and fitted to the emulated cells."""
    runs, fitted = out / "runs.csv", OUT / FITTED_TO / PLATFORM.name
    study.ddlbench("oracle", "rows", "--configfile", "experiment.yaml", "--output", str(runs))
    if part == FITTED_TO:
        study.ddlbench(
            *("calibrate", str(runs), "--json"),
            *("--platform", str(PLATFORM), "--output", str(fitted)),
        )
    platforms = {
        "priors alone": PLATFORM,
        "in sample" if part == FITTED_TO else f"fitted to {FITTED_TO}": fitted,
    }
    table = []
    for name, platform in platforms.items():
        score = json.loads(
            study.ddlbench(
                *("oracle", "score", str(runs), "--json"),
                *("--platform", str(_faster(platform, ORACLE[part], study.folder / "platforms"))),
            )
        )
        columns = ("rows", "mean_absolute_error", "median_absolute_error")
        table.append({"scored": name, **{key: score[key] for key in columns}})
    pd.DataFrame(table).to_csv(out / "oracle.csv", index=False, float_format="%.4g")


def _faster(platform: Path, factor: float, folder: Path) -> Path:
    """The platform with a device so many times faster; its links stay."""
    content = yaml.safe_load(platform.read_text(encoding="utf-8"))
    for rate in ("flops_per_s", "memory_bytes_per_s"):
        content["device"][rate] *= factor
    folder.mkdir(exist_ok=True)
    path = folder / f"{platform.parent.name}-{factor:g}.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


if __name__ == "__main__":
    main()
