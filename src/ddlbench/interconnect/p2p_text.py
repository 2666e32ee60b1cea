r"""Parse the output of NVIDIA's p2pBandwidthLatencyTest (cuda-samples, BSD-3).

::

    Device: 0, NAME, pciBusID: 1b, ...             one line a GPU
    P2P Connectivity Matrix                        heading
         D\D     0     1                            header: as many columns as GPUs
         0       1     1                           rows, as many as columns
    Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)
    ...
    P2P=Enabled Latency (P2P Writes) Matrix (us)   since CUDA 10 two matrices: GPU, then CPU

GB is 1e9 bytes. Row i is the device whose stream copies: a write moves data from i to j, a read
from j to i. So matrices of reads are transposed here (row = sender). Values are kept as printed:
the diagonal counts both reading and writing, a bidirectional test the sum of both directions. Of
the two latencies the GPU's is kept; the CPU's is the time to enqueue a copy.

Before CUDA 10 there were no reads, no "(P2P Writes)" and a single latency matrix.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, NoReturn

from ddlbench.experiment.errors import ConfigError
from ddlbench.interconnect.pair_matrix import Matrix, finite, pair_matrix, scaled, transposed

_DEVICE = re.compile(r"^Device: (\d+), (.*), pciBusID: \S+, pciDeviceID: \S+, pciDomainID:\s*\S+$")
_FAILURE = re.compile(r"^Cuda failure .*: '(.*)'|^(CUDA error at .*)")
_BANDWIDTH = re.compile(
    r"^(?P<direction>Unidirectional|Bidirectional) P2P=(?P<p2p>Disabled|Enabled) Bandwidth"
    r"(?: \(P2P (?P<operation>Write|Read)s\))? Matrix \(GB/s\)$"
)
_LATENCY = re.compile(
    r"^P2P=(?P<p2p>Disabled|Enabled) Latency"
    r"(?: \(P2P (?P<operation>Write|Read)s\))? Matrix \(us\)$"
)
_ANY_HEADING = re.compile(r"\bMatrix\b")
_HEADER = re.compile(r"^\s*(D\\D|GPU|CPU)((?:\s+\d+)+)\s*$")
_ROW = re.compile(r"^\s*(\d+)((?:\s+\S+)+)\s*$")

_ACCESS = {"Disabled": "staged", "Enabled": "direct"}
_CONNECTIVITY_KEY = ("connectivity", "", "", "")

# Kind, direction, access and operation of a block.
_Key = tuple[str, str, str, str]


@dataclass
class _Block:
    r"""A heading and the matrices under it, by their corner ("D\D", "GPU", "CPU")."""

    heading: str
    key: _Key
    matrices: dict[str, Matrix] = field(default_factory=dict)


def parse_p2p(text: str, where: str = "p2pBandwidthLatencyTest") -> dict[str, Any]:
    """Parse the output of one run.

    Args:
        text: all of stdout.
        where: name of the output in messages.

    Returns:
        ``devices`` (names), ``connectivity`` (1 if a GPU reaches its peer's memory), and
        ``pairs``: entries of links.json, in bytes per second and seconds; inf and nan become None.

    Raises:
        ConfigError: the test failed, or the output is cut, has holes, or has another format; the
            message gives the line.
    """
    reader = _Reader(where)
    for number, line in enumerate(text.splitlines(), start=1):
        reader.take(number, line.rstrip())
    if _ROW.match(text.rpartition("\n")[2]):
        reader.fail("the output ends in the middle of a line; run the test again")
    reader.finish()
    return _assemble(reader)


class _Reader:
    """The state machine: between headings, under a heading, or inside a matrix."""

    def __init__(self, where: str) -> None:
        self.where, self.number = where, 0
        self.devices: list[str] = []
        self.blocks: dict[_Key, _Block] = {}
        self._block: _Block | None = None
        self._rows: Matrix | None = None  # of the matrix that is being read

    def take(self, number: int, line: str) -> None:
        self.number = number
        failure = _FAILURE.match(line)
        if failure:
            self.fail(f"the test failed: {failure[1] or failure[2]}; run it where the GPUs work")
        if self._rows is not None:
            self._take_row(self._rows, line)
        elif heading := _key_of(line):
            self._open_block(line, heading)
        elif header := _HEADER.match(line):
            self._open_matrix(header[1], [int(word) for word in header[2].split()])
        elif device := _DEVICE.match(line):
            self._take_device(int(device[1]), device[2])
        elif _ANY_HEADING.search(line):
            self.fail(f"unknown heading {line!r}")
        elif _ROW.match(line):
            self.fail(f"a row that belongs to no matrix: {line.strip()!r}")

    def finish(self) -> None:
        if not self.devices:
            self.fail("no 'Device: 0, ...' line: this is no output of p2pBandwidthLatencyTest")
        if self._rows is not None and self._block is not None:
            self.fail(
                f"the output ends after row {len(self._rows)} of {len(self.devices)} of "
                f"{self._block.heading!r}; run the test again"
            )
        if self._block is not None and not self._block.matrices:
            self.fail(f"the output ends after {self._block.heading!r}; run the test again")

    def fail(self, fault: str) -> NoReturn:
        raise ConfigError(f"{self.where} line {max(self.number, 1)}: {fault}")

    def _take_device(self, index: int, name: str) -> None:
        if index != len(self.devices):
            self.fail(f"device {index} is listed where device {len(self.devices)} should be")
        self.devices.append(name.strip())

    def _open_block(self, line: str, key: _Key) -> None:
        if self._block is not None and not self._block.matrices:
            self.fail(f"no matrix under {self._block.heading!r}")
        if key in self.blocks:
            self.fail(f"{line!r} appears twice; give the output of one run")
        self._block = self.blocks[key] = _Block(line, key)

    def _open_matrix(self, corner: str, columns: list[int]) -> None:
        if self._block is None:
            self.fail("a matrix without a heading")
        if columns != list(range(len(self.devices))):
            self.fail(f"columns {columns} for {len(self.devices)} devices")
        if corner in self._block.matrices:
            self.fail(f"a second {corner} matrix under {self._block.heading!r}")
        self._rows = self._block.matrices[corner] = []

    def _take_row(self, rows: Matrix, line: str) -> None:
        size = len(self.devices)
        wanted = f"row {len(rows)} of {size} rows"
        row = _ROW.match(line)
        if row is None or int(row[1]) != len(rows):
            self.fail(f"{line.strip()!r} stands where {wanted} should be; run the test again")
        words = row[2].split()
        if len(words) != size:
            self.fail(f"a hole: {wanted} has {len(words)} values instead of {size}")
        rows.append([self._value(word) for word in words])
        if len(rows) == size:
            self._rows = None

    def _value(self, word: str) -> float | None:
        try:
            value = float(word)
        except ValueError:
            self.fail(f"{word!r} is not a number")
        if value < 0:
            self.fail(f"{word} is below zero, which neither a bandwidth nor a latency is")
        return finite(value)


def _key_of(line: str) -> _Key | None:
    """The key of the block under a heading; None for other lines."""
    if line == "P2P Connectivity Matrix":
        return _CONNECTIVITY_KEY
    heading = _BANDWIDTH.match(line) or _LATENCY.match(line)
    if heading is None:
        return None
    words = heading.groupdict()
    direction = words.get("direction", "").lower()
    # Copies through the host are neither read nor write. Older versions only write, and omit it.
    operation = "" if words["p2p"] == "Disabled" else (words["operation"] or "Write").lower()
    return "bandwidth" if direction else "latency", direction, _ACCESS[words["p2p"]], operation


def _assemble(reader: _Reader) -> dict[str, Any]:
    """Join each bandwidth with the latency of the same access and operation."""
    bandwidths = [block for key, block in reader.blocks.items() if key[0] == "bandwidth"]
    for direction in ("unidirectional", "bidirectional"):
        for access, operation in (("staged", ""), ("direct", "write")):
            if ("bandwidth", direction, access, operation) not in reader.blocks:
                name = {"staged": "Disabled", "direct": "Enabled"}[access]
                reader.fail(
                    f"the output ends without a {direction.capitalize()} P2P={name} bandwidth "
                    "matrix; run the test again"
                )
    pairs = [_pair(reader, block) for block in bandwidths]
    connectivity = reader.blocks.get(_CONNECTIVITY_KEY)
    return {
        "devices": reader.devices,
        "connectivity": connectivity.matrices["D\\D"] if connectivity else None,
        "pairs": pairs,
    }


def _pair(reader: _Reader, block: _Block) -> dict[str, Any]:
    _, direction, access, operation = block.key
    latency = reader.blocks.get(("latency", "", access, operation))
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
    bandwidth_bytes_per_s = scaled(next(iter(block.matrices.values())), 1e9)
    latency_s = scaled(by_device, divisor=1e6)
    if operation == "read":
        bandwidth_bytes_per_s, latency_s = transposed(bandwidth_bytes_per_s), transposed(latency_s)
    return pair_matrix(
        scope="node",
        method="p2pBandwidthLatencyTest",
        endpoints=[f"{index}: {name}" for index, name in enumerate(reader.devices)],
        nodes=[0] * len(reader.devices),
        bandwidth_bytes_per_s=bandwidth_bytes_per_s,
        latency_s=latency_s,
        access=access,
        direction=direction,
        operation=operation or None,
    )
