"""Events of a Kineto trace, the JSON that PyTorch's profiler writes, read one by one.

::

    {"schemaVersion": 1, "distributedInfo": {"rank": 0, ...}, "traceEvents": [ {...}, {...}, ...
     metadata, before or after the events ------'                  '-- decoded in a moving window

A file may be plain or gzip. It is only ever parsed, in a window of some megabytes, so that memory
does not grow with the file. What Kineto is known to write wrong is mended where it does no harm:

* NaN and infinity, which JSON has not: as Python reads them
* a backslash that begins no escape (a path of Windows in a name): taken as a backslash
* missing or doubled commas between events: overlooked
* an event that is no JSON (quotes within a name), and a tail that is cut off: left out, and counted

A :class:`Trace` has the events as columns: work of devices, its launches, operators, steps. The
kind of a piece of work follows from its name, as in Holistic Trace Analysis (HTA 0.5)::

    nccl...Kernel...               communication    ncclDevKernel_AllReduce_Sum_f32_RING_LL
    Memcpy..., Memset..., dma...   memory           Memcpy HtoD (Pinned -> Device)
    ...Sync..., ...Memcpy...       other            Stream Sync
    all else                       computation

Source: github.com/facebookresearch/HolisticTraceAnalysis, hta/utils/utils.py and
hta/common/trace_filter.py.
"""

from __future__ import annotations

import codecs
import json
import math
import re
import zlib
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Any

import numpy as np

from ddlbench.common.errors import ConfigError, shown
from ddlbench.common.quantities import counted

_CHUNK = 4 * 2**20
_LONGEST_EVENT = 2**20  # characters; a longer one is taken for damage
_LONGEST_METADATA = 16 * 2**20
_MOST_CHARACTERS = 2**37  # 128 GiB of text: a file that unpacks to more is no trace
_GZIP = b"\x1f\x8b"
_GZIP_FORMAT = 31  # of zlib
_EVENTS = "traceEvents"
_DECODER = json.JSONDecoder(strict=False)
_BETWEEN = re.compile(r"[\s,]*")
_SPACE = re.compile(r"\s*")
_FIRST_EVENT = re.compile(rf'"{_EVENTS}"\s*:\s*\[')
# Where an event begins after one that cannot be read.
_NEXT_EVENT = re.compile(r'[}\]]\s*,?\s*(\{\s*"(?:ph|name|cat|pid|tid|ts|args|id|s)"\s*:)')
_LONE_BACKSLASH = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|(\\)')


@dataclass
class TraceFile:
    """A trace whose events are read once, in the order of the file.

    Args:
        path: of the file.
        metadata: what the file says beside its events; complete when they have been read.
        unreadable: events that were left out, as they are no JSON.
        truncated: the file ends within its events.
    """

    path: Path
    metadata: dict[str, Any] = field(default_factory=dict)
    unreadable: int = 0
    truncated: bool = False
    _listed_events: bool = False

    def events(self) -> Iterator[dict[str, Any]]:
        """All events.

        Raises:
            ConfigError: the file is not one of events.
            OSError: it cannot be read.
        """
        with self.path.open("rb") as raw:
            packed = raw.read(2) == _GZIP
            raw.seek(0)
            read = _Unpacked(raw).read if packed else raw.read
            yield from self._of(_Window(read, self.path))

    def _of(self, text: _Window) -> Iterator[dict[str, Any]]:
        text.skip(_SPACE)
        opening = text.peek()
        if opening == "[":  # Chrome's other form: the events alone
            text.at += 1
            yield from self._listed(text)
            return
        if opening != "{":
            begins = shown(text.text[text.at : text.at + 20]) if opening else "nothing"
            raise ConfigError(
                f"{self.path}: a trace is JSON and begins with {{ or [; this file begins with "
                f"{begins}; name a file that torch.profiler's export_chrome_trace wrote"
            )
        text.at += 1
        while (key := self._key(text)) is not None:
            if key == _EVENTS and text.peek() == "[":
                text.at += 1
                yield from self._listed(text)
            elif not self._describe(text, key):
                break
        if not self._listed_events:
            raise ConfigError(
                f"{self.path}: no list of traceEvents; name a file that torch.profiler's "
                "export_chrome_trace wrote"
            )

    def _key(self, text: _Window) -> str | None:
        """The next key of the outermost object; None at its end."""
        text.skip(_BETWEEN)
        if text.peek() != '"':
            self.truncated = self.truncated or text.peek() != "}"
            return None
        key = text.value(_LONGEST_EVENT)
        text.skip(_SPACE)
        if text.peek() != ":" or not isinstance(key, str):
            self.truncated = True
            return None
        text.at += 1
        text.skip(_SPACE)
        return key

    def _describe(self, text: _Window, key: str) -> bool:
        """Keep a value beside the events; False where the file ends in it."""
        value = text.value(_LONGEST_METADATA)
        if value is not _UNREADABLE:
            self.metadata[key] = value
            return True
        if self._listed_events or not text.find(_FIRST_EVENT):
            return False  # what else the file says is lost, and no event
        text.at = text.match.start()
        return True

    def _listed(self, text: _Window) -> Iterator[dict[str, Any]]:
        self._listed_events = True
        while True:
            text.skip(_BETWEEN)
            sign = text.peek()
            if sign == "]":
                text.at += 1
                return
            if not sign:
                self.truncated = True
                return
            event = text.value(_LONGEST_EVENT)
            if isinstance(event, dict):
                yield event
            elif event is _UNREADABLE and not self._resume(text):
                return

    def _resume(self, text: _Window) -> bool:
        """Go to the event after one that cannot be read; False at the end of the file."""
        if text.find(_NEXT_EVENT):
            self.unreadable += 1
            text.at = text.match.start(1)
            return True
        self.truncated = True
        text.at = len(text.text)
        return False


