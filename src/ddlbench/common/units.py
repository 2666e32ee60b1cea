"""Units for quantities in text (``31.2 ms``, ``1.5 GB``) and on axes; sizes that double."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Unit:
    """A unit.

    Args:
        name: written after a number.
        size: in seconds, bytes, or bits a second.
    """

    name: str
    size: float

    def of(self, value: float) -> float:
        """``value`` in this unit."""
        return value / self.size

    def text(self, value: float | None, form: str = ".3g") -> str:
        """Number and name; a dash for None."""
        return "-" if value is None else f"{value / self.size:{form}} {self.name}"


SECONDS = Unit("s", 1.0)
MS, US, NS = Unit("ms", 1e-3), Unit("µs", 1e-6), Unit("ns", 1e-9)
HOURS, DAYS = Unit("h", 3600.0), Unit("days", 86_400.0)
GB, MB, KB, BYTE = Unit("GB", 1e9), Unit("MB", 1e6), Unit("kB", 1e3), Unit("bytes", 1.0)
GIB, MIB, KIB, B = Unit("GiB", 2**30), Unit("MiB", 2**20), Unit("KiB", 2**10), Unit("B", 1)
MBIT_PER_S = Unit("Mbit/s", 1e6)

# In the order of unit_for(): the largest first.
TIMES = (SECONDS, MS, US)
BYTES = (GB, MB, KB, BYTE)
BYTES_BINARY = (GIB, MIB, KIB, B)


def unit_for(value: float, units: Sequence[Unit]) -> Unit:
    """The first unit that is not larger than ``value``, else the last; ``units`` are descending."""
    return next((unit for unit in units if value >= unit.size), units[-1])


def doubled(first: int, most: int) -> Iterator[int]:
    """``first``, twice that, four times that, ... up to ``most``."""
    while first <= most:
        yield first
        first *= 2
