"""``ddlbench predict``, ``predict accuracy`` and ``recommend largest-batch``."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from ddlbench.commands.options import DEVICE_MEMORY, case_options, cell_options, with_matrix
from ddlbench.commands.questions import by_workflow, header, noisy_profile, questions_of
from ddlbench.common.document import records
from ddlbench.common.errors import ConfigError
from ddlbench.common.quantities import BYTES, TIMES, counted, duration_text, in_one_unit
from ddlbench.common.screen import WholeNumber, examples, paragraph, show, table
from ddlbench.experiment.cell import from_path
from ddlbench.experiment.config import making_command
from ddlbench.experiment.paths import tables_dir
from ddlbench.experiment.registry import BASE, known
from ddlbench.planning.labels import network_label, strategy_label
from ddlbench.planning.memory import capacity_bytes, room_of
from ddlbench.planning.planner import make_plan
from ddlbench.predict import largest_batch as batches
from ddlbench.predict.advice import fitted_sentences, range_text
from ddlbench.predict.candidate import Knowledge, assess, predicted
from ddlbench.predict.prediction import (
    DEFAULT_RECOMMENDER,
    PARTS,
    Prediction,
    predictor_for,
    predictor_of,
)
from ddlbench.predict.ranking import Candidate, prediction_interval_s, rank
from ddlbench.predict.recommend import candidate_of, result_of, unwritten_options

if TYPE_CHECKING:
    import pandas as pd

    from ddlbench.experiment.config import Experiment
    from ddlbench.experiment.site import Site
    from ddlbench.planning.matrix import MatrixRow
    from ddlbench.predict.question import Question
    from ddlbench.report.products import PredictionTables


@click.command(
    epilog=examples(
        "ddlbench predict --strategy horovod --network vgg11 --dataset cifar10 --geometry 2x4 "
        "--batch-size 256 --why"
    )
)
@cell_options
@click.option("--strategy", required=True, help="Name of the strategy.")
@click.option("--predictor", "names", multiple=True, help="Only this one; may be repeated.")
@click.option("--all", "every_model", is_flag=True, help="Also the papers' models and baselines.")
@click.option("--why", is_flag=True, help="Also what each predictor assumes.")
def predict(
    *,
    strategy: str,
    names: tuple[str, ...],
    every_model: bool,
    why: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Predict one cell: time of a step, its parts, memory."""
    questions = questions_of(options)
    question, site = questions.single_of(strategy), questions.site
    here = questions.knowledge(allow_stale=True)
    alone = assess(question.cell(BASE), here)
    candidate = candidate_of(question, strategy, here).limited(alone)
    among = [candidate] if strategy == BASE else [alone, candidate]
    ranking = rank(among, DEFAULT_RECOMMENDER)
    if candidate.bound is None:
        raise ConfigError(f"{strategy}: {candidate.reason or candidate.unpredicted}")
    used = predictor_for(DEFAULT_RECOMMENDER, strategy, site.compute_kind) or DEFAULT_RECOMMENDER
    if every_model:
        names = tuple(known("ddlbench.predictors"))
    predictions, needed_bytes = _predictions(candidate, names or (used,), here)
    interval_s = prediction_interval_s(ranking, strategy)
    values = {
        "cell_id": candidate.cell.id,
        "bound": candidate.bound,
        "step_s": candidate.predicted_s,
        "interval_s": interval_s,
        "predictions": [prediction_dict(prediction) for prediction in predictions],
    }
    lines = prediction_lines(
        question,
        predictions,
        needed_bytes,
        candidate=candidate,
        alone=alone,
        interval_s=interval_s,
        used=used,
        known=here,
        why=why,
    )
    for sentence in fitted_sentences(question, ranking):
        lines += paragraph(sentence)
    show(values, lines, as_json=as_json)


