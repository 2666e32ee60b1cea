"""What the repository keeps of its studies: little, and nothing that no page shows."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from ddlbench.experiment.config import read_papers
from ddlbench.report.papers_page import kept_results
from ddlbench.report.style import new_figure, save_figure, small_png, style

ROOT = Path(__file__).parents[2]
KEPT = [ROOT / "docs" / "papers", ROOT / "docs" / "validation"]
MOST_BYTES = 8e6


def test_kept_results_are_small() -> None:
    sizes = [path.stat().st_size for folder in KEPT for path in folder.rglob("*")]
    assert sum(sizes) < MOST_BYTES


def test_a_page_shows_every_kept_picture() -> None:
    shown = {path for file in read_papers() for path in kept_results(file).pictures()}
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        links = re.findall(r"\]\(([^)#]+\.png)\)", page.read_text("utf-8"))
        shown |= {(page.parent / link).resolve() for link in links}
    pictures = {path for folder in KEPT for path in folder.rglob("*.png")}
    assert {str(path.relative_to(ROOT)) for path in pictures - shown} == set()


def test_every_folder_of_the_papers_is_of_a_figure() -> None:
    folders = {path for path in KEPT[0].iterdir() if path.is_dir()}
    assert folders <= {ROOT / file.paper.kept for file in read_papers()}


@pytest.fixture
def drawn() -> Figure:
    """More colours than a palette holds, and letters."""
    figure = new_figure(60, 40)
    axes = figure.add_subplot()
    axes.imshow(np.linspace(0, 1, 4000).reshape(40, 100), cmap="viridis")
    axes.set_title("Speed-up")
    return figure


def test_a_saved_figure_has_a_palette_and_looks_the_same(drawn, tmp_path) -> None:
    with style():
        save_figure(drawn, tmp_path / "figure.png")
        plain = io.BytesIO()
        drawn.savefig(plain, format="png", metadata={"Software": None})
    with Image.open(tmp_path / "figure.png") as small, Image.open(plain) as full:
        assert small.mode == "P"
        assert small.size == full.size
        assert small.info["dpi"] == pytest.approx(full.info["dpi"])
        both = (np.asarray(image.convert("RGB"), dtype=int) for image in (small, full))
        difference = abs(next(both) - next(both))
    assert difference.mean() < 1
    assert np.percentile(difference, 99.9) < 32  # of 255, at the edges of letters
    assert len(small_png(plain.getvalue())) < len(plain.getvalue())
