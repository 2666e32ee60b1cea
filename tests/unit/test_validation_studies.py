"""The experiments of the long studies: every cell that they name can run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from ddlbench.experiment.config import parse_experiment
from ddlbench.experiment.registry import BASE
from ddlbench.experiment.site import load_site
from ddlbench.planning.matrix import MatrixRow, expand

ROOT = Path(__file__).resolve().parents[2]
CASES, CANDIDATES = 40, 8


def rows_of(experiment: dict, monkeypatch: pytest.MonkeyPatch) -> list[MatrixRow]:
    monkeypatch.setattr("ddlbench.planning.matrix._missing_package", lambda *_: None)
    return expand(parse_experiment(experiment, "the study"), load_site("accelerators"))


def test_a_choice_is_asked_for_in_enough_cases_of_enough_candidates(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "validation"))
    emulated = __import__("emulated")
    rows = rows_of(emulated.CASES, monkeypatch)
    assert [row.unsupported for row in rows if row.unsupported] == []
    cells = [row.cell for row in rows if row.cell.strategy != BASE]
    cases = Counter((c.network, c.batch_size, c.geometry, c.fabric) for c in cells)
    assert len(cases) >= CASES
    assert min(cases.values()) >= CANDIDATES
