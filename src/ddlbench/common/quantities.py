"""Numbers that were written with their unit, where a key has the unit in its name.

::

    memory_bytes: 80 GiB          -> 85899345920
    bandwidth_mbit_per_s: 1 Gbps  -> 1000
    latency_s: 5us                -> 5.0e-06

Prefixes are decimal (GB is 1e9 bytes), binary with an i (GiB). A small b is a bit in rates (Gb/s).
"""

from __future__ import annotations

import re

_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}
_SECONDS = {
    "s": 1.0,
    "ms": 1e-3,
    "us": 1e-6,
    "µs": 1e-6,
    "μs": 1e-6,
    "ns": 1e-9,
    "min": 60.0,
    "h": 3600.0,
}
_SECONDS |= {"sec": 1.0, "seconds": 1.0, "minutes": 60.0, "hours": 3600.0}
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
    if small in _SECONDS:
        return "second", _SECONDS[small]
    match = re.fullmatch(r"([kmgtp]?)(i?)(b|bytes?|bits?|flops?)", small)
    if match is None:
        return None
    prefix, binary, name = match.groups()
    kind = _WORDS[name]
    size = 1024 ** list(_PREFIXES).index(prefix) if binary else _PREFIXES[prefix]
    return ("byte", size * _IN_BYTES[kind]) if kind in _IN_BYTES else (kind, size)
