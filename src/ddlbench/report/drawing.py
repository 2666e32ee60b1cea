"""Draws figures from their inputs, and saves each with the plotted numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ddlbench.common.entry_points import within
from ddlbench.common.errors import ConfigError, shown
from ddlbench.experiment.config import Paper
from ddlbench.experiment.links import Links
from ddlbench.experiment.paths import RESULTS
from ddlbench.report.footer import Context
from ddlbench.report.predicted import read_predicted
from ddlbench.report.registry import (
    FIGURES,
    FigureEntry,
    left_out_text,
    names_of,
    prediction_figure,
)
from ddlbench.report.tables import read_tables, write_table


def draw_figure(figure: str | FigureEntry, png: Path, *inputs: Any) -> Path:
    """Draw a figure into ``png``, and beside it a PDF and a CSV with the plotted numbers.

    Args:
        figure: an entry of :data:`FIGURES`, or its name.
        png: the path that is returned.
        inputs: those of the figure's kind; see :class:`FigureEntry`.
    """
    # Commands that mostly print import this module, so it does not load matplotlib.
    from ddlbench.report.style import save_figure, style  # noqa: PLC0415

    entry = FIGURES[figure] if isinstance(figure, str) else figure
    with style():
        drawn = entry.function()(*inputs)
        picture, plotted = drawn if isinstance(drawn, tuple) else (drawn, None)
        if not hasattr(picture, "savefig"):
            raise ConfigError(
                f"{entry.draw} returns {shown(picture)} for a figure; return (figure, table)"
            )
        if plotted is not None:
            write_table(png.with_suffix(".csv"), plotted)
        save_figure(picture, png)
    return png


class LeftOut(ConfigError):  # noqa: N818 - a state of a report, shown as such
    """Some figures could not be drawn; the others are made. The message names each, and why."""

    def __init__(self, faults: Iterable[str], made: Sequence[Path] = ()) -> None:
        super().__init__("\n".join(dict.fromkeys(faults)))
        self.made = list(made)


def draw_each(pictures: Mapping[str, Path], draw: Callable[[str], object]) -> list[Path]:
    """Draw figures, by name; one that fails costs no other, and its earlier files are deleted.

    Raises:
        LeftOut: some failed.
    """
    made, faults = [], []
    for name, png in pictures.items():
        try:
            with within(FIGURES.group, name):
                draw(name)
        except ConfigError as error:
            faults.append(left_out_text(name, str(error)))
            for suffix in (".png", ".pdf", ".csv"):
                png.with_suffix(suffix).unlink(missing_ok=True)
        else:
            made.append(png)
    if faults:
        raise LeftOut(faults, made)
    return made


def make_figure(
    name: str,
    tables_dir: Path,
    out_png: Path,
    site_description: str = "",
    paper: Paper | None = None,
) -> None:
    """Draw a figure of an experiment from its tables, beside published values of its ``paper``.

    Raises:
        ConfigError: there is no such figure.
    """
    names = names_of("experiment")
    if name not in names:
        raise ConfigError(f"unknown figure {name!r}; known: {', '.join(names)}")
    context = Context(site_description, paper=paper)
    draw_figure(name, out_png, read_tables(tables_dir), context)


def make_prediction_figures(
    names: Iterable[str],
    predictions_json: Path,
    tables_dir: Path,
    out_dir: Path,
    *,
    site_description: str = "",
    results: Path = RESULTS,
    paper: Paper | None = None,
) -> list[Path]:
    """Draw the figures of predictions that ``prediction_figures_for`` names.

    Raises:
        LeftOut: some could not be drawn.
        ConfigError: there is no such figure, or a file is missing or wrong.
    """
    predicted = read_predicted(predictions_json, tables_dir, results)
    strategies = list(dict.fromkeys(map(str, predicted.predictions["strategy"])))
    figures = {name: prediction_figure(name, strategies) for name in names}
    pictures = {name: out_dir / f"{name}.png" for name in figures}

    def draw(name: str) -> None:
        inputs = (predicted, Context(site_description, paper=paper))
        of_strategy = (figures[name].strategy,) if figures[name].strategy else ()
        draw_figure(figures[name].entry, pictures[name], *inputs, *of_strategy)

    return draw_each(pictures, draw)


def make_links_figures(links: Links, folder: Path) -> list[Path]:
    """Draw links.png (heat maps of pairs), sweeps.png and others of links into ``folder``."""
    return [draw_figure(name, folder / f"{name}.png", links) for name in names_of("links")]
