"""What `ddlbench doctor` found."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Finding"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Args:
        what: was looked at.
        ok: nothing has to change.
        says: what was found, and, if it is wrong, what to write instead.
        doubtful: cells run as it is, but it may not be what the user means.
    """

    what: str
    ok: bool
    says: str
    doubtful: bool = False
