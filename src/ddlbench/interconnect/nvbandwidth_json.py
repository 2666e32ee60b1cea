"""Parse the JSON output of NVIDIA's nvbandwidth (``nvbandwidth -j``, Apache-2.0).

Facts from its source (v0.8, json_output.cpp and testcases_*.cpp) that its README omits:

* numbers are strings, "N/A" stands for a pair that was not measured;
* the exit status is 0 even if a test failed or was waived; its ``status`` says so;
* an error may be printed as a document of its own, before the last one;
* the arrows in descriptions point from the copying GPU: a write moves data from row to column, a
  read from column to row, whatever the arrow. Matrices of reads are transposed here;
* a bidirectional test appends three matrices (one direction, the other, both) under one key;
* earlier versions do not list the GPUs, so that these have no names;
* ``sum`` is that of the last matrix, from unrounded values.

Its latency is that of one dependent read of a peer's memory, not of a copy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ddlbench.common.captured_text import json_at
from ddlbench.common.errors import ConfigError, shown
from ddlbench.interconnect.nvidia_programs import plain_lines, printed_number
from ddlbench.interconnect.pair_matrix import Matrix, finite, pair_matrix, scaled, transposed

_LATENCY = "device_to_device_latency_sm"
_UNIDIRECTIONAL = {op: f"device_to_device_memcpy_{op}_ce" for op in ("write", "read")}
_BIDIRECTIONAL = {op: f"device_to_device_bidirectional_memcpy_{op}_ce" for op in ("write", "read")}
TESTS = (*_UNIDIRECTIONAL.values(), *_BIDIRECTIONAL.values(), _LATENCY)
_MOST_MATRICES = dict.fromkeys(_BIDIRECTIONAL.values(), 3)

# Factor and divisor to bytes per second or seconds.
_UNITS = {"GB/s": (1e9, 1.0), "ns": (1.0, 1e9), "us": (1.0, 1e6)}
_DEVICE = re.compile(r"^(\d+): (.*?)(?: \([0-9a-fA-F:.]+\).*)?$")
_NO_NAME = "GPU"
# Keys that begin a line, and what may stand before a key on its line.
_KEYS = (
    r"nvbandwidth|testcases|name|status|sum|bandwidth_\w+|(?:git_)?version|error|warning"
    r"|CUDA Runtime Version|Driver Version|GPU Device list"
)
_KNOWN = re.compile(rf'(?<![{{\[,\s])[{{\[,\s]*"(?:{_KEYS})"\s*:')
_BEGINNING = re.compile(r'\{\s*"nvbandwidth"\s*:')
_LONGEST_MESSAGE = 150
_ROUNDED, _DIGITS_ERROR = 1e-5, 0.01
"""Values have six digits in JSON, and two after the point in the text."""
_COMMAND = "nvbandwidth -j"


class _Document(NamedTuple):
    """The content of a JSON document, and the line at which it begins."""

    line: int
    content: dict[str, Any]


def is_nvbandwidth_json(text: str) -> bool:
    """Whether a text has nvbandwidth's key, perhaps after other lines."""
    return '"nvbandwidth"' in text


def parse_nvbandwidth(text: str, where: str = "nvbandwidth") -> dict[str, Any]:
    """Parse the output of one run with at least the unidirectional tests and the latency.

    Args:
        text: all of stdout, as captured: lines may begin with a rank, a host or the time, and
            other text may stand before and after the JSON.
        where: name of the output in messages.

    Returns:
        ``devices`` (names) and ``pairs``: entries of links.json, in bytes per second and seconds.
        A single GPU has no pairs, as nvbandwidth waives all tests between devices.

    Raises:
        ConfigError: the text is not nvbandwidth's JSON, reports an error, is of several runs or
            tasks, or lacks a passed test.
    """
    return pairs_of(_results(text, where), where)


