"""The GPU study on a machine without a GPU: it runs, its table fits.

That it goes on where it was is in tests/unit/test_validation_table.py.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[2] / "validation" / "gpu.py"


@pytest.fixture(
    scope="module",
    params=[5, *(pytest.param(number, marks=pytest.mark.exhaustive) for number in (1, 3))],
)
def part(request):
    return request.param


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("gpu-results")


@pytest.fixture(scope="module")
def first(out, part):
    return run(out, part)


def run(out, part):
    options = ["--part", str(part), "--device", "cpu", "--small", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *options],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def checks_of(out, part):
    return json.loads((out / f"part{part}.json").read_text())["checks"]


def tables_of(printed):
    """Lines of the tables, without what was printed while the checks ran."""
    lines, inside = [], False
    for line in printed.splitlines():
        inside = inside or line.startswith("Part ")
        if inside:
            lines.append(line)
        if line.endswith(" no time"):
            inside = False
    return lines


def test_every_check_passes_or_is_not_here(first, out, part):
    states = {check["check"]: check["status"] for check in checks_of(out, part)}
    assert "passed" in states.values()
    assert not {name: s for name, s in states.items() if s not in ("passed", "not here")}


def test_the_tables_fit_a_terminal(first):
    lines = tables_of(first)
    assert sum(line.startswith("Part ") for line in lines) == 1
    assert max(map(len, lines)) <= 80
