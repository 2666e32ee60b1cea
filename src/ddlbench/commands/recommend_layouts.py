"""``ddlbench recommend --hardware`` of a transformer's shape: it ranks layouts, not strategies.

::

    --network llama-8b --batch-size 512     sequences of a step; no dataset, no profile
    --software nanotron                     whose settings and constants decide time and memory
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

from ddlbench.commands.questions import check_given, geometries
from ddlbench.commands.recommend_planned import planned_cluster
from ddlbench.common.document import records
from ddlbench.common.errors import ConfigError
from ddlbench.common.quantities import (
    BYTES,
    TIMES,
    counted,
    in_one_unit,
    size_text,
    two_digits,
    unit_for,
)
from ddlbench.common.screen import paragraph, ranking, table
from ddlbench.experiment.cell import parse_geometry
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.paths import enter_project
from ddlbench.predict.advice import range_text
from ddlbench.predict.hardware import Precision, Software, System
from ddlbench.predict.planned_cluster import PlannedCluster
from ddlbench.predict.transformer.configurations import (
    Shape,
    is_configuration,
    is_shape,
    load_shape,
    shape_of,
)
from ddlbench.predict.transformer.decoder_fit import LARGEST_FITTED
from ddlbench.predict.transformer.decoder_layouts import EQUAL, layouts
from ddlbench.predict.transformer.decoder_memory import CANNOT_TELL, FITS, TOO_LARGE

if TYPE_CHECKING:
    import pandas as pd

_SHAPES_PRECISION = "bf16"  # of steps that software of transformers was fitted to
_DEFAULT_SOFTWARE = "nanotron"
_FEW = 8
_BILLION, _MILLION = 1e9, 1e6
_HEADINGS = (
    "t x d x p | > experts | > ZeRO | > micro | > predicted | > 90 % /1 | > tokens/s /3"
    " | > memory /2 | fits"
)
_CUT = "t x d x p: tensor x data x pipeline."
_MICRO = " micro: micro-batch x micro-batches of a replica; r: recomputes activations."
_CALLS = {FITS: "fit", TOO_LARGE: "do not", CANNOT_TELL: "cannot be told"}


@dataclass(frozen=True)
class LayoutQuestion:
    """What is trained: a shape by its name, so many sequences a step, with software on hardware.

    ``context`` devices share each sequence; ``collectives`` is the library that is named, or empty.
    """

    name: str
    shape: Shape
    sequences: int
    context: int
    software_name: str
    software: Software
    cluster: PlannedCluster
    collectives: str

    def layouts(self, geometry: str) -> pd.DataFrame:
        """All layouts of a geometry.

        Raises:
            ConfigError: no layout divides the batch, the devices, or the tokens of a sequence.
        """
        nodes, devices = parse_geometry(geometry, "--geometry")
        tokens = self.shape.sequence_length
        for count, what in ((nodes * devices, "devices"), (tokens, "tokens of a sequence")):
            if count % self.context:
                raise ConfigError(
                    f"--context-parallel {self.context} does not divide {count} {what}; write a "
                    "divisor of them"
                )
        fabric = self.cluster.fabric if nodes > 1 else None
        system = System(self.cluster.device, fabric, nodes, devices)
        return layouts(self.shape, system, self.software, self.sequences, self.context)


def layout_answers(
    values: dict[str, Any], hardware: str, software: str | None
) -> tuple[Any, list[str]]:
    """JSON values and lines for a terminal.

    Raises:
        ConfigError: something is missing, unknown, or of sites only.
    """
    _check_precision(values)
    check_given(values, ("network",))
    name, shape = _named_shape(values)
    enter_project()
    named = software or _DEFAULT_SOFTWARE
    trains = Software.load(named)
    if values["precision"]:
        trains = replace(trains, precision=values["precision"])
    context = values["context_parallel"] or 1
    cluster = planned_cluster(values, hardware)
    question = LayoutQuestion(
        name,
        shape,
        values["batch_size"],
        context,
        named,
        trains,
        cluster,
        values["collectives"] or "",
    )
    answers = {geometry: question.layouts(geometry) for geometry in geometries(values)}
    entries = [
        {
            "geometry": geometry,
            "precision": trains.precision,
            "layouts": records(rows),
        }
        for geometry, rows in answers.items()
    ]
    if len(answers) > 1:
        return {"geometries": entries}, _all_lines(question, answers)
    ((geometry, rows),) = answers.items()
    return entries[0], _one_lines(question, geometry, rows)


def _check_precision(values: dict[str, Any]) -> None:
    if values.get("precision") not in (None, *get_args(Precision)):
        known = ", ".join(get_args(Precision))
        raise ConfigError(f"--precision {values['precision']}: write one of {known}")


def _named_shape(values: dict[str, Any]) -> tuple[str, Shape]:
    """The network's shape, with as long samples as the options say.

    Raises:
        ConfigError: there is none of that name, or the dataset has none of its samples.
    """
    name, dataset, length = (values[key] for key in ("network", "dataset", "sequence_length"))
    if dataset and (is_configuration(name) or is_shape(name)):
        DATASETS.check(dataset)
        spec = DATASETS[dataset]
        if spec.kind != "tokens":
            raise ConfigError(f"dataset {dataset} has images, {name} reads tokens")
        length = length or spec.shape[0]
    elif dataset:
        name = f"{name}:{dataset}"
    shape = shape_of(name) if is_configuration(name) else load_shape(name)
    return name, replace(shape, sequence_length=length) if length else shape


def _header(question: LayoutQuestion, geometry: str) -> list[str]:
    shape = question.shape
    count = shape.parameters
    size, word = (_BILLION, "billion") if count >= _BILLION else (_MILLION, "million")
    shared = f", each shared by {question.context} devices" if question.context > 1 else ""
    return paragraph(
        f"{question.name}, {count / size:.1f} {word} parameters, {geometry}, "
        f"{counted(question.sequences, 'sequence')} of {shape.sequence_length:,} tokens a step"
        f"{shared}, "
        f"{question.software_name} in {question.software.precision} on {question.cluster.name}"
    )


def _layout(rows: Sequence[Any]) -> list[Sequence[str]]:
    experts = any(row.expert_parallel > 1 for row in rows)
    return [
        [f"{row.tensor} x {row.data} x {row.pipeline}" for row in rows],
        [str(row.expert_parallel) if experts else "" for row in rows],
        [_zero_text(row) for row in rows],
        [_micro_batch_text(row) for row in rows],
    ]


def _zero_text(row: Any) -> str:
    """ZeRO's stage; ``3 / 8`` if groups of eight replicas divide what it divides (HSDP)."""
    return f"{row.zero_stage} / {row.shards}" if row.shards else str(row.zero_stage)


