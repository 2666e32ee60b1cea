"""trace.json: what every rank did when, for chrome://tracing or ui.perfetto.dev.

A row a rank; a piece's name is its kind and mini-batch. Times count from the first piece, on rank
0's clock: each rank's offset, and how sure it is, stand in ``plan_details.clock`` of the result.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from ddlbench.experiment.chrome_trace import Piece, chrome_trace
from ddlbench.runtime.rank_report import RankReport

__all__ = ["trace_json"]


def trace_json(reports: Sequence[RankReport]) -> str:
    """The spans of all ranks; empty where no rank has any.

    Args:
        reports: of the ranks, with ``spans`` (kind, mini-batch, start_s, end_s) by a rank's own
            clock, and ``clock_offset_s`` to rank 0's.
    """
    ranks = sorted(reports, key=lambda report: report.rank)
    starts_s = [r.clock_offset_s + start_s for r in ranks for _, _, start_s, _ in r.spans]
    if not starts_s:
        return ""
    begin_s = min(starts_s)
    pieces = [
        Piece(
            name=f"{kind} {number}",
            kind=kind.split(" ")[0],
            process=report.node,
            thread=report.rank,
            start_s=start_s + report.clock_offset_s - begin_s,
            end_s=end_s + report.clock_offset_s - begin_s,
            arguments={"mini_batch": number},
        )
        for report in ranks
        for kind, number, start_s, end_s in report.spans
    ]
    nodes = {report.node: f"node {report.node} ({report.host})" for report in ranks}
    rows = {(report.node, report.rank): _label(report) for report in ranks}
    return json.dumps(chrome_trace(pieces, nodes, rows))


def _label(report: RankReport) -> str:
    part = f"stage {report.stage}, replica {report.replica}"
    return f"rank {report.rank}: {'server' if report.role == 'server' else part}"
