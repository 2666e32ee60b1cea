"""One registry of figures: a figure of another package is one module and one entry point."""

import re
from typing import get_args

import pytest
from report_factory import SITE_NAME, matrix, write_all

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.paths import project_root
from ddlbench.report.drawing import make_figure
from ddlbench.report.measurements import make_tables
from ddlbench.report.registry import (
    FIGURES,
    FigureKind,
    caption_of,
    faulty_figures,
    figures_for,
    names_of,
    prediction_figures_for,
)

IMPORT = "from ddlbench.report.registry import FigureEntry"
TOY = """
import importlib

from ddlbench.report.registry import FigureEntry

COUNT = FigureEntry("experiment", "toy_figures:draw", caption="How many cells there are.")
RATIO = FigureEntry("strategy", "toy_figures:draw_ratio")
NEVER = FigureEntry("experiment", "toy_figures:draw", lambda rows: False)


def draw(tables, context):
    import pandas as pd
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2, 2))
    figure.add_subplot().bar(["cells"], [len(tables.summary)])
    return figure, pd.DataFrame({"cells": [len(tables.summary)]})
"""


@pytest.fixture
def toy(third_party):
    names = {"count_2": "COUNT", "ratio": "RATIO", "never": "NEVER"}
    third_party("toy_figures", TOY, {"ddlbench.figures": names})


def test_a_figure_of_another_package_is_chosen_and_drawn(toy, tmp_path, monkeypatch):
    rows = matrix(monkeypatch, datasets=["mnist"], networks=["vgg11"])
    names = figures_for(rows)
    assert "count_2" in names
    assert "never" not in names
    assert "ratio_ddp" in prediction_figures_for(rows)
    assert caption_of("count_2") == "How many cells there are."
    write_all(tmp_path, rows)
    tables = make_tables("demo", SITE_NAME, rows, tmp_path, tmp_path / "tables")
    make_figure("count_2", tmp_path / "tables", tmp_path / "out" / "count_2.png")
    made = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert made == ["count_2.csv", "count_2.pdf", "count_2.png"]
    assert (tmp_path / "out" / "count_2.csv").read_text() == f"cells\n{len(tables.summary)}\n"


def test_the_workflow_takes_names_with_digits():
    rules = (project_root() / "rules" / "common.smk").read_text()
    (pattern,) = re.findall(r'figure=r"(.*)"', rules)
    assert all(re.fullmatch(pattern, name) for name in ("speedup", "packet_loss", "count_2"))


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("ENTRY = 3", r"is 3; write FigureEntry\(kind, draw\)"),
        (
            f"{IMPORT}\nENTRY = FigureEntry('experimnt', 'a:b')",
            "has the kind 'experimnt'; did you mean 'experiment'",
        ),
        ("1 / 0", "its module fails on import, ZeroDivisionError: division by zero"),
        (
            f"{IMPORT}\nENTRY = FigureEntry('links', 'a:b')",
            "",
        ),
    ],
)
def test_an_entry_that_is_none_is_named(third_party, entry, says):
    third_party("odd_figures", entry, {"ddlbench.figures": {"odd": "ENTRY"}})
    if says:
        with pytest.raises(ConfigError, match=f"odd.*{says}"):
            FIGURES["odd"]
        assert "odd" not in names_of(*get_args(FigureKind))
    (sentence,) = faulty_figures()  # `plan` and `report` tell it
    assert re.search(f"figure 'odd' of package odd.figures: .*{says}.*; it is left out", sentence)


def test_every_figure_is_there_and_has_a_caption_in_the_html_report():
    assert all(callable(FIGURES[name].function()) for name in FIGURES.built_in)
    of_experiments = names_of("experiment", "prediction", "strategy")
    assert all(caption_of(name) for name in of_experiments)
    assert caption_of("deviation_model_parallel") == FIGURES["deviation"].caption
    assert caption_of("of_nobody") == ""
