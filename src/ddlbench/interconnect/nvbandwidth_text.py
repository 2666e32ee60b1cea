"""Read the text of NVIDIA's nvbandwidth, as it prints it without ``-j``.

::

    nvbandwidth Version: v0.8
    Device 0: NVIDIA H100 80GB HBM3 (00000000:1b:00)
    Running device_to_device_memcpy_read_ce.
    memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)     the unit, at the end of a line
               0         1                                 columns
     0       N/A    395.08                                 rows, each with its number
     1    395.08       N/A

    SUM device_to_device_memcpy_read_ce 790.16             all values of the matrix added up

Facts from its source (v0.8, ``output.cpp``, ``inline_common.h``, ``nvbandwidth.cpp``): the numbers
are those of the JSON, with two digits after the point. A bidirectional test prints three matrices,
the last one of both directions. A test that is waived prints "Waived:" without its name. So this
module makes of the text what the JSON holds, and :mod:`.nvbandwidth_json` reads that. Tests that
were run one by one may stand in one text.
"""

from __future__ import annotations

import re
from typing import Any

from ddlbench.common.errors import ConfigError, shown
from ddlbench.interconnect.nvbandwidth_json import TESTS, pairs_of
from ddlbench.interconnect.nvidia_programs import is_printed_number, plain_lines, printed_number

_VERSION = re.compile(r"nvbandwidth Version: \S+")
_DEVICE = re.compile(r"Device (\d{1,4}): (.+ \([0-9a-fA-F:]+\))")
_RUNNING = re.compile(r"Running (\w+)\.")
_UNIT = re.compile(r".*\((?:GB/s|ns|us)\)")
_SUM = re.compile(r"SUM (\w+) (\S+)")
_ENDED = re.compile(r"(Waived|Error)\b:? ?(.*)", re.IGNORECASE)
# Lines that only nvbandwidth prints.
_KNOWN = re.compile(
    rf"(?:{_VERSION.pattern}|{_DEVICE.pattern}|{_RUNNING.pattern}|{_SUM.pattern}"
    r"|memcpy (?:CE|SM) .*\(GB/s\)|Device to Device Latency .*\(\w+\))\s*$"
)
_INDEX = re.compile(r"\d{1,4}", re.ASCII)
_RUNS = {"status": "Running", "error": "its SUM line is missing; run nvbandwidth again"}


def is_nvbandwidth_text(text: str) -> bool:
    """Whether a text has a line with the program's version or the start of a test."""
    return "nvbandwidth Version" in text or any(f"Running {name}." in text for name in TESTS)


def parse_nvbandwidth_text(text: str, where: str = "nvbandwidth") -> dict[str, Any]:
    """Parse the text of one node, with at least a unidirectional test and the latency.

    Args:
        text: all of stdout, as captured: lines may begin with a rank, a host or the time.
        where: its name, for messages.

    Returns:
        As :func:`.nvbandwidth_json.parse_nvbandwidth`.

    Raises:
        ConfigError: a matrix has holes or contradicts its sum, a test is missing or failed, or the
            output is of several nodes.
    """
    reader = _Reader(where)
    for number, line in enumerate(plain_lines(text, _KNOWN, where), start=1):
        reader.take(number, line)
    return pairs_of(reader.results(), where)


class _Reader:
    """Makes of lines what the JSON holds."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.devices: dict[int, str] = {}
        self.tests: list[dict[str, Any]] = []
        self.is_waived = False
        self._columns: int | None = None  # of the matrix that is being read

    def take(self, number: int, line: str) -> None:
        if device := _DEVICE.fullmatch(line):
            index, name = int(device[1]), device[2]
            if self.devices.setdefault(index, name) != name:
                self._fail(number, f"device {index} is {shown(name)}, and before another one")
        elif running := _RUNNING.fullmatch(line):
            self.tests.append({"name": running[1], "bandwidth_matrix": [], **_RUNS})
            self._columns = None
        elif ended := _ENDED.fullmatch(line):
            self.is_waived |= ended[1].lower() == "waived"
            if self.tests and ended[1].lower() == "error" and self.tests[-1]["status"] != "Passed":
                self.tests[-1] |= {"status": "Error", "error": ended[2]}
        elif self.tests and self.tests[-1]["name"] in TESTS:
            self._take_of_test(number, line, self.tests[-1])

    def _take_of_test(self, number: int, line: str, test: dict[str, Any]) -> None:
        words = line.split()
        if _UNIT.fullmatch(line):
            test["bandwidth_description"] = line
            self._columns = None
        elif total := _SUM.fullmatch(line):
            if total[1].startswith(test["name"]) and is_printed_number(total[2]):
                test |= {"status": "Passed", "sum": printed_number(total[2])}
        elif "bandwidth_description" in test and words and all(map(_INDEX.fullmatch, words)):
            self._columns = len(words)
            self._next_row = 0
        elif self._columns is not None and words and _INDEX.fullmatch(words[0]):
            if int(words[0]) != self._next_row or len(words) != self._columns + 1:
                self._fail(number, f"{shown(line)} stands where row {self._next_row} should be")
            test["bandwidth_matrix"].append(words[1:])
            self._next_row += 1

    def results(self) -> dict[str, Any]:
        """The content of the JSON."""
        if self.devices and sorted(self.devices) != list(range(len(self.devices))):
            raise ConfigError(
                f"{self.where}: devices {shown(sorted(self.devices))} are listed; give the whole "
                "output"
            )
        if self.is_waived and not any(test["name"] in TESTS for test in self.tests):
            self.tests.append({"name": TESTS[0], "status": "Waived"})
        listed = [f"{index}: {name}" for index, name in sorted(self.devices.items())]
        return {"testcases": self.tests} | ({"GPU Device list": listed} if listed else {})

    def _fail(self, number: int, fault: str) -> None:
        raise ConfigError(f"{self.where} line {number}: {fault}; run nvbandwidth again")
