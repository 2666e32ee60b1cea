"""Made-up profiles, links and results of an experiment, predicted: what figures are drawn from."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import report_factory as made

from ddlbench.experiment.links import Links, write_links
from ddlbench.experiment.paths import RESULTS, cell_dir, links_file, profile_file
from ddlbench.experiment.profile import Profile, ProfileKey, write_profile
from ddlbench.planning.matrix import MatrixRow, expand
from ddlbench.predict.accuracy import write_predictions
from ddlbench.predict.evaluate import predictions
from ddlbench.report.measurements import make_tables

_SPEC = importlib.util.spec_from_file_location(
    "predict_factory_of_report", Path(__file__).parents[1] / "predict" / "predict_factory.py"
)
assert _SPEC is not None
assert _SPEC.loader is not None
inputs = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = inputs
_SPEC.loader.exec_module(inputs)

SPANS = """partition,kind,micro_batch,start_s,end_s
0,forward,0,0.0,0.1
0,forward,1,0.1,0.2
1,forward,0,0.1,0.2
1,forward,1,0.2,0.3
1,backward,1,0.3,0.5
1,recompute,0,0.5,0.6
1,backward,0,0.6,0.8
0,backward,1,0.5,0.7
0,recompute,0,0.7,0.8
0,backward,0,0.8,1.0
"""


def rows_of(chunks: list[int] | None = None, **axes: Any) -> list[MatrixRow]:
    chosen = made.experiment(**axes)
    if chunks:
        chosen.strategies["gpipe"] = {"chunks": chunks}
    return expand(chosen, made.site())


def write_inputs(root: Path, rows: list[MatrixRow]) -> None:
    """Profiles and links that every cell needs."""
    for row in rows:
        key = ProfileKey.of(row.cell)
        profile = inputs.profile(dataset=key.dataset, network=key.network, profile_id=key.id)
        path = root / profile_file("local", key.id).relative_to(RESULTS)
        write_profile(path, Profile.from_dict(profile))
    links = inputs.links(inputs.pair([0, 0, 0, 0]), inputs.pair([0, 1, 2, 3]))
    write_links(root / links_file("local", "default").relative_to(RESULTS), Links.from_dict(links))


def write_spans(root: Path, rows: list[MatrixRow]) -> None:
    for row in rows:
        if row.cell.strategy == "gpipe" and row.unsupported is None:
            folder = root / cell_dir("local", row.cell.id).relative_to(RESULTS)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "partitions.csv").write_text(SPANS)


def write_predicted(root: Path, rows: list[MatrixRow]) -> tuple[Path, Path]:
    """Tables and predictions of what lies below ``root``: predictions.json, folder of tables."""
    make_tables("demo", "local", rows, root, root / "tables")
    frame = predictions(rows, made.site(), root)
    return write_predictions(frame, "local", "demo", root), root / "tables"
