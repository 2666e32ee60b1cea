"""``ddlbench recommend tune``: the best options of a strategy, with as few cells as possible."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from ddlbench.commands.options import cell_options
from ddlbench.commands.questions import by_workflow, case_id, header, option_value, questions_of
from ddlbench.common.errors import ConfigError
from ddlbench.common.quantities import BYTES, HOURS, counted, duration_text, in_one_unit, two_digits
from ddlbench.common.screen import Number, WholeNumber, examples, left_out, paragraph, ranking, show
from ddlbench.experiment.paths import RESULTS
from ddlbench.planning.budget import Budget, estimate
from ddlbench.planning.labels import strategy_label
from ddlbench.planning.matrix import MatrixRow
from ddlbench.predict.advice import runs_remark
from ddlbench.predict.candidate import check_askable
from ddlbench.predict.recommend import Limits, result_of, short_cell
from ddlbench.predict.tuning import (
    BATCH_SIZE,
    Tuning,
    configurations,
    tuning_file,
    varied,
    write_tuning,
)
from ddlbench.predict.tuning import tune as search
from ddlbench.report.drawing import draw_figure

if TYPE_CHECKING:
    from ddlbench.experiment.cell import Cell, OptionValue
    from ddlbench.experiment.site import Site
    from ddlbench.predict.prediction import History
    from ddlbench.predict.question import Question
    from ddlbench.predict.ranking import Belief
    from ddlbench.predict.tuning import Configuration


_TRIALS = 6


@click.command(
    epilog=examples(
        "ddlbench recommend tune --strategy gpipe --network vgg11 --dataset cifar10 --geometry 1x2 "
        "--batch-size 64 --vary chunks=2,4,8 --dry-run"
    )
)
@cell_options
@click.option("--strategy", required=True, help="Name of the strategy.")
@click.option(
    "--vary",
    "varied_texts",
    multiple=True,
    help="An option or batch_size, and its values: chunks=2,4,8. By default the options that "
    "decide a step's time.",
)
@click.option(
    "--trials", type=WholeNumber(1), default=_TRIALS, show_default=True, help="Most cells."
)
@click.option("--budget-device-hours", type=Number(0, min_open=True), help="Of what is measured.")
@click.option(
    "--device-memory-bytes", type=WholeNumber(1), help="Limit of one device; else its memory."
)
@click.option(
    "--sampler",
    type=click.Choice(["predictor", "tpe", "random"]),
    default="predictor",
    show_default=True,
    help="Who asks for the next cell; tpe and random know no prediction.",
)
@click.option("--dry-run", is_flag=True, help="Say what it would measure, and what that costs.")
@click.option("--all", "every_row", is_flag=True, help="A line for every configuration.")
def tune(
    *,
    strategy: str,
    varied_texts: tuple[str, ...],
    trials: int,
    budget_device_hours: float | None,
    device_memory_bytes: int | None,
    sampler: str,
    dry_run: bool,
    every_row: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Search a strategy's options for the most samples a second."""
    named = _varied(varied_texts)
    sizes = [size for size in named.get(BATCH_SIZE, ()) if isinstance(size, int) and size > 0]
    questions = questions_of(options, batch_size=max(sizes, default=None))
    question, site = questions.single_of(strategy), questions.site
    here = questions.knowledge(device_memory_bytes=device_memory_bytes, allow_stale=True)
    values = varied(strategy, named, question.written_options(strategy))
    candidates = configurations(question, strategy, values, here)
    beyond = next(
        (configuration.candidate for configuration in candidates if configuration.candidate.beyond),
        None,
    )
    if beyond and not dry_run:
        raise ConfigError(f"{beyond.beyond}; --dry-run predicts it")
    check_askable([candidate.cell for candidate in candidates], here)

    def history() -> History:
        return questions.knowledge().history

    choices = {name: [*each] for name, each in values.items()}
    case = {**question.to_dict(), "strategy": strategy, "varied": choices}
    if dry_run:
        tuning = Tuning(candidates, history(), stopped="a dry run")
        cells = [candidate.cell for candidate, _ in tuning.beliefs()]
        cost = _cost(cells, trials, site) if cells and not beyond else None
    else:
        limits = Limits(trials, budget_device_hours and HOURS.size * budget_device_hours)
        labels = {short_cell(candidate.cell).id: candidate.label for candidate in candidates}
        measure = by_workflow(questions, lambda cell: labels.get(cell.id, cell.id))
        tuning = search(
            candidates,
            history,
            measure,
            limits,
            lambda cell: result_of(cell, site.name),
            sampler=sampler,
        )
        path = tuning_file(site.name, f"{strategy}/{case_id(question)}")
        content = write_tuning(tuning, site.name, case, path)
        draw_figure("tuning", path.with_suffix(".png"), content)
        click.echo(f"written: {path}, {path.with_suffix('.png').name}", err=True)
        cost = None
    lines = tuning_lines(question, site, strategy, tuning, every_row=every_row)
    lines += cost_lines(tuning, cost, trials)
    lines += paragraph(beyond.beyond_sentence) if beyond else []
    show(tuning.to_dict(site.name, case), lines, as_json=as_json)


