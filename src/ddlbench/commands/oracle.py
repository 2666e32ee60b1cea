"""``ddlbench oracle``: what models say of ways to cut a network, and how right they are.

Two oracles have the same commands: ParaDL's of CNNs, and that of transformers over tensor x data x
pipeline devices, with ``--workload transformer``.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ddlbench.commands import oracle_display as display
from ddlbench.commands import oracle_transformer_display as transformer_display
from ddlbench.commands.oracle_read import read_command
from ddlbench.commands.oracle_roofline import roofline_command
from ddlbench.commands.oracle_runs import is_published, published, terms_command
from ddlbench.commands.partition import partition
from ddlbench.commands.plan import with_matrix
from ddlbench.common.document import whole_file
from ddlbench.common.errors import ConfigError
from ddlbench.common.screen import examples
from ddlbench.predict.accuracy import anomalies, from_predictions, read_predictions
from ddlbench.predict.paradl import measured as iterations
from ddlbench.predict.paradl import oracle as cnn
from ddlbench.predict.paradl.configuration import STRATEGIES
from ddlbench.predict.paradl.oracle import VARIANTS
from ddlbench.predict.platforms import Accelerators, Platform, PlatformFile
from ddlbench.predict.transformer import runs as gpt_runs
from ddlbench.predict.transformer.configurations import is_shape
from ddlbench.predict.transformer.runs import COLUMNS, own_rows
from ddlbench.report.drawing import draw_figure

if TYPE_CHECKING:
    from ddlbench.experiment.config import Experiment
    from ddlbench.experiment.site import Site
    from ddlbench.planning.matrix import MatrixRow

Command = Callable[..., Any]
Said = tuple[Any, list[str]]
"""JSON values, and lines for a terminal."""

TRANSFORMER = "transformer"
_PATH = click.Path(path_type=Path)
MEASURED = click.argument("measured", type=_PATH)
ALL_MEASURED = click.argument("measured", type=_PATH, nargs=-1, required=True)
OUTPUT = click.option("--output", type=_PATH, help="Write the platform file here.")
OUT = click.option("--out", type=_PATH, default=Path(), help="Folder; this one if left out.")
DEVICES = click.option("--devices", type=int, required=True)
CAMPAIGN = click.option(
    "--campaign", default=iterations.MAIN_CAMPAIGN, show_default=True, help="Its rows are read."
)
MAX_DEVICES = click.option(
    "--max-devices", type=int, help="Look no further; the platform's end if left out."
)
JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


def platform_option(default: str, kind: type[PlatformFile] | None = None) -> Command:
    """The option ``--platform``, which hands the platform to the command; its name, if no kind."""
    return click.option(
        "--platform",
        default=default,
        show_default=True,
        help="Its name in config/platforms, or a file.",
        callback=lambda _, __, name: kind.load(name) if kind else name,
    )


PLATFORM = platform_option("abci", Platform)
ACCELERATORS = platform_option("a100-80gb", Accelerators)


def printed(command: Callable[..., Said]) -> Command:
    """Add ``--json``; print what the command returns as JSON or as text."""

    @JSON
    @wraps(command)
    def wrapped(as_json: bool, **options: Any) -> None:
        values, lines = command(**options)
        click.echo(json.dumps(values) if as_json else "\n".join(lines))

    return wrapped


def asking(kind: type[cnn.Question], *options: Command) -> Command:
    """Add options, hand the question that has their values to the command, and print its answer."""
    names = {field.name for field in fields(kind)}

    def add(command: Callable[..., Said]) -> Command:
        @printed
        @wraps(command)
        def wrapped(**given: Any) -> Said:
            values = {name: given.pop(name) for name in names & given.keys()}
            return command(question=kind(**values), **given)

        for option in reversed(options):
            wrapped = option(wrapped)
        return wrapped

    return add


def of_network(batch: str) -> Command:
    """Add NETWORK and what is given of it; ``batch`` says what ``--batch-size`` counts."""
    return asking(
        cnn.Question,
        click.argument("network"),
        click.option(
            "--variant", type=click.Choice(list(VARIANTS)), default="corrected", show_default=True
        ),
        PLATFORM,
        click.option("--batch-size", type=float, required=True, help=batch),
    )


ALL_SAMPLES = "Samples over all devices."
GROUP_SAMPLES = "Samples of a device (data), of a node (hybrids), of all devices (the others)."


class ByWorkload(click.Group):
    """A group whose commands speak of CNNs, or of transformers with ``--workload transformer``.

    A command also speaks of transformers if its first argument is the name of a published one, and
    of published runs if its table is one of those that :mod:`ddlbench.predict.run_tables` knows.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.transformers = click.Group()

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command for ``args``; ``--workload`` is taken out of them."""
        name, command, rest = super().resolve_command(ctx, args)
        workload, rest = _workload(rest)
        if not workload and is_published(name, rest):
            return name, published.get_command(ctx, str(name)), rest
        shape = rest[0] if rest and not rest[0].startswith("-") else ""
        if workload == TRANSFORMER or (is_shape(shape) and not workload):
            command = self.transformers.get_command(ctx, str(name))
            if command is None:
                asked = shape if is_shape(shape) else "gpt3-175b"
                known = ", ".join(self.transformers.commands)
                raise ConfigError(
                    f"oracle {name} speaks of CNNs only; layouts of a transformer: `ddlbench "
                    f"recommend --hardware a100-sxm-80gb --network {asked} ...`; of its runs: "
                    f"oracle {known}"
                )
        return name, command, rest


def _workload(args: list[str]) -> tuple[str, list[str]]:
    """The value of ``--workload``, empty without one, and the other arguments."""
    for place, word in enumerate(args):
        option, equals, value = word.partition("=")
        if option == "--workload":
            end = place + (1 if equals else 2)
            value = value if equals else "".join(args[place + 1 : end])
            if value not in ("cnn", TRANSFORMER):
                raise ConfigError(f"--workload {value!r}; write cnn or {TRANSFORMER}")
            return value, args[:place] + args[end:]
    return "", args


@click.group(cls=ByWorkload)
def oracle() -> None:
    """Project and choose ways to cut a network.

    CNNs with ParaDL's model; runs of GPTs over tensor x data x pipeline with --workload
    transformer, which score, calibrate, rows and figure take (add --help for its options). Layouts
    of a transformer: `ddlbench recommend --hardware`.
    Tables of runs that other people published are told by their columns: score RUNS.csv and
    calibrate RUNS.csv then predict from data sheets (score RUNS.csv --help), as terms does.
    """


transformers = oracle.transformers
oracle.add_command(terms_command)
oracle.add_command(roofline_command)
oracle.add_command(read_command)
oracle.add_command(partition)


@oracle.command(
    "best",
    short_help="Rank the strategies on so many devices.",
    epilog=examples(
        "ddlbench oracle best resnet50 --devices 64 --batch-size 2048",
    ),
)
@DEVICES
@of_network(ALL_SAMPLES)
def best_command(question: cnn.Question, devices: int) -> Said:
    """Rank the strategies for NETWORK on so many devices at one global batch."""
    answers = cnn.best(question, devices)
    ranking = [display.answer(answer) for answer in answers]
    chosen = next((answer["strategy"] for answer in ranking if answer["runs"]), None)
    lines = display.best_lines(answers, question, devices)
    return {"best": chosen, "ranking": ranking}, lines


@oracle.command(
    "limits",
    short_help="Say how far each strategy scales, and why no further.",
    epilog=examples(
        "ddlbench oracle limits resnet50 --batch-size 32",
    ),
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
def limits_command(question: cnn.Question, strategy: tuple[str, ...]) -> Said:
    """Say how far each strategy scales, what bounds an iteration from where on, what ends it."""
    reaches = [cnn.reach(question, each) for each in strategy or STRATEGIES]
    lines = display.limits_lines(reaches, question)
    return [display.reach(each) for each in reaches], lines


@oracle.command(
    "target",
    short_help="Say which devices end an epoch in a given time.",
    epilog=examples(
        "ddlbench oracle target resnet50 --epoch-s 60 --batch-size 2048",
    ),
)
@click.option("--epoch-s", type=float, required=True, help="Seconds that an epoch may take.")
@MAX_DEVICES
@of_network(GROUP_SAMPLES)
def target_command(question: cnn.Question, epoch_s: float) -> Said:
    """Say with how many devices each strategy ends an epoch of NETWORK in time."""
    answers = cnn.fewest(question, epoch_s)
    values = {key: display.answer(answer) if answer else None for key, answer in answers.items()}
    lines = display.target_lines(answers, question, epoch_s)
    return {"epoch_s": epoch_s, "strategies": values}, lines


@oracle.command(
    "score",
    short_help="Score projections against measured iterations.",
    epilog=examples(
        "ddlbench oracle score measured.csv",
    ),
)
@MEASURED
@PLATFORM
@click.option(
    "--predictor",
    default="corrected",
    show_default=True,
    help="authors-code, printed-table, corrected, or a baseline: computation-only, carry-forward, "
    "paradl-projected.",
)
@printed
def score_command(measured: Path, platform: Platform, predictor: str) -> Said:
    """Score projections against the measured iterations of MEASURED, a CSV table."""
    values = iterations.score(iterations.read_measured(measured), platform, predictor)
    return values, display.score_lines(values, platform)


@transformers.command("score", short_help="Score predicted steps against measured ones.")
@MEASURED
@click.option(
    "--hold-out",
    type=click.Choice(gpt_runs.HOLD_OUTS),
    help="Fit without the rows of each value in turn, and score those.",
)
@click.option(
    "--also",
    type=_PATH,
    multiple=True,
    help="With --hold-out: fit these tables' rows as well, those held out left out.",
)
@ACCELERATORS
@printed
def score_steps_command(
    measured: Path, hold_out: str | None, also: tuple[Path, ...], platform: Accelerators
) -> Said:
    """Score predictions against the measured steps of MEASURED, a CSV table.

    Columns: hidden_size, attention_heads, layers, sequence_length, global_batch, micro_batch,
    tensor, data, pipeline, step_s; also known: vocabulary, schedule, chunks, recomputation, zero,
    sequence_parallel.
    """
    runs = gpt_runs.read_runs(measured)
    if also and not hold_out:
        raise ConfigError("--also adds rows to a fit; write --hold-out, or leave it out")
    if hold_out:
        others = gpt_runs.read_runs(*also) if also else None
        predicted_s = gpt_runs.held_out_s(runs, platform, hold_out, others)
    else:
        predicted_s = runs.predicted_s(platform)
    values = {
        **gpt_runs.scored(runs, predicted_s),
        "hold_out": hold_out,
        "choices": gpt_runs.choices(runs, predicted_s),
    }
    return values, transformer_display.score_lines(values, platform)


def _write(platform: PlatformFile, path: Path | None) -> dict[str, str]:
    """Write a calibrated platform if there is a path; return what to say of it."""
    if path is None:
        return {}
    platform.write(path)
    return {"written": str(path)}


@oracle.command(
    "calibrate",
    short_help="Fit the platform's constants to measurements.",
    epilog=examples(
        "ddlbench oracle calibrate measured.csv --output mine.yaml",
    ),
)
@MEASURED
@PLATFORM
@CAMPAIGN
@click.option(
    "--hold-out",
    type=click.Choice(iterations.HOLD_OUTS),
    help="Also fit without each network in turn, or up to 16 devices only, and score the rest.",
)
@OUTPUT
@printed
def calibrate_command(
    *,
    measured: Path,
    platform: Platform,
    campaign: str,
    hold_out: str | None,
    output: Path | None,
) -> Said:
    """Fit the platform's few constants to MEASURED, and say each of them."""
    rows = iterations.reliable_rows(measured, campaign)
    fit = iterations.calibrate(rows, platform)
    fitted = platform.with_constants(fit.constants)
    projections = iterations.projected(rows, fitted, iterations.FITTED)
    values: dict[str, Any] = {
        "rows": fit.rows,
        "constants": display.constants(platform, fit, display.CONSTANT),
        "mean_accuracy": iterations.mean_accuracy(rows, projections),
    }
    if hold_out:
        held_out = iterations.hold_out(rows, platform, hold_out)
        values["hold_out"] = {"by": hold_out, **display.accuracy_by_strategy(*held_out)}
    values |= _write(fitted, output)
    return values, display.calibration_lines(values, platform)


