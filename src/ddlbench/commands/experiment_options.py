"""The options that name an experiment, for every command that reads one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ddlbench.common.schema import read_yaml
from ddlbench.experiment.paths import CONFIG, check_results, enter_project
from ddlbench.planning.matrix import matrix_of

if TYPE_CHECKING:
    from ddlbench.experiment.config import Experiment
    from ddlbench.experiment.site import Site
    from ddlbench.planning.matrix import MatrixRow

    Selected = tuple[Experiment, Site, list[MatrixRow]]


def with_matrix(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options, and hand ``experiment``, ``site`` and ``rows`` to the command."""

    @click.option(
        "--configfile",
        type=click.Path(path_type=Path),
        default=CONFIG,
        show_default=True,
        help="The experiment.",
    )
    @click.option("--site", "site_name", default=None, help="Another site than the file names.")
    @click.option("--scale", default=None, help="Of a published figure: full or laptop.")
    @wraps(command)
    def wrapped(configfile: Path, site_name: str | None, scale: str | None, **options: Any) -> None:
        experiment, site, rows = matrix_at(configfile, site_name, scale)
        command(experiment=experiment, site=site, rows=rows, **options)

    return wrapped


def matrix_at(configfile: Path, site_name: str | None = None, scale: str | None = None) -> Selected:
    """The experiment of a file, its site and its matrix.

    Args:
        configfile: the file.
        site_name: another site than the file names.
        scale: of a published figure.
    """
    configfile = enter_project(configfile)
    config, given = config_at(configfile, site_name, scale)
    experiment, site, rows = matrix_of(config, where=str(configfile))
    check_results(site.name)
    return replace(experiment, given=given), site, rows


def config_at(
    configfile: Path, site_name: str | None = None, scale: str | None = None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A file with what the user has set beside it, and these settings as ``key=value``."""
    settings = {"scale": scale, "site": site_name}
    given = {key: value for key, value in settings.items() if value is not None}
    return {**read_yaml(configfile), **given}, tuple(f"{k}={v}" for k, v in given.items())
