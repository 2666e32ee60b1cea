"""The gallery: one page without network, each published figure with what is there."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from headless import assert_fits, needs_browser
from matplotlib.figure import Figure

from ddlbench.cli import commands
from ddlbench.experiment.paper import read_papers
from ddlbench.report.columns import MEASUREMENTS
from ddlbench.report.summary import summarise
from ddlbench.report.tables import read_table, write_table

KEPT = Path(__file__).parents[3] / "docs" / "papers"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Results of one site with one figure of DDLBench's Fig. 4 at laptop scale."""
    folder = tmp_path / "results" / "local" / "ddlbench-fig4-laptop" / "figures"
    folder.mkdir(parents=True)
    Figure(figsize=(1, 1)).savefig(folder / "speedup.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_every_figure_has_a_section_and_ours_are_in_it(project) -> None:
    ended = CliRunner().invoke(commands, ["gallery", "--out", "shown"])
    assert ended.exit_code == 0, ended.output
    page = (project / "shown" / "gallery.html").read_text()
    sections = re.findall(r'<section id="([^"]+)">', page)
    assert sections == [file.paper.figure.replace("/", "-") for file in read_papers()]
    pictures = page.count("data:image/png;base64,")
    assert pictures == 1 + 1  # ours, and the published bars of paradl/fig1
    reasons = [one for one in read_papers() if one.paper.not_drawn or one.paper.same_as]
    assert page.count("Not drawn: ") == len(reasons)
    assert page.count("Not drawn yet.") == len(sections) - pictures - len(reasons)
    text = (project / "shown" / "gallery.md").read_text()
    assert "(../results/local/ddlbench-fig4-laptop/figures/speedup.png)" in text


def test_the_page_asks_no_network_for_anything(project) -> None:
    CliRunner().invoke(commands, ["gallery", "--out", "shown"])
    page = (project / "shown" / "gallery.html").read_text()
    assert "default-src 'none'" in page
    assert not re.findall(r"""(?:src|href)=["']https?:""", page)
    assert "<script" not in page


def test_the_picture_of_a_schedule_lies_where_its_command_writes_it(project) -> None:
    file = next(one for one in read_papers() if one.paper.figure == "ddlbench/fig1")
    folder = project / file.paper.command.split("--out ")[1]
    folder.mkdir(parents=True)
    Figure(figsize=(1, 1)).savefig(folder / "data-parallel.png")
    CliRunner().invoke(commands, ["gallery", "--out", "shown"])
    page = (project / "shown" / "gallery.html").read_text()
    assert page.count("data:image/png;base64,") == 1 + 2


def test_a_command_in_a_sentence_is_set_as_code(project) -> None:
    CliRunner().invoke(commands, ["gallery", "--out", "shown"])
    page = (project / "shown" / "gallery.html").read_text()
    assert "<code>ddlbench report --configfile" in page
    assert "`ddlbench" not in page


def test_a_table_names_once_what_is_the_same_in_all_rows(project) -> None:
    folder = project / "results" / "local" / "thesis-table6.1-laptop" / "tables"
    folder.mkdir(parents=True)
    (folder / "table_6_1.csv").write_text(
        "strategy,batch_size,mark,samples_per_s\ngpipe,18,,36.04\ngpipe,24,,38.7157\n"
    )
    CliRunner().invoke(commands, ["gallery", "--out", "shown"])
    page = (project / "shown" / "gallery.html").read_text()
    (section,) = re.findall(r'<section id="thesis-table6.1">.*?</section>', page, re.DOTALL)
    assert re.findall(r"<t[hd][^>]*>([^<]*)</t", section) == [
        *("batch size", "samples per s"),
        *("18", "36", "24", "38.7"),
    ]
    assert "All rows: strategy gpipe" in section
    assert "Not drawn yet" not in section


@pytest.fixture(scope="module")
def kept_page(tmp_path_factory):
    """The gallery of all figures that this repository keeps, with verdicts on their cells."""
    folder = tmp_path_factory.mktemp("kept")
    for cells in KEPT.glob("*/cells.csv"):
        measured = read_table(cells, MEASUREMENTS)
        site, experiment = measured["site"].iloc[0], measured["experiment"].iloc[0]
        made = folder / "results" / site / experiment
        for name, ending in (("figures", ".png"), ("tables", ".csv")):
            (made / name).mkdir(parents=True)
            for path in cells.parent.glob(f"*{ending}"):
                shutil.copy(path, made / name)
        write_table(made / "tables" / "summary.csv", summarise(measured))
    shutil.copytree(KEPT, folder / "docs" / "papers")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        ended = CliRunner().invoke(commands, ["gallery"])
        assert ended.exit_code == 0, ended.output
    return (folder / "results" / "gallery.html").read_text()


def test_the_kept_figures_and_verdicts_make_a_page(kept_page) -> None:
    kept = len(list(KEPT.glob("*/*.png")))
    assert kept_page.count("data:image/png;base64,") == kept + 1  # and paradl/fig1's published bars
    for verdict in ("holds", "refuted", "undecided", "not-measured"):
        assert f'class="{verdict}"' in kept_page


@needs_browser
@pytest.mark.parametrize("width", [1280, 400])
def test_a_browser_shows_the_gallery_at_two_widths(kept_page, width, tmp_path) -> None:
    assert_fits(kept_page, width, tmp_path)
