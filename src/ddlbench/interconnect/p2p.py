r"""NVIDIA's p2pBandwidthLatencyTest (cuda-samples, BSD-3), run and parsed; nvbandwidth is run, too.

A test runs five times, and the medians are kept. p2pBandwidthLatencyTest prints::

    Device: 0, NAME, pciBusID: 1b, ...             one line a GPU; posts often leave them out
    Device=0 CAN Access Peer Device=1              one line a pair, or CANNOT
    P2P Connectivity Matrix                        heading
         D\D     0     1                            header: as many columns as GPUs
         0       1     1                           rows, as many as columns
    Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)
    ...
    P2P=Enabled Latency (P2P Writes) Matrix (us)   two matrices: GPU, then CPU

GB is 1e9 bytes. Values are kept as printed: the diagonal counts both reading and writing, a
bidirectional test the sum of both directions. Of the two latencies the GPU's is kept; the CPU's is
the time to enqueue a copy.

Row i is the device whose stream copies. Which way, depends on the version, and its headings tell:

* since CUDA 10 (p2pBandwidthLatencyTest.cu of the tags v10.0 to v13.0, ``outputBandwidthMatrix``)
  headings name the operation. "(P2P Writes)" copies from i to j, "(P2P Reads)" from j to i. Without
  peer access the copy goes from i to j. ``--sm_copy`` changes who copies, not the direction.
* before (the CUDA SDK's copies of 2015, with "P2P Cliques", and of CUDA 8) they name none, and the
  latency is one matrix, "D\D". All are ``cudaMemcpyPeerAsync(buffers[i], i, buffers[j], j, ...)``:
  from j to i, which with peer access is a read.

What moves from j to i is transposed here (row = sender). AMD's port (KTH-ScaLab/multi-gpu-comm)
copies as since CUDA 10; it separates numbers by commas, and prints "GPU:" above the header.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from ddlbench.common.errors import ConfigError, shown
from ddlbench.interconnect.nvbandwidth_json import TESTS, parse_nvbandwidth
from ddlbench.interconnect.nvidia_programs import (
    is_printed_number,
    last_line,
    plain_lines,
    printed_number,
    run,
)
from ddlbench.interconnect.pair_matrix import (
    Matrix,
    median_of_runs,
    pair_matrix,
    peer_access,
    scaled,
    transposed,
)

_TITLE = re.compile(r"P2P \(Peer-to-Peer\) GPU Bandwidth Latency Test\]")
_DEVICE = re.compile(r"Device: ?(\d{1,4}), ?(.*?), ?pciBusID:.*", re.ASCII)
_ACCESS = re.compile(r"Device=(\d{1,4}) (CAN|CANNOT) Access Peer Device=(\d{1,4})", re.ASCII)
_FAILURE = re.compile(
    r"(?:Cuda|HIP) failure .*: '(.*)'|(CUDA error at .*|Failed to create stop watch.*)",
    re.IGNORECASE,
)
_HEADING = re.compile(
    r"(?:(?P<direction>Unidirectional|Bidirectional) P2P=(?P<bandwidth>Disabled|Enabled) Bandwidth"
    r"(?: \(P2P (?P<bandwidth_by>Write|Read)s\))? Matrix \(GB/s\)"
    r"|P2P=(?P<latency>Disabled|Enabled) Latency"
    r"(?: \(P2P (?P<latency_by>Write|Read)s\))? Matrix \(us\)"
    r"|P2P Connectivity Matrix)"
)
_ANY_HEADING = re.compile(r"\bMatrix \(")
# Lines of the test that nothing else prints.
_KNOWN = re.compile(rf"(?:{_HEADING.pattern}|{_DEVICE.pattern}|{_ACCESS.pattern})\s*$", re.ASCII)
_HEADER = re.compile(r"(D\s?[\\/]+\s?D|GPU:?|CPU:?|(?=[,;|]))((?:[\s,;|]+\d{1,4})+)", re.ASCII)
_CORNER_ALONE = re.compile(r"(GPU|CPU):")
_INDEX = re.compile(r"\d{1,4}", re.ASCII)
_SEPARATORS = re.compile(r"[\s,;|]+")
_VARIES = 1.25
"""Runs differ by 5 to 10 %, and a pair is slow from a fifth on (pair_matrix.py)."""
# A GPU whose name the output does not give.
_NO_NAME = "GPU"


class _Key(NamedTuple):
    """What a block is of; ``direction`` is of bandwidths, ``operation`` "" where none is named."""

    kind: str
    direction: str = ""
    is_enabled: bool = False
    operation: str = ""


_CONNECTIVITY = _Key("connectivity")


@dataclass
class _Block:
    r"""A heading and the matrices under it, by their corner ("D\D", "GPU", "CPU")."""

    heading: str
    matrices: dict[str, Matrix] = field(default_factory=dict)

    @property
    def first(self) -> Matrix:
        """The only matrix of a block that is no latency."""
        return next(iter(self.matrices.values()))


def is_p2p(text: str) -> bool:
    """Whether a text has a heading of the test's matrices."""
    return any(_HEADING.search(line) for line in text.splitlines())


