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
* Times with fractions of microseconds are rounded inwards to whole ones: a kernel loses up to two.
* Idle is what no event covers. HTA's causes are those of a stream: of an event that begins late, its
  launch came after the event before it had ended (host), or less than 30 us lie between (launch
  delay), or else (waits for another stream, a copy, another rank).

A trace without such work is of CPUs. Then a communication is an event that a library of
collectives named (``gloo:all_reduce``), and computing is any other operator, on all threads.

Source: github.com/facebookresearch/HolisticTraceAnalysis, hta/analyzers and hta/utils/utils.py.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ddlbench.report.traces.kineto_file import InvalidTrace, TraceFile

_COMMUNICATION = re.compile(r"nccl.*Kernel")
_MEMORY = re.compile(r"Memcpy|Memset|dma")
_NO_COMPUTATION = re.compile(r"(nccl.*Kernel)|(.*(Memcpy)|(Memset))|(.*Sync)")
# Libraries of collectives whose kernels HTA takes for computation.
_OTHER_COMMUNICATION = re.compile(r"(void )?(rccl|msccl|oneccl|hccl|nvshmem|deep_ep)")
_ON_HOST = re.compile(r"(gloo|nccl|mpi|ucc|xccl|hccl):|c10d::|record_param_comms")
_SYNCHRONISATIONS = ("Event Sync", "Context Sync")
_STEP = "ProfilerStep"
_IDLE_CATEGORIES = frozenset(
    ("kernel", "Kernel", "gpu_memset", "Memset", "gpu_memcpy", "Memcpy", "mtia_ccp_events")
)
_OPERATORS = frozenset(("cpu_op", "operator", "Operator", "user_annotation", "cpu_instant_event"))
_LAUNCH_DELAY_US = 30
_MOST_EVENTS = 100_000_000
COMPUTE, COMMUNICATION, MEMORY, OTHER = range(4)
_US = 1e-6

Times = np.ndarray[Any, np.dtype[np.float64]]


class _Lines:
    """Events of one sort, as columns."""

    def __init__(self, *names: str) -> None:
        self._columns = {name: array("d") for name in names}
        self._appends = tuple(column.append for column in self._columns.values())

    def add(self, *values: float) -> None:
        for append, value in zip(self._appends, values, strict=True):
            append(value)

    def __getitem__(self, name: str) -> Times:
        return np.frombuffer(self._columns[name], dtype=np.float64)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))


@dataclass
class Trace:
    """The events of one file that an analysis needs.

    Args:
        path: of the file.
        rank: that it names, or None.
        world_size, backend: that it names.
        work: on devices: begin, end (us), stream, correlation, kind, counted as HTA counts idle.
        launches: on the host: begin, correlation.
        operators: on the host: begin, end, kind; only of a trace without work.
        steps: begin and end of each annotated step; ``step_names``: their names.
        devices: numbers of the devices of the work.
        renamed: events of libraries that HTA takes for computation.
        notes: what was mended or left out, one sentence each.
    """

    path: Path
    rank: int | None = None
    world_size: int | None = None
    backend: str = ""
    work: _Lines = field(
        default_factory=lambda: _Lines("begin", "end", "stream", "link", "kind", "gap")
    )
    launches: _Lines = field(default_factory=lambda: _Lines("begin", "link"))
    operators: _Lines = field(default_factory=lambda: _Lines("begin", "end", "kind"))
    steps: _Lines = field(default_factory=lambda: _Lines("begin", "end"))
    step_names: set[str] = field(default_factory=set)
    devices: set[Any] = field(default_factory=set)
    events: int = 0
    renamed: int = 0
    rounded: bool = False
    notes: list[str] = field(default_factory=list)


def read_trace(path: Path, *, exact: bool = False) -> Trace:
    """Read a trace.

    Args:
        path: of the file, plain or gzip.
        exact: do not round times to microseconds, as HTA does not with HTA_DISABLE_NS_ROUNDING=1.

    Raises:
        InvalidTrace: it is no trace, or has no event with a duration.
        OSError: it cannot be read.
    """
    file, trace = TraceFile(path), Trace(path)
    reader = _Reader(trace)
    fractional = reader.read(file)
    trace.rounded = fractional and not exact
    _describe(trace, file, reader)
    return trace


