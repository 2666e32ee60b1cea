"""Made-up results of cells beside the made-up profiles."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pandas as pd
import predict_factory as make

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


def write_matrix(root: Path, rows: list[MatrixRow]) -> None:
    """A result of every cell that can run, a profile of every network, and links."""
    _MODULE.write_all(root, rows, troubled=False)
    for dataset, network in {(row.cell.dataset, row.cell.network) for row in rows}:
        changes = {"dataset": dataset, "network": network}
        profile = make.profile(**changes, profile_id=f"{dataset}/{network}/fp32-1t")
        make.write_site(root, profile, make.links())


def write_failed(root: Path, cell: Cell, status: str) -> None:
    values: dict[str, Any] = _MODULE.failed(cell, status, "a reason")
    _MODULE.write(root, cell, values)


def write_cases(root: Path, repeats: int = 3) -> list[MatrixRow]:
    """Profile, links, and two cases of four strategies with their base; DDP is fastest.

    Repeat r takes (0.9 + 0.1 r) times what stands here.
    """
    seconds = {"horovod": 0.5, "ddp": 0.4, "gpipe": 0.6, "model-parallel": 0.8}
    make.write_site(root, make.profile(), make.links())
    rows = []
    for repeat in range(repeats):
        base = make.cell("sequential", "1x1", 32, repeat=repeat)
        write_ok(root, base, 0.4 + 0.01 * repeat)
        rows.append(row(base, base))
        for geometry in ("1x2", "1x4"):
            for strategy, step_s in seconds.items():
                cell = make.cell(strategy, geometry, 32, repeat=repeat)
                write_ok(root, cell, step_s * (1 + 0.1 * (repeat - 1)))
                rows.append(row(cell, base))
    return rows


def only_row(frame: pd.DataFrame, **wanted: Any) -> Any:
    """The only row with these values."""
    for name, value in wanted.items():
        frame = frame[frame[name] == value]
    assert len(frame) == 1, frame
    return frame.iloc[0]