def parse_p2p(text: str, where: str = "p2pBandwidthLatencyTest") -> dict[str, Any]:
    """Parse the output of one run.

    Args:
        text: all of stdout, as captured: lines may begin with a rank, a host or the time.
        where: name of the output in messages.

    Returns:
        ``devices`` (names), ``connectivity`` (1 if a GPU reaches its peer's memory), ``pairs``:
        entries of links.json, in bytes per second and seconds; inf and nan become None; and
        ``remarks``: sentences on what was left out or is not known.

    Raises:
        ConfigError: the test failed, or the output is cut, has holes, is of several runs or tasks,
            or has another format; the message gives the line.
    """
    reader = _Reader(where)
    lines = plain_lines(text, _KNOWN, where)
    for number, line in enumerate(lines, start=1):
        reader.take(number, line)
    if _is_row(lines[-1]):
        reader.fail(
            "the output ends in the middle of a line; run the test again, or end the line if this "
            "is its last"
        )
    return _assemble(reader.finish())


class _Reader:
    """The state machine: between headings, under a heading, or inside a matrix."""

    def __init__(self, where: str) -> None:
        self.where, self.number = where, 1
        self.names: dict[int, str] = {}  # as far as they are listed
        self.unreached: set[tuple[int, int]] = set()
        self.blocks: dict[_Key, _Block] = {}
        self.remarks: list[str] = []
        self._size: int | None = None  # columns of the first matrix
        self._block: _Block | None = None
        self._corner: str | None = None  # on a line of its own
        self._rows: Matrix | None = None  # of the matrix that is being read
        self._skipped: int | None = None  # line of that matrix

    @property
    def size(self) -> int:
        return self._size or 0

    def take(self, number: int, line: str) -> None:
        self.number = number
        if failure := _FAILURE.search(line):
            self.fail(f"the test failed: {failure[1] or failure[2]}; run it where the GPUs work")
        if self._rows is not None:
            self._take_row(self._rows, line)
        elif heading := _HEADING.fullmatch(line):
            self._open_block(line, _key_of(heading))
        elif header := _HEADER.fullmatch(line):
            self._open_matrix(header[1], [int(word) for word in _words(header[2])])
        elif device := _DEVICE.fullmatch(line):
            self._take_device(int(device[1]), device[2])
        elif access := _ACCESS.fullmatch(line):
            if access[2] == "CANNOT":
                self.unreached.add((int(access[1]), int(access[3])))
        elif corner := _CORNER_ALONE.fullmatch(line):
            self._corner = corner[1]
        elif _TITLE.search(line):
            if self.names or self.blocks:
                self._fail_second_run()
        elif _ANY_HEADING.search(line):
            self.fail(f"unknown heading {shown(line)}; give the output as the test printed it")
        elif _is_row(line):
            self.fail(f"a row that belongs to no matrix: {shown(line)}; remove it")

    def finish(self) -> _Reader:
        """Itself, at the end of the output.

        Raises:
            ConfigError: something is missing.
        """
        if not self.blocks:
            self.fail("no matrix in it: this is no output of p2pBandwidthLatencyTest")
        if self._rows is not None and self._block is not None:
            self.fail(
                f"the output ends after row {len(self._rows)} of {self.size} of "
                f"{self._block.heading!r}; run the test again"
            )
        if self._block is not None and not self._block.matrices:
            self.fail(f"the output ends after {self._block.heading!r}; run the test again")
        if self.names and sorted(self.names) != list(range(min(self.names), self.size)):
            self.fail(
                f"devices {shown(sorted(self.names))} are listed for matrices of {self.size} "
                "devices; give the whole output of one run"
            )
        if len(self.names) < self.size:
            self.remarks.append("some GPUs have no name, as their 'Device:' lines are missing")
        return self

    def fail(self, fault: str) -> NoReturn:
        raise ConfigError(f"{self.where} line {self.number}: {fault}")

    def _fail_second_run(self) -> NoReturn:
        if not self.blocks:
            self.fail("the lines of several runs are mixed, or a run is cut; give those of one run")
        self.fail(
            f"a second run begins here; keep lines 1 to {self.number - 1}, or those from "
            f"{self.number} on"
        )

    def _take_device(self, index: int, name: str) -> None:
        if index in self.names or self.blocks:
            self._fail_second_run()
        self.names[index] = name or _NO_NAME

    def _open_block(self, line: str, key: _Key) -> None:
        if self._block is not None and not self._block.matrices:
            self.fail(f"no matrix under {self._block.heading!r}")
        if key in self.blocks:
            self._fail_second_run()
        self._block = self.blocks[key] = _Block(line)
        self._corner = None

    def _open_matrix(self, corner: str, columns: list[int]) -> None:
        if self._block is None:
            self.fail("a matrix without a heading; give the output from a heading on")
        if self._size is None:
            self._size = max(len(self.names), len(columns)) if 0 in self.names else len(columns)
        if columns != list(range(self.size)):
            self.fail(f"columns {shown(columns)} for {self.size} devices")
        corner, self._corner = corner.rstrip(":") or self._corner or "D\\D", None
        corner = corner if corner in ("GPU", "CPU") else "D\\D"
        if corner in self._block.matrices:
            self.fail(f"a second {corner} matrix under {self._block.heading!r}")
        self._rows = self._block.matrices[corner] = []
        self._skipped = None

    def _take_row(self, rows: Matrix, line: str) -> None:
        if not line:
            return
        wanted = f"row {len(rows)} of {self.size} rows"
        index, *values = _words(line) or [""]
        is_next = bool(values) and _INDEX.fullmatch(index) and int(index) == len(rows)
        if _is_of_the_test(line):
            self.fail(
                f"{shown(line)} stands where {wanted} should be: the output before it is cut; "
                f"{self._remedy('run the test again')}"
            )
        if not is_next and not _is_row(line):
            # Rows are numbered: what is no row, and takes no row's place, is not missed.
            self._skipped = self.number
            self.remarks.append(f"line {self.number} is no row and is left out: {shown(line)}")
            return
        if not is_next:
            self.fail(f"{shown(line)} stands where {wanted} should be; {self._remedy()}")
        if len(values) != self.size:
            self.fail(
                f"a hole: {wanted} has {len(values)} values instead of {self.size}; "
                f"{self._remedy()}"
            )
        rows.append([self._value(word) for word in values])
        if len(rows) == self.size:
            self._rows = None

    def _remedy(
        self,
        otherwise: str = "run the test again, or remove the line if the test did not print it",
    ) -> str:
        if self._skipped is None:
            return otherwise
        return f"run the test again, or take from line {self._skipped} what the test did not print"

    def _value(self, word: str) -> float | None:
        try:
            value = printed_number(word)
        except ValueError:
            self.fail(
                f"{shown(word)} is not a number; remove the line if the test did not print it"
            )
        if value is not None and value < 0:
            self.fail(f"{word} is below zero, which neither a bandwidth nor a latency is")
        return value


