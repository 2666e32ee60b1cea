"""``ddlbench recommend``: what to train with, on one geometry or on several."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ddlbench.commands.options import DEVICE_MEMORY, cell_options
from ddlbench.commands.questions import (
    Questions,
    by_workflow,
    case_id,
    header,
    measured_cell,
    noisy_profile,
    questions_of,
)
from ddlbench.common.errors import ConfigError
from ddlbench.common.quantities import (
    BYTES,
    HOURS,
    TIMES,
    counted,
    in_one_unit,
    ratio_text,
    size_text,
    two_digits,
)
from ddlbench.common.screen import (
    Number,
    WholeNumber,
    examples,
    left_out,
    named_lines,
    paragraph,
    show,
    table,
)
from ddlbench.common.screen import ranking as ranking_table
from ddlbench.common.statistics import grouped
from ddlbench.experiment.config import making_command
from ddlbench.planning.labels import dataset_label, network_label, strategy_label
from ddlbench.predict.advice import (
    Advice,
    advise,
    answer_dict,
    batch_hint,
    chance_text,
    range_text,
    runs_remark,
)
from ddlbench.predict.largest_batch import Size, sizes_advice, sizes_dict
from ddlbench.predict.prediction import DEFAULT_RECOMMENDER
from ddlbench.predict.recommend import Choice, Limits, choice_file, choose, result_of, write_choice
from ddlbench.predict.recommend import recommend as ranked

if TYPE_CHECKING:
    from ddlbench.predict.accuracy import SignedErrors
    from ddlbench.predict.candidate import Knowledge
    from ddlbench.predict.question import Question
    from ddlbench.predict.ranking import Candidate, Ranking


_SITE, _NETWORK, _SHAPE = (
    "a measured site", "a network on --hardware", "a transformer's shape on --hardware",
)  # fmt: skip
_GOES_WITH: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("site_name", "threads", "measure"), (_SITE,)),
    **dict.fromkeys(
        ("recommender", "allow_stale", "why", "device_memory_bytes", "options", "optimizer"),
        (_SITE, _NETWORK),
    ),
    "profile": (_NETWORK,),
    "collectives": (_NETWORK, _SHAPE),
    **dict.fromkeys(("software", "sequence_length", "context_parallel"), (_SHAPE,)),
}
"""What an option has an effect on; the others have it on every question."""


@click.command(
    epilog=examples(
        "ddlbench recommend --network vgg11 --dataset cifar10 --geometry 2x4 --batch-size 256",
        "ddlbench recommend --configfile mine.yaml --geometry 1x2,1x4,2x4",
        "ddlbench recommend --network resnet50 --dataset imagenet --batch-size 2048 "
        "--hardware h100-sxm --fabric infiniband-400 --geometry 8x8",
    )
)
@cell_options
@click.option(
    "--recommender",
    default="ddlbench",
    show_default=True,
    help="A predictor that covers every strategy, or a set: measured-links (by device: CPUs hide "
    "no communication), overlap, thesis, ddlbench-2020 (the paper's equations), or a rule: "
    "horovod-unless-oom.",
)
@click.option("--measure", type=WholeNumber(1), help="Measure up to so many candidates first.")
@click.option("--budget-device-hours", type=Number(0, min_open=True), help="Of what is measured.")
@click.option("--allow-stale", is_flag=True, help="Also strategies that update with old weights.")
@DEVICE_MEMORY
@click.option("--why", is_flag=True, help="Also the parts of a step, and every reason in full.")
@click.option(
    "--hardware",
    help="A device of config/hardware in place of a site; --fabric is of config/fabrics then.",
)
@click.option("--profile", help="Times of one device of config/accelerators; with --hardware.")
@click.option(
    "--collectives",
    help="Library of config/collectives, or a file of `ddlbench calibrate`; with --hardware.  "
    "[default: nccl]",
)
@click.option(
    "--software",
    help="What trains a transformer's shape, in its precision if --precision is left out; with "
    "--hardware.  [default: nanotron]",
)
@click.option(
    "--sequence-length",
    "--context",
    "sequence_length",
    type=WholeNumber(1),
    help="Tokens of a sample of a transformer's shape; with --hardware.  [default: its own]",
)
@click.option(
    "--context-parallel",
    type=WholeNumber(1),
    help="Devices that share each sample of a transformer's shape; with --hardware.  [default: 1]",
)
def recommend(
    *,
    hardware: str | None,
    profile: str | None,
    software: str | None,
    recommender: str,
    measure: int | None,
    budget_device_hours: float | None,
    allow_stale: bool,
    device_memory_bytes: int | None,
    why: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Rank the strategies for a network on so many devices.

    Several geometries, as 1x2,1x4,2x4, are compared with each other. With --hardware the answer
    rests on data sheets, and needs nothing measured; the network may also be a transformer's shape
    then (gpt-7b, hf:llama?hidden_size=2048, hf:FOLDER/config.json), whose layouts are ranked.
    """
    if budget_device_hours is not None and measure is None:
        raise ConfigError("--budget-device-hours limits what --measure K measures; give K, too")
    if measure is not None and recommender != DEFAULT_RECOMMENDER:
        raise ConfigError(
            f"--measure goes by measurements, --recommender {recommender} does not; leave one out"
        )
    if hardware is None:
        _refuse_options_beside(_SITE)
        questions = questions_of(options)
    else:
        from ddlbench.commands import recommend_planned as planned  # noqa: PLC0415 - slow to import

        options, experiment = planned.with_experiment(options)
        network, dataset = options["network"], options["dataset"]
        if network and planned.is_decoder(network, dataset, by_software=bool(software)):
            from ddlbench.commands.recommend_layouts import (  # noqa: PLC0415 - slow to import
                layout_answers,
            )

            _refuse_options_beside(_SHAPE)
            values, lines = layout_answers(options, hardware, software)
            show(values, lines, as_json=as_json)
            return
        _refuse_options_beside(_NETWORK)
        questions = planned.planned_questions_of(options, hardware, profile, experiment)
    fixed = {
        "recommender": recommender,
        "allow_stale": allow_stale,
        "device_memory_bytes": device_memory_bytes,
    }
    if len(questions.each) > 1:
        if measure is not None:
            raise ConfigError("--measure takes one geometry; write one of them")
        _compare_sizes(questions, fixed, as_json=as_json)
        return
    _answer(questions, fixed, measure, budget_device_hours, as_json=as_json, why=why)


