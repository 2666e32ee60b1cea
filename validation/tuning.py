"""``ddlbench recommend tune`` against exhaustive sweeps of the same configurations.

A search is run first, alone, with as many trials as 30 % of the configurations; then every
configuration that it left out is measured, too (``--sampler random``). So the search cannot know
what the sweep finds::

    tune, predictor asks      x . . x . . . . x . . .      its best, its device time
    random asks for the rest  x x x x x x x x x x x x      the best there is, the time of all

Both are short cells of one run each: the truth has their noise. Two searches are on emulated
accelerators, one is on this machine's two CPU workers. Writes docs/validation/tuning.csv, a row a
configuration, and tuning_searches.csv; with ``--report``, from what was measured before.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

import pandas as pd
import yaml
from bed_study import ROOT, Study
from emulated import SITE_KEYS

OUT = ROOT / "docs" / "validation"
TRIALS_SHARE = 0.3


@dataclass(frozen=True)
class Search:
    """One strategy's options for one network."""

    site: str
    strategy: str
    network: str
    geometry: str
    vary: dict[str, list[int]]
    fabric: str = "default"

    @property
    def name(self) -> str:
        return f"{self.strategy} of {self.network} on {self.geometry}, {self.site}"

    @property
    def configurations(self) -> int:
        count = 1
        for values in self.vary.values():
            count *= len(values)
        return count

    def command(self, sampler: str, trials: int) -> list[str]:
        """The call of ``ddlbench recommend tune``."""
        varied = [f"{name}={','.join(map(str, values))}" for name, values in self.vary.items()]
        return [
            *("recommend", "tune", "--site", self.site, "--strategy", self.strategy),
            *("--network", self.network, "--dataset", "cifar10", "--geometry", self.geometry),
            *("--fabric", self.fabric, "--batch-size", str(self.vary["batch_size"][0])),
            *(word for option in varied for word in ("--vary", option)),
            *("--sampler", sampler, "--trials", str(trials), "--json"),
        ]

    def experiment(self) -> dict[str, Any]:
        """What profiles and links the predictor needs."""
        return {
            "experiment": "tuning",
            "site": self.site,
            "matrix": {
                "dataset": ["cifar10"],
                "network": [self.network],
                "strategy": ["sequential", self.strategy],
                "geometry": [self.geometry],
                "fabric": [self.fabric],
                "batch_size": self.vary["batch_size"],
            },
            "strategies": {
                self.strategy: {
                    name: values for name, values in self.vary.items() if name != "batch_size"
                }
            },
            "profile": {"budget_s": 30},
        }


MIB = 2**20
SEARCHES = [
    Search(
        *("accelerators", "pipe-1f1b", "vgg11", "1x4"),
        {"chunks": [4, 6, 8, 12], "batch_size": [24, 48, 72]},
    ),
    Search(
        *("accelerators", "ddp", "resnet18", "2x2"),
        {"bucket_cap_bytes": [MIB, 4 * MIB, 25 * MIB, 100 * MIB], "batch_size": [12, 24, 48]},
        fabric="gigabit",
    ),
    Search(
        *("local", "pipe-1f1b", "mobilenetv2", "1x2"),
        {"chunks": [2, 4, 8, 16], "batch_size": [16, 32, 64]},
    ),
]


def main() -> None:
    """Search, sweep, compare."""
    rows: list[dict[str, Any]] = []
    searches: list[dict[str, Any]] = []
    for search in SEARCHES:
        searched, swept = _searched(search)
        order = [trial["cell_id"] for trial in searched["trials"]]
        best = searched["best"]["samples_per_s"]
        most = max(configuration["samples_per_s"] for configuration in swept["configurations"])
        device_s, all_s = searched["device_s"], swept["device_s"]
        searches.append(
            {
                "search": search.name,
                "configurations": len(swept["configurations"]),
                "trials": len(order),
                "found": json.dumps(searched["best"]["values"]),
                "samples_per_s": best,
                "best_samples_per_s": most,
                "slower_than_best": 1 - best / most,
                "device_s": device_s,
                "device_s_all": all_s,
                "device_share": device_s / all_s,
                "stopped": searched["stopped"],
            }
        )
        rows += [_row(search, configuration, order) for configuration in swept["configurations"]]
    pd.DataFrame(rows).to_csv(OUT / "tuning.csv", index=False, float_format="%.5g")
    pd.DataFrame(searches).to_csv(OUT / "tuning_searches.csv", index=False, float_format="%.4g")


def _row(search: Search, configuration: dict[str, Any], order: list[str]) -> dict[str, Any]:
    """One configuration; ``trial`` is its place in the search, empty if only the sweep ran it."""
    short = [place for place, cell_id in enumerate(order, 1) if _same(cell_id, configuration)]
    return {
        "search": search.name,
        **configuration["values"],
        "predicted_samples_per_s": configuration["predicted_samples_per_s"],
        "samples_per_s": configuration["samples_per_s"],
        "basis": configuration["basis"],
        "trial": short[0] if short else "",
    }


def _same(trial_id: str, configuration: dict[str, Any]) -> bool:
    """Whether a short cell measured this configuration: what is not of length is the same."""
    return _settings(trial_id) == _settings(configuration["cell_id"])


def _settings(cell_id: str) -> set[str]:
    """Settings and options of a cell's id, but for how long it is."""
    length = ("epochs=", "warmup_steps=", "max_steps=", "data_scale=")
    written = next(part for part in cell_id.split("/") if "batch_size=" in part)
    return {pair for pair in written.split("+") if not pair.startswith(length)}


def _searched(search: Search) -> tuple[dict[str, Any], dict[str, Any]]:
    """The search's and the sweep's ``tuning.json``."""
    study = Study("emulated", search.experiment())
    site_file = study.folder / "config" / "sites" / f"{search.site}.yaml"
    site = yaml.safe_load(site_file.read_text(encoding="utf-8"))
    site_file.write_text(yaml.safe_dump({**site, **SITE_KEYS}), encoding="utf-8")
    kept = study.folder / "tunings" / f"{search.name}.json"
    if "--report" not in sys.argv[1:] and not kept.exists():
        study.run_here("links", "profiles")
        trials = int(TRIALS_SHARE * search.configurations)
        searched = study.ddlbench(*search.command("predictor", trials))
        swept = study.ddlbench(*search.command("random", search.configurations))
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(json.dumps([json.loads(searched), json.loads(swept)]), encoding="utf-8")
    searched, swept = json.loads(kept.read_text(encoding="utf-8"))
    return searched, swept


if __name__ == "__main__":
    main()