def _words(line: str) -> list[str]:
    return [word for word in _SEPARATORS.split(line) if word]


def _is_row(line: str) -> bool:
    """Whether a line is a number and values, as rows of any matrix are."""
    index, *values = _words(line) or [""]
    return bool(_INDEX.fullmatch(index) and values and all(map(is_printed_number, values)))


def _is_of_the_test(line: str) -> bool:
    """Whether the test prints such a line outside its matrices."""
    return any(pattern.fullmatch(line) for pattern in (_KNOWN, _HEADER, _CORNER_ALONE)) or bool(
        _TITLE.search(line)
    )


def _key_of(heading: re.Match[str]) -> _Key:
    words = {name: (word or "").lower() for name, word in heading.groupdict().items()}
    if words["bandwidth"]:
        is_enabled = words["bandwidth"] == "enabled"
        return _Key("bandwidth", words["direction"], is_enabled, words["bandwidth_by"])
    if words["latency"]:
        return _Key("latency", "", words["latency"] == "enabled", words["latency_by"])
    return _CONNECTIVITY


def _assemble(reader: _Reader) -> dict[str, Any]:
    """Join each bandwidth with the latency of the same access and operation."""
    is_old = _is_before_cuda_10(reader)
    for direction in ("unidirectional", "bidirectional"):
        for is_enabled in (False, True):
            if not any(key[:3] == ("bandwidth", direction, is_enabled) for key in reader.blocks):
                name = "Enabled" if is_enabled else "Disabled"
                reader.fail(
                    f"the output ends without a {direction.capitalize()} P2P={name} bandwidth "
                    "matrix; run the test again"
                )
    access = _access(reader)
    connectivity = reader.blocks.get(_CONNECTIVITY)
    names = [reader.names.get(index, _NO_NAME) for index in range(reader.size)]
    pairs = [
        _pair(reader, key, names, access if key.is_enabled else "staged", is_old)
        for key in reader.blocks
        if key.kind == "bandwidth"
    ]
    return {
        "devices": names,
        "connectivity": connectivity.first if connectivity else None,
        "pairs": pairs,
        "remarks": [*reader.remarks, *_contradictions(reader.blocks)],
    }


