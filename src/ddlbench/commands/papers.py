"""``ddlbench papers``: every published figure, its command, and what is there already.

With ``--all`` one page of all of them: ours beside the printed values, and the verdicts.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pandas as pd

from ddlbench import __version__
from ddlbench.commands.options import matrix_at
from ddlbench.common.document import csv_text
from ddlbench.common.errors import ConfigError
from ddlbench.common.quantities import duration_text
from ddlbench.common.schema import nearest
from ddlbench.common.screen import examples, named_lines, paragraph, table
from ddlbench.experiment.cell import parse_geometry
from ddlbench.experiment.config import (
    EXAMPLE_SITE,
    FULL,
    LAPTOP,
    NO_CELLS,
    SCALES,
    PaperFile,
    parse_experiment,
    read_papers,
)
from ddlbench.experiment.paths import RESULTS, enter_project, project_root
from ddlbench.experiment.site import load_site
from ddlbench.planning.budget import Budget, estimate
from ddlbench.planning.matrix import MatrixRow, expand
from ddlbench.report.comparison import compared
from ddlbench.report.kept_verdicts import KeptVerdict, kept_verdicts
from ddlbench.report.papers_page import (
    Exhibit,
    beside_of,
    pictures_of,
    published_pictures,
    shown_results,
    tables_of,
    write_page,
)
from ddlbench.report.published import TABLE_COLUMNS, printed_table, printed_values
from ddlbench.report.tables import write_table

if TYPE_CHECKING:
    from ddlbench.experiment.site import Site

PAGE = RESULTS / "papers.html"


@dataclass(frozen=True)
class Row:
    """One figure at one scale.

    Args:
        figure, title: of the paper.
        scale: full or laptop.
        command: makes it.
        site: where its cells run; empty without cells, and for a cluster that is not named.
        cells, cells_there: of its experiment; None where it has none at this scale.
        expected_s: seconds of the cells that are missing, one after the other; None if unknown.
        why: why it has no cells at this scale; empty if it has.
        same_as: the figure that is the same picture; else empty.
    """

    figure: str
    title: str
    scale: str
    command: str
    site: str = ""
    cells: int | None = None
    cells_there: int | None = None
    expected_s: float | None = None
    why: str = ""
    same_as: str = ""


@click.command(
    epilog=examples("ddlbench papers", "ddlbench papers ddlbench/fig4", "ddlbench papers --all")
)
@click.argument("figure", required=False)
@click.option(
    "--scale", type=click.Choice(SCALES), default=LAPTOP, show_default=True, help="Of the cells."
)
@click.option("--site", "site_name", default=None, help="Where; by default the scale's own site.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.option("--all", "every_figure", is_flag=True, help="Write one page of all figures.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help=f"Of --all: the page, {PAGE} if left out. Of a printed table: a folder for its CSV file.",
)
def papers(
    *,
    figure: str | None,
    scale: str,
    site_name: str | None,
    as_json: bool,
    every_figure: bool,
    out: Path | None,
) -> None:
    """List the published figures and tables, and how to make each.

    FIGURE, such as ddlbench/fig4, prints what it asks and how to read it; ddlbench/table1, which is
    no measurement, its printed values beside ours. --all writes a page of what the repository keeps
    or this checkout measured since: ours beside the printed values.
    """
    out = None if out is None else out.absolute()  # seen from where the user is
    enter_project()
    _check_options(figure, as_json, every_figure, out)
    files = read_papers()
    if every_figure:
        click.echo(write_all(files, out or PAGE, scale, site_name))
        return
    if figure is not None:
        names = [file.paper.figure for file in files]
        if figure not in names:
            raise ConfigError(f"unknown figure {figure!r}; {nearest(figure, names)}")
        files = [file for file in files if file.paper.figure == figure]
    if out is not None and not (figure and files[0].paper.table):
        tables = ", ".join(file.paper.figure for file in read_papers() if file.paper.table)
        raise ConfigError(f"--out: only for a printed table: write one of {tables}")
    rows = [row_of(file, scale, site_name) for file in files]
    if as_json:
        both = zip(files, rows, strict=True)
        records = [{**file.paper.to_dict(), **asdict(row)} for file, row in both]
        click.echo(json.dumps(records, indent=1))
    elif figure is not None:
        click.echo("\n".join(figure_lines(files[0], rows[0])))
        if files[0].paper.table:
            click.echo("\n".join(_printed_table(files[0], out)))
    else:
        click.echo("\n".join(paper_lines(rows, scale)))


def _printed_table(file: PaperFile, out: Path | None) -> list[str]:
    """The printed values beside ours; written into a folder if there is one."""
    values = printed_table(file.paper.table, file.paper.printed)
    lines = ["", *table(" | ".join(TABLE_COLUMNS[:-1]), values[TABLE_COLUMNS[:-1]].to_numpy())]
    for row in values[values["note"] != ""].itertuples():
        lines += paragraph(f"{row.of}, {row.quantity}: {row.note}.")
    if out is not None:
        path = out / file.paper.printed.name
        write_table(path, values)
        lines += ["", f"{path} is written"]
    return lines


def _check_options(figure: str | None, as_json: bool, every_figure: bool, out: Path | None) -> None:
    if every_figure and (figure is not None or as_json):
        other = "--json" if figure is None else figure
        raise ConfigError(f"--all writes a page of every figure; leave out {other}")
    if every_figure and out is not None and out.is_dir():
        raise ConfigError(f"--out {out} is a folder; write a file in it, as {out / PAGE.name}")
    if out is not None and not every_figure and figure is None:
        raise ConfigError(f"--out {out}: of which figure? name a table, or add --all")


def write_all(
    files: list[PaperFile], out: Path, scale: str = LAPTOP, site_name: str | None = None
) -> Path:
    """Write one page of all figures.

    Args:
        files: of the figures.
        out: the page.
        scale: of the commands that it shows.
        site_name: only results of this site are looked at, and commands are for it.
    """
    sites = sorted(path.name for path in RESULTS.glob("*") if path.is_dir())
    if site_name is not None:
        sites = [load_site(site_name).name]
    printed, verdicts = printed_values(), kept_verdicts()
    exhibits = [
        _exhibit(file, command_of(file, scale, site_name), sites, printed, verdicts)
        for file in files
    ]
    day = pd.Timestamp.today().date().isoformat()
    return write_page(exhibits, out, {"days": day, "version": __version__})


def _exhibit(
    file: PaperFile,
    command: str,
    sites: list[str],
    printed: pd.DataFrame,
    verdicts: list[KeptVerdict],
) -> Exhibit:
    paper = file.paper
    shown = shown_results(file, sites)
    return Exhibit(
        paper=paper,
        command=command,
        why_not=file.without_cells_why(LAPTOP) if paper.same_as or paper.not_drawn else "",
        pictures=(*pictures_of(shown), *published_pictures(project_root(), paper.pictures)),
        tables=tables_of(shown),
        text="\n".join(each.text() for each in shown),
        beside=beside_of(compared(file, shown, printed)),
        claims=tuple(
            (each.claim, each.verdict, each.bed, each.numbers)
            for each in verdicts
            if each.figure == paper.figure
        ),
    )


def row_of(file: PaperFile, scale: str, site_name: str | None = None) -> Row:
    """What a figure costs at a scale on its site, and what of it is there."""
    paper = file.paper
    why = file.without_cells_why(scale)
    command = command_of(file, scale, site_name)
    if why:
        return Row(paper.figure, paper.title, scale, command, why=why, same_as=paper.same_as)
    cost = _cost(file, scale, site_name)
    return Row(
        paper.figure,
        paper.title,
        scale,
        command,
        site="" if cost.site == EXAMPLE_SITE else cost.site,
        cells=cost.cells - cost.unsupported,
        cells_there=cost.done,
        expected_s=cost.run_s_expected,
    )


def command_of(file: PaperFile, scale: str, site_name: str | None = None) -> str:
    """What makes a figure, empty if nothing does; with cells, Snakemake's command at a scale.

    Of a figure that is for a cluster at that scale, the user's own site is left open.
    """
    if file.paper.same_as:
        return f"ddlbench papers {file.paper.same_as}"
    if "experiment" not in file.values:
        return file.paper.makes
    here = None if file.without_cells_why(scale) else file.site(scale)
    settings = [f"scale={scale}"] if scale != FULL else []
    if site_name or here is None:
        settings.append(f"site={site_name or 'YOUR_SITE'}")
    profile = "slurm" if here is None else "local"
    command = f"snakemake --profile profiles/{profile} --configfile {file.paper.file}"
    return f"{command} --config {' '.join(settings)}" if settings else command


def _cost(file: PaperFile, scale: str, site_name: str | None) -> Budget:
    if site_name is None and file.site(scale) is None:
        site, rows = on_a_cluster(file, scale)
    else:
        _, site, rows = matrix_at(file.paper.file, site_name, scale)
    return estimate(rows, site, RESULTS)


def on_a_cluster(file: PaperFile, scale: str) -> tuple[Site, list[MatrixRow]]:
    """The cells of a figure on some cluster that is large enough for all of them."""
    config = {**file.values, "scale": scale, "site": EXAMPLE_SITE}
    experiment = parse_experiment(config, str(file.paper.file))
    written = [*experiment.matrix["geometry"], *(entry["geometry"] for entry in experiment.include)]
    nodes, devices = zip(*(parse_geometry(text, experiment.where) for text in written), strict=True)
    example = load_site(EXAMPLE_SITE, as_example=True)
    site = replace(example, nodes=max(nodes), devices_per_node=max(devices))
    return site, expand(experiment, site)


def paper_lines(rows: list[Row], scale: str) -> list[str]:
    """One line per figure."""
    headings = "figure | shows | > cells | > there | > time here"
    shown = [
        (
            row.figure,
            _fitted(f"as {row.same_as}" if row.same_as else row.title),
            "" if row.cells is None else str(row.cells),
            "" if row.cells is None else str(row.cells_there),
            _time(row),
        )
        for row in rows
    ]
    parts = (
        f"Scale {scale} (--scale). `ddlbench papers FIGURE` says what a figure asks, its command, "
        "and how to read it."
    )
    return [*table(headings, shown), *paragraph(parts)]


_TITLE = 36  # as much as 80 columns leave


def _fitted(title: str) -> str:
    return title if len(title) <= _TITLE else title[: _TITLE - 2].rstrip() + ".."


def _time(row: Row) -> str:
    if row.cells is None:
        if row.why == NO_CELLS:
            return "at once"
        if row.command.startswith("snakemake"):
            return "full only"
        return "" if row.command else "not drawn"
    return "there" if row.cells == row.cells_there else duration_text(row.expected_s)


def figure_lines(file: PaperFile, row: Row) -> list[str]:
    """The paragraph of one figure."""
    paper = file.paper
    lines = [f"{paper.figure}: {paper.title}", ""]
    parts = [
        ("source", paper.source),
        ("question", paper.question),
        ("original", paper.original),
        ("how to read", paper.read),
        ("drawn as", ", ".join(paper.draws)),
        ("cells", _cells(row)),
    ]
    lines += named_lines([(name, text) for name, text in parts if text])
    if paper.not_drawn or paper.same_as:
        lines += ["", *paragraph(f"{row.why[0].upper()}{row.why[1:].rstrip('.')}.")]
    elif row.why and row.why != NO_CELLS:
        lines += ["", *paragraph(f"No {row.scale} scale: {row.why}.")]
    return [*lines, "", f"  {row.command}"] if row.command else lines


def _cells(row: Row) -> str:
    if row.cells is None:
        return ""
    if not row.site:
        return f"{row.cells} on a cluster of yours: --site NAME says what it costs there"
    known = "unknown" if row.expected_s is None else f"about {duration_text(row.expected_s)}"
    left = "" if row.cells == row.cells_there else f"; time of the rest: {known}"
    return f"{row.cells_there} of {row.cells} are there on {row.site}{left}"


def papers_table() -> str:
    """docs/papers/figures.csv: figure, question, command at laptop scale."""
    rows = [("figure", "printed as", "question", "at laptop scale")]
    for file in read_papers():
        paper = file.paper
        command = command_of(file, LAPTOP)
        if paper.same_as or paper.not_drawn:
            command = file.without_cells_why(LAPTOP).rstrip(".")
        elif why := file.scales.get(LAPTOP, {}).get("reason", ""):
            command = f"full scale only: {why}"
        rows.append((paper.figure, paper.source, paper.question, command))
    return csv_text(rows)
