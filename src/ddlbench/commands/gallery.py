"""``ddlbench gallery``: every published figure with ours beside it, on one page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ddlbench import __version__
from ddlbench.experiment.paper import LAPTOP, PaperFile, read_papers
from ddlbench.experiment.paths import RESULTS, enter_project, project_root
from ddlbench.experiment.screen import two_digits

if TYPE_CHECKING:
    from ddlbench.claims.ledger import Judged
    from ddlbench.report.gallery import Exhibit


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=RESULTS, show_default=True)
@click.option("--site", "sites", multiple=True, help="Only cells of this site; may be repeated.")
def gallery(out: Path, sites: tuple[str, ...]) -> None:
    """Write one page of published figures beside ours, with verdicts.

    It draws nothing anew: `ddlbench report` of a figure's experiment does.
    """
    import pandas as pd  # noqa: PLC0415 - slow to import

    from ddlbench.claims.evidence import rows_of_site  # noqa: PLC0415
    from ddlbench.claims.ledger import judge, read_claims  # noqa: PLC0415
    from ddlbench.report.gallery import write_gallery  # noqa: PLC0415

    enter_project()
    names = list(sites) or sorted(path.name for path in RESULTS.glob("*") if path.is_dir())
    frames = [rows_of_site(name) for name in names]
    rows = pd.concat([frame for frame in frames if len(frame)]) if any(map(len, frames)) else None
    judged = [] if rows is None else judge(read_claims(), rows)
    exhibits = [_exhibit(file, names, judged) for file in read_papers()]
    told = {
        "days": pd.Timestamp.today().date().isoformat(),
        "version": __version__,
        "here": ", ".join(names) or "no site",
    }
    for path in write_gallery(exhibits, out, told):
        click.echo(path)


def _exhibit(file: PaperFile, sites: list[str], judged: list[Judged]) -> Exhibit:
    from ddlbench.commands.papers import command_of  # noqa: PLC0415 - slow to import
    from ddlbench.report.gallery import (  # noqa: PLC0415
        Exhibit,
        drawings_of,
        pictures_of,
        printed_of,
        published_pictures,
        tables_of,
    )

    paper = file.paper
    experiment = str(file.values.get("experiment", ""))
    return Exhibit(
        figure=paper.figure,
        title=paper.title,
        source=paper.source,
        question=paper.question,
        original=paper.original,
        read=paper.read,
        command=command_of(file, LAPTOP),
        why_not=file.without_cells_why(LAPTOP) if paper.same_as or paper.not_drawn else "",
        pictures=(
            *(
                pictures_of(experiment, paper.draws, sites)
                if experiment
                else drawings_of(paper.command)
            ),
            *published_pictures(project_root(), paper.pictures),
        ),
        tables=tables_of(experiment, paper.draws, sites)
        if experiment
        else printed_of(paper.kept / paper.printed.name if paper.table else None),
        claims=tuple(
            (one.claim.id, one.claim.claim, one.found.verdict, _numbers(one))
            for one in judged
            if one.claim.experiment == paper.figure
        ),
    )


def _numbers(one: Judged) -> str:
    """``CPU: 0.93; 3 cases, one run a cell``, or what is missing there."""
    value = "" if one.found.value is None else f"{two_digits(one.found.value)}; "
    told = "; ".join(one.lacks) or f"{value}{one.rests_on}"
    return f"{one.bed}: {told}" if told else one.bed