def _contradictions(blocks: Mapping[_Key, _Block]) -> Iterator[str]:
    """Remarks on pairs that carry other rates alone than in both directions at once.

    Both at once carry at most what both carry alone, and at least what the better one does.
    """
    for is_enabled in (False, True):
        alone, both = (
            [
                block.first
                for key, block in blocks.items()
                if key[:3] == ("bandwidth", way, is_enabled)
            ]
            for way in ("unidirectional", "bidirectional")
        )
        odd = []
        for i, j in combinations(range(len(both[0])), 2):
            ways = [(rates[i][j] or 0.0, rates[j][i] or 0.0) for rates in alone]
            most, least = max(map(sum, ways)), max(map(max, ways))
            for total in (both[0][i][j], both[0][j][i]):
                if total and not least / _VARIES <= total <= most * _VARIES:
                    odd.append(f"{i} and {j} carry {least:g} GB/s one way, {total:g} in both")
        if odd:
            more = f" (and {len(odd) - 1} more)" if len(odd) > 1 else ""
            name = "Enabled" if is_enabled else "Disabled"
            yield f"P2P={name}: {odd[0]}{more}: a value may have changed; run the test again"


def _is_before_cuda_10(reader: _Reader) -> bool:
    """Whether no heading names an operation."""
    directed = {
        bool(key.operation)
        for key in reader.blocks
        if key.is_enabled and key.direction != "bidirectional"
    }
    is_split = any("GPU" in block.matrices for block in reader.blocks.values())
    if len(directed) > 1 or (directed == {False} and is_split):
        reader.fail(
            "some headings lack '(P2P Writes)' or '(P2P Reads)', so which device sends is not "
            "known; give the output as the test printed it"
        )
    return directed == {False}