def _refuse_options_beside(subject: str) -> None:
    """Raise ConfigError for an option that has no effect on a question about this subject."""
    context = click.get_current_context()
    for parameter in context.command.params:
        name = str(parameter.name)
        subjects = _GOES_WITH.get(name, (subject,))
        given = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if given and subject not in subjects:
            cure = "leave it out, or write --hardware, too" if subject == _SITE else "leave it out"
            raise ConfigError(
                f"{', '.join(parameter.opts)} goes with {' or '.join(subjects)}, and this question "
                f"is about {subject}; {cure}"
            )


def _answer(
    questions: Questions,
    fixed: dict[str, Any],
    measure: int | None,
    device_hours: float | None,
    *,
    as_json: bool,
    why: bool,
) -> None:
    question = questions.single
    cost: list[str] = []
    if measure is None:
        here = questions.knowledge(**fixed)
        ranking = ranked(question, here)
        advice = advise(question, ranking, here)
    else:
        choice, advice = _measured(questions, fixed, measure, device_hours)
        here, ranking, cost = questions.knowledge(**fixed), choice.ranking, cost_lines(choice)
    lines = recommendation_lines(question, ranking, advice, here, why=why) + cost
    cells = [c.cell for c in ranking.candidates if c.cell.devices > 1]
    if missing := here.inputs.missing(cells[0]) if cells else ():
        command = making_command(questions.site.name, missing)
        lines += paragraph(f"Make what is missing with: {command}")
    lines += questions.grounds()
    show(answer_dict(question, ranking, advice), lines, as_json=as_json)


