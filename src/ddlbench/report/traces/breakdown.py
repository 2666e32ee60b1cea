"""What the devices of a Kineto trace did: computing, communicating, copying, or nothing.

::

    stream 7     |== conv ==|        |== gemm ==|.......|= add =|        compute
    stream 20        |==== ncclDevKernel_AllReduce ====|                 communication
                 |   hidden |exposed | hidden   |exposed|
                                                       |idle|
    kernel time  |---------------------------------------------|         first begin to last end

The definitions are those of Holistic Trace Analysis (HTA 0.5, ``get_temporal_breakdown``,
``get_comm_comp_overlap``, ``get_idle_time_breakdown``), so that the numbers are, too:

* Work of a device is every event with a duration and a stream. Its kind follows from its name.
* Where the trace names two steps (``ProfilerStep#``) or more, work counts that was launched before
  the last of them began: kernels of the last one may be missing. Launches are tied to work by
  ``correlation``.
* Overlapping events of one kind are merged, over all streams.
* Times with fractions of microseconds are rounded inwards to whole ones.
* Idle is what no event covers. HTA names causes of a gap before an event of a stream: its
  launch came after the event before it had ended (host), or less than 30 us lie between (launch
  delay), or else (waits for another stream, a copy, another rank).

A trace without such work is of CPUs. Then a communication is an event that a library of
collectives named (``gloo:all_reduce``), and computing is any other operator, on all threads.

Source: github.com/facebookresearch/HolisticTraceAnalysis, hta/analyzers and hta/utils/utils.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ddlbench.common.errors import ConfigError
from ddlbench.common.quantities import duration_text, few
from ddlbench.common.screen import paragraph, table
from ddlbench.common.statistics import grouped
from ddlbench.report.labels import span_text
from ddlbench.report.traces.kineto_file import (
    COMMUNICATION,
    COMPUTE,
    MEMORY,
    Times,
    Trace,
    read_trace,
)

_LAUNCH_DELAY_US = 30
_CAUSES = ("idle_host", "idle_launch", "idle_other")
_US = 1e-6
_FEW_RANKS = 4


class Intervals(NamedTuple):
    """Begins and ends, which do not overlap, in their order."""

    begin: Times
    end: Times

    @property
    def total(self) -> float:
        return float((self.end - self.begin).sum())


def merged(begin: Times, end: Times) -> Intervals:
    """The intervals that some event covers; those that touch are one."""
    if not len(begin):
        return Intervals(begin, end)
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], end[order]
    reached = np.maximum.accumulate(end)
    first = np.flatnonzero(np.concatenate(([True], begin[1:] > reached[:-1])))
    return Intervals(begin[first], np.maximum.reduceat(end, first))


def shared(first: Intervals, other: Intervals) -> float:
    """How long both cover the time."""
    times = np.concatenate([first.begin, first.end, other.begin, other.end])
    ones, others = np.ones(len(first.begin)), np.full(len(other.begin), 2.0)
    order = np.argsort(times, kind="stable")
    running = np.cumsum(np.concatenate([ones, -ones, others, -others])[order])
    times = times[order]
    return float((np.diff(times)[running[:-1] == 3]).sum())


class StreamIdle(NamedTuple):
    """Idle time of a stream by cause, in seconds, as HTA's ``get_idle_time_breakdown``."""

    stream: int
    host_wait_s: float
    kernel_wait_s: float
    other_s: float


