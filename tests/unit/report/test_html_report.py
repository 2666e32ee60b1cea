"""The HTML report: what stands in it, in which order, and how a browser shows it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest
from answer_factory import answer, candidate
from headless import PROBE, assert_fits, in_browser, needs_browser, probed
from report_factory import SITE_NAME, failed, matrix, result, site, write

from ddlbench.experiment.paths import RESULTS, advice_file
from ddlbench.predict.recommend import answers_dict, write_choice
from ddlbench.report.html_report import SECTIONS, TEXTS, make_html_report
from ddlbench.report.measurements import make_tables
from ddlbench.report.registry import FIGURES, FigureEntry
from ddlbench.report.style import new_figure, save_figure

EVIL = "<script>alert('x')</script> & \"y\""
NEVER_CLOSED = {"meta", "img", "br", "input"}

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
        self.anchors: list[str] = []
        self.scripts: list[str] = []
        self.folded: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.tags.append(tag)
        self.anchors += [values["id"]] if "id" in values else []
        if tag == "script":
            self.scripts.append("")
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
        if inside == "script":
            self.scripts[-1] += data
        if inside in ("style", "title", "script"):
            return
        self.texts.append(data)
        if inside in ("h1", "h2", "h3"):
            self.headings.append(data)
            self.folded += [data] if "details" in self.open else []
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
        states=None,
        figures=("speedup", "memory", "steps"),
        predicted=(),
        answers=None,
        timing=None,
        **of_site,
    ):
        for row in rows:
            state = (states or {}).get(row.cell.strategy, "ok")
            seconds = {"sequential": 8.0, "ddp": 4.0}.get(row.cell.strategy, 10.0)
            if state == "ok":
                values = result(row.cell, epoch_s=seconds)
                values["timing"] |= timing or {}
                write(tmp_path, row.cell, values)
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


def test_sections_come_by_what_a_reader_asks_first(reported):
    figures = ("speedup", "memory", "steps", "choice", "traffic", "timelines")
    page = Page(reported(figures=figures, predicted=("accuracy",), answers=[STAY]).read_text())
    titles = [section.title for section in SECTIONS]
    assert [heading for heading in page.headings if heading in titles] == [
        "What to train with", "Speed-up", "Ranking of strategies", "Time",
        "Memory, traffic, utilisation", "Timelines", "Every configuration",
        "How good are the predictions?", "What was measured", "Files",
    ]  # fmt: skip


def test_the_advice_says_how_sure_it_is_and_the_table_of_speedups_follows(reported):
    page = Page(reported(answers=[STAY]).read_text())
    assert "VGG-11, MNIST, 1x2, batch 16: Train with sequential." in page.text
    assert page.rows[0] == ["Train with", "Speed-up", "Step", "90 %", "By"]  # no chance is known
    assert page.rows[1][:2] == ["Sequential", "1.00"]
    assert page.rows[2] == ["dataset", "network", "1 device", "DDP", "GPipe", "Horovod"]
    assert page.rows[3] == ["MNIST", "VGG-11", "75/s", "2.00", "0.80", "0.80"]


def test_figures_are_in_their_sections_and_predictions_are_folded(reported):
    predicted = ("parts_ddp", "deviation_horovod", "deviation_ddp", "accuracy")
    page = Page(reported(predicted=predicted).read_text())
    assert page.figures == [
        "speedup", "steps", "memory", "accuracy", "deviation-ddp", "deviation-horovod", "parts-ddp"
    ]  # fmt: skip
    assert page.headings.count(FIGURES["parts"].heading) == 1
    assert FIGURES["parts"].heading in page.folded
    assert FIGURES["speedup"].heading not in page.folded


def test_headings_are_short():
    headings = [entry.heading for entry in FIGURES.values()] + [
        section.title for section in SECTIONS
    ]
    assert [text for text in headings if len(text.split()) > 8] == []


def test_anchors_can_be_read_are_unique_and_lead_somewhere(reported):
    predicted = ("parts_ddp", "accuracy")
    page = Page(reported({"gpipe": "timeout"}, predicted=predicted, answers=[STAY]).read_text())
    assert len(set(page.anchors)) == len(page.anchors)
    assert all(re.fullmatch(r"[a-z]+(-[a-z0-9]+)*", anchor) for anchor in page.anchors)
    assert {link[1:] for link in page.links if link.startswith("#")} <= set(page.anchors)
    assert {"speed-up", "memory-traffic-utilisation", "figure-parts-ddp"} <= set(page.anchors)


def test_sections_name_what_there_is():
    named = [name for section in SECTIONS for name in section.figures]
    assert set(named) <= set(FIGURES)
    assert len(set(named)) == len(named)
    assert {name for section in SECTIONS for name in section.texts} == set(TEXTS)


def test_a_figure_that_no_section_names_has_a_place(reported, monkeypatch):
    entry = FigureEntry("experiment", "package.module:draw", caption="Heat of devices. More.")
    monkeypatch.setitem(FIGURES.built_in, "heat", entry)
    page = Page(reported(figures=("speedup", "heat")).read_text())
    at = page.headings.index("Further figures")
    assert page.headings[at + 1] == "Heat of devices"


def test_a_picture_that_is_too_large_is_linked(reported, monkeypatch):
    monkeypatch.setattr("ddlbench.report.html_report._MOST_BYTES", 10)
    page = Page(reported(figures=("speedup",)).read_text())
    assert page.figures == []
    assert "figures/speedup.png" in page.links


def test_the_highest_speedup_is_explained(reported):
    page = Page(reported(figures=("speedup", "memory", "choice"), answers=[STAY]).read_text())
    assert page.figures == ["speedup", "choice", "memory"]
    note = "DDP has the highest speed-up for VGG-11 and is not advised: one device may be as fast."
    assert note in page.text
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
    assert not {"link", "iframe", "object"} & set(page.tags)


def test_the_page_is_one_file_and_runs_one_script(reported):
    html = reported().read_text()
    page = Page(html)
    data, script = page.scripts
    assert json.loads(data)["count"] == 4
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', html)[1]
    assert policy.startswith("default-src 'none'; ")
    assert policy.endswith(f"script-src 'sha256-{digest}'")
    assert "http:" not in html
    assert "https:" not in html


def test_the_plot_has_every_configuration_and_its_state(reported):
    data = json.loads(Page(reported({"gpipe": "timeout"}).read_text()).scripts[0])
    texts = {
        column["name"]: [column["pool"][at] for at in column["values"]] for column in data["texts"]
    }
    numbers = {column["name"]: column["values"] for column in data["numbers"]}
    assert texts["strategy"] == ["Sequential", "DDP", "GPipe", "Horovod"]
    assert texts["status"] == ["ok", "ok", "timeout", "ok"]
    assert texts["state"][2] == f"timeout: {EVIL}"
    assert numbers["speedup"] == [1.0, 2.0, None, 0.8]
    assert numbers["workers"] == [1, 2, 2, 2]
    assert set(texts["strategy"]) == set(data["colours"])


def test_a_state_says_what_a_number_suffers_from(reported):
    page = Page(reported(timing={"noisy": True, "load_s": 2.4}).read_text())
    states = [row[-1] for row in page.rows[-4:]]
    waits = "input-bound: 100 of 213 ms"  # 24 steps of 16 samples at 75 a second
    assert states[0] == f"ok, noisy, {waits}"
    assert f"Waiting for data: Sequential of VGG-11 on MNIST, 1x1: {waits}; DDP" in page.text


def test_what_is_not_drawn_is_named(reported):
    page = Page(reported(figures=()).read_text())
    assert page.figures == []
    named = page.text.partition("Not drawn yet: ")[2].partition(".")[0].split(", ")
    assert {"speedup", "memory", "traffic", "utilisation", "steps"} <= set(named)


def test_a_broken_picture_is_left_out(reported, tmp_path):
    broken = tmp_path / SITE_NAME / "demo" / "figures" / "speedup.png"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"no picture")
    assert Page(reported(figures=("memory",)).read_text()).figures == ["memory"]


def test_an_unfinished_run_says_so(reported):
    page = Page(reported({"gpipe": "not run", "horovod": "not run"}).read_text())
    assert "Unfinished: 2 of 4 cells not run yet." in page.text
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
    assert "<script>alert" not in html
    page = Page(html)
    assert f"Site local: {EVIL}; commit" in page.text
    assert f"out of memory : {EVIL}" in page.text
    assert page.rows[-2] == [
        "MNIST", "VGG-11", "GPipe", "1x2", "16", "", "", "", f"out of memory: {EVIL}"
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
def test_a_browser_runs_no_other_script_of_the_page(reported, tmp_path):
    page = tmp_path / "probed.html"
    page.write_text(reported(figures=()).read_text().replace("</body>", PROBE))
    assert 'data-found="' not in in_browser(tmp_path, page, "--dump-dom")


_FILTER_AND_POINT = """<script>
addEventListener("load", () => {
  const hidden = () => document.querySelectorAll("#configurations tr[hidden]").length;
  const before = hidden(), select = document.querySelector("#plot-filters select");
  select.value = "1";
  select.dispatchEvent(new Event("change"));
  const canvas = document.querySelector("#plot canvas");
  canvas.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight"}));
  document.body.dataset.found = [before, hidden(),
    document.getElementById("plot-tip").textContent.includes("DDP")].join(" ");
});
</script></body>"""


@needs_browser
def test_a_filter_of_the_plot_hides_rows_and_a_point_says_what_it_is(reported, tmp_path):
    html = reported({"gpipe": "out_of_memory"}).read_text()
    assert probed(html, 1280, tmp_path, _FILTER_AND_POINT) == "0 3 true"
