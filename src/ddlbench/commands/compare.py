"""``ddlbench compare`` and ``report reference``: hold results against earlier ones."""

from __future__ import annotations

import json
import math
import re
import sys
from datetime import UTC, datetime
from pathlib import Path

import click

from ddlbench.common.errors import ConfigError, file_fault, shown
from ddlbench.common.quantities import counted
from ddlbench.common.screen import examples
from ddlbench.experiment.reference import write_reference
from ddlbench.report.drawing import draw_figure
from ddlbench.report.regression_texts import lines_of, markdown_of, values_of
from ddlbench.report.regressions import (
    DEFAULT_MARGIN,
    SPREAD_COMPUTED,
    SPREAD_EMULATED,
    Comparison,
    compare_trees,
)
from ddlbench.report.run_trees import Tree, read_tree, reference_of

_SHARE = re.compile(r"([0-9]*\.?[0-9]+(?:e-?[0-9]+)?) *(%?)", re.IGNORECASE)


def share_of(text: str, option: str) -> float:
    """The share of ``5%`` or ``0.05``.

    Raises:
        ConfigError: it is neither, or not above 0 and below 100 %.
    """
    match = _SHARE.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"{option} {shown(text)}: write a share above zero, as 5% or 0.05")
    number = float(match[1])
    share = number / 100 if match[2] else number
    if not (0 < share < 1 and math.isfinite(1 / share)):
        instead = f"{match[1]}%" if 1 <= share < 100 and not match[2] else "5%"
        raise ConfigError(
            f"{option} {shown(text)}: write a share above 0 and below 1, or a percentage, as "
            f"{instead}"
        )
    return share


@click.command(
    epilog=examples(
        "ddlbench compare results.before results --fail-over 5%",
        "ddlbench compare reference.yaml results --markdown > comment.md",
        "ddlbench compare results/one-site results/other-site --figure ratios.png",
        "ddlbench compare results results.bf16 --across precision",
    )
)
@click.argument("first", metavar="A", type=click.Path(path_type=Path))
@click.argument("second", metavar="B", type=click.Path(path_type=Path))
@click.option(
    "--fail-over",
    default=f"{100 * DEFAULT_MARGIN:g}%",
    show_default=True,
    metavar="SHARE",
    help="Margin: a change within it is none, as 5% or 0.05.",
)
@click.option(
    "--across",
    multiple=True,
    metavar="SETTING",
    help="A setting that need not match: site, precision, geometry, an option of the strategy; "
    "may be given again.",
)
@click.option(
    "--spread",
    metavar="SHARE",
    help="How far runs of a configuration lie apart (standard deviation), where neither tree has "
    f"repeats.  [default: measured: {100 * SPREAD_COMPUTED:g}%; emulated accelerators "
    f"{100 * SPREAD_EMULATED:g}%]",
)
@click.option("--require-all", is_flag=True, help="A configuration that B lacks is a regression.")
@click.option("--all", "every_row", is_flag=True, help="A line for every configuration.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Print Markdown, for a pull request.")
@click.option(
    "--figure",
    type=click.Path(path_type=Path),
    metavar="FILE.png",
    help="Draw the ratios with their intervals.",
)
def compare(
    *,
    first: Path,
    second: Path,
    fail_over: str,
    across: tuple[str, ...],
    spread: str | None,
    require_all: bool,
    every_row: bool,
    as_json: bool,
    as_markdown: bool,
    figure: Path | None,
) -> None:
    """Compare two results, and fail where one became slower.

    A and B are folders of results (results/, a site's, any other), or files of
    `ddlbench report reference`. The median steps of cells with the same settings are compared,
    whatever their site, repeat and code. Exit status: 0; 1 for a regression; 2 for wrong input.

    \b
    slower       the whole 95 % interval of B/A is above the margin
    faster       the whole interval is below it
    same         the whole interval is within it
    cannot tell  all else: repeats make the interval narrower
    failed       runs fail in B, and not in A

    """  # noqa: D301 - click takes \b for a paragraph that is not wrapped
    margin = share_of(fail_over, "--fail-over")
    stated = None if spread is None else share_of(spread, "--spread")
    if as_json and as_markdown:
        raise ConfigError("--json and --markdown: give one of them")
    if figure is not None and figure.suffix != ".png":
        raise ConfigError(f"--figure {shown(str(figure))}: write a name that ends in .png")
    comparison = compare_trees(
        _read(first),
        _read(second),
        margin=margin,
        across=across,
        stated=stated,
        require_all=require_all,
    )
    if figure is not None:
        _draw(comparison, figure, quiet=as_json or as_markdown)
    if as_json:
        click.echo(json.dumps(values_of(comparison), indent=1, allow_nan=False))
    elif as_markdown:
        click.echo(markdown_of(comparison))
    else:
        click.echo("\n".join(lines_of(comparison, every_row=every_row)))
    if comparison.regressions:
        sys.exit(1)


def _read(path: Path) -> Tree:
    """The tree; a folder that may not be read is wrong input, as status 1 is a regression."""
    try:
        return read_tree(path)
    except OSError as error:
        raise ConfigError(file_fault(error) or f"{path}: {error}") from None


def _draw(comparison: Comparison, figure: Path, *, quiet: bool) -> None:
    try:
        draw_figure("ratios", figure, comparison)
    except OSError as error:
        raise ConfigError(file_fault(error) or f"{figure}: {error}") from None
    click.echo(f"figure: {figure}", err=quiet)


@click.command(epilog=examples("ddlbench report reference results/mysite --out reference.yaml"))
@click.argument("results", type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="Where to write it, as reference.yaml.",
)
@click.option("--overwrite", is_flag=True, help="Replace a file that is there.")
def reference(*, results: Path, out: Path, overwrite: bool) -> None:
    """Keep a small file of what results should reach.

    It has a row per configuration: median step, spread from run to run, number of runs; and
    when, where and with what they were measured. `ddlbench compare` takes it in place of a folder.
    """
    if out.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"--out {shown(str(out))}: write a name that ends in .yaml")
    if out.exists() and not overwrite:
        raise ConfigError(f"{out} is there; write --overwrite to replace it, or another name")
    tree = _read(results)
    if tree.is_reference:
        raise ConfigError(f"{results} is a reference file already; give a folder of results")
    made = reference_of(tree, datetime.now(UTC).isoformat(timespec="seconds"))
    write_reference(out, made)
    rows = made.configurations
    single = sum(row.runs == 1 for row in rows)
    click.echo(f"{out}: {counted(len(rows), 'configuration')} of {' and '.join(made.sites)}")
    if single:
        click.echo(
            f"{counted(single, 'configuration')} had one run: their spread is unknown; "
            "repeats: 3 in the experiment measures it"
        )