def _cost(cells: Sequence[Cell], trials: int, site: Site) -> tuple[Budget, Budget]:
    rows = [MatrixRow(short_cell(cell), None, None) for cell in cells]
    return estimate(rows[:trials], site, RESULTS), estimate(rows, site, RESULTS)


def _varied(texts: Sequence[str]) -> Mapping[str, tuple[OptionValue, ...]]:
    """``chunks=2,4`` as name -> values; numbers and booleans as in JSON."""
    varied: dict[str, tuple[OptionValue, ...]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        parts = [part.strip() for part in values.split(",")]
        if not (equals and name and all(parts)):
            raise ConfigError(f"--vary {text!r}: write a name and its values, as chunks=2,4,8")
        if name in varied:
            raise ConfigError(f"--vary {name} is given twice; write all its values once")
        varied[name] = tuple(map(option_value, parts))
    return varied


_MOST_ROWS = 12


def tuning_lines(
    question: Question, site: Site, strategy: str, tuning: Tuning, *, every_row: bool
) -> list[str]:
    """The configurations, the fastest first, and what was found."""
    lines = paragraph(header(question, site, strategy_label(strategy)))
    known = tuning.beliefs()
    if known:
        lines += _table(known, every_row=every_row)
        lines += _verdict(tuning)
    else:
        kinds = Counter(configuration.why for configuration in tuning.configurations)
        lines += paragraph(f"No configuration can run: {kinds.most_common(1)[0][0]}.")
    return lines + _left_out(tuning, every_row=every_row)


def _table(known: list[tuple[Configuration, Belief]], *, every_row: bool) -> list[str]:
    shown = {
        place
        for place, (_, belief) in enumerate(known, start=1)
        if every_row or place <= _MOST_ROWS or belief.basis == "measured"
    }
    names = list(known[0][0].values)
    bases = {known[place - 1][1].basis for place in shown}
    by_runs = "measured" in bases
    rows = zip(
        *([_value_text(configuration, name) for configuration, _ in known] for name in names),
        [two_digits(1 / belief.step_s) for _, belief in known],
        [str(belief.runs) if by_runs else "" for _, belief in known],
        [
            two_digits(1 / configuration.expected.step_s)
            if by_runs and configuration.expected
            else ""
            for configuration, _ in known
        ],
        in_one_unit([configuration.memory_bytes for configuration, _ in known], BYTES),
        strict=True,
    )
    headings = " | ".join([*names, "> samples/s", "> runs", "> predicted /2", "> memory /1"])
    lines = [*ranking(headings, rows, shown=shown), *paragraph(runs_remark(bases))]
    if len(shown) < len(known):
        lines.append(f"... and {len(known) - len(shown)} more (--all)")
    return lines


def _value_text(configuration: Configuration, name: str) -> str:
    value = configuration.values[name]
    if name.endswith("_bytes") and isinstance(value, int):
        return f"{value:,}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _verdict(tuning: Tuning) -> list[str]:
    assert tuning.best is not None
    best, belief = tuning.best
    fast, slow = (1 / bound for bound in belief.interval_s)
    measured = belief.basis == "measured"
    which = "best measured" if measured else "best"
    basis = counted(belief.runs, "run") if measured else belief.basis
    return paragraph(
        f"{which}: {best.label} ({basis}, {two_digits(slow)} to {two_digits(fast)} samples a "
        "second)."
    )


def cost_lines(tuning: Tuning, cost: tuple[Budget, Budget] | None, trials: int) -> list[str]:
    """What the search cost, or would cost, beside an exhaustive sweep.

    ``cost`` is of a dry run: of the first ``trials`` cells, and of all.
    """
    if cost is not None:
        some, every = cost
        return paragraph(
            f"A search measures up to {counted(min(trials, every.cells), 'cell')}: {_hours(some)}, "
            f"{duration_text(some.run_s_expected)} one after the other. "
            f"All {every.cells}: {_hours(every)}, {duration_text(every.run_s_expected)}."
        )
    if not tuning.trials:
        return paragraph(f"Nothing was measured: {tuning.stopped}.")
    failed = [trial for trial in tuning.trials if trial.step_s is None]
    without_step = f", {len(failed)} of them without a step" if failed else ""
    every_s = tuning.device_s_all()
    whole = f"; all configurations would take {HOURS.of(every_s):.2g}" if every_s else ""
    return paragraph(
        f"Measured for this search: {counted(len(tuning.trials), 'cell')}{without_step}, "
        f"{HOURS.of(tuning.device_s):.2g} device-hours{whole}. Stopped: {tuning.stopped}."
    )


def _hours(budget: Budget) -> str:
    expected = budget.device_s_expected
    return "unknown cost" if expected is None else f"{HOURS.of(expected):.2g} device-hours"


def _left_out(tuning: Tuning, *, every_row: bool) -> list[str]:
    out = [
        (configuration.label, configuration.why)
        for configuration in tuning.configurations
        if configuration.why
    ]
    kinds = Counter(why.partition(":")[0] for _, why in out)
    brief = ", ".join(f"{kind}: {count}" for kind, count in kinds.items())
    return left_out("Left out", out, "" if every_row else brief, "--all")
