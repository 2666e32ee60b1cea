"""``ddlbench oracle``: what models say of ways to cut a network, and how right they are.

Of CNNs, ParaDL's model answers; tables of runs are told by their columns
(:mod:`ddlbench.predict.run_tables`).
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ddlbench.commands import oracle_display as display
from ddlbench.commands.options import JSON, with_matrix
from ddlbench.commands.oracle_scores import (
    read_command,
    roofline_command,
    score_command,
    terms_command,
)
from ddlbench.commands.partition import partition
from ddlbench.common.document import records, whole_file
from ddlbench.common.errors import ConfigError
from ddlbench.common.quantities import counted
from ddlbench.common.screen import Number, WholeNumber, examples, show
from ddlbench.experiment.registry import NETWORKS
from ddlbench.predict.accuracy import anomalies, from_predictions, read_predictions
from ddlbench.predict.hardware import Accelerators, Platform
from ddlbench.predict.paradl import measured as iterations
from ddlbench.predict.paradl import oracle as cnn
from ddlbench.predict.paradl.configuration import STRATEGIES
from ddlbench.predict.paradl.workload import has_workload
from ddlbench.predict.prediction import DEFAULT_PREDICTOR
from ddlbench.predict.run_tables import CNN, kind_of
from ddlbench.predict.transformer import runs as gpt_runs
from ddlbench.predict.transformer.configurations import is_shape
from ddlbench.predict.transformer.training_runs import gpts
from ddlbench.report.drawing import draw_figure

if TYPE_CHECKING:
    from ddlbench.experiment.config import Experiment
    from ddlbench.experiment.site import Site
    from ddlbench.planning.matrix import MatrixRow

Command = Callable[..., Any]
_PATH = click.Path(path_type=Path)
OUT = click.option("--out", type=_PATH, default=Path(), help="Folder; this one if left out.")
CAMPAIGN = click.option(
    "--campaign", default=iterations.MAIN_CAMPAIGN, show_default=True, help="Its rows are read."
)
PLATFORM = click.option(
    "--platform",
    default=iterations.PLATFORM,
    show_default=True,
    help="Its name in config/platforms, or a file.",
)
MAX_DEVICES = click.option(
    "--max-devices", type=WholeNumber(1), help="Look no further; the platform's end if left out."
)


def _a_cnn(_context: click.Context, _parameter: click.Parameter, network: str) -> str:
    if is_shape(network):
        raise ConfigError(
            f"{network} is a transformer, and this speaks of CNNs; layouts of a transformer: "
            f"`ddlbench recommend --hardware a100-sxm-80gb --network {network} ...`"
        )
    if network in NETWORKS and not has_workload(network):
        raise ConfigError(
            f"the oracle has no workload of {network}; its strategies are compared by "
            f"`ddlbench recommend --hardware a100-sxm-80gb --network {network} ...`"
        )
    return network


def of_network(batch: str) -> Command:
    """Add NETWORK and what is given of it, ask the command, and print its answer.

    Args:
        batch: what ``--batch-size`` counts.
    """
    options = (
        click.argument("network", callback=_a_cnn),
        click.option(
            "--variant", type=click.Choice(list(cnn.VARIANTS)), default="corrected",
            show_default=True,
        ),
        PLATFORM,
        click.option("--batch-size", type=Number(), required=True, help=batch),
        JSON,
    )  # fmt: skip

    def add(command: Callable[..., tuple[Any, list[str]]]) -> Command:
        @wraps(command)
        def wrapped(
            *,
            network: str,
            platform: str,
            batch_size: float,
            variant: str,
            as_json: bool,
            max_devices: int | None = None,
            **given: Any,
        ) -> None:
            where = Platform.load(platform)
            question = cnn.Question(network, where, batch_size, variant, max_devices)
            values, lines = command(question=question, **given)
            show(values, lines, as_json=as_json)

        for option in reversed(options):
            wrapped = option(wrapped)
        return wrapped

    return add


ALL_SAMPLES = "Samples over all devices."
GROUP_SAMPLES = "Samples of a device (data), of a node (hybrids), of all devices (the others)."


@click.group()
def oracle() -> None:
    """Project and choose ways to cut a network.

    CNNs with ParaDL's model. Layouts of a transformer: `ddlbench recommend --hardware`. score,
    terms and figure take tables of runs, which their columns tell; `ddlbench calibrate` fits the
    constants.
    """


oracle.add_command(score_command)
oracle.add_command(terms_command)
oracle.add_command(roofline_command)
oracle.add_command(read_command)
oracle.add_command(partition)


@oracle.command(
    "best",
    short_help="Rank the strategies on so many devices.",
    epilog=examples("ddlbench oracle best resnet50 --devices 64 --batch-size 2048"),
)
@click.option("--devices", type=WholeNumber(1), required=True)
@of_network(ALL_SAMPLES)
def best_command(question: cnn.Question, devices: int) -> tuple[Any, list[str]]:
    """Rank the strategies for NETWORK on so many devices at one global batch."""
    answers = cnn.best(question, devices)
    ranking = [display.answer_dict(answer) for answer in answers]
    chosen = next((answer["strategy"] for answer in ranking if answer["runs"]), None)
    lines = display.best_lines(answers, question, devices)
    return {"best": chosen, "ranking": ranking}, lines


@oracle.command(
    "limits",
    short_help="Say how far each strategy scales, and why no further.",
    epilog=examples("ddlbench oracle limits resnet50 --batch-size 32"),
)
@click.option(
    "--strategy",
    type=click.Choice(STRATEGIES),
    metavar="NAME",
    multiple=True,
    help=f"Only this one of {', '.join(STRATEGIES)}; may be repeated.",
)
@MAX_DEVICES
@of_network(GROUP_SAMPLES)
def limits_command(question: cnn.Question, strategy: tuple[str, ...]) -> tuple[Any, list[str]]:
    """Say how far each strategy scales, what bounds an iteration from where on, what ends it."""
    reaches = [cnn.reach(question, each) for each in strategy or question.strategies]
    lines = display.limits_lines(reaches, question)
    return [display.reach_dict(each) for each in reaches], lines


@oracle.command(
    "target",
    short_help="Say which devices end an epoch in a given time.",
    epilog=examples("ddlbench oracle target resnet50 --epoch-s 60 --batch-size 32"),
)
@click.option("--epoch-s", type=Number(), required=True, help="Seconds that an epoch may take.")
@MAX_DEVICES
@of_network(GROUP_SAMPLES)
def target_command(question: cnn.Question, epoch_s: float) -> tuple[Any, list[str]]:
    """Say with how many devices each strategy ends an epoch of NETWORK in time.

    The answer is the smallest number; every number is tried, of hybrids every number of whole
    nodes.
    """
    answers = cnn.fewest(question, epoch_s)
    values = {
        name: {"why": answer} if isinstance(answer, str) else display.answer_dict(answer)
        for name, answer in answers.items()
    }
    lines = display.target_lines(answers, question, epoch_s)
    return {"epoch_s": epoch_s, "strategies": values}, lines


@oracle.command(
    "rows",
    short_help="Write measured cells as a table of runs.",
    epilog=examples("ddlbench oracle rows --output runs.csv"),
)
@with_matrix
@click.option("--output", type=_PATH, required=True, help="Write the CSV table here.")
def rows_command(
    *, experiment: Experiment, site: Site, rows: list[MatrixRow], output: Path
) -> None:
    """Write the experiment's measured cells of transformers as rows for score and calibrate.

    A row is the median step of a cell's repeats: sequential, data-parallel, FSDP and synchronous
    pipelines in fp32.
    """
    runs = gpt_runs.rows_of_cells(rows, site.name)
    if not runs:
        raise ConfigError(
            f"{experiment.where}: site {site.name} has no measured cell of a transformer; measure "
            "one of vit-tiny, gpt-tiny, ... first"
        )
    with whole_file(output) as part, part.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, gpt_runs.COLUMNS)
        writer.writeheader()
        writer.writerows(runs)
    click.echo(f"{output} is written: {counted(len(runs), 'row')}")


@oracle.command(
    "figure",
    short_help="Draw measurements beside projections.",
    epilog=examples("ddlbench oracle figure measured.csv --out figures"),
)
@click.argument("measured", type=_PATH, nargs=-1, required=True)
@click.option("--platform", help="Its name, or a file; the one of such runs if left out.")
@CAMPAIGN
@OUT
def figure_command(
    measured: tuple[Path, ...], platform: str | None, campaign: str, out: Path
) -> None:
    """Draw MEASURED, CSV tables, beside projections.

    Iterations of CNNs beside both variants of the oracle, Figure 1 of ParaDL: oracle. Steps of GPTs
    beside predictions, each hidden size with constants fitted to the others: transformer_runs and
    transformer_errors. Each is a .png, .pdf and .csv. Of an experiment's own runs, `ddlbench
    predict accuracy --figures` draws the first.
    """
    names = ", ".join(path.name for path in measured)
    if {kind_of(path).name for path in measured} == {CNN}:
        if len(measured) > 1:
            raise ConfigError(f"{names}: give one table of iterations")
        cluster = Platform.load(platform or iterations.PLATFORM)
        rows = iterations.reliable_rows(measured[0], campaign)
        where = f"{names}, campaign {campaign}. {cluster.description}."
        _draw("oracle_published", out / "oracle.png", rows, cluster, where)
        return
    accelerators = Accelerators.load(platform or gpt_runs.PLATFORM)
    runs = gpts(measured)
    runs = runs.take(runs.timed)
    predicted_s = gpt_runs.held_out_s(runs, runs, accelerators, "model")
    for name in ("transformer_runs", "transformer_errors"):
        where = f"{names}. {accelerators.description}."
        _draw(name, out / f"{name}.png", runs, predicted_s, where)


def _draw(figure: str, path: Path, *inputs: Any) -> None:
    made = draw_figure(figure, path, *inputs)
    click.echo(f"{made}, .pdf and .csv are written")


@oracle.command(
    "anomalies",
    short_help="Flag runs that depart from their projection.",
    epilog=examples("ddlbench oracle anomalies results/local/demo/predictions.json"),
)
@click.argument("runs", type=_PATH)
@click.option(
    "--limit",
    type=Number(min=0, min_open=True),
    default=0.25,
    show_default=True,
    help="Share by which a run may be longer than its projection, or the projection than the run.",
)
@click.option(
    "--predictor",
    default=DEFAULT_PREDICTOR,
    show_default=True,
    help="Of predictions.json: any predictor.",
)
@PLATFORM
@CAMPAIGN
@JSON
def anomalies_command(
    *, runs: Path, limit: float, predictor: str, platform: str, campaign: str, as_json: bool
) -> None:
    """Flag measured RUNS that depart from their projection; ends with 1 if any does, else 0.

    Ends with 2 if there is no run that was both measured and projected.

    RUNS is an experiment's predictions.json (`ddlbench predict accuracy` writes it), or a CSV table
    of iterations of CNNs, which the corrected oracle projects on --platform.
    """
    if runs.suffix == ".json":
        predictions = read_predictions(runs)
        if predictor not in set(predictions["predictor"]):
            known = ", ".join(dict.fromkeys(map(str, predictions["predictor"])))
            raise ConfigError(f"{runs}: nothing by predictor {predictor!r}; it has: {known}")
        table = from_predictions(predictions, predictor)
        source = f"{predictor}, of this site's own profile and links"
    else:
        cluster = Platform.load(platform)
        table = iterations.as_predictions(iterations.reliable_rows(runs, campaign), cluster)
        source = f"the corrected oracle for {cluster.description}"
    judged = anomalies(table, limit)
    if as_json:
        click.echo(json.dumps({"limit": limit, "runs": records(judged)}))
    else:
        click.echo("\n".join(display.departure_lines(judged, limit, source)))
    if not (judged["why_unknown"] == "").any():  # silence must not read as "all is well"
        raise ConfigError(f"{runs}: no run could be judged: none was both measured and projected")
    if (judged["departs"] != "").any():
        raise SystemExit(1)


@oracle.command(
    "explain",
    short_help="Draw who holds what of a layer, and what is sent.",
    epilog=examples("ddlbench oracle explain filter data+spatial"),
)
@click.argument("strategies", nargs=-1, type=click.Choice(STRATEGIES), metavar="[STRATEGY]...")
@OUT
def explain_command(strategies: tuple[str, ...], out: Path) -> None:
    """Draw who holds what of a layer, and what is sent when: one figure a strategy, or all.

    STRATEGY is serial, data, spatial, filter, channel, data+filter, data+spatial or pipeline.
    Writes split-STRATEGY.png and .pdf. For schedules of pipelines see `ddlbench report timeline
    --schedule`.
    """
    for name in strategies or STRATEGIES:
        made = draw_figure("split", out / f"split-{name.replace('+', '-')}.png", name)
        click.echo(f"{made} and .pdf are written")