@transformers.command("calibrate", short_help="Fit a platform's constants to measured steps.")
@ALL_MEASURED
@OUTPUT
@ACCELERATORS
@printed
def calibrate_steps_command(
    measured: tuple[Path, ...], output: Path | None, platform: Accelerators
) -> Said:
    """Fit the platform's constants to the steps of all tables MEASURED, and say each of them.

    The interval of the file comes from the same rows with each hidden size held out in turn, or
    each number of devices where there is one size only.
    """
    runs = gpt_runs.read_runs(*measured)
    fit = gpt_runs.calibrate(runs, platform)
    fitted = gpt_runs.calibrated(platform, fit, runs, ", ".join(path.name for path in measured))
    values = {
        "rows": fit.rows,
        "constants": display.constants(platform, fit, transformer_display.CONSTANT),
        "mean_absolute_error": gpt_runs.scored(runs, runs.predicted_s(fitted))[
            "mean_absolute_error"
        ],
        "interval": fitted.interval.to_dict(),
        **_write(fitted, output),
    }
    return values, transformer_display.calibration_lines(values, platform)


@click.command(
    "rows",
    short_help="Write measured cells as a table of runs.",
    epilog=examples(
        "ddlbench oracle rows --output runs.csv",
    ),
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
    runs = own_rows(rows, site.name)
    if not runs:
        raise ConfigError(
            f"{experiment.where}: site {site.name} has no measured cell of a transformer; measure "
            "one of vit-tiny, gpt-tiny, ... first"
        )
    with whole_file(output) as part, part.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(runs)
    click.echo(f"{output} is written: {len(runs)} row(s)")


oracle.add_command(rows_command)
transformers.add_command(rows_command)


def _draw(figure: str, path: Path, *inputs: Any) -> None:
    made = draw_figure(figure, path, *inputs)
    click.echo(f"{made}, .pdf and .csv are written")


@oracle.command(
    "figure",
    short_help="Draw measurements beside projections.",
    epilog=examples(
        "ddlbench oracle figure measured.csv --out figures",
    ),
)
@MEASURED
@PLATFORM
@CAMPAIGN
@OUT
def figure_command(measured: Path, platform: Platform, campaign: str, out: Path) -> None:
    """Draw MEASURED, a CSV table, beside both variants: Figure 1 of ParaDL.

    Writes oracle.png, .pdf and .csv. Of an experiment's own runs, `ddlbench predict accuracy
    --figures` draws it.
    """
    rows = iterations.reliable_rows(measured, campaign)
    where = f"{measured.name}, campaign {campaign}. {platform.description}."
    _draw("oracle_published", out / "oracle.png", rows, platform, where)


@transformers.command("figure", short_help="Draw measurements beside predictions.")
@ALL_MEASURED
@OUT
@ACCELERATORS
def figures_command(measured: tuple[Path, ...], out: Path, platform: Accelerators) -> None:
    """Draw all tables MEASURED beside predictions.

    Each hidden size is predicted with constants fitted to the others. Writes transformer_runs and
    transformer_errors, each as .png, .pdf and .csv.
    """
    runs = gpt_runs.read_runs(*measured)
    predicted_s = gpt_runs.held_out_s(runs, platform, "hidden_size")
    where = f"{', '.join(path.name for path in measured)}. {platform.description}."
    for name in ("transformer_runs", "transformer_errors"):
        _draw(name, out / f"{name}.png", runs, predicted_s, where)


@oracle.command(
    "anomalies",
    short_help="Flag runs that depart from their projection.",
    epilog=examples(
        "ddlbench oracle anomalies results/local/demo/predictions.json",
    ),
)
@click.argument("runs", type=_PATH)
@click.option(
    "--limit",
    type=click.FloatRange(min=0, min_open=True),
    default=0.25,
    show_default=True,
    help="Share by which a run may be longer than its projection, or the projection than the run.",
)
@click.option(
    "--predictor",
    default="paradl-corrected",
    show_default=True,
    help="Of predictions.json: any predictor.",
)
@platform_option("abci")
@CAMPAIGN
@JSON
def anomalies_command(
    *, runs: Path, limit: float, predictor: str, platform: str, campaign: str, as_json: bool
) -> None:
    """Flag measured RUNS that depart from their projection; ends with 1 if any does, else 0.

    Ends with 2 if there is no run that was both measured and projected.

    RUNS is an experiment's predictions.json (`ddlbench predict accuracy` writes it), or a CSV table
    as for `score`, which the corrected oracle projects on --platform.
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
        records = judged.astype(object).where(judged.notna(), None).to_dict("records")
        click.echo(json.dumps({"limit": limit, "runs": records}))
    else:
        click.echo("\n".join(display.departure_lines(judged, limit, source)))
    if not (judged["why_unknown"] == "").any():  # silence must not read as "all is well"
        raise ConfigError(f"{runs}: no run could be judged: none was both measured and projected")
    if (judged["departs"] != "").any():
        raise SystemExit(1)


@oracle.command(
    "explain",
    short_help="Draw who holds what of a layer, and what is sent.",
    epilog=examples(
        "ddlbench oracle explain filter data+spatial",
    ),
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
