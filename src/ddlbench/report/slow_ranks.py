"""Which device or node is slow, always or at times, with the evidence.

In a synchronous step all ranks take as long as the slowest, so a step tells nothing of one rank.
What a rank computed itself does::

    rank 0   | forward | backward | all_reduce_wait    | update |    itself: 1.0
    rank 1   | forward      | backward         | wait  | update |    itself: 1.6 times the others

That is taken for one sample, from the first of these that a cell has for all ranks of a kind:

    trace      the median mini-batch of trace.json without waits
    waits      the measured region without `communication_wait_s`, of synchronous strategies

A rank's ratio is to the median of the other ranks of its role, stage and processor in its cell. It
is slow in a cell from a ratio of :data:`SLOW` on, or if it stood still while others did not. Over
all cells, a device or node is slow

    always     in more than half of the cells that used it
    at times   in fewer, but in a fifth, and three times as often as the median device

and in three cells at least. A strategy that sends inside of its computation (FSDP, splits) hides a
slow rank, as others wait where they seem to compute. So a device that is not named may be slow.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Literal

from ddlbench.common.quantities import counted
from ddlbench.common.statistics import grouped
from ddlbench.experiment.paths import RESULTS, result_file
from ddlbench.experiment.result import RankEntry, Result, cell_result
from ddlbench.experiment.site import Site
from ddlbench.experiment.spans import TRACE_FILE, spans_in
from ddlbench.experiment.status import Failure, Status
from ddlbench.planning.matrix import MatrixRow

SLOW = 1.25
"""Times the others, from which on a rank is slow in a cell."""
_FEWEST_CELLS = 3
_SOME_CELLS = 0.2
_OFTEN = 3.0  # times as often as the median device
_TWICE = 2
_TO_OTHERS = frozenset(
    (
        *("wait", "receive_wait", "send_wait", "all_reduce_wait", "all_reduce", "gather"),
        *("halo", "all_reduce_bucket"),
    )
)
_COMPUTES = frozenset(("forward", "backward", "backward_input", "backward_weight"))


@dataclass(frozen=True)
class Pace:
    """A rank in one cell.

    Args:
        host, device: where it ran; its index on that host.
        ratio: its own computation to that of the others, for one sample.
        stood_still: while others did not.
    """

    host: str
    device: int
    ratio: float
    stood_still: bool = False

    @property
    def slow(self) -> bool:
        return self.stood_still or self.ratio >= SLOW


@dataclass(frozen=True)
class SlowDevice:
    """A device or node that is slow or fails, and the evidence.

    Args:
        name: ``n3``, or ``n3 device 1``.
        host: its node.
        when: always, at times, or that jobs failed on it.
        cells: that used it and tell how fast it was.
        slow_cells: of them, in which it was slow; jobs that failed on it.
        ratio: to the others; median of the cells in which it was slow; None of failures.
    """

    name: str
    host: str
    when: Literal["always", "at times", "lost"]
    cells: int
    slow_cells: int
    ratio: float | None


def paces_of(result: Result, trace: str | None = None) -> list[Pace]:
    """How fast the ranks of a cell were; empty where nothing tells.

    Args:
        result: of the cell.
        trace: its trace.json.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: the trace is not what a cell records.
    """
    timing = result.timing
    paused = timing.pauses if timing is not None and timing.disturbed else None
    still = set() if paused is None else set(paused.ranks)
    still = still if len(still) < len(result.ranks) else set()
    paces = []
    for alike in _comparable(result.ranks):
        own_time_s = _own_by_trace(trace, alike) or _own_by_waits(result, alike)
        for rank in alike if own_time_s else ():
            others = median(own_time_s[other.rank] for other in alike if other is not rank)
            ratio = own_time_s[rank.rank] / others if others > 0 else 1.0
            paces.append(Pace(rank.host, rank.local_rank, ratio, rank.rank in still))
    return paces


def _comparable(ranks: Sequence[RankEntry]) -> list[list[RankEntry]]:
    """Ranks that do the same work: of one role and stage, on processors of one model."""

    def kind(rank: RankEntry) -> tuple[str, ...]:
        return (rank.role, str(rank.stage), str(rank.cpu_model), *rank.gpu_models)

    training = sorted((rank for rank in ranks if rank.samples), key=kind)
    groups = [list(group) for _, group in groupby(training, key=kind)]
    return [group for group in groups if len(group) > 1]


def _own_by_waits(result: Result, alike: Sequence[RankEntry]) -> dict[int, float]:
    if result.timing is None or result.update_semantics != "synchronous":
        return {}  # a worker that is done waits for the end, which is no wait in a step
    measured_s = sum(epoch.elapsed_s for epoch in result.timing.epochs)
    waited_s = {rank.rank: rank.communication_wait_s for rank in alike}
    if any(seconds is None or seconds >= measured_s for seconds in waited_s.values()):
        return {}
    return {rank.rank: (measured_s - (waited_s[rank.rank] or 0)) / rank.samples for rank in alike}


def _own_by_trace(trace: str | None, alike: Sequence[RankEntry]) -> dict[int, float]:
    own_s: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    computed: dict[int, set[int]] = defaultdict(set)
    for span in spans_in(trace) if trace else ():
        if span.kind not in _TO_OTHERS:
            own_s[span.rank][span.mini_batch] += span.length_s
        if span.kind in _COMPUTES:
            computed[span.rank].add(span.mini_batch)
    if not all(computed[rank.rank] for rank in alike):
        return {}
    most = max(rank.samples for rank in alike)
    return {
        # Shares of a mini-batch may differ by a sample.
        rank.rank: median(own_s[rank.rank][batch] for batch in computed[rank.rank])
        * most
        / rank.samples
        for rank in alike
    }


def slow_devices(cells: Iterable[Sequence[Pace]]) -> list[SlowDevice]:
    """Devices that are slow in several cells, the slowest first; a whole node is one row."""
    of_device = grouped(((pace.host, pace.device), pace) for paces in cells for pace in paces)
    if not of_device:
        return []
    usual = median(_share(paces) for paces in of_device.values())
    hosts = sorted({host for host, _ in of_device})
    rows: list[SlowDevice] = []
    for host in hosts:
        paces_of_host = {key[1]: paces for key, paces in of_device.items() if key[0] == host}
        slow = [
            row
            for device, paces in sorted(paces_of_host.items())
            if (row := _judged(f"{host} device {device}", host, paces, usual))
        ]
        # With a single host there is no other node to compare it with.
        if len(hosts) > 1 and len(slow) == len(paces_of_host):
            every = [pace for paces in paces_of_host.values() for pace in paces]
            node = _judged(host, host, every, usual)
            slow = [node] if node else slow
        rows += slow
    return sorted(rows, key=lambda row: (row.when != "always", -(row.ratio or 0), row.name))


def _share(paces: Sequence[Pace]) -> float:
    return sum(pace.slow for pace in paces) / len(paces)


def _judged(name: str, host: str, paces: Sequence[Pace], usual: float) -> SlowDevice | None:
    slow, share = [pace for pace in paces if pace.slow], _share(paces)
    if len(slow) < _FEWEST_CELLS or share < max(_SOME_CELLS, _OFTEN * usual):
        return None
    return SlowDevice(
        name=name,
        host=host,
        when="always" if share > 1 / 2 else "at times",
        cells=len(paces),
        slow_cells=len(slow),
        ratio=median(pace.ratio for pace in slow),
    )


# As cluster/job_files.py words it.
_NODE_FAILED = re.compile(r"a node of job \S+ (?:failed|did not boot) \((?P<nodes>[^)]+)\)")


def failed_nodes(reasons: Iterable[str]) -> list[SlowDevice]:
    """Nodes that failed under two jobs and more, by the reasons of cells without a result.

    Of a job of several nodes SLURM does not say which one failed, so it counts for none of them.
    """
    seen = (match["nodes"] for reason in reasons if (match := _NODE_FAILED.search(reason)))
    jobs = Counter(node for node in seen if re.fullmatch(r"[A-Za-z0-9_.-]+", node))
    return [
        SlowDevice(node, node, "lost", count, count, None)
        for node, count in sorted(jobs.items())
        if count >= _TWICE
    ]


@cache
def examined(cell_ids: tuple[str, ...], site: str, root: Path = RESULTS) -> list[SlowDevice]:
    """Slow and failing devices of these cells of a site; read once a process."""
    cells: list[list[Pace]] = []
    reasons: list[str] = []
    for cell_id in cell_ids:
        path = result_file(site, cell_id, root)
        with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
            result = cell_result(path, site, cell_id)
            if result is None:
                failure = Failure.read(path.parent)
                reasons += [] if failure is None else [str(failure.reason)]
            elif result.status == Status.OK and len(result.ranks) > 1:
                trace = None
                with suppress(OSError, UnicodeDecodeError):
                    trace = path.with_name(TRACE_FILE).read_text("utf-8")
                cells.append(paces_of(result, trace))
    return [*slow_devices(cells), *failed_nodes(reasons)]


def slow_of(rows: Sequence[MatrixRow], site: Site, root: Path = RESULTS) -> list[SlowDevice]:
    """Slow and failing devices of an experiment's cells; for the arguments see `examined`."""
    cells = (row.cell.id for row in rows if row.unsupported is None and row.cell.devices > 1)
    return examined(tuple(cells), site.name, root)


def evidence(row: SlowDevice) -> str:
    """``1.60 times the others in 9 of 12 cells``."""
    if row.ratio is None:
        return f"{counted(row.slow_cells, 'job')} lost it"
    return f"{row.ratio:.2f} times the others in {row.slow_cells} of {counted(row.cells, 'cell')}"


def slow_lines(rows: Sequence[SlowDevice], site: Site) -> list[str]:
    """A line for each of them, and the key that leaves nodes out."""
    lines = [f"slow:    {row.name}, {row.when}: {evidence(row)}" for row in rows]
    hosts = sorted({*site.slurm.exclude, *(row.host for row in rows)})
    if rows and site.launcher == "slurm" and set(hosts) > set(site.slurm.exclude):
        names = ", ".join(hosts)
        lines.append(f"         without them: slurm: {{exclude: [{names}]}} in the site's file")
    return lines
