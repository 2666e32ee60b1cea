"""Made-up results of cells beside the made-up profiles."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from ddlbench.experiment.cell import Cell
from ddlbench.planning.matrix import MatrixRow

_FACTORY = Path(__file__).parents[1] / "report" / "report_factory.py"
_SPEC = importlib.util.spec_from_file_location("report_factory_of_predict", _FACTORY)
assert _SPEC is not None
assert _SPEC.loader is not None
_MODULE = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_MODULE)


def row(cell: Cell, base: Cell | None = None) -> MatrixRow:
    return MatrixRow(cell, base.id if base else None, None)


def write_ok(root: Path, cell: Cell, step_s: float) -> None:
    """A result whose steps all took as long."""
    values = _MODULE.result(cell, step_s * 8)
    values["timing"] = _MODULE.timing(step_s * 8, step_s, 0.01)
    _MODULE.write(root, cell, values)


def write_failed(root: Path, cell: Cell, status: str) -> None:
    values: dict[str, Any] = _MODULE.failed(cell, status, "a reason")
    _MODULE.write(root, cell, values)