@dataclass(frozen=True)
class Breakdown:
    """How the devices of one trace spent their time, in seconds.

    ``compute + exposed + copies + other + idle = kernel time``.

    Args:
        file: name of the file.
        rank: that it names; None if it names none.
        devices: "GPU", or "CPU" of a trace without kernels.
        steps: annotated steps whose work counts.
        kernel_s: from the first begin to the last end.
        compute_s: some computation runs.
        communication_s: some communication runs.
        hidden_s: of these, beside computation.
        exposed_s: the others: communication that no computation hides.
        memory_s: some copy or fill of memory runs.
        copies_s: of these, beside neither computation nor communication.
        other_s: synchronisations of a stream, which HTA does not count as idle.
        idle_s: nothing runs.
        idle_host_s: of these, as the host launched late.
        idle_launch_s: of these, less than 30 us until the next kernel.
        idle_other_s: the rest: waits for another stream, a copy, another rank.
        streams: idle time of each stream.
        notes: what was mended or left out.
    """

    file: str
    rank: int | None
    devices: str
    steps: int
    kernel_s: float
    compute_s: float
    communication_s: float
    hidden_s: float
    exposed_s: float
    memory_s: float
    copies_s: float
    other_s: float
    idle_s: float
    idle_host_s: float
    idle_launch_s: float
    idle_other_s: float
    streams: tuple[StreamIdle, ...]
    notes: tuple[str, ...]

    @property
    def overlap(self) -> float | None:
        """Share of the communication that computation hides; None without communication."""
        return self.hidden_s / self.communication_s if self.communication_s > 0 else None


def break_down(traces: Sequence[Trace], *, last_step: bool = False) -> list[Breakdown]:
    """How each rank spent its time.

    Args:
        traces: of the ranks of one run; whether steps are cut depends on the names in all of them.
        last_step: work of the last annotated step counts, too.

    Raises:
        ConfigError: a trace has neither work of devices nor operators.
    """
    names = set().union(*(trace.step_names for trace in traces))
    done = [_of_trace(trace, len(names) > 1 and not last_step, last_step) for trace in traces]
    if lacking := _without_trace(traces):
        done = [replace(each, notes=(*each.notes, lacking)) for each in done]
    return done


def _without_trace(traces: Sequence[Trace]) -> str:
    """The ranks of the run that have no trace; empty where all have one, or a trace names none."""
    known = {trace.rank for trace in traces}
    ranks = max((trace.ranks or 0 for trace in traces), default=0)
    lacking = [] if None in known else [str(rank) for rank in range(ranks) if rank not in known]
    return f"of {ranks:,} ranks, no trace of {few(lacking, _FEW_RANKS)}" if lacking else ""


def _of_trace(trace: Trace, cut: bool, last_step: bool) -> Breakdown:
    notes = [*trace.notes]
    if not len(trace.work):
        return _of_operators(trace, cut, notes)
    chosen = _launched_in_steps(trace, cut, last_step)
    if not chosen.any():
        notes.append("no work was launched before its last step: all of it counts")
        chosen = np.ones(len(trace.work), bool)
        cut = False
    begin, end = trace.work["begin"][chosen], trace.work["end"][chosen]
    if trace.rounded:
        begin, end = np.ceil(begin), np.floor(end)
    kinds, links = trace.work["kind"][chosen], trace.work["link"][chosen]
    launched = _launches(trace, links)
    counted = trace.work["gap"][chosen] > 0
    streams = tuple(
        _stream_idle(int(stream), begin[of], end[of], launched[of])
        for stream in np.unique(trace.work["stream"][chosen])
        if (of := counted & (trace.work["stream"][chosen] == stream)).any()
    )
    causes = _causes(begin, end, launched)
    time = _whole_time(begin, end, kinds)
    return _breakdown(trace, "GPU", time, causes, streams=streams, cut=cut, notes=notes)


def _launched_in_steps(trace: Trace, cut: bool, last_step: bool) -> Any:
    """Which work counts."""
    work = trace.work
    if not len(trace.steps) or not (cut or (last_step and len(trace.step_names) > 1)):
        return np.ones(len(work), bool)
    latest = np.inf if last_step else trace.steps["begin"].max()
    launches = trace.launches
    kept = launches["link"][launches["begin"] < latest]
    linked = (work["stream"] >= 0) & (work["link"] >= 0)
    return np.where(linked, np.isin(work["link"], kept), work["begin"] < latest)


def _launches(trace: Trace, links: Times) -> Times:
    """When each piece of work was launched; NaN where no launch is in the trace."""
    begin = np.ceil(trace.launches["begin"]) if trace.rounded else trace.launches["begin"]
    at = dict(zip(trace.launches["link"].tolist(), begin.tolist(), strict=True))
    return np.array([at.get(link, np.nan) for link in links.tolist()])


