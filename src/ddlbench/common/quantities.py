"""Quantities: numbers with their unit, as people read and write them.

::

    written in a file, where a key has the unit in its name
    memory_bytes: 80 GiB          -> 85899345920
    bandwidth_mbit_per_s: 1 Gbps  -> 1000
    latency_s: 5us                -> 5.0e-06

Prefixes are decimal (GB is 1e9 bytes), binary with an i (GiB). A small b is a bit in rates (Gb/s).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_DURATIONS = (
    (1e-3, 1e-6, "µs"),
    (1.0, 1e-3, "ms"),
    (120.0, 1.0, "s"),
    (7200.0, 60.0, "min"),
    (259_200.0, 3600.0, "h"),
    (float("inf"), 86_400.0, "days"),
)


@dataclass(frozen=True)
class Unit:
    """A unit; its size is in seconds, bytes, or bits a second."""

    name: str
    size: float

    def of(self, value: float) -> float:
        return value / self.size

    def text(self, value: float | None, form: str = ".3g") -> str:
        """Number and name; a dash for None."""
        return "-" if value is None else f"{value / self.size:{form}} {self.name}"


SECONDS = Unit("s", 1.0)
MS, US, NS = Unit("ms", 1e-3), Unit("µs", 1e-6), Unit("ns", 1e-9)
HOURS = Unit("h", 3600.0)
# Bytes are shown in decimal units; in binary ones only message sizes that are powers of two.
TB, GB, MB = Unit("TB", 1e12), Unit("GB", 1e9), Unit("MB", 1e6)
KB, BYTE = Unit("kB", 1e3), Unit("bytes", 1.0)
GIB, MIB, KIB, B = Unit("GiB", 2**30), Unit("MiB", 2**20), Unit("KiB", 2**10), Unit("B", 1)
MBIT_PER_S = Unit("Mbit/s", 1e6)

# In the order of unit_for(): the largest first.
TIMES = (SECONDS, MS, US)
BYTES = (TB, GB, MB, KB, BYTE)
BYTES_BINARY = (GIB, MIB, KIB, B)


def unit_for(value: float, units: Sequence[Unit]) -> Unit:
    """The first unit that is not larger than ``value``, else the last; ``units`` are descending."""
    return next((unit for unit in units if value >= unit.size), units[-1])


def counted(number: int, noun: str, plural: str = "") -> str:
    """``1 cell``, ``1,200 cells``; ``plural`` where it is not the noun with an s."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def few(names: Iterable[str], most: int = 2) -> str:
    """Some names for a sentence: the first ones, and how many more there are.

    >>> few(["a", "b", "c"])
    'a, b and 1 more'
    """
    every = list(names)
    shown = ", ".join(every[:most])
    return f"{shown} and {len(every) - most:,} more" if len(every) > most else shown


def two_digits(value: float) -> str:
    """A number with two significant digits, or all digits before the point."""
    size = abs(value)
    if size == 0:
        return "0"
    if size < 0.001:
        return "<0.001"
    if size >= 9.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 0.995 else f"{value:.2g}"


def ratio_text(ratio: float) -> str:
    """A speed-up with two digits behind the point; a small one with two significant digits."""
    return f"{ratio:.2f}" if abs(ratio) >= _SMALL_RATIO else two_digits(ratio)


_SMALL_RATIO = 0.00995  # of which two digits behind the point would say little or nothing


def duration_text(seconds: float | None) -> str:
    """``0.18 ms`` is 180 µs, ``12510`` seconds are 3.5 h; a dash where it is not known."""
    if seconds is None:
        return "-"
    if seconds == 0:
        return "0 s"
    size, name = next((size, name) for below, size, name in _DURATIONS if seconds < below)
    return f"{two_digits(seconds / size)} {name}"


def size_text(count: float | None) -> str:
    """Bytes in decimal units; a dash where the number is not known."""
    if count is None:
        return "-"
    unit = unit_for(count, BYTES)
    return f"{two_digits(unit.of(count))} {unit.name}"


def in_one_unit(values: Sequence[float | None], units: Sequence[Unit]) -> list[str]:
    """Texts of a column in the unit that suits its largest value; empty where one is not known."""
    known = [abs(value) for value in values if value is not None]
    if not known:
        return [""] * len(values)
    unit = unit_for(max(known), units)
    return ["" if v is None else f"{two_digits(unit.of(v))} {unit.name}" for v in values]


_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}
_SECONDS_OF_WORD = {
    "s": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "µs": 1e-6,
    "μs": 1e-6,
    "ns": 1e-9,
    "min": 60.0,
    "h": 3600.0,
}
_SECONDS_OF_WORD |= {"sec": 1.0, "seconds": 1.0, "minutes": 60.0, "hours": 3600.0}
_WORDS = {"b": "byte", "byte": "byte", "bytes": "byte", "bit": "bit", "bits": "bit"}
_WORDS |= {"flop": "flop", "flops": "flop"}
_IN_BYTES = {"byte": 1.0, "bit": 1 / 8}
_WRITTEN = re.compile(
    r"\s*([-+]?[\d_]*\.?\d+(?:e[-+]?\d+)?)\s*([a-zµμ]+)\s*(?:(/|per)\s*s(?:ec)?)?\s*", re.I
)


def in_unit_of(key: str, text: str) -> float | None:
    """The number that ``text`` means in the unit that ``key`` ends with; None if they do not fit.

    >>> in_unit_of("memory_bytes", "80 GB"), in_unit_of("latency_ms", "10us")
    (80000000000.0, 0.01)
    >>> in_unit_of("bandwidth_bytes_per_s", "100 Gbit/s")
    12500000000.0
    >>> in_unit_of("latency_s", "80 GB") is None
    True
    """
    match = _WRITTEN.fullmatch(text)
    if match is None:
        return None
    number, word, per = match.groups()
    is_rate = key.endswith("_per_s")
    if word.casefold().endswith("bps"):
        word, per = word[:-2], "/"
    elif word.casefold().endswith("flops"):
        per = "/"
    wanted = _unit(key.removesuffix("_per_s").rpartition("_")[2])
    given = _unit(f"{word}it" if is_rate and word.endswith("b") else word)
    if given is None or wanted is None or given[0] != wanted[0] or is_rate != (per is not None):
        return None
    return float(f"{float(number.replace('_', '')) * given[1] / wanted[1]:.12g}")


def _unit(word: str) -> tuple[str, float] | None:
    """What a unit measures, and its size in bytes, seconds or operations."""
    small = word.casefold()
    if small in _SECONDS_OF_WORD:
        return "second", _SECONDS_OF_WORD[small]
    match = re.fullmatch(r"([kmgtp]?)(i?)(b|bytes?|bits?|flops?)", small)
    if match is None:
        return None
    prefix, binary, name = match.groups()
    kind = _WORDS[name]
    size = 1024 ** list(_PREFIXES).index(prefix) if binary else _PREFIXES[prefix]
    return ("byte", size * _IN_BYTES[kind]) if kind in _IN_BYTES else (kind, size)
