"""Parse the JSON output of NVIDIA's nvbandwidth (``nvbandwidth -j``, Apache-2.0).

Facts from its source (v0.8, json_output.cpp and testcases_*.cpp) that its README omits:

* numbers are strings, "N/A" stands for a pair that was not measured;
* the exit status is 0 even if a test failed or was waived; its ``status`` says so;
* an error may be printed as a document of its own, before the last one;
* the arrows in descriptions point from the copying GPU: a write moves data from row to column, a
  read from column to row, whatever the arrow. Matrices of reads are transposed here;
* a bidirectional test appends three matrices (one direction, the other, both) under one key.

Its latency is that of one dependent read of a peer's memory, not of a copy.
"""

from __future__ import annotations

import json
import re
from typing import Any

from ddlbench.experiment.errors import ConfigError
from ddlbench.interconnect.pair_matrix import Matrix, finite, pair_matrix, scaled, transposed

_LATENCY = "device_to_device_latency_sm"
_UNIDIRECTIONAL = {op: f"device_to_device_memcpy_{op}_ce" for op in ("write", "read")}
_BIDIRECTIONAL = {op: f"device_to_device_bidirectional_memcpy_{op}_ce" for op in ("write", "read")}
TESTS = (*_UNIDIRECTIONAL.values(), *_BIDIRECTIONAL.values(), _LATENCY)

# Factor and divisor to bytes per second or seconds.
_UNITS = {"GB/s": (1e9, 1.0), "ns": (1.0, 1e9), "us": (1.0, 1e6)}
_DEVICE = re.compile(r"^(\d+): (.*?)(?: \([0-9a-fA-F:.]+\).*)?$")


def parse_nvbandwidth(text: str, where: str = "nvbandwidth") -> dict[str, Any]:
    """Parse the output of one run with at least the unidirectional tests and the latency.

    Returns:
        ``devices`` (names) and ``pairs``: entries of links.json, in bytes per second and seconds.
        A single GPU has no pairs, as nvbandwidth waives all tests between devices.

    Raises:
        ConfigError: the text is not nvbandwidth's JSON, reports an error, or lacks a passed test.
    """
    documents = _documents(text, where)
    for document in documents:
        if document.get("error"):
            raise ConfigError(f"{where}: nvbandwidth reports: {_line(document['error'])}")
    results = documents[-1]
    devices = _device_names(results, where)
    if len(devices) < 2:
        return {"devices": devices, "pairs": []}
    tests = _tests(results, where)
    present = [op for op, name in _UNIDIRECTIONAL.items() if name in tests]
    if not present:
        raise ConfigError(f"{where}: no device-to-device test in it; {_how()}")
    if _LATENCY not in tests:
        raise ConfigError(f"{where}: {_LATENCY} is missing; {_how()}")
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


def _documents(text: str, where: str) -> list[dict[str, Any]]:
    """The content of every JSON document in the text, in order; skips other lines."""
    decoder = json.JSONDecoder()
    documents: list[dict[str, Any]] = []
    position = text.find("{")
    while position >= 0:
        try:
            value, position = decoder.raw_decode(text, position)
        except json.JSONDecodeError as error:
            line = text.count("\n", 0, error.pos) + 1
            raise ConfigError(
                f"{where} line {line}: not complete JSON ({error.msg}); run nvbandwidth -j again"
            ) from None
        if not isinstance(value, dict) or not isinstance(value.get("nvbandwidth"), dict):
            raise ConfigError(f"{where}: JSON, but not nvbandwidth's; {_how()}")
        documents.append(value["nvbandwidth"])
        position = text.find("{", position)
    if not documents:
        raise ConfigError(f"{where}: no JSON in it; {_how()}")
    return documents


def _tests(results: dict[str, Any], where: str) -> dict[str, dict[str, Any]]:
    """Our test cases by name, all of which have passed."""
    tests: dict[str, dict[str, Any]] = {}
    for test in results.get("testcases", []):
        name, status = test.get("name"), test.get("status")
        if name not in TESTS:
            continue
        if status != "Passed":
            error = f": {_line(test['error'])}" if test.get("error") else ""
            if status == "Waived":
                error += "; its GPUs have no peer access: use p2pBandwidthLatencyTest"
            raise ConfigError(f"{where}: {name} ended with status {status!r}{error}")
        tests[name] = test
    return tests


def _device_names(results: dict[str, Any], where: str) -> list[str]:
    listed = results.get("GPU Device list")
    if not listed:
        raise ConfigError(f"{where}: no 'GPU Device list' in it; {_how()}")
    return [match[2] if (match := _DEVICE.match(text)) else str(text) for text in listed]


def _matrix(test: dict[str, Any], size: int, where: str) -> Matrix:
    place = f"{where}: {test['name']}"
    unit = re.search(r"\((GB/s|ns|us)\)", str(test.get("bandwidth_description")))
    if unit is None:
        raise ConfigError(
            f"{place}: no unit in its description {test.get('bandwidth_description')!r}"
        )
    rows = test.get("bandwidth_matrix") or []
    if len(rows) < size or len(rows) % size or any(len(row) != size for row in rows):
        raise ConfigError(f"{place}: not {size} rows of {size} values; run nvbandwidth again")
    return scaled([[_value(word, place) for word in row] for row in rows[-size:]], *_UNITS[unit[1]])


def _value(word: Any, place: str) -> float | None:
    if word == "N/A":
        return None
    try:
        value = float(word)
    except (TypeError, ValueError):
        raise ConfigError(f"{place}: {word!r} is not a number") from None
    if value < 0:
        raise ConfigError(f"{place}: {word} is below zero")
    return finite(value)


def _line(text: Any) -> str:
    return " ".join(str(text).split())


def _how() -> str:
    return f"run nvbandwidth -j -t {_UNIDIRECTIONAL['write']} {_LATENCY}"