def _whole_time(begin: Times, end: Times, kinds: Times) -> dict[str, float]:

    def of(*chosen: int) -> Intervals:
        among = np.isin(kinds, chosen)
        return merged(begin[among], end[among])

    everything, compute, communication = merged(begin, end), of(COMPUTE), of(COMMUNICATION)
    kernel = float(everything.end[-1] - everything.begin[0])
    hidden, idle = shared(compute, communication), kernel - everything.total
    exposed = communication.total - hidden
    copies = of(COMPUTE, COMMUNICATION, MEMORY).total - of(COMPUTE, COMMUNICATION).total
    return {
        "kernel": kernel,
        "compute": compute.total,
        "communication": communication.total,
        "hidden": hidden,
        "exposed": exposed,
        "memory": of(MEMORY).total,
        "copies": copies,
        "other": max(0.0, kernel - idle - compute.total - exposed - copies),
        "idle": idle,
    }


def _causes(begin: Times, end: Times, launched: Times) -> tuple[float, float, float]:
    """Idle time of the devices by HTA's causes: host, launch delay, other; microseconds."""
    order = np.argsort(begin, kind="stable")
    begin, end, launched = begin[order], end[order], launched[order]
    before = np.maximum.accumulate(end)[:-1]
    gap = begin[1:] - before
    return _by_cause(np.where(gap > 0, gap, 0), launched[1:] > before)


def _stream_idle(stream: int, begin: Times, end: Times, launched: Times) -> StreamIdle:
    order = np.argsort(begin, kind="stable")
    begin, end, launched = begin[order], end[order], launched[order]
    host, launch, other = _by_cause(begin[1:] - end[:-1], launched[1:] > end[:-1])
    return StreamIdle(stream, host * _US, launch * _US, other * _US)


def _by_cause(gap: Times, late: Any) -> tuple[float, float, float]:
    short = ~late & (gap < _LAUNCH_DELAY_US)
    rest = ~late & ~short
    return float(gap[late].sum()), float(gap[short].sum()), float(gap[rest].sum())


def _of_operators(trace: Trace, cut: bool, notes: list[str]) -> Breakdown:
    lines = trace.operators
    if not len(lines):
        raise ConfigError(
            f"{trace.path}: neither kernels of a GPU nor operators of a CPU; profile with "
            "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], and of a cell name the "
            "folder, not a file"
        )
    notes.append("no kernels of a GPU: operators of the CPU's threads are taken instead")
    chosen = np.ones(len(lines), bool)
    if cut and len(trace.steps):
        chosen = (lines["begin"] < trace.steps["begin"].max()) & (
            lines["begin"] >= trace.steps["begin"].min()
        )
    if not chosen.any():
        chosen = np.ones(len(lines), bool)
    begin, end = lines["begin"][chosen], lines["end"][chosen]
    time = _whole_time(begin, end, lines["kind"][chosen])
    causes = (0.0, 0.0, time["idle"])
    return _breakdown(trace, "CPU", time, causes, streams=(), cut=cut, notes=notes)


def _breakdown(
    trace: Trace,
    devices: str,
    time: dict[str, float],
    causes: tuple[float, float, float],
    *,
    streams: tuple[StreamIdle, ...],
    cut: bool,
    notes: list[str],
) -> Breakdown:
    if not time["kernel"] > 0:
        raise ConfigError(
            f"{trace.path}: from the first of its work to the last no time passes; trace "
            "whole steps"
        )
    parts = {**time, **dict(zip(_CAUSES, causes, strict=True))}
    return Breakdown(
        file=trace.path.name,
        rank=trace.rank,
        devices=devices,
        steps=max(0, len(trace.step_names) - cut),
        streams=streams,
        notes=tuple(notes),
        **{f"{name}_s": us * _US for name, us in parts.items()},
    )


_TRACE_NAMES = (".json", ".json.gz", ".gz")


