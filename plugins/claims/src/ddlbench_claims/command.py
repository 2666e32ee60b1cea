"""``ddlbench claims``: which of the papers' claims hold on what was measured, one bed at a time."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pandas as pd

from ddlbench.common.errors import ConfigError
from ddlbench.common.quantities import two_digits
from ddlbench.common.schema import nearest
from ddlbench.common.screen import examples, named_lines, paragraph, show, table
from ddlbench.experiment.paths import enter_project
from ddlbench.experiment.site import load_site
from ddlbench.report.kept_verdicts import KNOWN_TO
from ddlbench.report.tables import write_table
from ddlbench_claims.evidence import rows_of_site, rows_of_tables
from ddlbench_claims.ledger import DECIDED, VERDICTS, Claim, Judged, judge, read_claims

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any


@click.command(epilog=examples("ddlbench claims", "ddlbench claims --json"))
@click.argument("claim", required=False)
@click.option("--site", "site_name", default="local", show_default=True, help="Whose cells.")
@click.option(
    "--tables",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Kept tables instead of a site's results; may be given again.",
)
@click.option(
    "--bed",
    type=click.Choice(list(KNOWN_TO)),
    help="What tables were measured on that do not say it themselves.",
)
@click.option("--paper", default=None, help="Only claims of this paper, as ddlbench.")
@click.option("--all", "every_claim", is_flag=True, help="Also claims that nothing decides.")
@click.option("--csv", "csv_path", type=click.Path(path_type=Path), help="Also write a table.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def claims(
    *,
    claim: str | None,
    site_name: str,
    tables: tuple[Path, ...],
    bed: str | None,
    paper: str | None,
    every_claim: bool,
    csv_path: Path | None,
    as_json: bool,
) -> None:
    """Test the published claims on what was measured.

    A verdict is of one bed: CPU, emulated accelerator, emulated GPU, or GPU. CLAIM, an id, prints
    one in full: what it says and needs, its test, the numbers.
    """
    enter_project()
    ledger = read_claims()
    names = [each.id for each in ledger]
    if claim is not None and claim not in names:
        raise ConfigError(f"unknown claim {claim!r}; {nearest(claim, names)}")
    papers = sorted({each.experiment.partition("/")[0] for each in ledger})
    if paper is not None and paper not in papers:
        raise ConfigError(f"unknown paper {paper!r}; {nearest(paper, papers)}")
    chosen = [each for each in ledger if claim in (None, each.id)]
    if paper is not None:
        chosen = [each for each in chosen if each.experiment.startswith(f"{paper}/")]
    rows = rows_of_tables(tables, bed) if tables else rows_of_site(load_site(site_name).name)
    judged = judge(chosen, rows)
    if csv_path is not None:
        write_csv(judged, csv_path)
    lines = claim_lines(judged) if claim else ledger_lines(judged, every_claim=every_claim)
    show([each.to_dict() for each in judged], lines, as_json=as_json)


def write_csv(judged: Sequence[Judged], path: Path) -> None:
    """A row per claim and bed."""
    records = [each.to_dict() for each in judged]
    for record in records:
        least, most = record.pop("range") or (None, None)
        record |= {"least": least, "most": most, "lacks": "; ".join(record["lacks"])}
    first = ["claim", "source", "bed", "verdict", "lacks", "rests_on"]
    frame = pd.DataFrame(records)
    write_table(path, frame[[*first, *(name for name in frame.columns if name not in first)]])


def ledger_lines(judged: Sequence[Judged], *, every_claim: bool) -> list[str]:
    """A table per bed, of the claims that its rows decide; with ``every_claim`` of all."""
    lines: list[str] = []
    for bed in dict.fromkeys(each.bed for each in judged):
        lines += ["", *_bed_lines([each for each in judged if each.bed == bed], every_claim)]
    count = len({each.claim.id for each in judged})
    more = "" if every_claim else "; --all lists those that nothing decides, too"
    lead = (
        f"{count} claims; a verdict is of one bed. `ddlbench claims ID` prints one in full{more}."
    )
    return [*lines[1:], "", *paragraph(lead)]


def _bed_lines(judged: Sequence[Judged], every_claim: bool) -> list[str]:
    bed = judged[0].bed
    headings = "claim | verdict | > true | > value | > runs"
    shown = [each for each in judged if every_claim or each.finding.verdict in DECIDED]
    rows = [
        (
            each.claim.id,
            each.finding.verdict,
            _cases(each),
            "" if each.finding.value is None else two_digits(each.finding.value),
            _runs(each),
        )
        for each in shown
    ]
    counts = Counter(each.finding.verdict for each in judged)
    counted_verdicts = ", ".join(f"{counts[name]} {name}" for name in VERDICTS if counts[name])
    head = f"{bed}: one run is known to {KNOWN_TO[bed]:.1%}" if bed else "Nothing is measured"
    decided = [each.finding for each in judged if each.finding.verdict in DECIDED]
    single = [finding for finding in decided if min(finding.n, finding.runs_least) <= 1]
    lacking = Counter(words for each in judged for words in each.lacks)
    lines = [head, *table(headings, rows), *paragraph(f"{counted_verdicts}.")]
    if single:
        lines += paragraph(f"{len(single)} rest on one case, or on one run a cell.")
    if lacking:
        listed = "; ".join(f"{words} ({count})" for words, count in lacking.most_common())
        lines += paragraph(f"Missing here: {listed}.")
    return lines


def _cases(judged: Judged) -> str:
    """``3 of 4`` cases, or ``mean of 8``."""
    finding, of = judged.finding, judged.claim.test.of
    if not finding.n:
        return ""
    return (
        f"{round(finding.share * finding.n)} of {finding.n}"
        if of == "each"
        else f"{of} of {finding.n}"
    )


def _runs(judged: Judged) -> str:
    finding = judged.finding
    if not finding.n:
        return ""
    least, most = finding.runs_least, finding.runs_most
    return str(most) if least == most else f"{least}-{most}"


def claim_lines(judged: Sequence[Judged]) -> list[str]:
    """A claim in full, and what each bed says of it."""
    claim = judged[0].claim
    entries = [
        ("claim", claim.claim),
        ("source", claim.source),
        ("measured there on", claim.hardware),
        ("test", _test_text(claim)),
        ("on cells with", _filter_text(claim.test.where)),
        ("one side", _filter_text(claim.test.left)),
        ("over the other", _filter_text(claim.test.right)),
        ("needs", "; ".join(claim.needs.in_words()) or "nothing"),
        ("decided by", f"ddlbench papers {claim.experiment}"),
        ("remark", claim.remark),
    ]
    lines = [claim.id, "", *named_lines([(name, text) for name, text in entries if text])]
    for each in judged:
        lines += ["", each.bed or "nothing measured"]
        lines += named_lines([(name, text) for name, text in _bed_entries(each) if text], "  ")
    return lines


def _filter_text(where: Mapping[str, Any]) -> str:
    parts = (
        f"{name} {', '.join(map(str, values)) if isinstance(values, list) else values}"
        for name, values in where.items()
    )
    return "; ".join(parts)


def _test_text(claim: Claim) -> str:
    test = claim.test
    ends = {"at least": test.least, "at most": test.most}
    bounds = [f"{name} {value:g}" for name, value in ends.items() if abs(value) != float("inf")]
    if test.values:
        bounds.append(f"is {' or '.join(map(str, test.values))}")
    whole = test.metric if test.of == "each" else f"{test.of} {test.metric}"
    if test.along:
        whole += f" along {test.along}, {' then '.join(map(str, test.order))}"
    words = f"{test.kind} {whole}".strip() + (f": {', '.join(bounds)}" if bounds else "")
    return words if test.of != "each" else f"{words}; in {test.share:.0%} of the cases"


def _bed_entries(judged: Judged) -> list[tuple[str, str]]:
    finding = judged.finding
    numbers, several = "", ""
    if finding.value is not None:
        numbers = f"{finding.value:.3g} ({finding.low:.3g} to {finding.high:.3g})"
    if finding.ambiguous:
        several = (
            f"{finding.ambiguous} cases have several configurations a side: such a case is true or "
            "false only if all of them are"
        )
    of_cases = judged.claim.test.of == "each" and finding.n
    return [
        ("verdict", finding.verdict),
        ("missing", "; ".join(judged.lacks)),
        ("rests on", judged.rests_on),
        ("true", f"{finding.share:.0%}, within the noise {finding.unsure:.0%}" if of_cases else ""),
        ("value (range)", numbers),
        ("several", several),
    ]
