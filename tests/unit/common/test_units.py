"""Quantities as people read them, and that no module writes units in its own way."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ddlbench
from ddlbench.common.quantities import BYTES, BYTES_BINARY, GB, MS, TIMES, unit_for


@pytest.mark.parametrize(
    ("value", "units", "text"),
    [
        (0.0312, TIMES, "31.2 ms"),
        (1.0, TIMES, "1 s"),
        (0.0, TIMES, "0 µs"),
        (1.5e9, BYTES, "1.5 GB"),
        (999, BYTES, "999 bytes"),
        (2**20, BYTES_BINARY, "1 MiB"),
        (float("nan"), BYTES_BINARY, "nan B"),
    ],
)
def test_a_value_is_told_in_the_largest_unit_that_it_reaches(value, units, text):
    assert unit_for(value, units).text(value) == text


def test_a_form_and_an_unknown_value():
    assert GB.text(12_345_678_900, ".1f") == "12.3 GB"
    assert MS.text(None) == "-"
    assert MS.of(0.25) == 250


def test_no_other_module_scales_what_it_writes():
    """A power of ten inside a format, or a list of units, belongs into ``statistics.py``."""
    scaled = re.compile(r"[/*] ?1e-?[369]:|\(1e-?[369], \"|\(2\*\*[123]0, \"")
    actual = {
        f"{path.name}: {line.strip()}"
        for path in Path(ddlbench.__file__).parent.rglob("*.py")
        if path.name != "statistics.py"
        for line in path.read_text("utf-8").splitlines()
        if scaled.search(line)
    }
    assert actual == set()
