"""Every published figure at laptop scale on this machine, which should do nothing else meanwhile.

    python validation/papers.py [FIGURE ...]            all take an hour and more
    python validation/papers.py --repeats 3 FIGURE      each cell three times
    python validation/papers.py --repeats 3 --strategy horovod FIGURE     each of Horovod's, and the
                                                        devices alone that they are compared with
    python validation/papers.py --scale unlimited ddlbench/fig5           another scale of a figure
    python validation/papers.py --redraw [FIGURE ...]   from the kept cells, where those suffice

Runs each figure's own command in validation/.work/papers, where results stay: what was interrupted
measures only what is missing. Keeps in docs/papers/, for ddlbench/fig4::

    ddlbench-fig4/speedup.png, .csv    what its file in config/papers says it draws
    ddlbench-fig4/cells.csv            a row per cell: its measurements
    ddlbench-fig5/unlimited/...        another scale than laptop
    paradl-table3/printed.txt          what a command prints that draws nothing

A figure that compares two sites is measured on both. The picture of a schedule needs no cells, and
thesis/fig8.1 those of choice_cases.py.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import yaml
from bed_study import ROOT, Study

from ddlbench.commands.papers import command_of
from ddlbench.common.document import write_text
from ddlbench.experiment.config import LAPTOP, PaperFile, read_papers
from ddlbench.experiment.paths import result_file
from ddlbench.experiment.site import load_site
from ddlbench.planning.matrix import matrix_of
from ddlbench.report.drawing import draw_figure
from ddlbench.report.footer import Context
from ddlbench.report.papers_page import TEXT
from ddlbench.report.registry import names_of
from ddlbench.report.summary import summarise
from ddlbench.report.tables import (
    MEASUREMENTS,
    STEPS,
    VALIDATION,
    Tables,
    frame_of,
    read_table,
)


def main() -> None:
    """Measure what is missing of the figures that are named, or of all; keep what they show."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help="such as ddlbench/fig4")
    parser.add_argument("--redraw", action="store_true", help="from cells.csv; nothing is measured")
    parser.add_argument("--repeats", type=int, help="of each cell; by default the figure's own")
    parser.add_argument("--strategy", action="append", help="only its cells; may be given again")
    parser.add_argument("--scale", default=LAPTOP, help="of the figures; laptop by default")
    arguments = parser.parse_args()
    scale, only = arguments.scale, arguments.strategy
    wanted = arguments.figures
    files = read_papers()
    if unknown := set(wanted) - {file.paper.figure for file in files}:
        sys.exit(f"no such figure: {', '.join(sorted(unknown))}; see: ddlbench papers")
    folder = Study("papers", {}).folder
    for file in files:
        if wanted and file.paper.figure not in wanted:
            continue
        if arguments.redraw and "experiment" in file.values:
            redraw(file, scale)
        elif not file.without_cells_why(scale):
            if arguments.repeats:
                repeat(file, folder, arguments.repeats)
            measure(file, folder, scale, [*only, "sequential"] if only else None)
            keep(file, folder, scale)
        elif "--out" in file.paper.makes:
            subprocess.run(shlex.split(file.paper.makes), cwd=ROOT, check=False)
        elif file.paper.command:
            keep_text(file)


def keep_text(file: PaperFile) -> None:
    """Keep what the command of a figure prints that needs no cells and draws nothing."""
    ended = subprocess.run(
        shlex.split(file.paper.command), cwd=ROOT, check=False, capture_output=True, text=True
    )
    if ended.returncode:
        print(f"{file.paper.figure}: {ended.stderr.strip()}", flush=True)
        return
    write_text(ROOT / file.paper.kept / TEXT, ended.stdout)


def repeat(file: PaperFile, folder: Path, repeats: int) -> None:
    """Have the study's copy of a figure's file repeat each cell."""
    path = folder / file.paper.file
    values = yaml.safe_load(path.read_text("utf-8"))
    values["scales"][LAPTOP]["repeats"] = repeats
    path.write_text(yaml.safe_dump(values, sort_keys=False), "utf-8")


def measure(file: PaperFile, folder: Path, scale: str, only: list[str] | None) -> None:
    """Measure what is missing of a figure, or of some of its strategies, and draw it."""
    command = command_of(file, scale)
    also = file.paper.also_site
    for site in ("", f" site={also}") if also else ("",):
        snakemake, *options = shlex.split(command + site)
        targets = results_of(file, folder, scale, only) if only else []
        print(f"{file.paper.figure}: {command}{site}", flush=True)
        if subprocess.run([snakemake, *targets, *options], cwd=folder, check=False).returncode:
            print(f"{file.paper.figure}: not every cell was measured", flush=True)
    # Snakemake draws again only what was measured again.
    report = f"ddlbench report --configfile {file.paper.file} --scale {scale}"
    report += f" --also-site {also}" if also else ""
    subprocess.run(shlex.split(report), cwd=folder, check=False, stdout=subprocess.DEVNULL)


def results_of(
    file: PaperFile, folder: Path, scale: str, only: list[str], site_name: str = ""
) -> list[str]:
    """The results of some strategies' cells, which Snakemake makes; at the figure's site."""
    values = yaml.safe_load((folder / file.paper.file).read_text("utf-8"))
    _, site, rows = matrix_of({**values, "scale": scale}, str(file.paper.file))
    cells = [row.cell for row in rows if row.unsupported is None and row.cell.strategy in only]
    return [str(result_file(site_name or site.name, cell.id)) for cell in cells]


def kept_in(file: PaperFile, scale: str) -> Path:
    """The folder of what is kept of a figure at a scale."""
    return ROOT / file.paper.kept / ("" if scale == LAPTOP else scale)


def keep(file: PaperFile, folder: Path, scale: str) -> None:
    """Copy what a figure draws, and its measurements."""
    out = kept_in(file, scale)
    experiment = f"{file.values['experiment']}-{scale}"
    cells = []
    for source in sorted((folder / "results").glob(f"*/{experiment}")):
        paths = [
            path
            for name in file.paper.draws
            for path in sorted(source.rglob(f"{name}.*"))
            if path.suffix in (".png", ".csv")
        ]
        if not (paths or file.paper.also_site):
            continue
        out.mkdir(parents=True, exist_ok=True)
        for path in paths:
            shutil.copy(path, out / path.name)
        # As text: a column that one site lacks would turn whole numbers into others.
        table = source / "tables" / "measurements.csv"
        rows = pd.read_csv(table, dtype=str, keep_default_na=False)
        cells.append(rows[rows["status"] != "not run"])
    if cells:
        pd.concat(cells).to_csv(out / "cells.csv", index=False)


def redraw(file: PaperFile, scale: str) -> None:
    """Draw anew what a figure shows of its kept cells alone: no predictions, and no spans."""
    out = kept_in(file, scale)
    if not (out / "cells.csv").is_file():
        return
    cells = read_table(out / "cells.csv", MEASUREMENTS)
    parts = {str(site): _tables(of_site) for site, of_site in cells.groupby("site", sort=False)}
    contexts = {name: Context(load_site(name).description, paper=file.paper) for name in parts}
    first = next(iter(parts))
    for name in file.paper.draws:
        if name in names_of("experiment") and name != "timelines":
            draw_figure(name, out / f"{name}.png", parts[first], contexts[first])
        elif name == "sites":
            draw_figure(name, out / "sites.png", parts, contexts)


def _tables(cells: pd.DataFrame) -> Tables:
    cells = cells.reset_index(drop=True)
    return Tables(cells, summarise(cells), frame_of([], STEPS), frame_of([], VALIDATION))


if __name__ == "__main__":
    main()
