"""What `report` advises: the answers for its cases, and what speaks against the measurements."""

from __future__ import annotations

import pytest
from report_factory import SITE_NAME, experiment, matrix, result, site, write

from ddlbench.common.errors import ConfigError
from ddlbench.predict.advice import answers
from ddlbench.predict.recommend import answers_dict, write_choice
from ddlbench.report.measurements import make_tables
from ddlbench.report.terminal import advice, advice_lines, answers_at


def answer(batch_size: int = 16, *sentences: str, **settings):
    return {
        "case": {
            "network": "vgg11", "dataset": "mnist", "nodes": 1, "devices_per_node": 2,
            "batch_size": batch_size, "settings": settings, "options": {},
        },
        "recommended": "ddp", "advice": list(sentences or ("First.", "Second.")), "candidates": [],
        "not_ranked": [], "tied": [], "why_not": {}, "recommender": "ddlbench",
    }  # fmt: skip


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Results of VGG-11 on MNIST, their tables, and the rows of the matrix."""

    def run(epochs_s, **changes):
        rows = matrix(
            monkeypatch,
            datasets=["mnist"],
            networks=["vgg11"],
            strategies=["sequential", *epochs_s],
        )
        for row in rows:
            seconds = epochs_s.get(row.cell.strategy, 8.0)
            cell_changes = changes if row.cell.strategy != "sequential" else {}
            write(tmp_path, row.cell, result(row.cell, epoch_s=seconds, **cell_changes))
        make_tables("demo", SITE_NAME, rows, tmp_path, tmp_path / "tables")
        return rows

    return run


@pytest.fixture
def advised(measured, tmp_path):
    """The advice beside these results, where the answers are these."""

    def run(epochs_s, *given, **changes):
        measured(epochs_s, **changes)
        content = answers_dict(SITE_NAME, given or [answer()])
        write_choice(content, tmp_path / "tables" / "advice.json")
        return advice(tmp_path / "tables")

    return run


def test_each_case_has_its_sentences(advised):
    texts = advised({"ddp": 4.0}, answer(16), answer(32, "Third.", precision="bf16"))
    assert texts[0] == "VGG-11, MNIST, 1x2, batch 16: First. Second."
    assert texts[1] == "VGG-11, MNIST, 1x2, batch 32, precision bf16: Third."


def test_a_case_without_a_comparison_has_no_line(advised):
    lone = {**answer(64, "Nothing was compared."), "recommended": None}
    (text,) = advised({"ddp": 4.0}, answer(16), lone)
    assert text.startswith("VGG-11, MNIST, 1x2, batch 16")
    assert advised({"ddp": 4.0}, lone) == []


def test_default_settings_are_not_told(advised):
    (text,) = advised({"ddp": 4.0}, answer(16, "First.", precision="fp32", fabric="default"))
    assert text == "VGG-11, MNIST, 1x2, batch 16: First."


@pytest.mark.parametrize(
    ("count", "whole", "shown"), [(6, True, 6), (7, False, 7), (20, False, 12)]
)
def test_many_cases_are_short(advised, count, whole, shown):
    texts = advised({"ddp": 4.0}, *map(answer, range(1, count + 1)))
    cases = [text for text in texts if text.startswith("VGG-11")]
    assert len(cases) == shown
    assert all(("Second." in text) == whole for text in cases)
    assert any(f"{count - shown} more cases" in text for text in texts) == (count > shown)


def test_without_answers_there_is_no_advice(measured, tmp_path):
    measured({"ddp": 4.0})
    assert advice(tmp_path / "tables") == []
    assert answers_at(tmp_path / "tables") == []


def test_answers_of_another_form_are_refused(measured, tmp_path):
    measured({"ddp": 4.0})
    (tmp_path / "tables" / "advice.json").write_text('{"schema_version": 1}')
    with pytest.raises(ConfigError):
        advice(tmp_path / "tables")


def test_lines_are_those_of_the_sentences(advised, tmp_path):
    texts = advised({"ddp": 4.0})
    lines = advice_lines(tmp_path / "tables")
    assert " ".join(" ".join(lines).split()) == " ".join(texts)


def test_the_answers_are_those_of_what_was_measured(measured, tmp_path):
    """DDP takes half of one device's time, and what can gain nothing even less."""
    rows = measured({"ddp": 4.0, "model-parallel": 2.0})
    chosen = experiment()
    (actual,) = answers(chosen, rows, site(), tmp_path)
    candidates = {candidate["strategy"]: candidate for candidate in actual["candidates"]}
    assert set(candidates) == {"sequential", "ddp", "model-parallel"}
    assert candidates["ddp"]["speedup"] == pytest.approx(2, rel=0.05)
    assert candidates["model-parallel"]["chance"] == 0
    assert actual["recommended"] == "ddp"
    assert "model-parallel" in actual["why_not"]


def test_one_device_where_nothing_is_faster(measured, tmp_path):
    rows = measured({"ddp": 9.0})
    (actual,) = answers(experiment(), rows, site(), tmp_path)
    assert actual["recommended"] == "sequential"


def test_old_weights_are_not_advised(measured, tmp_path):
    rows = measured({"local-sgd": 2.0, "ddp": 9.0})
    (actual,) = answers(experiment(), rows, site(), tmp_path)
    assert actual["recommended"] == "sequential"
    assert "local-sgd" in [candidate["strategy"] for candidate in actual["not_ranked"]]


def test_a_base_of_long_ago_is_told(advised, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "ddlbench.report.terminal.result_file",
        lambda _site, cell_id: next(tmp_path.glob(f"*/cells/{cell_id}/result.json")),
    )
    now = {**result(matrix()[0].cell)["provenance"], "slurm_job_id": None}
    assert len(advised({"ddp": 4.0, "horovod": 5.0}, provenance=now)) == 1
    later = {**now, "created": "2031-04-05T09:07:08+00:00"}
    _, text = advised({"ddp": 4.0, "horovod": 5.0}, provenance=later)
    sentence = (
        "2 of 2 speed-ups compare cells measured over 60 min apart from their base (at most 3.0 h)"
    )
    assert text.startswith(sentence)
    assert len(advised({"ddp": 4.0}, provenance={**later, "slurm_job_id": "7"})) == 1
