"""What an error in a rank says to its user: a verdict and one sentence."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from enum import StrEnum
from typing import Literal

from ddlbench.common.errors import ConfigError, printable
from ddlbench.equivalence.rank_pool import RankEnd, RanksFailedError, WorkError
from ddlbench.experiment.status import Status
from ddlbench.runtime.failure import classify, innermost


class Kind(StrEnum):
    """What a verdict says; the first of several kinds is the gravest."""

    FAILED = Status.FAILED.value
    DIFFERENT = "different"
    EQUAL = "equal"
    UNSUPPORTED = Status.UNSUPPORTED.value


Outcome = Kind | Literal["wrong input"]

_LONGEST_SENTENCE = 300
_LOST = "connection_lost"


class TrialError(WorkError):
    """Why a rank did not train."""

    def __init__(self, outcome: Outcome, reason: str, code: str = "exception") -> None:
        super().__init__(outcome, reason, code)
        self.outcome, self.reason, self.code = outcome, reason, code

    @classmethod
    def of(cls, error: BaseException) -> TrialError:
        """The innermost cause of any error, in one sentence."""
        if isinstance(error, ConfigError):
            return cls("wrong input", str(error), "wrong_input")
        cause = innermost(error)
        status, reason = classify(cause)
        if status is Status.UNSUPPORTED:
            return cls(Kind.UNSUPPORTED, str(reason), reason.code)
        return cls(Kind.FAILED, _sentence(cause), reason.code)


def _sentence(error: BaseException) -> str:
    """The kind of an error and the first sentence of what it says."""
    lines = [line.strip() for line in printable(str(error)).splitlines() if line.strip()]
    first = lines[0].split(". ")[0] if lines else ""
    text = f"{type(error).__name__}: {first}" if first else type(error).__name__
    return text if len(text) <= _LONGEST_SENTENCE else f"{text[:_LONGEST_SENTENCE]}..."


def explain(failure: RanksFailedError, limit_s: float) -> TrialError:
    """Why a world of ranks ended: the rank that failed first by itself, not those that lost it."""
    if failure.hung and not failure.ends:
        return TrialError(Kind.FAILED, f"the ranks hang: no end after {limit_s:.0f} s", "hang")
    return min((_of_rank(end) for end in failure.ends), key=_urgency)


def _of_rank(end: RankEnd) -> TrialError:
    if isinstance(end.error, TrialError):
        return end.error
    if end.exit_code is None:
        return TrialError(Kind.FAILED, end.text.strip().splitlines()[-1])
    if end.exit_code < 0:
        name = signal.Signals(-end.exit_code).name
        return TrialError(Kind.FAILED, f"a rank was killed by {name}", "rank_killed")
    return TrialError(Kind.FAILED, f"a rank ended with exit status {end.exit_code}", "rank_lost")


def _urgency(error: TrialError) -> int:
    """Least for what explains the other ranks' errors."""
    order: Sequence[bool] = (
        error.outcome == "wrong input",
        error.outcome == Kind.UNSUPPORTED,
        error.code == "rank_killed",
        error.code != _LOST,
        True,
    )
    return order.index(True)
