"""``ddlbench papers --all``: one page without network, each published figure with what is there."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from headless import assert_fits, needs_browser
from matplotlib.figure import Figure

from ddlbench.cli import commands
from ddlbench.common.errors import ConfigError
from ddlbench.experiment.config import read_papers
from ddlbench.report.papers_page import Shown

ROOT = Path(__file__).parents[3]
KEPT = ROOT / "docs" / "papers"
MEGABYTE = 1e6


def page_of(folder: Path, *options: str) -> str:
    ended = CliRunner().invoke(commands, ["papers", "--all", *options], catch_exceptions=False)
    assert ended.exit_code == 0, ended.output
    return (folder / "results" / "papers.html").read_text()


def section(page: str, figure: str) -> str:
    (actual,) = re.findall(rf'<section id="{re.escape(figure)}">.*?</section>', page, re.DOTALL)
    return str(actual)


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """What the page reads of a fresh clone."""
    folder = tmp_path_factory.mktemp("clone")
    (folder / "Snakefile").touch()
    for name in ("config", "docs/papers", "docs/oracle"):
        shutil.copytree(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def kept_page(clone):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(clone)
        return page_of(clone)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A clone of three figures that keeps one, whose cells are of 23 November."""
    (tmp_path / "Snakefile").touch()
    shutil.copytree(ROOT / "config", tmp_path / "config")
    kept = {Path("ddlbench", "fig4.yaml")}
    kept |= {Path("thesis", name) for name in ("fig3.1.yaml", "table8.2.yaml")}
    folder = tmp_path / "config" / "papers"
    for path in folder.glob("*/*.yaml"):
        if path.relative_to(folder) not in kept:
            path.unlink()
    shutil.copytree(KEPT / "ddlbench-fig4", tmp_path / "docs" / "papers" / "ddlbench-fig4")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def measure(project: Path, created: str, site: str = "local") -> None:
    """Cells of that figure in this checkout."""
    made = project / "results" / site / "ddlbench-fig4-laptop"
    (made / "figures").mkdir(parents=True)
    (made / "tables").mkdir()
    Figure(figsize=(1, 1)).savefig(made / "figures" / "speedup.png")
    cells = (KEPT / "ddlbench-fig4" / "cells.csv").read_text()
    cells = re.sub(r"2026-11-\d\dT[\d:+]+", created, cells)
    (made / "tables" / "measurements.csv").write_text(cells)


@pytest.mark.slow
def test_every_figure_has_a_section_and_every_kept_picture_is_in_it(kept_page) -> None:
    files = read_papers()
    sections = re.findall(r'<section id="([^"]+)">', kept_page)
    assert sections == [file.paper.figure.replace("/", "-") for file in files]
    kept = [list((ROOT / file.paper.kept).glob("*.png")) for file in files]
    printed = [name for file in files for name in file.paper.pictures]
    assert kept_page.count("data:image/png;base64,") == sum(map(len, kept)) + len(printed)
    unmade = [file for file in files if file.paper.not_drawn or file.paper.same_as]
    assert kept_page.count("Not drawn: ") == len(unmade)
    assert len(kept_page) < 10 * MEGABYTE


def test_each_caption_says_that_a_picture_is_kept_and_when_it_was_measured(kept_page) -> None:
    assert "speedup: kept in the repository, measured on 20" in section(kept_page, "ddlbench-fig4")


def test_printed_values_stand_beside_ours_with_their_ratio(kept_page) -> None:
    assert '<th scope="col" class="right">ratio</th>' in section(kept_page, "thesis-fig4.1")


def test_the_kept_verdicts_are_in_the_page(kept_page) -> None:
    for verdict in ("holds", "refuted", "undecided"):
        assert f'class="{verdict}"' in kept_page


def test_what_a_command_prints_is_shown_where_it_draws_nothing(kept_page) -> None:
    assert "the mean of its strategies" in section(kept_page, "paradl-table3")


@needs_browser
@pytest.mark.parametrize("width", [1280, 400])
def test_a_browser_shows_the_page_at_two_widths(kept_page, width, tmp_path) -> None:
    assert_fits(kept_page, width, tmp_path)


def test_the_page_asks_no_network_for_anything(kept_page) -> None:
    assert "default-src 'none'" in kept_page
    assert not re.findall(r"""(?:src|href)=["']https?:""", kept_page)
    assert "<script" not in kept_page


def test_a_command_in_a_sentence_is_set_as_code(kept_page) -> None:
    assert "<code>ddlbench report --configfile" in kept_page
    assert "`ddlbench" not in kept_page


def test_newer_results_of_this_checkout_replace_what_is_kept(project) -> None:
    measure(project, "2027-01-02T03:04:05+00:00")
    shown = section(page_of(project), "ddlbench-fig4")
    assert "measured here on 2027-01-02, site local" in shown
    assert "kept in the repository" not in shown


def test_older_results_of_this_checkout_do_not(project) -> None:
    measure(project, "2025-01-02T03:04:05+00:00")
    shown = section(page_of(project), "ddlbench-fig4")
    assert "measured here" not in shown
    assert "kept in the repository" in shown


def test_results_of_other_sites_are_left_out_where_one_is_named(project) -> None:
    measure(project, "2027-01-02T03:04:05+00:00", site="accelerators")
    shown = section(page_of(project, "--site", "local"), "ddlbench-fig4")
    assert "measured here" not in shown


def test_a_figure_that_is_not_there_says_so(project) -> None:
    assert "Not there yet" in section(page_of(project), "thesis-table8.2")


def test_a_table_names_once_what_is_the_same_in_all_rows(project) -> None:
    folder = project / "docs" / "papers" / "thesis-table8.2"
    folder.mkdir()
    (folder / "table_8_2.csv").write_text(
        "recommender,n,mark,top1\nthesis,18,,0.504\nthesis,24,,0.338715\n"
    )
    shown = section(page_of(project), "thesis-table8.2")
    cells = re.findall(r"<t[hd][^>]*>([^<]*)</t", shown.partition("</table>")[0])
    assert cells == ["n", "top1", "18", "0.504", "24", "0.339"]
    assert "All rows: recommender thesis" in shown


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["ddlbench/fig4", "--all"], "leave out ddlbench/fig4"),
        (["--all", "--json"], "leave out --json"),
        (["--out", "page.html"], "add --all"),
        (["--all", "--out", "docs"], "is a folder; write a file in it"),
    ],
)
def test_options_that_do_not_go_together_are_told(project, options, sentence) -> None:
    with pytest.raises(ConfigError, match=sentence):
        CliRunner().invoke(commands, ["papers", *options], catch_exceptions=False)


def test_a_page_lies_where_the_user_is(project, monkeypatch) -> None:
    (project / "docs" / "deep").mkdir()
    monkeypatch.chdir(project / "docs" / "deep")
    ended = CliRunner().invoke(commands, ["papers", "--all", "--out", "mine.html"])
    assert ended.exit_code == 0, ended.output
    assert (project / "docs" / "deep" / "mine.html").is_file()


def test_a_file_that_is_no_picture_is_named(tmp_path) -> None:
    (tmp_path / "speedup.png").write_bytes(b"version https://git-lfs")
    with pytest.raises(ConfigError, match=r"speedup\.png is no PNG picture"):
        Shown(tmp_path / "speedup.png", "").png  # noqa: B018