def _measured(
    questions: Questions, fixed: dict[str, Any], cells: int, device_hours: float | None
) -> tuple[Choice, Advice]:
    question, site = questions.single, questions.site
    choice = choose(
        lambda: ranked(question, questions.knowledge(**fixed)),
        by_workflow(questions, lambda cell: cell.strategy),
        Limits(cells, None if device_hours is None else HOURS.size * device_hours),
        lambda cell: result_of(cell, site.name),
        measured_cell(questions),
    )
    advice = advise(question, choice.ranking, questions.knowledge(**fixed))
    content = choice.to_dict(site.name, answer_dict(question, choice.ranking, advice))
    path = choice_file(site.name, case_id(question))
    write_choice(content, path)
    _draw("choice", path.with_suffix(".png"), content)
    click.echo(f"written: {path}, {path.with_suffix('.png').name}", err=True)
    return choice, advice


def _compare_sizes(questions: Questions, fixed: dict[str, Any], *, as_json: bool) -> None:
    here = questions.knowledge(**fixed)

    def answered(question: Question) -> Size:
        known = questions.knowledge_of(question, here)
        ranking = ranked(question, known)
        return Size(question, ranking, advise(question, ranking, known))

    sizes = [answered(q) for q in sorted(questions.each, key=lambda q: (q.devices, q.nodes))]
    values = sizes_dict(sizes)
    if grounds := questions.grounds():
        show(values, [*sizes_lines(sizes, here), *grounds], as_json=as_json)
        return
    path = choice_file(questions.site.name, case_id(sizes[-1].question)).with_name("sizes.png")
    path.parent.mkdir(parents=True, exist_ok=True)
    _draw("sizes", path, values)
    show(values, [*sizes_lines(sizes, here), f"figure: {path}"], as_json=as_json)


def _draw(figure: str, path: Path, content: Any) -> None:
    from ddlbench.report.drawing import draw_figure  # noqa: PLC0415 - most answers draw nothing

    draw_figure(figure, path, content)


def sizes_lines(sizes: Sequence[Size], known: Knowledge) -> list[str]:
    """A line per geometry with its best strategy, and what more devices bring.

    Sizes come by their devices, the fewest first.
    """
    first = sizes[0].question
    lines = paragraph(
        f"{network_label(first.network)}, {dataset_label(first.dataset)}, {first.batch_size} "
        f"samples a step, site {known.site.name}"
    )
    headings = (
        "devices | best strategy | > step | > speed-up | > eff. | > device-h"
        " | > memory | > fastest /1"
    )
    best = [size.best for size in sizes]
    rows = zip(
        [size.question.geometry for size in sizes],
        [candidate.label if candidate else "nothing compared" for candidate in best],
        in_one_unit(
            [size.ranking.step_s(size.best) if size.best else None for size in sizes], TIMES
        ),
        ["" if size.speedup is None else ratio_text(size.speedup) for size in sizes],
        [f"{size.efficiency:.0%}" if size.efficiency is not None else "" for size in sizes],
        [two_digits(HOURS.of(s)) if (s := size.epoch_device_s) else "" for size in sizes],
        in_one_unit([candidate.memory_bytes if candidate else None for candidate in best], BYTES),
        [chance_text(candidate.chance) if candidate else "" for candidate in best],
        strict=True,
    )
    lines += table(headings, rows)
    for sentence in sizes_advice(sizes):
        lines += paragraph(sentence)
    for size in sizes:
        where = size.question.geometry
        if size.best is None:
            lines += paragraph(f"{where}: {size.advice.sentences[0]}")
        for hint in batch_hint(size.question, size.ranking, known):
            lines += paragraph(f"{where}: {hint}")
    measured = [s.question.geometry for s in sizes if s.best and s.best.basis == "measured"]
    predicted = [s.question.geometry for s in sizes if s.best and s.best.basis == "predicted"]
    basis = (
        f"Measured: {', '.join(measured) or 'none'}. Predicted: {', '.join(predicted) or 'none'}."
    )
    lines += paragraph(f"{basis} device-h: device-hours of an epoch. eff.: speed-up over devices.")
    beyond = [s.question.geometry for s in sizes if s.best and s.best.beyond]
    if beyond:
        lines += paragraph(
            f"Predicted beyond the devices of site {known.site.name}: {', '.join(beyond)}."
        )
    return lines


