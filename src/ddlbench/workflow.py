"""What the workflow's scripts share: a log that says one sentence, and the matrix."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ddlbench.experiment.atomic import write_json
from ddlbench.experiment.config import Experiment, parse_experiment
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.paths import RESULTS, figures_dir, tables_dir
from ddlbench.experiment.site import Site, load_site
from ddlbench.planning.matrix import MatrixRow, expand

__all__ = ["compare_sites", "logged", "make_report", "matrix_of", "write_json"]


@contextmanager
def logged(path: str, *explained: type[Exception]) -> Iterator[None]:
    """Keep the traceback of what fails in the rule's log, and tell the user one sentence.

    Args:
        path: the rule's log.
        explained: exceptions whose sentence says all; our own traceback would only hide it.
    """
    log = Path(path)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("", encoding="utf-8")
    try:
        yield
    except Exception as error:
        told = isinstance(error, (ConfigError, *explained))
        log.write_text(f"{error}\n" if told else traceback.format_exc(), encoding="utf-8")
        print(f"ddlbench: {error}", file=sys.stderr)
        sys.exit(1)


def matrix_of(
    config: Mapping[str, Any], where: str = "the configuration"
) -> tuple[Experiment, Site, list[MatrixRow]]:
    """The experiment, its site and its cells.

    Raises:
        ConfigError: something in the configuration is wrong; ``where`` names it.
    """
    experiment = parse_experiment(config, where)
    site = load_site(experiment.site)
    return experiment, site, expand(experiment, site)


def make_report(experiment: Experiment, site: Site, rows: list[MatrixRow]) -> list[Path]:
    """Tables and figures of the results that are there; returns the figures."""
    # Here, because every measured cell imports this module and none needs what draws.
    from ddlbench.report import figures_for, make_figure, make_tables  # noqa: PLC0415

    tables = tables_dir(site.name, experiment.name)
    make_tables(experiment.name, site.name, rows, RESULTS, tables)
    figures = []
    for name in figures_for(rows):
        figures.append(figures_dir(site.name, experiment.name) / f"{name}.png")
        make_figure(name, tables, figures[-1], site.description)
    return figures


def compare_sites(config: Mapping[str, Any], sites: Sequence[str], where: str) -> Path:
    """Tables of an experiment on several sites, and the figure that compares them.

    Args:
        config: the experiment.
        sites: names of the sites; the first one's folder gets the figure.
        where: names the configuration in messages.
    """
    from ddlbench.report import make_tables  # noqa: PLC0415
    from ddlbench.report.footer import Context  # noqa: PLC0415
    from ddlbench.report.sites import draw_sites  # noqa: PLC0415
    from ddlbench.report.style import save_figure, style  # noqa: PLC0415
    from ddlbench.report.tables import write_table  # noqa: PLC0415

    tables, contexts = {}, {}
    for name in sites:
        experiment, site, rows = matrix_of({**config, "site": name}, where)
        folder = tables_dir(site.name, experiment.name)
        tables[site.name] = make_tables(experiment.name, site.name, rows, RESULTS, folder)
        contexts[site.name] = Context(site.description)
    path = figures_dir(next(iter(tables)), experiment.name) / "sites.png"
    with style():
        figure, plotted = draw_sites(tables, contexts)
        write_table(path.with_suffix(".csv"), plotted)
        save_figure(figure, path)
    return path
