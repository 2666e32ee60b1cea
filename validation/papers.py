"""Every published figure at laptop scale on this machine, which should do nothing else meanwhile.

    python validation/papers.py [FIGURE ...]        all take an hour and more

Runs each figure's own command in validation/.work/papers, where results stay: what was interrupted
measures only what is missing. Keeps in docs/papers/, for ddlbench/fig4::

    ddlbench-fig4/speedup.png, .csv    what its file in config/papers says it draws
    ddlbench-fig4/cells.csv            a row a cell: its measurements
    paradl-table3/printed.txt          what a command prints that draws nothing

A figure that compares two sites is measured on both. The picture of a schedule needs no cells, and
thesis/fig8.1 those of choice_cases.py. `make tables` then compares all with the printed values.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
from bed_study import ROOT, Study

from ddlbench.commands.papers import command_of
from ddlbench.experiment.document import write_text
from ddlbench.experiment.paper import LAPTOP, PaperFile, read_papers
from ddlbench.report.figure_results import TEXT, kept_folder


def main() -> None:
    """Measure what is missing of the figures that are named, or of all; keep what they show."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help="such as ddlbench/fig4")
    wanted = parser.parse_args().figures
    files = read_papers()
    if unknown := set(wanted) - {file.paper.figure for file in files}:
        sys.exit(f"no such figure: {', '.join(sorted(unknown))}; see: ddlbench papers")
    folder = Study("papers", {}).folder
    for file in files:
        if wanted and file.paper.figure not in wanted:
            continue
        if not file.without_cells_why(LAPTOP):
            measure(file, folder)
            keep(file, folder)
        elif "--out" in file.paper.command:
            subprocess.run(shlex.split(file.paper.command), cwd=ROOT, check=False)
        else:
            keep_text(file)


def keep_text(file: PaperFile) -> None:
    """Keep what the command of a figure prints that needs no cells and draws nothing."""
    ended = subprocess.run(
        shlex.split(file.paper.command), cwd=ROOT, check=False, capture_output=True, text=True
    )
    if ended.returncode:
        print(f"{file.paper.figure}: {ended.stderr.strip()}", flush=True)
        return
    write_text(kept_folder(file.paper.figure) / TEXT, ended.stdout)


def measure(file: PaperFile, folder: Path) -> None:
    """Measure what is missing of a figure, and draw it."""
    command = command_of(file, LAPTOP)
    also = file.paper.also_site
    for site in ("", f" site={also}") if also else ("",):
        print(f"{file.paper.figure}: {command}{site}", flush=True)
        if subprocess.run(shlex.split(command + site), cwd=folder, check=False).returncode:
            print(f"{file.paper.figure}: not every cell was measured", flush=True)
    # Snakemake draws again only what was measured again.
    report = f"ddlbench report --configfile {file.paper.file} --scale {LAPTOP}"
    report += f" --also-site {also}" if also else ""
    subprocess.run(shlex.split(report), cwd=folder, check=False, stdout=subprocess.DEVNULL)


def keep(file: PaperFile, folder: Path) -> None:
    """Copy what a figure draws, and its measurements."""
    out = kept_folder(file.paper.figure)
    experiment = f"{file.values['experiment']}-{LAPTOP}"
    cells = []
    for source in sorted((folder / "results").glob(f"*/{experiment}")):
        found = [
            path
            for name in file.paper.draws
            for path in sorted(source.rglob(f"{name}.*"))
            if path.suffix in (".png", ".csv")
        ]
        if not (found or file.paper.also_site):
            continue
        out.mkdir(parents=True, exist_ok=True)
        for path in found:
            shutil.copy(path, out / path.name)
        # As text: a column that one site lacks would turn whole numbers into others.
        table = source / "tables" / "measurements.csv"
        cells.append(pd.read_csv(table, dtype=str, keep_default_na=False))
    if cells:
        pd.concat(cells).to_csv(out / "cells.csv", index=False)


if __name__ == "__main__":
    main()
