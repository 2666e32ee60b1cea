"""``ddlbench recommend --hardware`` of a transformer's shape: layouts instead of strategies.

::

    --network llama-8b --batch-size 512     sequences of a step; no dataset, no profile
    --software nanotron                     whose settings and constants decide time and memory
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ddlbench.commands.questions import geometries
from ddlbench.commands.recommend_planned import (
    SHAPES_PRECISION,
    check_given,
    planned_cluster,
    refuse_options_of_networks,
)
from ddlbench.common.errors import ConfigError
from ddlbench.common.screen import (
    counted,
    in_one_unit,
    paragraph,
    ranking,
    size_text,
    table,
    two_digits,
)
from ddlbench.common.statistics import BYTES, TIMES
from ddlbench.experiment.cell import parse_geometry
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.paths import enter_project
from ddlbench.predict.advice import range_text
from ddlbench.predict.hardware import Software, System
from ddlbench.predict.transformer.configurations import is_shape, load_shape
from ddlbench.predict.transformer.decoder_fit import LARGEST_FITTED
from ddlbench.predict.transformer.decoder_layouts import EQUAL, layouts
from ddlbench.predict.transformer.decoder_memory import CANNOT_TELL, FITS, TOO_LARGE
from ddlbench.predict.transformer.hf_shapes import is_configuration, shape_of

if TYPE_CHECKING:
    import pandas as pd

    from ddlbench.predict.planned_cluster import PlannedCluster
    from ddlbench.predict.transformer.configurations import Shape

DEFAULT_SOFTWARE = "nanotron"
_FEW = 8
_BILLION, _MILLION = 1e9, 1e6
_HEADINGS = (
    "t x d x p | > experts | > ZeRO | > micro /1 | > predicted | > 90 % | > tokens/s | > memory"
    " | fits"
)
_CUT = "t x d x p: tensor x data x pipeline."
_MICRO = " micro: micro-batch x micro-batches of a replica; r: recomputes activations."
_CALLS = {FITS: "fit", TOO_LARGE: "do not", CANNOT_TELL: "cannot be told"}


@dataclass(frozen=True)
class LayoutAnswer:
    """The layouts of one geometry.

    Args:
        geometry: as ``8x8``.
        rows: of :func:`ddlbench.predict.transformer.decoder_layouts.layouts`.
    """

    geometry: str
    rows: pd.DataFrame


@dataclass(frozen=True)
class LayoutQuestion:
    """What is trained.

    Args:
        name: of the shape.
        shape: of the decoder.
        sequences: of a step.
        software: that trains, and its name.
        cluster: the hardware.
    """

    name: str
    shape: Shape
    sequences: int
    software_name: str
    software: Software
    cluster: PlannedCluster

    def answer(self, geometry: str) -> LayoutAnswer:
        """All layouts of a geometry.

        Raises:
            ConfigError: no layout divides the batch.
        """
        nodes, devices = parse_geometry(geometry, "--geometry")
        fabric = self.cluster.fabric if nodes > 1 else None
        system = System(self.cluster.device, fabric, nodes, devices)
        return LayoutAnswer(geometry, layouts(self.shape, system, self.software, self.sequences))


def layout_answers(
    values: dict[str, Any], hardware: str, software: str | None
) -> tuple[Any, list[str]]:
    """JSON values and lines for a terminal.

    Args:
        values: of the options of ``recommend``.
        hardware: name of a device.
        software: name of what trains; None for :data:`DEFAULT_SOFTWARE`.

    Raises:
        ConfigError: something is missing, unknown, or of sites only.
    """
    refuse_options_of_networks(values)
    check_given(values, ("network",))
    name, shape = _named_shape(values)
    enter_project()
    named = software or DEFAULT_SOFTWARE
    trains = Software.load(named)
    if values["precision"]:
        trains = replace(trains, precision=values["precision"])
    question = LayoutQuestion(
        name, shape, values["batch_size"], named, trains, planned_cluster(values, hardware)
    )
    answers = [question.answer(text) for text in geometries(values)]
    layouts = [_dict(answer) for answer in answers]
    lines = _one_lines(question, answers[0]) if len(answers) == 1 else _all_lines(question, answers)
    return (layouts[0] if len(answers) == 1 else {"geometries": layouts}), lines


def _named_shape(values: dict[str, Any]) -> tuple[str, Shape]:
    """The network's shape, with as long samples as the options say.

    Raises:
        ConfigError: there is none of that name, or the dataset has none of its samples.
    """
    name, dataset, length = (values[key] for key in ("network", "dataset", "sequence_length"))
    if dataset and is_configuration(name):
        DATASETS.check(dataset)
        spec = DATASETS[dataset]
        if spec.kind != "tokens":
            raise ConfigError(f"dataset {dataset} has images, {name} reads tokens")
        length = length or spec.shape[0]
    elif dataset and not is_shape(name):
        name = f"{name}:{dataset}"
    shape = shape_of(name) if is_configuration(name) else load_shape(name)
    return name, replace(shape, sequence_length=length) if length else shape


def _dict(answer: LayoutAnswer) -> dict[str, Any]:
    rows = answer.rows.astype(object).where(answer.rows.notna(), None)
    return {"geometry": answer.geometry, "layouts": rows.to_dict("records")}


def _header(question: LayoutQuestion, geometry: str) -> list[str]:
    shape = question.shape
    return paragraph(
        f"{question.name}, {_parameters(shape.parameters)}, {geometry}, "
        f"{question.sequences:,} sequences of {shape.sequence_length:,} tokens a step, "
        f"{question.software_name} on {question.cluster.name}"
    )


def _parameters(count: float) -> str:
    size, word = (_BILLION, "billion") if count >= _BILLION else (_MILLION, "million")
    return f"{count / size:.1f} {word} parameters"


def _layout(rows: Sequence[Any]) -> list[Sequence[str]]:
    """Devices, experts, ZeRO's stage, micro-batch x micro-batches."""
    experts = any(row.expert_parallel > 1 for row in rows)
    return [
        [f"{row.tensor} x {row.data} x {row.pipeline}" for row in rows],
        [str(row.expert_parallel) if experts else "" for row in rows],
        [_zero(row) for row in rows],
        [f"{row.micro_batch} x {row.micro_batches}{_again(row)}" for row in rows],
    ]


