"""Fonts of figures: matplotlib's, and the machine's for signs that it lacks.

::

    "Größe"    DejaVu Sans, which comes with matplotlib: the same picture on every machine
    "数据 A"    DejaVu Sans, then the installed family that has most of the other signs
"""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from ddlbench.report import plain_matplotlib  # noqa: F401 - before matplotlib is imported

# isort: split
from matplotlib.font_manager import FontEntry, FontProperties, findfont, fontManager, get_font

from ddlbench.report.labels import PARAMETERS

FAMILY: str = PARAMETERS["font.family"]
_PLAIN: dict[str, Any] = {
    "style": "normal", "variant": "normal", "weight": "normal", "stretch": "normal",
}  # fmt: skip
# A family of the machine need not have each weight: its nearest is as good.
logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
_BOXES = "Last Resort"  # draws any sign as a box


def font_of(text: str) -> FontProperties:
    """The font that a text is drawn and measured with."""
    return _properties(families_of(text))


def families_of(text: str) -> tuple[str, ...]:
    """The family of figures, then those of the machine that have the signs that it lacks."""
    return (FAMILY, *_further(frozenset(lacking(text, (FAMILY,)))))


def lacking(text: str, families: tuple[str, ...]) -> set[str]:
    """The signs of a text that no family of these has."""
    known = [_codes(findfont(_properties((family,)))) for family in families]
    return {s for s in text if not s.isspace() and not any(ord(s) in codes for codes in known)}


@cache
def _properties(families: tuple[str, ...]) -> FontProperties:
    return FontProperties(family=list(families), **_PLAIN)


@cache
def _further(missing: frozenset[str]) -> tuple[str, ...]:
    """Installed families that have the signs, the one with the most first."""
    if not missing:
        return ()
    paths = {entry.name: entry.fname for entry in sorted(fontManager.ttflist, key=_order)}
    paths = {name: path for name, path in paths.items() if not name.startswith(_BOXES)}
    codes, families = set(map(ord, missing)), []
    while paths and codes:
        best = max(paths, key=lambda name: len(codes & _codes(paths[name])))
        if not codes & _codes(paths[best]):
            break
        families.append(best)
        codes -= _codes(paths[best])
    return tuple(families)


def _order(entry: FontEntry) -> tuple[Any, ...]:
    """Families by name; of a family the upright, usual weight last."""
    usual = entry.style == "normal" and entry.weight in (400, "normal", "regular")
    return (entry.name, usual, entry.fname)


@cache
def _codes(path: str) -> frozenset[int]:
    """The code points that a font has; none of a file that is no font any more."""
    with suppress(OSError, RuntimeError):
        return frozenset(get_font(path).get_charmap()) if Path(path).exists() else frozenset()
    return frozenset()
