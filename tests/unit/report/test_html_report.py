"""The HTML report: what stands in it, in which order, and how a browser shows it."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from answer_factory import answer, candidate
from headless import PROBE, assert_fits, in_browser, needs_browser
from report_factory import SITE_NAME, failed, matrix, result, site, write

from ddlbench.experiment.paths import RESULTS, advice_file
from ddlbench.predict.recommend import answers_dict, write_choice
from ddlbench.report import make_tables
from ddlbench.report.html_report import make_html_report
from ddlbench.report.style import new_figure, save_figure

EVIL = "<script>alert('x')</script> & \"y\""
NEVER_CLOSED = {"meta", "img", "br"}

STAY = answer(
    [candidate("sequential", 0.2, 1.0), candidate("ddp", 0.1, 2.0)],
    "sequential",
    {"ddp": "one device may be as fast"},
)


class Page(HTMLParser):
    """Texts, headings, pictures and links; a tag that is not closed is an error."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.headings: list[str] = []
        self.figures: list[str] = []
        self.sources: list[str] = []
        self.links: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.tags.append(tag)
        if tag not in NEVER_CLOSED:
            self.open.append(tag)
        if tag == "figure":
            self.figures.append(values["id"].removeprefix("figure-"))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        self.sources += [values["src"]] if "src" in values else []
        self.links += [values["href"]] if "href" in values else []

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        inside = self.open[-1] if self.open else ""
        if inside in ("style", "title"):
            return
        self.texts.append(data)
        if inside in ("h1", "h2", "h3"):
            self.headings.append(data)
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


@pytest.fixture
def reported(tmp_path, monkeypatch):
    """Writes tables and small pictures, then the page of them."""
    rows = matrix(
        monkeypatch,
        datasets=["mnist"],
        networks=["vgg11"],
        strategies=["sequential", "ddp", "gpipe", "horovod"],
    )
    folder = tmp_path / SITE_NAME / "demo"

    def run(
        states=None, figures=("speedup", "memory", "steps"), predicted=(), answers=None, **of_site
    ):
        for row in rows:
            state = (states or {}).get(row.cell.strategy, "ok")
            seconds = {"sequential": 8.0, "ddp": 4.0}.get(row.cell.strategy, 10.0)
            if state == "ok":
                write(tmp_path, row.cell, result(row.cell, epoch_s=seconds))
            elif state != "not run":
                write(tmp_path, row.cell, failed(row.cell, state, EVIL))
        make_tables("demo", SITE_NAME, rows, tmp_path, folder / "tables")
        if answers is not None:
            path = tmp_path / advice_file(SITE_NAME, "demo").relative_to(RESULTS)
            write_choice(answers_dict(SITE_NAME, answers), path)
        for place, names in (("figures", figures), ("figures/predictions", predicted)):
            for name in names:
                save_figure(new_figure(180, 60), folder / place / f"{name}.png")
        return make_html_report("demo", site(**of_site), rows, tmp_path)

    return run


def test_the_page_names_experiment_site_date_and_commit(reported):
    page = Page(reported().read_text())
    assert page.headings[0] == "demo on local, 4 cells"
    assert "2031-04-05. Site local: this machine, CPU; commit 0123456." in page.text
    assert "4 strategies, 1 network, 1 dataset; largest cell: 2 workers (CPU)." in page.text


def test_the_advice_and_its_table_come_before_the_figures(reported):
    page = Page(reported(answers=[STAY]).read_text())
    assert "VGG-11, MNIST, 1x2, batch 16: Train with sequential." in page.text
    assert page.headings.index("What to train with") < page.headings.index("Figures")
    assert page.rows[0] == ["dataset", "network", "1 device", "DDP", "GPipe", "Horovod"]
    assert page.rows[1] == ["MNIST", "VGG-11", "75/s", "2.00", "0.80", "0.80"]


def test_figures_come_by_what_a_reader_asks_first(reported):
    predicted = ("parts_ddp", "deviation_horovod", "deviation_ddp", "accuracy")
    page = Page(reported(predicted=predicted).read_text())
    assert page.figures == [
        "speedup", "accuracy", "memory", "steps", "deviation_ddp", "deviation_horovod", "parts_ddp"
    ]  # fmt: skip
    assert (
        page.headings.count("What each predictor says a step is made of, beside the measured step")
        == 1
    )


