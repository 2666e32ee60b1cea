"""Events of a Kineto trace as columns: work of devices, its launches, operators, steps.

The kind of a piece of work follows from its name, as in Holistic Trace Analysis (HTA 0.5)::

    nccl...Kernel...               communication    ncclDevKernel_AllReduce_Sum_f32_RING_LL
    Memcpy..., Memset..., dma...   memory           Memcpy HtoD (Pinned -> Device)
    ...Sync..., ...Memcpy...       other            Stream Sync
    all else                       computation

Source: github.com/facebookresearch/HolisticTraceAnalysis, hta/utils/utils.py and
hta/common/trace_filter.py.
"""

from __future__ import annotations

import math
import re
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
_MOST_EVENTS = 100_000_000
COMPUTE, COMMUNICATION, MEMORY, OTHER = range(4)

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
            if not -1e18 < begin < 1e18 or not 0 <= length < 1e18:  # NaN fails, too
                self.odd += not math.isnan(length)
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
        if _STEP in name:
            trace.step_names.add(name)
            if stream < 0 or link < 0:
                trace.steps.add(begin, end)
        if stream != -1:
            self._add_work(name, category, (begin, end, stream, link))
            device = arguments.get("device") if isinstance(arguments, dict) else None
            if isinstance(device, int):
                trace.devices.add(device)
        elif name not in _SYNCHRONISATIONS:
            if link != -1:
                trace.launches.add(begin, link)
            if not len(trace.work) and isinstance(category, str) and category in _OPERATORS:
                self._add_operator(name, category, begin, end)

    def _add_work(self, name: str, category: object, place: tuple[float, float, int, int]) -> None:
        kind = self._kinds.get(name)
        if kind is None:
            kind = self._kinds[name] = _kind_of(name)
        if kind == COMMUNICATION and not _COMMUNICATION.match(name):
            self._trace.renamed += 1
        counted = isinstance(category, str) and category in _IDLE_CATEGORIES
        self._trace.work.add(*place, kind, counted)

    def _add_operator(self, name: str, category: str, begin: float, end: float) -> None:
        kind = self._on_host.get(name)
        if kind is None:
            communicates = _ON_HOST.match(name) is not None
            kind = self._on_host[name] = COMMUNICATION if communicates else COMPUTE
        # An annotation of the user, as a step's, covers operators and the time between them.
        if kind == COMMUNICATION or "annotation" not in category:
            self._trace.operators.add(begin, end, kind)


def _whole(value: object) -> int:
    """A stream or correlation; -1 of what is none, as HTA takes it."""
    if type(value) is int:
        return value if -(2**52) < value < 2**52 else -1
    try:
        return int(value)  # type: ignore[call-overload]
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