class _Reader:
    """Sorts events into the columns of a trace."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._kinds: dict[str, int] = {}
        self._on_host: dict[str, int] = {}
        self.odd = 0

    def read(self, file: TraceFile) -> bool:
        """Read all events; whether HTA rounds their times: one is a fraction or missing."""
        fractional = False
        for event in file.events():
            begin = event.get("ts")
            if type(begin) is not int:
                fractional = True
            length = event.get("dur")
            category = event.get("cat")
            if length is None or category is None or category == "Trace":
                continue
            try:
                begin, length = float(begin), float(length)  # type: ignore[arg-type]
            except (TypeError, ValueError, OverflowError):
                self.odd += 1
                continue
            if not -1e18 < begin < 1e18 or not -1e18 < length < 1e18:  # NaN fails, too
                self.odd += length == length
                continue
            self._add(event, category, str(event.get("name", "")), begin, begin + length)
        return fractional

    def _add(
        self, event: dict[str, Any], category: object, name: str, begin: float, end: float
    ) -> None:
        trace = self._trace
        trace.events += 1
        if trace.events > _MOST_EVENTS:
            raise InvalidTrace(f"{trace.path}: more than {_MOST_EVENTS} events; trace fewer steps")
        arguments = event.get("args")
        stream = link = -1
        if type(arguments) is dict and arguments:
            stream = _whole(arguments.get("stream", -1))
            link = _whole(arguments.get("correlation", -1))
        if stream != -1:
            kind = self._kinds.get(name)
            if kind is None:
                kind = self._kinds[name] = _kind_of(name)
            if kind == COMMUNICATION and not _COMMUNICATION.match(name):
                trace.renamed += 1
            counted = isinstance(category, str) and category in _IDLE_CATEGORIES
            trace.work.add(begin, end, stream, link, kind, counted)
            device = arguments.get("device") if isinstance(arguments, dict) else None
            if isinstance(device, int):
                trace.devices.add(device)
            return
        if name in _SYNCHRONISATIONS:
            return
        if link != -1:
            trace.launches.add(begin, link)
        if _STEP in name:
            trace.step_names.add(name)
            trace.steps.add(begin, end)
        elif not len(trace.work) and isinstance(category, str) and category in _OPERATORS:
            kind = self._on_host.get(name)
            if kind is None:
                communicates = _ON_HOST.match(name) is not None
                kind = self._on_host[name] = COMMUNICATION if communicates else COMPUTE
            # An annotation of the user covers operators and the time between them.
            if kind == COMMUNICATION or "annotation" not in category:
                trace.operators.add(begin, end, kind)


def _whole(value: object) -> int:
    """A stream or correlation; -1 of what is none, as HTA takes it."""
    if type(value) is int:
        return value if -(2**52) < value < 2**52 else -1
    try:
        return int(value)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError, OverflowError):
        return -1


def _kind_of(name: str) -> int:
    if _COMMUNICATION.match(name) or _OTHER_COMMUNICATION.match(name):
        return COMMUNICATION
    if _MEMORY.match(name):
        return MEMORY
    return OTHER if _NO_COMPUTATION.match(name) else COMPUTE


def _describe(trace: Trace, file: TraceFile, reader: _Reader) -> None:
    """Take what the file says of its rank, and note what was wrong with it."""
    about = file.metadata.get("distributedInfo")
    about = about if isinstance(about, dict) else {}
    rank, size = about.get("rank"), about.get("world_size")
    trace.rank = rank if type(rank) is int and 0 <= rank < 2**31 else None
    trace.world_size = size if type(size) is int and 0 < size < 2**31 else None
    trace.backend = about["backend"] if isinstance(about.get("backend"), str) else ""
    if not trace.events:
        cut = ", as its tail is cut off" if file.truncated else ""
        raise InvalidTrace(
            f"{trace.path}: no event with a category and a duration{cut}; name a trace that "
            "torch.profiler's export_chrome_trace wrote"
        )
    if file.truncated:
        trace.notes.append("the file is cut off: events after its end are missing")
    if file.unreadable:
        trace.notes.append(f"{file.unreadable} events are no JSON and were left out")
    if reader.odd:
        trace.notes.append(f"{reader.odd} events have no number for a time and were left out")
    if len(trace.devices) > 1:
        trace.notes.append(f"{len(trace.devices)} devices are in one trace and count as one")
    if trace.renamed:
        trace.notes.append(
            f"{trace.renamed} kernels of other libraries than NCCL count as communication; HTA "
            "takes them for computation"
        )


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


def shared(one: Intervals, other: Intervals) -> float:
    """How long both cover the time."""
    times = np.concatenate([one.begin, one.end, other.begin, other.end])
    ones, others = np.ones(len(one.begin)), np.full(len(other.begin), 2.0)
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
        InvalidTrace: a trace has neither work of devices nor operators.
    """
    names = set().union(*(trace.step_names for trace in traces))
    return [_of_trace(trace, len(names) > 1 and not last_step, last_step) for trace in traces]


