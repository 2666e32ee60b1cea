"""The ledger: ``config/papers/claims.yaml``, a list of claims with their needs and predicates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from ddlbench.claims.beds import KNOWN_TO
from ddlbench.claims.evidence import COLUMNS
from ddlbench.claims.needs import Needs
from ddlbench.claims.pooling import pooled
from ddlbench.claims.predicate import ENDED, Found, Predicate, Verdict
from ddlbench.common.errors import ConfigError
from ddlbench.common.form import Form
from ddlbench.common.project import project_root
from ddlbench.common.schema import check_against, nearest, read_yaml

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
    """One claim.

    Args:
        id: its name.
        claim: in our words, one sentence.
        source: paper and section.
        experiment: the published figure that would decide it, see ``ddlbench papers``.
        hardware: kind of devices and links of the original.
        test: its predicate.
        needs: what a row must have so that it can test the claim.
        remark: what is read into the claim, or what the source says against itself.
    """

    id: str
    claim: str
    source: str
    experiment: str
    hardware: str
    test: Predicate
    needs: Needs = field(default_factory=Needs)
    remark: str = ""


def read_claims() -> list[Claim]:
    """The ledger.

    Raises:
        ConfigError: an entry is wrong, or two have one name.
    """
    path = project_root() / "config" / "papers" / "claims.yaml"
    values = read_yaml(path)
    check_against("claims", values, str(path))
    claims = [Claim.from_dict(entry) for entry in values["claims"]]
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
    used += [name for name in (test.metric, test.along, test.among) if name]
    for name in used:
        if name not in COLUMNS:
            raise ConfigError(
                f"{where}: claim {claim.id}: unknown column {name!r}; {nearest(name, COLUMNS)}"
            )


@dataclass(frozen=True)
class Judged:
    """A claim, and what the rows of one bed say of it.

    Args:
        claim: of the ledger.
        bed: a key of :data:`ddlbench.claims.beds.KNOWN_TO`; empty where nothing was measured.
        found: the verdict and its numbers.
        lacks: of a claim that is not testable here: what is missing, in words.
    """

    claim: Claim
    bed: str
    found: Found
    lacks: tuple[str, ...] = ()

    @property
    def rests_on(self) -> str:
        """``3 cases, one run a cell``; empty where nothing is decided."""
        found = self.found
        if found.verdict not in DECIDED:
            return ""
        cases = "one case" if found.n == 1 else f"{found.n} cases"
        least, most = found.runs_least, found.runs_most
        count = str(most) if least == most else f"{least} to {most}"
        return f"{cases}, {'one run' if most == 1 else f'{count} runs'} a cell"

    def to_dict(self) -> dict[str, Any]:
        found, claim = self.found, self.claim
        return {
            "id": claim.id,
            "claim": claim.claim,
            "source": claim.source,
            "bed": self.bed,
            "verdict": found.verdict,
            "lacks": list(self.lacks),
            "rests_on": self.rests_on,
            "cases": found.n,
            "runs_least": found.runs_least,
            "runs_most": found.runs_most,
            "share": found.share,
            "unsure": found.unsure,
            "ambiguous": found.ambiguous,
            "needed_share": claim.test.share,
            "value": found.value,
            "range": None if found.low is None else [found.low, found.high],
            "on": claim.hardware,
            "experiment": claim.experiment,
            "remark": claim.remark,
        }


def judge(claims: Iterable[Claim], rows: pd.DataFrame) -> list[Judged]:
    """The verdicts: one of each claim and bed that has rows, in the order of both.

    Args:
        claims: of the ledger.
        rows: of :mod:`ddlbench.claims.evidence`.
    """
    whole = pooled(rows)
    beds = [bed for bed in KNOWN_TO if (whole["bed"] == bed).any()] or [""]
    return [_judged(claim, bed, whole[whole["bed"] == bed]) for claim in claims for bed in beds]


def _judged(claim: Claim, bed: str, rows: pd.DataFrame) -> Judged:
    of_bed = claim.needs.of_bed(bed) if bed else []
    if of_bed:
        return Judged(claim, bed, Found("not testable here"), tuple(of_bed))
    met, lacks = claim.needs.met(claim.test.select(rows))
    found = claim.test.test(met)
    if found.verdict == "not measured" and lacks and claim.test.test(rows).n > found.n:
        return Judged(claim, bed, Found("not testable here"), tuple(lacks))
    return Judged(claim, bed, found)
