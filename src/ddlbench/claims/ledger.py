"""The ledger: ``config/papers/claims.yaml``, a list of claims with their predicates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ddlbench.claims.evidence import COLUMNS
from ddlbench.claims.predicate import Found, Predicate, select
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.json_form import JsonForm
from ddlbench.experiment.paths import project_root
from ddlbench.experiment.schema import check_against, nearest, read_yaml


@dataclass(frozen=True)
class Claim(JsonForm):
    """One claim.

    Args:
        id: its name.
        claim: in our words, one sentence.
        source: paper and section.
        experiment: the published figure that would decide it, see ``ddlbench papers``.
        hardware: kind of devices and links of the original.
        test: its predicate.
        remark: why a verdict may be the test bed's and not the paper's; or what is read into it.
    """

    id: str
    claim: str
    source: str
    experiment: str
    hardware: str
    test: Predicate
    remark: str = ""


def read_claims() -> list[Claim]:
    """The ledger.

    Raises:
        ConfigError: an entry is wrong, or two have one name.
    """
    path = project_root() / "config" / "papers" / "claims.yaml"
    values = read_yaml(path)
    check_against("claims", values, str(path))
    found = [Claim.from_dict(entry) for entry in values["claims"]]
    names = [claim.id for claim in found]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{path}: two claims are called {name!r}; give one another id")
    for claim in found:
        _check_columns(claim, str(path))
    return found


def _check_columns(claim: Claim, where: str) -> None:
    test = claim.test
    used = [*test.where, *test.left, *test.right, *test.by, test.among]
    used += [name for name in (test.metric, test.along) if name]
    for name in used:
        if name not in COLUMNS:
            raise ConfigError(
                f"{where}: claim {claim.id}: unknown column {name!r}; {nearest(name, COLUMNS)}"
            )


@dataclass(frozen=True)
class Judged:
    """A claim, and what the rows say of it."""

    claim: Claim
    found: Found
    here: str

    def to_dict(self) -> dict[str, Any]:
        found, claim = self.found, self.claim
        return {
            "id": claim.id,
            "claim": claim.claim,
            "source": claim.source,
            "verdict": found.verdict,
            "n": found.n,
            "share": found.share,
            "unsure": found.unsure,
            "needed_share": claim.test.share,
            "value": found.value,
            "interval": None if found.low is None else [found.low, found.high],
            "on": claim.hardware,
            "here": self.here,
            "experiment": claim.experiment,
            "remark": claim.remark,
        }


def judge(claims: Iterable[Claim], rows: pd.DataFrame) -> list[Judged]:
    """The verdicts.

    Args:
        claims: of the ledger.
        rows: of :mod:`ddlbench.claims.evidence`.
    """
    return [Judged(claim, claim.test.test(rows), _here(claim.test, rows)) for claim in claims]


def _here(test: Predicate, rows: pd.DataFrame) -> str:
    """What the rows that a test looks at were measured on."""
    own = select(rows, test.where)
    if test.left or test.right:
        own = pd.concat([select(own, test.left), select(own, test.right)])
    return "; ".join(sorted({str(text) for text in own["here"].dropna()}))
