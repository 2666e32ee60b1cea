"""Figures do not depend on MPLBACKEND or a matplotlibrc, and a program keeps what its user set."""

from __future__ import annotations

import ast
import io
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

import ddlbench.report
from ddlbench.report.style import new_figure, save_figure

_PROGRAM = """
import hashlib, os
from pathlib import Path
from ddlbench.report.style import new_figure, save_figure, style, text_width_mm
width_mm = text_width_mm("a text")
with style():
    figure = new_figure(40, 30)
    figure.add_subplot().plot([1, 2], [3, 4], label="a text")
    save_figure(figure, Path("out/figure.png"))
print(width_mm, hashlib.sha256(Path("out/figure.png").read_bytes()).hexdigest())
print(Path.cwd(), {k: v for k, v in os.environ.items() if k in ("MPLBACKEND", "MATPLOTLIBRC")})
"""
_SOURCES = Path(ddlbench.report.__file__).parents[2]
_ODD = b"font.size: 40\ntext.usetex: True\nsavefig.facecolor: red\nbackend: nope\nwhat: 1\n"


def drawn(folder: Path, **variables: str) -> str:
    """Width of a text, and the digest of a figure that a process of its own draws."""
    plain = {k: v for k, v in os.environ.items() if k not in ("MPLBACKEND", "MATPLOTLIBRC")}
    ended = subprocess.run(
        [sys.executable, "-c", _PROGRAM],
        cwd=folder,
        env={**plain, "PYTHONPATH": str(_SOURCES), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    figure, after = ended.stdout.splitlines()
    assert after == f"{folder.resolve()} {variables}"
    return figure


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> str:
    return drawn(tmp_path_factory.mktemp("plain"))


@pytest.mark.parametrize("backend", ["module://matplotlib_inline.backend_inline", "nonsense", ""])
def test_the_backend_of_the_shell_does_not_matter(backend: str, tmp_path, plain) -> None:
    assert drawn(tmp_path, MPLBACKEND=backend) == plain


@pytest.mark.slow
def test_settings_of_the_user_do_not_matter(tmp_path, plain) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    config = there / ".config" / "matplotlib"
    config.mkdir(parents=True)
    here.mkdir()
    (config / "matplotlibrc").write_bytes(_ODD)
    assert drawn(here, MATPLOTLIBRC=str(config)) == plain
    assert drawn(here, MATPLOTLIBRC=str(config / "matplotlibrc")) == plain
    for content in (_ODD, b"\xff\xfe broken \x80"):
        (here / "matplotlibrc").write_bytes(content)
        assert drawn(here) == plain


def test_whatever_draws_imports_matplotlib_without_settings_first() -> None:
    late = []
    for path in (_SOURCES / "ddlbench").rglob("*.py"):
        imports = [
            str(getattr(node, "module", "")) + " " + " ".join(alias.name for alias in node.names)
            for node in ast.parse(path.read_text("utf-8")).body
            if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        drawing = [at for at, text in enumerate(imports) if "matplotlib" in text.split(" ")[0]]
        first = [at for at, text in enumerate(imports) if "plain_matplotlib" in text]
        # A package imports its own __init__ before any of its files.
        package = path.parent / "__init__.py"
        safe = package.is_file() and "plain_matplotlib" in package.read_text("utf-8")
        if drawing and not safe and (not first or first[0] > drawing[0]):
            late.append(path.name)
    assert late == []


def test_a_full_disk_is_an_error_of_the_file(tmp_path, monkeypatch):
    """matplotlib draws in memory: its PDF, closed on a full disk, raises another error."""

    @contextmanager
    def full(_path):
        yield Path("/dev/full")

    figure, targets = new_figure(180, 60), []
    draw = figure.savefig
    monkeypatch.setattr(
        figure, "savefig", lambda target, **given: targets.append(target) or draw(target, **given)
    )
    monkeypatch.setattr("ddlbench.report.style.whole_file", full)
    with pytest.raises(OSError, match="No space left"):
        save_figure(figure, tmp_path / "figure.png")
    assert [type(target) for target in targets] == [io.BytesIO, io.BytesIO]