def pairs_of(results: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Devices and pairs of the content of one run, as :func:`parse_nvbandwidth`."""
    devices = _device_names(results, where)
    if devices is not None and len(devices) < 2:
        return {"devices": devices, "pairs": []}
    tests = _tests(results, where)
    present = [op for op, name in _UNIDIRECTIONAL.items() if name in tests]
    if not present:
        raise ConfigError(f"{where}: no device-to-device test in it; {_how()}")
    if _LATENCY not in tests:
        raise ConfigError(f"{where}: {_LATENCY} is missing; {_how()}")
    if devices is None:
        devices = [_NO_NAME] * len(_rows(tests[_LATENCY], where))
    # A row is the GPU that reads, and the sender is the owner of the memory.
    latency_s = transposed(_matrix(tests[_LATENCY], len(devices), where))
    pairs = []
    directions = {"unidirectional": _UNIDIRECTIONAL, "bidirectional": _BIDIRECTIONAL}
    for direction, names in directions.items():
        for operation, name in names.items():
            if name not in tests:
                continue
            bandwidth = _matrix(tests[name], len(devices), where)
            if operation == "read":
                bandwidth = transposed(bandwidth)
            pairs.append(
                pair_matrix(
                    scope="node",
                    method="nvbandwidth",
                    endpoints=[f"{index}: {device}" for index, device in enumerate(devices)],
                    nodes=[0] * len(devices),
                    bandwidth_bytes_per_s=bandwidth,
                    latency_s=latency_s,
                    access="direct",
                    direction=direction,
                    operation=operation,
                )
            )
    return {"devices": devices, "pairs": pairs}


def _results(text: str, where: str) -> dict[str, Any]:
    """The content of the only document that is no error."""
    documents = _documents(plain_lines(text, _KNOWN, where), where)
    for _, content in documents:
        if content.get("error"):
            raise ConfigError(f"{where}: nvbandwidth reports: {_line(content['error'])}")
    first, *others = documents
    if others:
        raise ConfigError(
            f"{where} line {others[0].line}: a second run begins here, the first at line "
            f"{first.line}; keep one"
        )
    return first.content


def _documents(lines: list[str], where: str) -> list[_Document]:
    """Every JSON document of nvbandwidth in the lines, in order; skips other text."""
    text = "\n".join(lines)
    documents: list[_Document] = []
    position = 0
    while match := _BEGINNING.search(text, position):
        value, position = json_at(match.start(), text, where, _COMMAND)
        content = value["nvbandwidth"]
        if not isinstance(content, dict):
            raise ConfigError(
                f"{where}: 'nvbandwidth' is {_shown(content)} instead of an object; {_how()}"
            )
        documents.append(_Document(text.count("\n", 0, match.start()) + 1, content))
    if documents:
        return documents
    if (start := text.find("{")) >= 0:
        json_at(start, text, where, _COMMAND)
        raise ConfigError(f"{where}: JSON, but not nvbandwidth's; {_how()}")
    raise ConfigError(f"{where}: no JSON in it; {_how()}")


def _tests(results: Mapping[str, Any], where: str) -> dict[str, dict[str, Any]]:
    """Our test cases by name, all of which have passed."""
    cases = results.get("testcases")
    if not isinstance(cases, list):
        raise ConfigError(
            f"{where}: 'testcases' is {_shown(cases)} instead of a list of tests; {_how()}"
        )
    tests: dict[str, dict[str, Any]] = {}
    for number, test in enumerate(cases, start=1):
        if not isinstance(test, dict):
            raise ConfigError(
                f"{where}: test {number} is {_shown(test)} instead of an object; {_how()}"
            )
        name, status = test.get("name"), test.get("status")
        if name not in TESTS:
            continue
        if status != "Passed":
            error = f": {_line(test['error'])}" if test.get("error") else ""
            if status == "Waived":
                error += "; its GPUs have no peer access: use p2pBandwidthLatencyTest"
            raise ConfigError(f"{where}: {name} ended with status {_shown(status)}{error}")
        if name in tests:
            raise ConfigError(f"{where}: {name} is in it twice; keep one")
        tests[name] = test
    return tests


def _device_names(results: Mapping[str, Any], where: str) -> list[str] | None:
    """The names of the GPUs; None if the version does not list them."""
    if "GPU Device list" not in results:
        return None
    listed = results["GPU Device list"]
    if not isinstance(listed, list) or not listed or not all(isinstance(x, str) for x in listed):
        raise ConfigError(
            f"{where}: 'GPU Device list' is {_shown(listed)} instead of a list of texts such as "
            f"'0: NVIDIA H100 (00000000:1b:00)'; {_how()}"
        )
    return [match[2] if (match := _DEVICE.match(text)) else text for text in listed]


def _matrix(test: dict[str, Any], size: int, where: str) -> Matrix:
    place = f"{where}: {test['name']}"
    description = test.get("bandwidth_description")
    unit = re.search(r"\((GB/s|ns|us)\)", str(description))
    if unit is None:
        raise ConfigError(f"{place}: no unit in its description {_shown(description)}; {_how()}")
    rows = _rows(test, where)
    count = len(rows) / size
    if count not in (1, _MOST_MATRICES.get(test["name"])) or any(len(row) != size for row in rows):
        raise ConfigError(f"{place}: not {size} rows of {size} values; run nvbandwidth again")
    matrix = [[_value(word, place) for word in row] for row in rows[-size:]]
    if all(i == j or not value for i, row in enumerate(matrix) for j, value in enumerate(row)):
        raise ConfigError(f"{place}: none of its pairs was measured; run nvbandwidth again")
    _check_sum(matrix, test.get("sum"), place)
    return scaled(matrix, *_UNITS[unit[1]])


def _check_sum(matrix: Matrix, total: Any, place: str) -> None:
    """Refuse a matrix with other values than those that were added up."""
    if not isinstance(total, int | float) or isinstance(total, bool) or finite(total) is None:
        return
    added = sum(value or 0.0 for row in matrix for value in row)
    rounding = _ROUNDED * added + _DIGITS_ERROR * len(matrix) ** 2
    if abs(added - total) > rounding:
        raise ConfigError(
            f"{place}: its values add up to {added:g}, and its sum is {total:g}, so that one of "
            "them was changed; run nvbandwidth again"
        )


def _rows(test: dict[str, Any], where: str) -> list[list[Any]]:
    rows = test.get("bandwidth_matrix")
    if not isinstance(rows, list) or not rows:
        raise ConfigError(
            f"{where}: {test['name']}: its matrix is {_shown(rows)} instead of a list of rows; "
            "run nvbandwidth again"
        )
    for number, row in enumerate(rows):
        if not isinstance(row, list):
            raise ConfigError(
                f"{where}: {test['name']}: row {number} is {_shown(row)} instead of a list of "
                "values; run nvbandwidth again"
            )
    return rows


def _value(word: Any, place: str) -> float | None:
    try:
        if isinstance(word, str):
            value = printed_number(word.strip())
            value = None if value is None else finite(value)
        elif isinstance(word, int | float) and not isinstance(word, bool):
            value = finite(float(word))
        else:
            raise ValueError(word)
    except (ValueError, OverflowError):
        raise ConfigError(
            f"{place}: {_shown(word)} is not a number; run nvbandwidth again"
        ) from None
    if value is not None and value < 0:
        raise ConfigError(f"{place}: {_shown(word)} is below zero; run nvbandwidth again")
    return value


def _shown(value: Any) -> str:
    return "null" if value is None else shown(value)


def _line(text: Any) -> str:
    return " ".join(str(text).split())[:_LONGEST_MESSAGE]


def _how() -> str:
    return f"run nvbandwidth -j -t {_UNIDIRECTIONAL['write']} {_LATENCY}"
