"""The options that commands share: which experiment, which cell; and what they stand for."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from ddlbench.common.schema import read_yaml
from ddlbench.common.screen import WholeNumber
from ddlbench.experiment.config import Experiment
from ddlbench.experiment.paths import CONFIG, check_results, enter_project
from ddlbench.experiment.site import Site, site_file
from ddlbench.planning.matrix import MatrixRow, matrix_of

JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
DEVICE_MEMORY = click.option(
    "--device-memory-bytes",
    type=WholeNumber(1),
    help="Memory of one device, where profile and site do not say it.",
)

Selected = tuple[Experiment, Site, list[MatrixRow]]


def written(context: click.Context, names: Iterable[str]) -> list[str]:
    """Those of these parameters that the user wrote, as ``--hold-out``."""
    texts = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    source = context.get_parameter_source
    return [texts[name] for name in names if source(name) is ParameterSource.COMMANDLINE]


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

    ``scale`` is of a published figure.
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


def snakemake_command(experiment: Experiment, site: Site, target: str = "") -> str:
    """The command that measures an experiment on a site, or makes a target of it."""
    # The target stands first, as --configfile would take it for a file of its own.
    parts = ["snakemake", *filter(None, [target]), "--profile", f"profiles/{site.launcher}"]
    if Path(experiment.where) != CONFIG:
        parts += ["--configfile", experiment.where]
    settings = list(experiment.given)
    if site.name != site_file(experiment.site).stem:
        settings.append(f"site={site.name}")
    if settings:
        parts += ["--config", *settings]
    return shlex.join(parts)


def cell_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say what is trained, on how much, with which batch."""
    batch = click.option("--batch-size", type=WholeNumber(1), help="Samples of one step.")
    return case_options(batch(command))


def case_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say what is trained, on how much."""
    for option in reversed(
        (
            click.option(
                "--configfile",
                type=click.Path(path_type=Path),
                help="An experiment of yours: its settings, options, site and data.",
            ),
            click.option("--site", "site_name", help="Site.  [default: local]"),
            click.option("--network", help="Name, or package.module:callable."),
            click.option("--dataset", help="Name of the dataset."),
            click.option("--geometry", help="Nodes x devices per node: 2x4."),
            click.option("--fabric", help="Link condition.  [default: default]"),
            click.option("--precision", help="[default: fp32]"),
            click.option("--optimizer", help="sgd or adamw.  [default: sgd]"),
            click.option("--threads", type=WholeNumber(1), help="Of a CPU device."),
            click.option(
                "--option", "options", multiple=True, help="Of a strategy: gpipe.chunks=8."
            ),
            JSON,
        )
    ):
        command = option(command)
    return command