_DISAGREE = 0.2
_COMMAND = r"(; make (it|what is missing)|; measure them) with: .*"
_SHORT_REASONS = {
    "too_large": "too large for a device",
    "old_weights": "old weights (--allow-stale)",
    "other_update": "another update",
    "other_training": "other training",
    "no_step": "failed here",
    "package_missing": "not installed",
    "uneven_batch": "the batch does not divide",
    "site_too_small": "the site is too small",
    "unknown_blocks": "blocks unknown, write --option STRATEGY.balance=profile",
    "too_few_blocks": "more stages than blocks",
    "no_prediction": "no prediction",
    "fault": "a fault in its code",
}


def recommendation_lines(
    question: Question, ranking: Ranking, advice: Advice, known: Knowledge, *, why: bool
) -> list[str]:
    """A ranking with its advice, what of it was measured, and what is not ranked.

    ``why`` adds the parts of each prediction, and every reason in full.
    """
    ranked = ranking.ranked
    lines = paragraph(header(question, known.site))
    if ranked:
        lines += _ranking_table(ranking)
    for sentence in advice.sentences:
        lines += paragraph(sentence)
    if ranked:
        lines += _legend(ranking)
        lines += _errors_here(ranked, known.errors)
        lines += noisy_profile(ranking.base, known.site.name)
    for c in ranked:
        if c.unpredicted:
            missing = re.sub(_COMMAND, "", c.unpredicted)
            lines += paragraph(f"{c.label} has no prediction: {missing}.")
    lines += _not_ranked(ranking.not_ranked, why=why)
    rooms = [c.room for c in ranked if c.room]
    if rooms and all(room.capacity_bytes is None for room in rooms):
        lines += paragraph("Device memory is unknown, fit not checked: --device-memory-bytes.")
    if why:
        lines += _parts(ranked)
    return lines


def _ranking_table(ranking: Ranking) -> list[str]:
    """The fastest first, by its step; beside it what else is known of the step.

    That is the prediction where measured steps decide, and the measured step where they do not.
    """
    ranked, tied = ranking.ranked, ranking.tied
    places = {place for place, c in enumerate(ranked, start=1) if c in tied}
    by_runs = _by_runs(ranked)
    measured_s = [median(c.measured_s) if c.measured_s else None for c in ranked]
    other_s = [c.predicted_s for c in ranked] if by_runs else measured_s
    # Both columns have the same unit.
    times = in_one_unit([*(ranking.step_s(c) for c in ranked), *other_s], TIMES)
    steps, others = times[: len(ranked)], times[len(ranked) :]
    headings = (
        f"strategy | > step | > runs | > {'predicted' if by_runs else 'measured'} /2 | > 90 % /1"
        " | > speed-up | > memory /3 | > fastest"
    )
    rows = zip(
        [c.label for c in ranked],
        steps,
        [str(c.belief.runs) if by_runs and c.belief else "" for c in ranked],
        [f"{text}!" if _disagrees(c) else text for c, text in zip(ranked, others, strict=True)],
        [range_text(*ranking.interval_s(c)) for c in ranked],
        [_speedup_text(ranking, c) for c in ranked],
        in_one_unit([c.memory_bytes for c in ranked], BYTES),
        [chance_text(c.chance) if len(ranked) > 1 else "" for c in ranked],
        strict=True,
    )
    return ranking_table(headings, rows, places if len(tied) > 1 else ())


def _by_runs(ranked: Sequence[Candidate]) -> bool:
    return any(c.basis == "measured" for c in ranked)


def _speedup_text(ranking: Ranking, candidate: Candidate) -> str:
    """``1.12``; ``~1.12`` if only one device's step is predicted, ``1.12^`` if above its bound.

    ``diverged`` stands at a strategy that ran with a loss that is no number, as in the report.
    """
    speedup = ranking.speedup(candidate)
    if speedup is None:
        return ""
    before = "~" if _of_predicted_base(ranking, candidate) else ""
    above = "^" if ranking.above_bound(candidate) else ""
    diverged = " diverged" if candidate.diverged else ""
    return f"{before}{ratio_text(speedup.ratio)}{above}{diverged}"


def _of_predicted_base(ranking: Ranking, candidate: Candidate) -> bool:
    speedup = ranking.speedup(candidate)
    return speedup is not None and speedup.basis != candidate.basis


