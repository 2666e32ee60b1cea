"""Worlds of ranks, for tests: see :mod:`ddlbench.equivalence.rank_pool`."""

from __future__ import annotations

from ddlbench.equivalence.rank_pool import RanksFailedError, Work, run_ranks

__all__ = ["RanksFailedError", "Work", "run_ranks"]