def trace_files(paths: Iterable[Path]) -> list[Path]:
    """The files of traces: those named, and those in folders that are named.

    Raises:
        ConfigError: there is none.
    """
    files: list[Path] = []
    for path in paths:
        if not path.exists():
            raise ConfigError(f"{path}: no such file or folder; name a trace of torch.profiler")
        if not path.is_dir():
            files.append(path)
            continue
        inside = [file for file in sorted(path.iterdir()) if file.name.endswith(_TRACE_NAMES)]
        inside = [file for file in inside if file.is_file()]
        if not inside:
            raise ConfigError(
                f"{path}: no .json or .json.gz in this folder; name one with a trace a rank"
            )
        files += inside
    return files


def breakdowns_of(
    paths: Iterable[Path], *, last_step: bool = False, exact: bool = False
) -> list[Breakdown]:
    """Read the traces of a run and break their time down, in the order of ranks.

    Args:
        paths: files, or folders of files; several may be of one rank.
        last_step: as :func:`break_down`.
        exact: as :func:`~ddlbench.report.traces.kineto_file.read_trace`.

    Raises:
        ConfigError: a file is no trace, or has nothing to analyse.
    """
    traces = [read_trace(path, exact=exact) for path in trace_files(paths)]
    traces.sort(key=lambda trace: (trace.rank is None, trace.rank or 0))
    return break_down(traces, last_step=last_step)


def values_of(breakdown: Breakdown) -> dict[str, Any]:
    """The breakdown as JSON."""
    values = asdict(breakdown)
    values["overlap"] = breakdown.overlap
    values["streams"] = [stream._asdict() for stream in breakdown.streams]
    return values


def lines_of(breakdowns: Sequence[Breakdown]) -> list[str]:
    """The breakdowns for a terminal: shares of the kernel time, then what to know of them."""
    ranks = [breakdown.rank for breakdown in breakdowns]
    several = len(set(ranks)) < len(ranks) or None in ranks
    lines = table(
        "rank | > time | > compute | > exposed | > copies /2 | > idle | > host /3 | > launch /4 | "
        "> waits /3 | > overlap /1 | file",
        [_row(breakdown, several) for breakdown in breakdowns],
    )
    cpus = all(breakdown.devices == "CPU" for breakdown in breakdowns)
    steps = {breakdown.steps for breakdown in breakdowns}
    text = "The trace names no steps (ProfilerStep#): all of it counts."
    if steps != {0}:
        text = f"Work of {span_text(steps)} step{'' if max(steps) == 1 else 's'} counts."
    lines += ["", *paragraph(text)]
    if not cpus:
        lines += paragraph(
            "exposed: communication that no computation hides; overlap: the share of it that is "
            "hidden; idle: host (launched late) + launch (below 30 us) + waits."
        )
    notes = grouped((note, breakdown.file) for breakdown in breakdowns for note in breakdown.notes)
    for note, files in notes.items():
        where = "" if len(files) == len(breakdowns) else f"{', '.join(files[:3])}: "
        lines += paragraph(f"{where}{note}.", hanging="  ")
    return lines


def _row(breakdown: Breakdown, several: bool) -> list[str]:
    def share(seconds: float) -> str:
        return f"{100 * seconds / breakdown.kernel_s:.1f} %" if breakdown.kernel_s else "-"

    gpu = breakdown.devices == "GPU"
    overlap = breakdown.overlap
    return [
        "-" if breakdown.rank is None else str(breakdown.rank),
        duration_text(breakdown.kernel_s),
        share(breakdown.compute_s),
        share(breakdown.exposed_s),
        share(breakdown.copies_s + breakdown.other_s) if gpu else "",
        share(breakdown.idle_s),
        share(breakdown.idle_host_s) if gpu else "",
        share(breakdown.idle_launch_s) if gpu else "",
        share(breakdown.idle_other_s) if gpu else "",
        "no messages" if overlap is None else f"{100 * overlap:.1f} %",
        breakdown.file if several else "",
    ]