def _micro_batch_text(row: Any) -> str:
    recomputes = " r" if row.recomputation == "full" else ""
    return f"{row.micro_batch} x {row.micro_batches}{recomputes}"


def _columns(question: LayoutQuestion, rows: Sequence[Any]) -> list[Sequence[str]]:
    memory_unit = unit_for(question.cluster.device.memory_bytes, BYTES)
    return [
        in_one_unit([row.step_s for row in rows], TIMES),
        [range_text(row.low_s, row.high_s) if row.low_s == row.low_s else "" for row in rows],
        [f"{two_digits(row.tokens_per_s / 1e3)} k" for row in rows],
        in_one_unit([row.memory_bytes for row in rows], [memory_unit]),
        [row.fits for row in rows],
    ]


def _one_lines(question: LayoutQuestion, geometry: str, answer: pd.DataFrame) -> list[str]:
    rows = list(answer.itertuples())
    if rows[0].fits == TOO_LARGE:
        return [*_header(question, geometry), *_nothing_fits(question, geometry, answer)]
    shown = rows[:_FEW]
    columns = [*_layout(shown), *_columns(question, shown)]
    equal = {place for place, row in enumerate(rows, start=1) if row.equal_to_best}
    lines = _header(question, geometry)
    lines += ranking(_HEADINGS, zip(*columns, strict=True), equal if len(equal) > 1 else ())
    counts = answer["fits"].value_counts()
    counted_calls = ", ".join(
        f"{counts[call]} {word}" for call, word in _CALLS.items() if call in counts
    )
    lines += paragraph(
        f"{counted(len(rows), 'layout')}: {counted_calls}. All within {EQUAL:.0%} of the first are "
        f"equally good: {len(equal)}."
    )
    lines += _better_batch(question, geometry, rows[0])
    return lines + paragraph(_CUT + _MICRO) + _facts(question, {geometry: answer})