class _Unpacked:
    """The content of a gzip file; of one that is cut off, all that is there."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self._packed = b""
        self._unpack = zlib.decompressobj(_GZIP_FORMAT)

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes; none at the end of the file."""
        while True:
            self._packed = self._packed or self._source.read(size)
            if not self._packed:
                return b""
            if self._unpack.eof:  # another member follows
                self._unpack = zlib.decompressobj(_GZIP_FORMAT)
            content = self._unpack.decompress(self._packed, size)
            self._packed = self._unpack.unused_data or self._unpack.unconsumed_tail
            if content:
                return content


_UNREADABLE = object()


class _Window:
    """A part of a text that moves through a file; ``at`` is the place that is read next."""

    def __init__(self, read: Callable[[int], bytes], path: Path) -> None:
        self._read, self._path = read, path
        self._decode = codecs.getincrementaldecoder("utf-8-sig")(errors="replace").decode
        self._ended = False
        self._characters = 0
        self.text, self.at = "", 0
        self.match: re.Match[str]

    def more(self) -> bool:
        """Append a chunk and drop what was read; False at the end of the file."""
        if self._ended:
            return False
        try:
            chunk = self._read(_CHUNK)
        except zlib.error as error:
            if not self._characters:
                raise ConfigError(f"{self._path}: not a readable gzip file: {error}") from error
            chunk = b""  # a tail that is damaged
        self._ended = not chunk
        self.text = self.text[self.at :] + self._decode(chunk, final=self._ended)
        self._characters += len(chunk)
        self.at = 0
        if self._characters > _MOST_CHARACTERS:
            raise ConfigError(f"{self._path}: it unpacks to more than 128 GiB; name a trace")
        return True

    def skip(self, pattern: re.Pattern[str]) -> None:
        while True:
            match = pattern.match(self.text, self.at)
            assert match is not None  # both patterns match nothing, too
            self.at = match.end()
            if self.at < len(self.text) or not self.more():
                return

    def peek(self) -> str:
        """The next character; empty at the end of the file."""
        if self.at >= len(self.text):
            self.more()
        return self.text[self.at : self.at + 1]

    def value(self, longest: int) -> Any:
        """The JSON value at this place, or ``_UNREADABLE``, which leaves the place as it is."""
        while True:
            try:
                value, end = _DECODER.raw_decode(self.text, self.at)
            except (ValueError, RecursionError):
                if len(self.text) - self.at < longest and self.more():
                    continue
                return self._mended(longest)
            # A number may go on in the next chunk.
            if end == len(self.text) and not isinstance(value, dict | list | str) and self.more():
                continue
            self.at = end
            return value

    def _mended(self, longest: int) -> Any:
        """The value, if its backslashes are all that is wrong."""
        window = self.text[self.at : self.at + longest]
        if "\\" not in window:
            return _UNREADABLE
        following = _NEXT_EVENT.search(window)
        part = window if following is None else window[: following.start(1)]
        mended = _LONE_BACKSLASH.sub(lambda m: r"\\" if m[1] else m[0], part)
        try:
            value, end = _DECODER.raw_decode(mended)
        except (ValueError, RecursionError):
            return _UNREADABLE
        # The place in the text as it was: each lone backslash has become two characters.
        self.at += _place_before(part, end)
        return value

    def find(self, pattern: re.Pattern[str]) -> bool:
        """Move on to the next match of a pattern that is shorter than a chunk."""
        while True:
            match = pattern.search(self.text, self.at)
            if match is not None:
                self.match = match
                return True
            self.at = max(self.at, len(self.text) - 4096)
            if not self.more():
                return False


