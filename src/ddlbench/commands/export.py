"""``ddlbench report export``: results in the formats of other people's tools."""

from __future__ import annotations

import getpass
import os
import pwd
from contextlib import suppress
from pathlib import Path

import click

from ddlbench.common.screen import counted, examples
from ddlbench.experiment.paths import RESULTS, enter_project
from ddlbench.report.exports.registry import EXPORTS, FOLDER, Study
from ddlbench.report.result_tree import read_tree
from ddlbench.report.tree_tables import TreeTables


def _formats() -> str:
    return "; ".join(
        [
            *(f"{name}: {entry.holds}" for name, entry in EXPORTS.built_in.items()),
            *EXPORTS.third_party,
        ]
    )


@click.command(
    epilog=examples(
        "ddlbench report export --to duckdb",
        "ddlbench report export --to openmetrics --out /var/lib/node_exporter",
        "ddlbench report export --to ro-crate --author 'Ada Lovelace' --licence CC-BY-4.0",
    )
)
@click.argument("results", nargs=-1, type=click.Path(path_type=Path))
@click.option("--to", "name", required=True, metavar="FORMAT", help=f"{_formats()}.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help=f"File or folder to write, in place of an earlier export; else one in {FOLDER}/.",
)
@click.option("--author", help="Who publishes the results: 'Name <address>'; else your login.")
@click.option(
    "--licence", default="Apache-2.0", show_default=True, help="Of the results, SPDX's identifier."
)
@click.option(
    "--configfile",
    "configs",
    type=click.Path(path_type=Path),
    multiple=True,
    help="For ro-crate: an experiment's file; else those in config/ of that name.",
)
def export(
    *,
    results: tuple[Path, ...],
    name: str,
    out: Path | None,
    author: str | None,
    licence: str,
    configs: tuple[Path, ...],
) -> None:
    """Write results for DuckDB, MLflow, Prometheus and others.

    RESULTS are folders of results, of a site or of one cell; without any, those of this repository.
    Whatever was measured is in it, failed cells too.
    """
    EXPORTS.check(name)
    chosen = EXPORTS[name]
    chosen.check(name)
    out = out or FOLDER / chosen.out
    if out.is_dir() and Path(chosen.out).suffix:  # a file, and a folder for it
        out /= chosen.out
    study = Study(author or _login(), licence, tuple(path.absolute() for path in configs))
    place = out.absolute()
    if not results:
        enter_project()
        results = (RESULTS,)
    tables = TreeTables(read_tree(results))
    opens = chosen.writer(name)(tables, place, study)
    cells = len(tables.tree.cells)
    failed = int((tables.cells.frame["status"] != "ok").sum())
    without = f", {failed} without a measurement" if failed else ""
    click.echo(f"{out}: {counted(cells, 'cell')}{without}")
    click.echo(f"Open it:\n  {opens.replace(str(place), str(out))}")  # to be copied as it is


def _login() -> str:
    """The user's full name, or that of the login."""
    with suppress(KeyError, OSError):
        if full := pwd.getpwuid(os.getuid()).pw_gecos.partition(",")[0].strip():
            return full
    with suppress(KeyError, OSError):
        return getpass.getuser()
    return f"user {os.getuid()}"