def test_what_is_advised_is_the_first_figure_and_the_highest_speedup_is_explained(reported):
    page = Page(reported(figures=("speedup", "memory", "choice"), answers=[STAY]).read_text())
    assert page.figures == ["choice", "speedup", "memory"]
    at = page.headings.index("Figures")
    assert page.headings[at + 1] == "Which strategy is the fastest?"
    note = "DDP has the highest speed-up for VGG-11 and is not advised: one device may be as fast."
    assert note in page.text
    assert page.texts.index(note) < page.texts.index("Figures", page.texts.index(note))
    assert "tables/advice.json" in page.links


def test_without_advice_there_is_neither_its_figure_nor_a_reason(reported):
    page = Page(reported(figures=("speedup", "choice")).read_text())
    assert page.figures == ["speedup"]
    assert "is not advised" not in page.text
    assert "tables/advice.json" not in page.links


def test_pictures_are_in_the_page_and_their_numbers_are_linked(reported):
    path = reported(figures=("speedup",))
    page = Page(path.read_text())
    assert [source[:22] for source in page.sources] == ["data:image/png;base64,"]
    assert "figures/speedup.pdf" in page.links
    assert "tables/summary.csv" in page.links
    outside = [link for link in page.links if not link.startswith("#")]
    assert all((path.parent / link).is_file() for link in outside)
    assert not {"script", "link", "iframe"} & set(page.tags)


def test_what_is_not_drawn_is_named(reported):
    page = Page(reported(figures=()).read_text())
    assert "No figure is drawn yet." in page.text
    named = page.text.partition("Not drawn yet: ")[2].partition(".")[0].split(", ")
    assert {"speedup", "memory", "traffic", "utilisation", "steps"} <= set(named)


def test_a_broken_picture_is_left_out(reported, tmp_path):
    broken = tmp_path / SITE_NAME / "demo" / "figures" / "speedup.png"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"no picture")
    assert Page(reported(figures=("memory",)).read_text()).figures == ["memory"]


def test_an_unfinished_run_says_so(reported):
    page = Page(reported({"gpipe": "not run", "horovod": "not run"}).read_text())
    assert "Unfinished: 2 of 4 cells have not run yet." in page.text
    assert "Without a measurement" not in page.headings
    assert [row[-1] for row in page.rows[-4:]] == ["ok", "ok", "not run", "not run"]


def test_a_run_without_any_result_has_a_page(reported):
    states = dict.fromkeys(("sequential", "ddp", "gpipe", "horovod"), "not run")
    page = Page(reported(states, figures=()).read_text())
    assert "not measured yet. Site local" in page.text
    assert "There is no advice" in page.text


def test_texts_of_results_are_escaped(reported):
    path = reported({"gpipe": "out_of_memory"}, description=EVIL)
    html = path.read_text()
    assert "<script" not in html
    page = Page(html)
    assert f"Site local: {EVIL}; commit" in page.text
    assert f"out of memory : {EVIL}" in page.text
    assert page.rows[-2] == [
        "MNIST", "VGG-11", "GPipe", "1x2", "", "", "", f"out of memory: {EVIL}"
    ]  # fmt: skip


def test_equal_files_give_equal_pages(reported):
    first = reported().read_bytes()
    assert reported().read_bytes() == first


@needs_browser
@pytest.mark.parametrize("width", [1280, 400])
def test_a_browser_shows_every_picture_and_nothing_is_wider_than_the_screen(
    reported, tmp_path, width
):
    html = reported({"gpipe": "out_of_memory"}, predicted=("accuracy",)).read_text()
    assert_fits(html, width, tmp_path)


@needs_browser
def test_a_browser_runs_no_script_of_the_page(reported, tmp_path):
    page = tmp_path / "probed.html"
    page.write_text(reported(figures=()).read_text().replace("</body>", PROBE))
    assert 'data-found="' not in in_browser(tmp_path, page, "--dump-dom")
