"""Whether an emulated site is slow enough: its speed-ups beside those at twice its ``slow_down``.

    python validation/slow_down.py

An emulated device sleeps, but messages, optimiser and loading take this machine's cores. They must
be no limit. Then twice the ``slow_down`` gives the same speed-ups. Runs Horovod's cells of
``ddlbench/fig5`` on the figure's site with twice its ``slow_down``, and keeps
docs/validation/emulated/slow_down.csv, a row per cell, beside what the figure keeps.
"""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pandas as pd
import yaml
from bed_study import ROOT, Study
from papers import results_of

from ddlbench.commands.papers import command_of
from ddlbench.experiment.config import LAPTOP, read_papers
from ddlbench.report.summary import summarise
from ddlbench.report.tables import MEASUREMENTS, read_table

FIGURE = "ddlbench/fig5"
STRATEGIES = ["sequential", "horovod"]
SLOWER = "twice-as-slow"
KEPT = ROOT / "docs" / "validation" / "emulated" / "slow_down.csv"
KEYS = ["dataset", "network", "strategy", "geometry"]


def main() -> None:
    """Measure what is missing at twice the ``slow_down``; keep both speed-ups of each cell."""
    folder = Study("slow_down", {}).folder
    file = next(file for file in read_papers() if file.paper.figure == FIGURE)
    sites = folder / "config" / "sites"
    site = yaml.safe_load((sites / f"{file.site(LAPTOP)}.yaml").read_text("utf-8"))
    usual = site["accelerator"]["slow_down"]
    site["accelerator"]["slow_down"] = 2 * usual
    site["cell_timeout_s"] *= 2
    (sites / f"{SLOWER}.yaml").write_text(yaml.safe_dump(site), "utf-8")
    command, *options = shlex.split(f"{command_of(file, LAPTOP)} site={SLOWER}")
    targets = results_of(file, folder, LAPTOP, STRATEGIES, SLOWER)
    subprocess.run([command, *targets, *options], cwd=folder, check=True)
    report = f"ddlbench report --configfile {file.paper.file} --scale {LAPTOP} --site {SLOWER}"
    subprocess.run(shlex.split(report), cwd=folder, check=True, stdout=subprocess.DEVNULL)
    experiment = f"{file.values['experiment']}-{LAPTOP}"
    slower = folder / "results" / SLOWER / experiment / "tables" / "measurements.csv"
    both = pd.merge(
        _speedups(ROOT / file.paper.kept / "cells.csv"),
        _speedups(slower),
        left_index=True,
        right_index=True,
        suffixes=(f"_at_{usual}", f"_at_{2 * usual}"),
    )
    both["ratio"] = both[f"speedup_at_{2 * usual}"] / both[f"speedup_at_{usual}"]
    both.reset_index().to_csv(KEPT, index=False, float_format="%.4g")
    print(both.to_string())


def _speedups(path: Path) -> pd.DataFrame:
    """Median speed-up over the repeats of each cell, and their number."""
    summary = summarise(read_table(path, MEASUREMENTS))
    shown = summary[summary["speedup"].notna() & (summary["strategy"] != STRATEGIES[0])]
    return shown.set_index(KEYS)[["speedup", "speedup_n"]]


if __name__ == "__main__":
    main()