def _better_batch(question: LayoutQuestion, geometry: str, first: Any) -> list[str]:
    """A sentence where the nearest batch that all devices can share trains more tokens a second."""
    nodes, devices = parse_geometry(geometry, "--geometry")
    replicas = nodes * devices // question.context
    below = question.sequences - question.sequences % replicas
    near = below, below + replicas
    nearest = min(filter(None, near), key=lambda size: abs(size - question.sequences))
    if nearest == question.sequences:
        return []
    other = next(replace(question, sequences=nearest).layouts(geometry).itertuples())
    if other.fits != FITS or other.tokens_per_s <= (1 + EQUAL) * first.tokens_per_s:
        return []
    return paragraph(
        f"A batch of {question.sequences:,} does not divide among {replicas:,} replicas. Take "
        f"{nearest:,}: then {two_digits(other.tokens_per_s / first.tokens_per_s)} times as many "
        "tokens a second."
    )


def _nothing_fits(question: LayoutQuestion, geometry: str, answer: pd.DataFrame) -> list[str]:
    least_bytes = answer["least_memory_bytes"].min()
    held_bytes = question.cluster.device.memory_bytes
    return paragraph(
        f"{geometry}: none of {counted(len(answer), 'layout')} fits; the smallest "
        f"needs {size_text(least_bytes)}, a device has {size_text(held_bytes)}."
    )


def _all_lines(question: LayoutQuestion, answers: Mapping[str, pd.DataFrame]) -> list[str]:
    firsts = {geometry: next(answer.itertuples()) for geometry, answer in answers.items()}
    able = {geometry: first for geometry, first in firsts.items() if first.fits != TOO_LARGE}
    best = list(able.values())
    lines = _header(question, f"{len(answers)} geometries")
    for geometry, answer in answers.items():
        if geometry not in able:
            lines += _nothing_fits(question, geometry, answer)
    if not able:
        return lines
    columns = [list(able), *_layout(best), *_columns(question, best)]
    lines += table(f"devices | {_HEADINGS}", zip(*columns, strict=True))
    return [*lines, *paragraph(_CUT), *_facts(question, answers)]


def _facts(question: LayoutQuestion, answers: Mapping[str, pd.DataFrame]) -> list[str]:
    software, cluster, library = question.software, question.cluster, question.cluster.library
    beyond = [geometry for geometry, answer in answers.items() if answer["beyond"].any()]
    sources = "; ".join(dict.fromkeys(constant.source for constant in software.intervals.values()))
    intervals = f"{sources}; those of the constants" if sources else "none"
    fitted = f"fitted on {software.fitted_on}" if software.fitted_on else "priors, nothing fitted"
    latency = f", its latency by {library.fitted_on}" if library.tells_latency else ""
    fabric = f", fabric {cluster.fabric_name}{latency}" if cluster.fabric else ""
    facts = [
        f"Device and links: data sheet of {cluster.device.description}{fabric}.",
        f"Constants of {question.software_name}: {fitted}. Intervals: {intervals}.",
    ]
    if software.precision != _SHAPES_PRECISION:
        facts.append(f"They were fitted in {_SHAPES_PRECISION}, not in {software.precision}.")
    if stand_in := cluster.device.stand_in(software.precision):
        facts.append(stand_in)
    facts += library.remarks(cluster.device, cluster.fabric_name, cluster.nodes)
    if question.collectives and not (cluster.fabric and library.tells_latency):
        facts.append(
            f"--collectives {question.collectives} has no effect: layouts take from it the latency "
            "between nodes, which sweeps of several nodes of one cluster tell."
        )
    if beyond:
        facts.append(
            f"No fitted run had half as many devices ({LARGEST_FITTED} at most) as "
            f"{', '.join(beyond)}: intervals are too narrow there."
        )
    return [line for fact in facts for line in paragraph(fact)]