def _place_before(part: str, end: int) -> int:
    """Where in ``part`` the character lies that mending has moved to ``end``."""
    added = 0
    for match in _LONE_BACKSLASH.finditer(part):
        if match.end() + added > end:
            break
        added += match[1] is not None
    return end - added


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
_MOST_RANKS = 1_000_000
COMPUTE, COMMUNICATION, MEMORY, OTHER = range(4)

Times = np.ndarray[Any, np.dtype[np.float64]]


class _Lines:
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
        ranks: of its run, or None.
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
    ranks: int | None = None
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
        ConfigError: it is no trace, or has no event with a duration.
        OSError: it cannot be read.
    """
    file, trace = TraceFile(path), Trace(path)
    reader = _Reader(trace)
    fractional = reader.read(file)
    trace.rounded = fractional and not exact
    _describe(trace, file, reader)
    return trace


class _Reader:
    def __init__(self, trace: Trace) -> None:
        self._trace = trace
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
            if isinstance(begin, bool) or isinstance(length, bool):
                self.odd += 1
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
            raise ConfigError(f"{trace.path}: more than {_MOST_EVENTS} events; trace fewer steps")
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
        kind = _kind_of(name)
        if kind == COMMUNICATION and not _COMMUNICATION.match(name):
            self._trace.renamed += 1
        counted = isinstance(category, str) and category in _IDLE_CATEGORIES
        self._trace.work.add(*place, kind, counted)

    def _add_operator(self, name: str, category: str, begin: float, end: float) -> None:
        kind = _kind_on_host(name)
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


@cache
def _kind_of(name: str) -> int:
    if _COMMUNICATION.match(name) or _OTHER_COMMUNICATION.match(name):
        return COMMUNICATION
    if _MEMORY.match(name):
        return MEMORY
    return OTHER if _NO_COMPUTATION.match(name) else COMPUTE


@cache
def _kind_on_host(name: str) -> int:
    return COMMUNICATION if _ON_HOST.match(name) else COMPUTE


def _describe(trace: Trace, file: TraceFile, reader: _Reader) -> None:
    """Take what the file says of its rank, and note what was wrong with it."""
    about = file.metadata.get("distributedInfo")
    if isinstance(about, dict):
        rank, ranks = about.get("rank"), about.get("world_size")
        trace.rank = rank if type(rank) is int and 0 <= rank < 2**31 else None
        trace.ranks = ranks if type(ranks) is int and 0 < ranks <= _MOST_RANKS else None
    if not trace.events:
        cut = ", as its tail is cut off" if file.truncated else ""
        raise ConfigError(
            f"{trace.path}: no event with a category and a duration{cut}; name a trace that "
            "torch.profiler's export_chrome_trace wrote"
        )
    if file.truncated:
        trace.notes.append("the file is cut off: events after its end are missing")
    if file.unreadable:
        trace.notes.append(f"left out: {counted(file.unreadable, 'event')} without JSON")
    if reader.odd:
        trace.notes.append(f"left out: {counted(reader.odd, 'event')} without a number for a time")
    if len(trace.devices) > 1:
        trace.notes.append(f"{len(trace.devices)} devices are in one trace and count as one")
    if trace.renamed:
        trace.notes.append(
            "communication includes kernels of other libraries than NCCL "
            f"({trace.renamed}); HTA takes them for computation"
        )