def _again(row: Any) -> str:
    return " r" if row.recomputation == "full" else ""


def _zero(row: Any) -> str:
    """The stage; ``3 / 8`` if groups of eight replicas divide what it divides (HSDP)."""
    return f"{row.zero_stage} / {row.shards}" if row.shards else str(row.zero_stage)


def _columns(rows: Sequence[Any]) -> list[Sequence[str]]:
    """Predicted step, interval, tokens a second, memory, fits."""
    return [
        in_one_unit([row.step_s for row in rows], TIMES),
        [range_text(row.low_s, row.high_s) if row.low_s == row.low_s else "" for row in rows],
        [_thousands(row.tokens_per_s) for row in rows],
        in_one_unit([row.memory_bytes for row in rows], BYTES),
        [row.fits for row in rows],
    ]


def _thousands(tokens_per_s: float) -> str:
    return f"{two_digits(tokens_per_s / 1e3)} k"


def _one_lines(question: LayoutQuestion, answer: LayoutAnswer) -> list[str]:
    rows = list(answer.rows.itertuples())
    if rows[0].fits == TOO_LARGE:
        return [*_header(question, answer.geometry), *_nothing_fits(question, answer)]
    shown = rows[:_FEW]
    columns = [*_layout(shown), *_columns(shown)]
    equal = {place for place, row in enumerate(rows, start=1) if row.equal_to_best}
    lines = _header(question, answer.geometry)
    lines += ranking(_HEADINGS, zip(*columns, strict=True), equal if len(equal) > 1 else ())
    counts = answer.rows["fits"].value_counts()
    counted_calls = ", ".join(
        f"{counts[call]} {word}" for call, word in _CALLS.items() if call in counts
    )
    lines += paragraph(
        f"{counted(len(rows), 'layout')}: {counted_calls}. All within {EQUAL:.0%} of the first are "
        f"equally good: {len(equal)}."
    )
    return lines + paragraph(_CUT + _MICRO) + _facts(question, [answer])


def _nothing_fits(question: LayoutQuestion, answer: LayoutAnswer) -> list[str]:
    least_bytes = answer.rows["least_memory_bytes"].min()
    held_bytes = question.cluster.device.memory_bytes
    return paragraph(
        f"{answer.geometry}: none of {counted(len(answer.rows), 'layout')} fits; the smallest "
        f"needs {size_text(least_bytes)}, a device has {size_text(held_bytes)}."
    )


def _all_lines(question: LayoutQuestion, answers: Sequence[LayoutAnswer]) -> list[str]:
    able = [answer for answer in answers if answer.rows["fits"].iloc[0] != TOO_LARGE]
    best = [next(answer.rows.itertuples()) for answer in able]
    columns = [[answer.geometry for answer in able], *_layout(best), *_columns(best)]
    lines = _header(question, f"{len(answers)} geometries")
    for answer in answers:
        if all(answer is not other for other in able):
            lines += _nothing_fits(question, answer)
    if not able:
        return lines
    return (
        lines
        + table(f"devices | {_HEADINGS}", zip(*columns, strict=True))
        + [
            *paragraph(_CUT),
            *_facts(question, answers),
        ]
    )


def _facts(question: LayoutQuestion, answers: Sequence[LayoutAnswer]) -> list[str]:
    """What the answers rest on."""
    software, cluster = question.software, question.cluster
    beyond = [answer.geometry for answer in answers if answer.rows["beyond"].any()]
    sources = "; ".join(dict.fromkeys(constant.source for constant in software.intervals.values()))
    fitted = f"fitted on {software.fitted_on}" if software.fitted_on else "priors, nothing fitted"
    facts = [
        f"Device and links: data sheet of {cluster.device.description}"
        + (f", fabric {cluster.fabric_name}." if cluster.fabric else "."),
        f"Constants of {question.software_name}: {fitted}. Intervals: {sources or 'none'}.",
    ]
    if software.precision != SHAPES_PRECISION:
        facts.append(f"They were fitted in {SHAPES_PRECISION}, not in {software.precision}.")
    if beyond:
        facts.append(
            f"No fitted run had half as many devices ({LARGEST_FITTED} at most) as "
            f"{', '.join(beyond)}: intervals are too narrow there."
        )
    return [line for fact in facts for line in paragraph(fact)]
