"""``ddlbench claims``: which of the papers' claims hold on a site's cells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.paths import enter_project
from ddlbench.experiment.schema import nearest
from ddlbench.experiment.screen import Column, named_lines, paragraph, table, two_digits
from ddlbench.experiment.site import load_site

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ddlbench.claims.ledger import Judged
    from ddlbench.experiment.site import Site

VERDICTS = ("holds", "refuted", "undecided", "not measured")


@click.command()
@click.argument("claim", required=False)
@click.option("--site", "site_name", default="local", show_default=True, help="Whose cells.")
@click.option(
    "--tables",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Kept tables instead of a site's results; may be given again.",
)
@click.option("--here", "here", default=None, help="What the tables were measured on.")
@click.option("--paper", default=None, help="Only claims of this paper, as ddlbench.")
@click.option("--all", "every_claim", is_flag=True, help="Also claims that nothing measured tests.")
@click.option("--csv", "csv_path", type=click.Path(path_type=Path), help="Also write a table.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def claims(
    *,
    claim: str | None,
    site_name: str,
    tables: tuple[Path, ...],
    here: str | None,
    paper: str | None,
    every_claim: bool,
    csv_path: Path | None,
    as_json: bool,
) -> None:
    """Test the published claims on what was measured.

    CLAIM, an id, prints one in full: what it says, its test, the numbers.
    """
    from ddlbench.claims.evidence import rows_of_site, rows_of_tables  # noqa: PLC0415 - slow
    from ddlbench.claims.ledger import judge, read_claims  # noqa: PLC0415

    enter_project()
    ledger = read_claims()
    if claim is not None and claim not in (names := [one.id for one in ledger]):
        raise ConfigError(f"unknown claim {claim!r}; {nearest(claim, names)}")
    if tables:
        rows = rows_of_tables(tables, here or "kept tables")
    else:
        site = load_site(site_name)
        rows = rows_of_site(site.name, here or kind_of(site))
    judged = [one for one in judge(ledger, rows) if claim in (None, one.claim.id)]
    if paper is not None:
        judged = [one for one in judged if one.claim.experiment.startswith(f"{paper}/")]
    if csv_path is not None:
        write_csv(judged, csv_path)
    if as_json:
        click.echo(json.dumps([one.to_dict() for one in judged], indent=1))
    elif claim is not None:
        click.echo("\n".join(claim_lines(judged[0])))
    else:
        click.echo("\n".join(ledger_lines(judged, every_claim=every_claim)))


def kind_of(site: Site) -> str:
    """What kind of devices and links a site has, for a verdict."""
    if site.accelerator is not None:
        return "emulated accelerators"
    devices = "CPUs" if site.device == "cpu" else "GPUs"
    return f"{devices}, emulated links" if site.fabrics else devices


def write_csv(judged: Sequence[Judged], path: Path) -> None:
    """One row a claim."""
    import pandas as pd  # noqa: PLC0415 - slow to import

    from ddlbench.report.tables import write_table  # noqa: PLC0415

    records = [one.to_dict() for one in judged]
    for record in records:
        low, high = record.pop("interval") or (None, None)
        record |= {"least": low, "most": high}
    first = ["claim", "source", "verdict"]
    frame = pd.DataFrame(records)
    write_table(path, frame[[*first, *(name for name in frame.columns if name not in first)]])


def ledger_lines(judged: Sequence[Judged], *, every_claim: bool) -> list[str]:
    """One line a claim that something measured tests."""
    shown = [one for one in judged if every_claim or one.found.verdict != "not measured"]
    columns = [
        Column("claim"), Column("verdict"), Column("of", right=True),
        Column("value", right=True), Column("here", drop=1),
    ]  # fmt: skip
    rows = [
        (one.claim.id, one.found.verdict, _units(one), _value(one), one.here[:22]) for one in shown
    ]
    lines = table(columns, rows) if shown else []
    counts = {name: sum(one.found.verdict == name for one in judged) for name in VERDICTS}
    told = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    lines += paragraph(
        f"{len(judged)} claims: {told}. `ddlbench claims ID` prints one in full; --all lists those "
        "that nothing measured tests."
    )
    kinds = {one.here for one in shown}
    if any("GPU" not in kind for kind in kinds):
        lines += paragraph(
            f"Measured on {', '.join(sorted(kinds))}; the papers' clusters had GPUs. A verdict is "
            "of this site alone."
        )
    return lines


def _units(one: Judged) -> str:
    found = one.found
    return f"{round(found.share * found.n)}/{found.n}" if found.n else ""


def _value(one: Judged) -> str:
    return "" if one.found.value is None else two_digits(one.found.value)


def claim_lines(one: Judged) -> list[str]:
    """A claim in full."""
    claim, found = one.claim, one.found
    test = claim.test
    wanted = {"least": test.least, "most": test.most}
    bounds = ", ".join(
        f"{name} {value:g}" for name, value in wanted.items() if abs(value) != float("inf")
    )
    numbers = ""
    if found.value is not None:
        numbers = f"{found.value:.3g} ({found.low:.3g} to {found.high:.3g})"
    said = [
        ("claim", claim.claim),
        ("source", claim.source),
        ("measured there on", claim.hardware),
        ("test", f"{test.kind} {test.metric}{': ' if bounds else ''}{bounds}".strip()),
        ("must hold in", f"{test.share:.0%} of the cases"),
        ("verdict", f"{found.verdict} on {one.here or 'nothing'}"),
        ("cases", f"{found.n}; true {found.share:.0%}, within the noise {found.unsure:.0%}"),
        ("median (range)", numbers),
        ("decided by", f"ddlbench papers {claim.experiment}"),
        ("remark", claim.remark),
    ]
    return [claim.id, "", *named_lines([(name, text) for name, text in said if text])]
