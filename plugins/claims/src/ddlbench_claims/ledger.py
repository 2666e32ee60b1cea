"""The ledger: ``config/papers/claims.yaml``, a list of claims with their needs and predicates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any

import pandas as pd

from ddlbench.common.errors import ConfigError
from ddlbench.common.form import Form, InFile, Name
from ddlbench.common.schema import nearest, read_checked, read_yaml
from ddlbench.experiment.paths import project_root
from ddlbench.report.kept_verdicts import KNOWN_TO
from ddlbench_claims.evidence import COLUMNS, METRICS
from ddlbench_claims.needs import Needs
from ddlbench_claims.pooling import pooled
from ddlbench_claims.predicate import ENDED, Finding, Predicate, Verdict

VERDICTS: tuple[Verdict, ...] = (
    "holds",
    "refuted",
    "undecided",
    "not testable here",
    "not measured",
)
DECIDED = VERDICTS[:3]


@dataclass(frozen=True)
class Claim(Form):
    """One claim."""

    id: Annotated[str, InFile({"type": "string", "pattern": "^[a-z0-9][a-z0-9-]*$"})]
    """Its name, of small letters, digits and dashes."""
    claim: Name
    """In our words, one sentence."""
    source: Name
    """Paper and section."""
    experiment: Name
    """The published figure that would decide it, see `ddlbench papers`."""
    hardware: Name
    """Kind of devices and links of the original."""
    test: Predicate
    """Its predicate; ddlbench_claims/predicate.py explains each kind."""
    needs: Needs = field(default_factory=Needs)
    """What a row must have so that it can test the claim; ddlbench_claims/needs.py explains it."""
    remark: str = ""
    """What is read into the claim, or what the source says against itself."""


@dataclass(frozen=True)
class Ledger(Form):
    """What papers claim and a run can test; see plugins/claims/README.md."""

    claims: tuple[Claim, ...]
    """One entry a claim."""


def read_claims() -> list[Claim]:
    """The ledger.

    Raises:
        ConfigError: an entry is wrong, or two have one name.
    """
    path = project_root() / "config" / "papers" / "claims.yaml"
    claims = list(read_checked(Ledger, read_yaml(path), str(path)).claims)
    names = [claim.id for claim in claims]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{path}: two claims are called {name!r}; give one another id")
    for claim in claims:
        _check_columns(claim, str(path))
    return claims


def _check_columns(claim: Claim, where: str) -> None:
    test = claim.test
    ends = [side["status"] for side in (test.left, test.right) if "status" in side]
    for status in [*ends, *(test.values if test.kind == "ends" else ())]:
        if status not in ENDED:
            near = nearest(str(status), ENDED)
            raise ConfigError(f"{where}: claim {claim.id}: no run ends as {status!r}; {near}")
    used = [*test.where, *test.left, *test.right, *test.by, *claim.needs.each]
    used += [name for name in (test.along, test.among) if name]
    for known, names in (COLUMNS, used), (METRICS, [test.metric] if test.metric else []):
        for name in names:
            if name not in known:
                kind = "metric" if known is METRICS else "column"
                raise ConfigError(
                    f"{where}: claim {claim.id}: unknown {kind} {name!r}; {nearest(name, known)}"
                )


@dataclass(frozen=True)
class Judged:
    """A claim, and what the rows of one bed say of it.

    Args:
        claim: of the ledger.
        bed: a key of :data:`ddlbench.report.papers_page.KNOWN_TO`; empty where nothing was
            measured.
        finding: the verdict and its numbers.
        lacks: of a claim that is not testable here: what is missing, in words.
    """

    claim: Claim
    bed: str
    finding: Finding
    lacks: tuple[str, ...] = ()

    @property
    def rests_on(self) -> str:
        """``3 cases, one run a cell``; empty where nothing is decided."""
        finding = self.finding
        if finding.verdict not in DECIDED:
            return ""
        cases = "one case" if finding.n == 1 else f"{finding.n} cases"
        least, most = finding.runs_least, finding.runs_most
        count = str(most) if least == most else f"{least} to {most}"
        return f"{cases}, {'one run' if most == 1 else f'{count} runs'} a cell"

    def to_dict(self) -> dict[str, Any]:
        finding, claim = self.finding, self.claim
        return {
            "id": claim.id,
            "claim": claim.claim,
            "source": claim.source,
            "bed": self.bed,
            "verdict": finding.verdict,
            "lacks": list(self.lacks),
            "rests_on": self.rests_on,
            "cases": finding.n,
            "runs_least": finding.runs_least,
            "runs_most": finding.runs_most,
            "share": finding.share,
            "unsure": finding.unsure,
            "ambiguous": finding.ambiguous,
            "needed_share": claim.test.share,
            "value": finding.value,
            "range": None if finding.low is None else [finding.low, finding.high],
            "on": claim.hardware,
            "experiment": claim.experiment,
            "remark": claim.remark,
        }


def judge(claims: Iterable[Claim], rows: pd.DataFrame) -> list[Judged]:
    """The verdicts: one of each claim and bed that has rows, in the order of both.

    Args:
        claims: of the ledger.
        rows: of :mod:`ddlbench_claims.evidence`.
    """
    whole = pooled(rows)
    beds = [bed for bed in KNOWN_TO if (whole["bed"] == bed).any()] or [""]
    return [_judged(claim, bed, whole[whole["bed"] == bed]) for claim in claims for bed in beds]


def _judged(claim: Claim, bed: str, rows: pd.DataFrame) -> Judged:
    of_bed = claim.needs.of_bed(bed) if bed else []
    if of_bed:
        return Judged(claim, bed, Finding("not testable here"), tuple(of_bed))
    met, lacks = claim.needs.met(claim.test.select(rows))
    finding = claim.test.test(met)
    if finding.verdict == "not measured" and lacks and claim.test.test(rows).n > finding.n:
        return Judged(claim, bed, Finding("not testable here"), tuple(lacks))
    return Judged(claim, bed, finding)