def _disagrees(candidate: Candidate) -> bool:
    if not candidate.measured_s or candidate.predicted_s is None:
        return False
    return abs(candidate.predicted_s / median(candidate.measured_s) - 1) > _DISAGREE


def _legend(ranking: Ranking) -> list[str]:
    ranked = ranking.ranked
    if not any(c.measured_s for c in ranked):
        return paragraph("No cell like these has been measured here: every step is predicted.")
    if not _by_runs(ranked):
        return paragraph("Measured steps decide nothing with this recommender.")
    sentences = [runs_remark({c.basis for c in ranked if c.basis})]
    if any(map(_disagrees, ranked)):
        sentences.append(f"! = predicted is over {_DISAGREE:.0%} off the measured step.")
    if any(map(ranking.above_bound, ranked)):
        sentences.append(
            "^ = measured above what the strategy can reach; where that is 1, it stays below one "
            "device."
        )
    if any(_of_predicted_base(ranking, c) for c in ranked):
        sentences.append("~ = predicted, as one device was not measured.")
    return paragraph(" ".join(sentences))


def _errors_here(ranked: Sequence[Candidate], errors: SignedErrors) -> list[str]:
    sizes = [
        abs(error)
        for c in ranked
        if c.prediction is not None
        for error in errors.get((c.prediction.predictor, c.strategy), ())
    ]
    if not sizes:
        return []
    cells = counted(len(sizes), "cell")
    return paragraph(f"These predictors were {median(sizes):.0%} off on {cells} here (median).")


def _not_ranked(others: Sequence[Candidate], *, why: bool) -> list[str]:
    # The last line names the command that makes what is missing, for all.
    pairs = [(c.label, re.sub(_COMMAND, "", str(c.reason))) for c in others]
    groups = grouped((_SHORT_REASONS.get(c.code, "cannot run"), c.label) for c in others)
    brief = "; ".join(f"{reason}: {', '.join(names)}" for reason, names in groups.items())
    return left_out("Not ranked", pairs, "" if why else brief, "--why")


def _parts(ranked: Sequence[Candidate]) -> list[str]:
    pairs = []
    for candidate in ranked:
        prediction = candidate.prediction
        if prediction is None:
            continue
        parts = [f"compute {prediction.compute_s:.3g} s"]
        if prediction.bubble_s:
            parts.append(f"bubble {prediction.bubble_s:.3g} s")
        if candidate.cell.devices > 1:
            hidden = max(0.0, prediction.communication_s - prediction.exposed_communication_s)
            parts.append(f"waits {prediction.exposed_communication_s:.3g} s for communication")
            parts.append(f"hides {hidden:.3g} s of it")
        if candidate.predicted_s is not None and candidate.predicted_s > prediction.step_s:
            parts.append(
                f"at least {candidate.predicted_s:.3g} s by its bound of {candidate.bound:.3g}"
            )
        if candidate.memory_bytes is not None:
            parts.append(f"memory {size_text(candidate.memory_bytes)}")
        pairs.append((candidate.label, f"{prediction.predictor}: {', '.join(parts)}"))
    lines = ["", "Parts of a predicted step", *named_lines(pairs, "  ")]
    first = next((c.prediction for c in ranked if c.prediction), None)
    if first is not None and (first.notes or first.limits):
        assumptions = "; ".join((*first.notes, *first.limits))
        lines += paragraph(f"{first.predictor} assumes: {assumptions}.", hanging="  ")
    return lines


def cost_lines(choice: Choice) -> list[str]:
    """What was measured for a choice, and what it saved."""
    if not choice.trials:
        return paragraph(f"Nothing was measured: {choice.stopped}.")
    parts = [
        strategy_label(trial.strategy)
        + ("" if trial.step_s else f" ({trial.status.replace('_', ' ')})")
        for trial in choice.trials
    ]
    every = choice.device_s_all()
    whole = f"; all candidates would take {HOURS.of(every):.2g}" if every else ""
    return paragraph(
        f"Measured for this choice: {', '.join(parts)}, {HOURS.of(choice.device_s):.2g} "
        f"device-hours{whole}. Stopped: {choice.stopped}."
    )