def _predictions(
    candidate: Candidate, names: tuple[str, ...], here: Knowledge
) -> tuple[list[Prediction], list[int | None]]:
    """What the named predictors say of a candidate's cell; those without an answer are left out.

    The bytes are those of :class:`~ddlbench.planning.memory.Room`, as ``recommend`` shows them.

    Raises:
        ConfigError: none has an answer.
    """
    cell = candidate.cell
    plan = make_plan(cell, here.site.name, here.site.accelerator)
    workload = here.inputs.workload(cell)
    predictions: list[Prediction] = []
    errors: dict[str, None] = {}
    for name in names:
        try:
            predictions.append(predicted(name, workload, plan, here))
        except ConfigError as error:
            errors[str(error)] = None
    if not predictions:
        missing = here.inputs.missing(cell)
        sentences = list(errors)
        if missing:
            command = making_command(here.site.name, missing)
            sentences.append(f"make what is missing with: {command}")
        raise ConfigError("; ".join(sentences))
    rooms = [room_of(workload, plan, p.memory_bytes, here.site) for p in predictions]
    return predictions, [room.needed_bytes if room else None for room in rooms]


@click.command(
    "largest-batch",
    epilog=examples(
        "ddlbench recommend largest-batch --strategy ddp --network vgg11 --dataset cifar10 "
        "--geometry 1x2 --dry-run"
    ),
)
@case_options
@click.option("--strategy", required=True, help="Name of the strategy.")
@click.option("--dry-run", is_flag=True, help="Only predict; measure no cell.")
@click.option("--trials", type=WholeNumber(1), default=3, show_default=True, help="Most cells.")
@DEVICE_MEMORY
def largest_batch(
    *,
    strategy: str,
    dry_run: bool,
    trials: int,
    device_memory_bytes: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Find the largest batch that fits, and confirm it by a cell."""
    questions = questions_of(options, batch_size=1)
    site, here = questions.site, questions.knowledge()
    # The options of a cell follow its batch: take those of a large one, for servers among them too.
    question = questions.single_of(strategy)
    devices = question.devices
    large = question.with_batch(64 * devices * max(1, devices - 1))
    cells = [cell.with_(batch_size=1) for cell in large.cells(strategy)]
    smallest = batches.smallest_batch(cells[0], site.accelerator)
    candidate = assess(cells[0].with_(batch_size=smallest), here)
    if candidate.bound is None:
        raise ConfigError(f"{strategy}: {candidate.reason or candidate.unpredicted}")
    if candidate.beyond and not dry_run:
        raise ConfigError(f"{candidate.beyond}; --dry-run predicts it")
    workload = here.inputs.workload(cells[0])
    capacity = device_memory_bytes or capacity_bytes(workload.device_memory_bytes, site)
    if capacity is None:
        raise ConfigError(
            f"the memory of a device of site {site.name} is unknown; give --device-memory-bytes, "
            "or memory_per_device_mb in the site file"
        )
    memory = batches.roomiest(
        [batches.MemoryOfBatches(cell, site, workload, capacity) for cell in cells]
    )
    measure = by_workflow(
        questions, lambda each: f"{each.strategy} with {counted(each.batch_size, 'sample')}"
    )
    largest = batches.largest_batch(
        memory, None if dry_run else measure, lambda each: result_of(each, site.name), trials
    )
    options_text = unwritten_options(question, memory.cell)
    sentences = batches.batch_advice(largest, memory, options_text)
    sentences += [candidate.beyond_sentence] if candidate.beyond else []
    lines = [part for sentence in sentences for part in paragraph(sentence)]
    values = asdict(largest) | {"options": dict(memory.cell.options)}
    show(values, lines, as_json=as_json)


@click.command(
    epilog=examples(
        "ddlbench predict accuracy", "ddlbench predict accuracy --configfile mine.yaml --figures"
    )
)
@with_matrix
@click.option("--figures", is_flag=True, help="Draw the figures too.")
@click.option("--all", "every_row", is_flag=True, help="Every predictor and every case.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def accuracy(
    *,
    experiment: Experiment,
    site: Site,
    rows: list[MatrixRow],
    figures: bool,
    every_row: bool,
    as_json: bool,
) -> None:
    """Compare predictions with measured cells.

    Writes predictions.json and the tables accuracy, table_6_1, table_8_1 and table_8_2.
    """
    from ddlbench.report.drawing import LeftOut  # noqa: PLC0415 - see below
    from ddlbench.report.products import (  # noqa: PLC0415 - matplotlib takes its time
        draw_predictions,
        make_predictions,
        make_report,
    )

    tables = make_predictions(experiment, site, rows)
    drawn: list[Path] = []
    faults: list[str] = []
    for make in (make_report, draw_predictions) if figures else ():
        try:
            drawn = make(experiment, site, rows)  # the footers speak of the report's tables
        except LeftOut as error:  # told below all that is made
            drawn = error.made
            faults += str(error).splitlines()
    by_name = {field.name: records(getattr(tables, field.name)) for field in fields(tables)}
    lines = accuracy_lines(tables, experiment.name, site.name, every_row=every_row)
    lines += [f"Figures: {drawn[0].parent}"] if drawn else []
    show(by_name, lines, as_json=as_json)
    if faults:
        raise LeftOut(faults)


def prediction_dict(prediction: Prediction) -> dict[str, Any]:
    """A prediction as JSON values."""
    names = ("predictor", "step_s", "interval_s", *PARTS, "memory_bytes", "limits", "notes")
    return {name: getattr(prediction, name) for name in names}


def _off(errors: Sequence[float]) -> str:
    middle = median(errors)
    direction = "long" if middle > 0 else "short"
    return f"{abs(middle):.0%} too {direction} on {counted(len(errors), 'cell')} here"


def prediction_lines(
    question: Question,
    predictions: Sequence[Prediction],
    needed_bytes: Sequence[int | None],
    *,
    candidate: Candidate,
    alone: Candidate,
    interval_s: tuple[float, float] | None,
    used: str,
    known: Knowledge,
    why: bool,
) -> list[str]:
    """What predictors say of one cell, the one that ``recommend`` uses first.

    ``alone`` is one device, ``used`` the predictor that ``recommend`` uses; ``why`` adds what each
    predictor assumes.
    """
    baselines = {p.predictor for p in predictions if predictor_of(p.predictor).baseline}
    rows = sorted(
        zip(predictions, needed_bytes, strict=True),
        key=lambda row: (row[0].predictor != used, row[0].predictor in baselines),
    )
    ordered = [prediction for prediction, _ in rows]
    first = ordered[0]
    lines = paragraph(header(question, known.site, candidate.label))
    lines += _prediction_table(ordered, [needed for _, needed in rows], used, baselines)
    lines += _speedup_line(candidate, alone, first)
    strategy = candidate.strategy
    calibrated = bool(known.inputs.calibration and known.inputs.calibration.of(strategy))
    if interval_s is not None:
        whose = "by cells measured here" if calibrated else "by errors of such predictions"
        lines += paragraph(f"90 %: {range_text(*interval_s)}, {whose}.")
    lines += noisy_profile(alone, known.site.name)
    errors = known.errors.get((first.predictor, strategy))
    if errors:
        before = " before calibration" if calibrated else ""
        lines += paragraph(f"{first.predictor} was {_off(errors)} (median){before}.")
    for prediction in ordered if why else ordered[:1]:
        assumptions = "; ".join((*prediction.notes, *prediction.limits))
        if assumptions:
            lines += paragraph(f"{prediction.predictor} assumes: {assumptions}.", hanging="  ")
    if len(ordered) == 1:
        lines.append("The papers' models and baselines beside it: --all.")
    elif not why:
        lines.append("What the others assume: --why.")
    return lines


def _prediction_table(
    ordered: Sequence[Prediction],
    needed_bytes: Sequence[int | None],
    used: str,
    baselines: Collection[str],
) -> list[str]:
    remarks = dict.fromkeys(baselines, "baseline")
    if len(ordered) > 1:
        remarks[used] = "`recommend` uses it"
    headings = " | predictor | > step | > compute | > waits | > bubble | > memory /2 | /3"
    bubbles = [p.bubble_s or None for p in ordered]
    cells = zip(
        ["->" if p.predictor == used and len(ordered) > 1 else "" for p in ordered],
        [p.predictor for p in ordered],
        in_one_unit([p.step_s for p in ordered], TIMES),
        in_one_unit([p.compute_s for p in ordered], TIMES),
        in_one_unit([p.exposed_communication_s for p in ordered], TIMES),
        in_one_unit(bubbles, TIMES),
        in_one_unit(needed_bytes, BYTES),
        [remarks.get(p.predictor, "") for p in ordered],
        strict=True,
    )
    return table(headings, cells)


def _speedup_line(candidate: Candidate, alone: Candidate, first: Prediction) -> list[str]:
    sentences = []
    if alone.predicted_s is not None and candidate.strategy != BASE:
        ratio, bound = alone.predicted_s / first.step_s, candidate.bound or math.inf
        text = (
            f"One device: {duration_text(alone.predicted_s)}, so speed-up {min(ratio, bound):.2f}"
        )
        if ratio > bound:
            text += f": at most {bound:.3g} can be reached, the model says {ratio:.2f}"
        sentences.append(f"{text}.")
    if candidate.measured_s:
        steps_s = candidate.measured_s
        repeats = counted(len(steps_s), "repeat")
        sentences.append(f"Measured here: {duration_text(median(steps_s))} ({repeats}).")
    if candidate.beyond:
        sentences.append(candidate.beyond_sentence)
    return paragraph(" ".join(sentences))


def accuracy_lines(
    tables: PredictionTables, experiment: str, site: str, *, every_row: bool
) -> list[str]:
    """The best predictor of each strategy, and how often the fastest strategy was named."""
    frame = tables.accuracy
    rows = frame[(frame["strategy"] != "all") & (frame["n"] > 0)]
    counts = rows.groupby("strategy")["n"].max()
    total = int(counts.sum())
    lines = paragraph(
        f"Prediction errors of a step: {experiment} on {site}, "
        f"{counted(total, 'configuration')} measured"
    )
    if rows.empty:
        lines.append("Nothing was both measured and predicted.")
    shown = rows
    if not every_row:
        best = rows.groupby("strategy", sort=False)["mean_absolute_error"].idxmin().dropna()
        shown = rows.loc[best]
    lines += _error_table(shown, every_row=every_row)
    if not rows.empty:
        lines += paragraph(
            "error: mean of |predicted / measured - 1|; worst: its sign, and the network. "
            + ("" if every_row else "The best predictor is known after the fact. ")
            + _floor_text(rows["noise_floor"], shown["noise_floor"])
        )
    from ddlbench.report.choice_tables import choice_lines  # noqa: PLC0415 - slow: matplotlib

    lines += choice_lines(tables.table_8_1, tables.table_8_2, every_row=every_row)
    pointer = f"{tables_dir(site, experiment)}/accuracy.csv"
    without = int((frame["n"] == 0).sum())
    silent = f"; {without} of them have no measurement" if without else ""
    whole = "The whole table" if every_row else f"All {len(frame)} rows: --all, or"
    lines += paragraph(f"{whole} {pointer}{silent}.", hanging="  ")
    return lines


_FLOOR = "floor: what a perfect model would score, by how far repeats differ."
_NO_FLOOR = "Without repeats the noise is unknown."


def _floor_text(known: pd.Series, shown: pd.Series) -> str:
    """What the column ``floor`` is, where the table has it; or why there is none."""
    if shown.notna().any():
        return _FLOOR
    return "" if known.notna().any() else _NO_FLOOR


def _error_table(rows: pd.DataFrame, *, every_row: bool) -> list[str]:
    predictor = "predictor" if every_row else "best predictor"
    headings = f"strategy | {predictor} | > n /1 | > error | > floor | > worst | /2 | /3"
    lines = []
    for row in rows.to_dict("records"):
        floor = row["noise_floor"]
        known = floor is not None and math.isfinite(floor)
        error = row["mean_absolute_error"]
        baseline = " (baseline)" if row["baseline"] else ""
        worst = str(row["worst_cell"])
        network = network_label(from_path(worst.split("/")[1])) if "/" in worst else ""
        lines.append(
            (
                strategy_label(str(row["strategy"])),
                f"{row['predictor']}{baseline}",
                str(row["n"]),
                f"{error:.0%}",
                f"{floor:.0%}" if known else "",
                f"{row['worst_error']:+.0%}",
                network,
                "within noise" if known and error <= floor else "",
            )
        )
    return table(headings, lines)