def _of_trace(trace: Trace, cut: bool, last_step: bool) -> Breakdown:
    notes = list(trace.notes)
    if not len(trace.work):
        return _of_operators(trace, cut, notes)
    chosen = _launched_in_steps(trace, cut, last_step)
    if not chosen.any():
        notes.append("no work was launched before its last step: all of it counts")
        chosen = np.ones(len(trace.work), bool)
        cut = False
    begin, end = _times(trace, chosen)
    kinds, links = trace.work["kind"][chosen], trace.work["link"][chosen]
    launched = _launches(trace, links)
    breakdown = _whole_time(begin, end, kinds)
    counted = trace.work["gap"][chosen] > 0
    streams = tuple(
        _stream_idle(int(stream), begin[of], end[of], launched[of])
        for stream in np.unique(trace.work["stream"][chosen])
        if (of := counted & (trace.work["stream"][chosen] == stream)).any()
    )
    return _breakdown(trace, "GPU", cut, breakdown, _causes(begin, end, launched), streams, notes)


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


def _times(trace: Trace, chosen: Any) -> tuple[Times, Times]:
    begin, end = trace.work["begin"][chosen], trace.work["end"][chosen]
    return (np.ceil(begin), np.floor(end)) if trace.rounded else (begin, end)


def _launches(trace: Trace, links: Times) -> Times:
    """When each piece of work was launched; NaN where no launch is in the trace."""
    begin = np.ceil(trace.launches["begin"]) if trace.rounded else trace.launches["begin"]
    at = dict(zip(trace.launches["link"].tolist(), begin.tolist(), strict=True))
    return np.array([at.get(link, np.nan) for link in links.tolist()])


class _Time(NamedTuple):
    kernel: float
    compute: float
    communication: float
    hidden: float
    memory: float
    copies: float
    idle: float


def _whole_time(begin: Times, end: Times, kinds: Times) -> _Time:
    """The parts of the time, in microseconds."""

    def of(*chosen: int) -> Intervals:
        among = np.isin(kinds, chosen)
        return merged(begin[among], end[among])

    everything, compute, communication = merged(begin, end), of(COMPUTE), of(COMMUNICATION)
    kernel = float(everything.end[-1] - everything.begin[0])
    with_memory = of(COMPUTE, COMMUNICATION, MEMORY).total
    return _Time(
        kernel=kernel,
        compute=compute.total,
        communication=communication.total,
        hidden=shared(compute, communication),
        memory=of(MEMORY).total,
        copies=with_memory - of(COMPUTE, COMMUNICATION).total,
        idle=kernel - everything.total,
    )


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
    """The breakdown of a trace of CPUs."""
    lines = trace.operators
    if not len(lines):
        raise InvalidTrace(
            f"{trace.path}: neither kernels of a GPU nor operators of a CPU; profile with "
            "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
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
    return _breakdown(trace, "CPU", cut, time, (0.0, 0.0, time.idle), (), notes)


def _breakdown(
    trace: Trace,
    devices: str,
    cut: bool,
    time: _Time,
    causes: tuple[float, float, float],
    streams: tuple[StreamIdle, ...],
    notes: list[str],
) -> Breakdown:
    exposed = time.communication - time.hidden
    rest = time.kernel - time.idle - time.compute - exposed - time.copies
    counts = Counter(trace.step_names)
    return Breakdown(
        file=trace.path.name,
        rank=trace.rank,
        devices=devices,
        steps=len(counts) - cut if counts else 0,
        kernel_s=time.kernel * _US,
        compute_s=time.compute * _US,
        communication_s=time.communication * _US,
        hidden_s=time.hidden * _US,
        exposed_s=exposed * _US,
        memory_s=time.memory * _US,
        copies_s=time.copies * _US,
        other_s=max(0.0, rest) * _US,
        idle_s=time.idle * _US,
        idle_host_s=causes[0] * _US,
        idle_launch_s=causes[1] * _US,
        idle_other_s=causes[2] * _US,
        streams=streams,
        notes=tuple(notes),
    )