def _access(reader: _Reader) -> str | None:
    """How copies with P2P=Enabled go: without peer access they are staged all the same."""
    connectivity = reader.blocks.get(_CONNECTIVITY)
    unreached = set(reader.unreached)
    if connectivity is not None:
        unreached |= {
            (i, j)
            for i, row in enumerate(connectivity.first)
            for j, value in enumerate(row)
            if value == 0
        }
    elif not unreached and reader.size > 1:
        reader.remarks.append(
            "no connectivity matrix: that peer access is possible is taken from the headings"
        )
    pairs = ((i, j) for i in range(reader.size) for j in range(reader.size) if i != j)
    return peer_access(pair not in unreached for pair in pairs) if reader.size > 1 else "direct"


def _pair(
    reader: _Reader, key: _Key, names: list[str], access: str | None, is_old: bool
) -> dict[str, Any]:
    block = reader.blocks[key]
    is_both = key.direction == "bidirectional"
    operation = key.operation
    if key.is_enabled and not operation and not is_old:
        operation = "write"  # in both directions
    latency = reader.blocks.get(_Key("latency", "", key.is_enabled, operation))
    if latency is None:
        reader.fail(
            f"the output ends without the latency matrix that belongs to {block.heading!r}; "
            "run the test again"
        )
    by_device = latency.matrices.get("GPU") or latency.matrices.get("D\\D")
    if by_device is None:
        reader.fail(f"no GPU matrix under {latency.heading!r}")
    if "GPU" in latency.matrices and "CPU" not in latency.matrices:
        reader.fail(f"the output ends before the CPU matrix of {latency.heading!r}")
    bandwidth_bytes_per_s = scaled(block.first, 1e9)
    latency_s = scaled(by_device, divisor=1e6)
    if is_old or operation == "read":
        latency_s = transposed(latency_s)
        if not is_both:
            bandwidth_bytes_per_s = transposed(bandwidth_bytes_per_s)
    if is_old and key.is_enabled and not is_both:
        operation = "read"  # in both directions it is one read and one write
    return pair_matrix(
        scope="node",
        method="p2pBandwidthLatencyTest",
        endpoints=[f"{index}: {name}" for index, name in enumerate(names)],
        nodes=[0] * len(names),
        bandwidth_bytes_per_s=bandwidth_bytes_per_s,
        latency_s=latency_s,
        access=access,
        direction=key.direction,
        operation=operation or None,
    )


# One run repeats each copy five times and still varies by 5 to 10 % (cuda-samples issue 449).
RUNS = 5
_RUN_TIMEOUT_S = 600


def run_p2p(binary: Path, runs: int = RUNS) -> list[dict[str, Any]]:
    """Pair matrices of p2pBandwidthLatencyTest with reads: medians over ``runs`` runs.

    Raises:
        ConfigError: a run fails; the message gives the reason.
    """
    return _repeated(binary, ["--p2p_read"], parse_p2p, runs)


def run_nvbandwidth(binary: Path, runs: int = RUNS) -> list[dict[str, Any]]:
    """Pair matrices of nvbandwidth; as :func:`run_p2p`."""
    return _repeated(binary, ["-j", "-t", *TESTS], parse_nvbandwidth, runs)


def _repeated(
    binary: Path, options: list[str], parse: Callable[[str, str], dict[str, Any]], runs: int
) -> list[dict[str, Any]]:
    matrices = []
    for number in range(1, runs + 1):
        where = f"{binary.name} on {socket.gethostname()} (run {number} of {runs})"
        try:
            done = run([str(binary), *options], _RUN_TIMEOUT_S)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
        print(done.stdout, done.stderr, sep="", flush=True)
        if done.returncode and not done.stdout.strip():
            reason = last_line(done.stderr, f"exit status {done.returncode}")
            raise ConfigError(f"{where}: failed: {reason}")
        parsed = parse(done.stdout, where)
        for remark in parsed.get("remarks", ()):
            print(f"{where}: {remark}", flush=True)
        matrices.append(parsed["pairs"])
        if done.returncode:
            raise ConfigError(f"{where}: failed after its output: {last_line(done.stderr, '')}")
    return median_of_runs(matrices)
