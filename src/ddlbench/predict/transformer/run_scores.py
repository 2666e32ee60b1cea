"""How right predictions of published trainings are: steps, memory, what fits, and what is chosen.

A row that is held out is predicted with constants that were fitted without any row of its kind,
neither of the table nor of the shipped rows. Errors are |predicted - measured| / measured.

Regret of a choice: the measured step of the layout that is predicted to be the fastest, over the
fastest measured one, less 1; and the same for the best of the first three predicted. A case is one
network on so many devices with six timed layouts or more, of GPTs with two.

Steps of GPTs are predicted with the platform that was fitted to such runs (:mod:`.runs`), whose
kernels and softmax those runs tell; with a software by data sheets, as all others.

What does each term of the model buy? It is taken out, the others are fitted again, and rows that
were held out are scored. A term is taken out by a value at which it says nothing, which is then not
fitted, or by another setting of the software or of the network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from ddlbench.common.errors import ConfigError
from ddlbench.predict.constants import Array, Fit, HeldOut
from ddlbench.predict.hardware import Accelerators, Software, device_of
from ddlbench.predict.run_tables import ScoreQuestion, each_kind, error_means, rows_of_kind
from ddlbench.predict.transformer.decoder_fit import (
    FEW_CONSTANTS,
    FEW_ROWS,
    LARGEST_FITTED,
    NO_PIPELINE,
    PIPELINE,
    first_stage_bytes,
    fit_time,
    fits_of,
    nearer_bytes,
    predicted_s,
)
from ddlbench.predict.transformer.decoder_memory import CANNOT_TELL, TOO_LARGE, memory_calls
from ddlbench.predict.transformer.decoders import Decoders
from ddlbench.predict.transformer.runs import PLATFORM, held_out_s
from ddlbench.predict.transformer.training_runs import (
    FAILED,
    ORIGINS,
    RAN,
    TrainingRuns,
    cleaned_s,
    shipped,
    training_runs,
    without_repeats,
)

LEAST_ROWS = 5
FIRST = 3
WORST = 10
DRAWS = 12
CLEANED, OWN_ROWS = "cleaned", "own_rows"
"""What ``--kind`` says beside filters of rows."""
ERRORS = (
    "mean_absolute_error", "median_absolute_error", "within_20_percent",
    "memory_mean_absolute_error", "memory_median_absolute_error",
)  # fmt: skip
"""Null where the table has no such column."""
BY = ("devices", "tensor", "pipeline", "data", "micro_batch", "sequence_length")


@dataclass(frozen=True)
class Predictions:
    """What is predicted of each run.

    Args:
        seconds: of a step.
        least_bytes, most_bytes: memory of the first rank, with gathered inputs gathered again, and
            kept.
        nearer_bytes: that of both which fits the run better.
        answers: whether the layout fits (:func:`~.decoder_memory.memory_calls`).
    """

    seconds: Array
    least_bytes: Array
    most_bytes: Array
    nearer_bytes: Array
    answers: Array


def score(table: pd.DataFrame, question: ScoreQuestion) -> dict[str, Any]:
    """Score a table of decoders' trainings, as :mod:`ddlbench.predict.run_tables` says.

    Raises:
        ConfigError: a value of the table or of the question is wrong.
    """
    runs = training_runs(table, question, question.where)
    known = shipped(origin_name(runs))
    if question.platform and (runs.origin != ORIGINS["megatron"] or question.software):
        raise ConfigError(
            "--platform is of iterations of CNNs, and of GPTs without --software; leave it out"
        )
    filters = dict(question.kind)
    cleaned, own_rows = filters.pop(CLEANED, "yes"), filters.pop(OWN_ROWS, None)
    if cleaned not in ("yes", "no"):
        raise ConfigError(f"--kind {CLEANED}={cleaned}; write yes or no")
    compared = replace(runs, step_s=cleaned_s(runs, known))
    chosen = _chosen(runs, filters)
    scored = (runs if cleaned == "no" else compared).take(chosen)
    software = Software.load(question.software or runs.origin.software)
    if own_rows is not None:
        return _of_own_rows(scored, software, own_rows)
    is_of_platform = not (question.software or question.device or question.fabric)
    if runs.origin == ORIGINS["megatron"] and is_of_platform:
        calibrated = question.platform not in (None, PLATFORM)
        seconds = held_out_s(
            scored,
            runs if calibrated else with_shipped(runs),
            Accelerators.load(question.platform or PLATFORM),
            question.hold_out,
        )
        return scored_values(scored, replace(predictions(scored, software), seconds=seconds))
    fitted = with_shipped(compared)
    return scored_values(scored, held_out(scored, fitted, software, question.hold_out))


def held_out(
    runs: TrainingRuns, fitted: TrainingRuns, software: Software, hold_out: str
) -> Predictions:
    """Predictions of ``runs``, each kind with constants fitted without it.

    Args:
        runs: to predict.
        fitted: cleaned rows to fit, those of the kind left out.
        software: with priors; taken as it is for "none".
        hold_out: what is left out in turn.

    Raises:
        ConfigError: no row is of another kind.
    """
    if hold_out == "none":
        return predictions(runs, software)
    kinds, fitted_kinds = kinds_of(runs, hold_out), kinds_of(fitted, hold_out)
    parts = []
    for chosen, others in each_kind(kinds, fitted_kinds, hold_out):
        constants = software.fitted_to(*fits_of(fitted.take(others), software))
        parts.append((chosen, predictions(runs.take(chosen), constants)))
    return _together(parts, len(runs))


def with_shipped(table: TrainingRuns) -> TrainingRuns:
    """Cleaned rows of a table and the shipped ones of its kind, each row once."""
    known = shipped(origin_name(table))
    known = replace(known, step_s=cleaned_s(known))
    have = set(_marks(known))
    others = table.take(np.array([mark not in have for mark in _marks(table)], dtype=bool))
    return TrainingRuns.joined([known, others])


def calibrated(runs: TrainingRuns, software: Software, where: str) -> tuple[Software, list[Fit]]:
    """The software with constants fitted to runs, and the intervals of its predictions.

    Intervals are those of the same rows with each model held out in turn; of so few rows that three
    constants are fitted, or of one model, those of the fit itself.

    Args:
        runs: as they were read; those of one configuration count as one.
        software: with priors.
        where: the tables' names.
    """
    runs = without_repeats(replace(runs, step_s=cleaned_s(runs)))
    fits = fits_of(runs, software)
    fitted = replace(software.fitted_to(*fits), fitted_on=f"{fits[0].rows} steps of {where}")
    small = runs.take(runs.timed & (runs.decoders.devices <= LARGEST_FITTED))
    several = len(np.unique(small.models)) > 1 and len(small) > FEW_ROWS
    held, how = predicted_s(small, fitted), "the same that were fitted"
    if several:
        held, how = held_out(small, runs, software, "model").seconds, "each model held out in turn"
    ratios, piped = small.step_s / held, small.decoders["pipeline"] > 1
    intervals = {}
    for name, rows in ((NO_PIPELINE, ~piped), (PIPELINE, piped)):
        if rows.sum() >= LEAST_ROWS:
            intervals[name] = HeldOut.of(ratios[rows], f"{where}, {how}")
    return replace(fitted, intervals={**software.intervals, **intervals}), fits


def fitted_errors(runs: TrainingRuns, software: Software) -> Array:
    """Shares by which fitted software misses the steps of ``runs``, as read, that fit it, (n,)."""
    runs = replace(runs, step_s=cleaned_s(runs))
    fitted = runs.take(runs.timed & (runs.decoders.devices <= LARGEST_FITTED))
    return np.abs(predicted_s(fitted, software) / fitted.step_s - 1)


def kinds_of(runs: TrainingRuns, hold_out: str) -> Array:
    """The kind of each run; a run's submitter is who published its table, so its device counts."""
    match hold_out:
        case "model":
            return runs.models
        case "gpus":
            return runs.decoders.devices
        case "layers":
            return runs.decoders["layers"]
        case _:
            return np.array([device_of(name) for name in runs.accelerators.tolist()])


def predictions(runs: TrainingRuns, software: Software) -> Predictions:
    """Predictions with the software's constants as they are."""
    least, most = first_stage_bytes(runs, software)
    calls = memory_calls(runs.decoders, software, runs.machines.memory_bytes)
    nearer = nearer_bytes(runs, software)
    return Predictions(predicted_s(runs, software), least, most, nearer, calls.answers)


def scored_values(runs: TrainingRuns, predicted: Predictions) -> dict[str, Any]:
    """The result of a score."""
    errors = np.abs(predicted.seconds / runs.step_s - 1)
    memory = np.abs(predicted.nearer_bytes / runs.memory_bytes - 1)
    values: dict[str, Any] = dict.fromkeys(ERRORS)
    values |= {"rows": len(runs), "timed_rows": int(runs.timed.sum())}
    if runs.timed.any():
        ratios = (runs.step_s / predicted.seconds)[runs.timed]
        low, high = np.quantile(ratios, (0.05, 0.95)).tolist()
        values |= {**error_means(errors), "measured_over_predicted": {"low": low, "high": high}}
    measured = np.isfinite(memory)
    if measured.any():
        values |= {**_memory_means(memory), "memory_rows": int(measured.sum())}
    values["fit"] = _fit_calls(runs, predicted.answers)
    values["choice"] = choices(runs, predicted.seconds)
    values["by"] = _by(runs, errors, memory)
    values["worst"] = _worst(runs, predicted.seconds)
    if measured.any():
        values["by"]["memory_switch"] = {
            name: _memory_means(np.abs(predicted_bytes / runs.memory_bytes - 1))
            for name, predicted_bytes in (
                ("again", predicted.least_bytes),
                ("keep", predicted.most_bytes),
            )
        }
    return values


def choices(runs: TrainingRuns, seconds: Array) -> dict[str, Any]:
    """Regrets of the choices that predicted ``seconds`` lead to."""
    regrets = np.array(list(_regrets(runs, seconds)))
    if not len(regrets):
        return {"cases": 0}
    return {
        "cases": len(regrets),
        "mean_regret": float(regrets[:, 0].mean()),
        "median_regret": float(np.median(regrets[:, 0])),
        "best_of_three_regret": float(regrets[:, 1].mean()),
        "best_chosen": float(np.mean(regrets[:, 0] == 0)),
        "largest_regret": float(regrets[:, 0].max()),
    }


def _regrets(runs: TrainingRuns, seconds: Array) -> Iterator[tuple[float, float]]:
    table = pd.DataFrame(
        {
            "model": runs.models,
            "accelerator": runs.accelerators,
            "devices": runs.decoders.devices,
            "layers": runs.decoders["layers"],
            "sequence_length": runs.decoders["sequence_length"],
            "batch": runs.decoders["data"]
            * runs.decoders["micro_batch"]
            * runs.decoders["micro_batches"],
            "measured_s": runs.step_s,
            "predicted_s": seconds,
        }
    )[runs.timed]
    names = [name for name in table.columns if not name.endswith("_s")]
    for _, case in table.groupby(names):
        if len(case) >= runs.origin.case_layouts:
            first = case.nsmallest(FIRST, "predicted_s")["measured_s"]
            best = case["measured_s"].min()
            yield first.iloc[0] / best - 1, first.min() / best - 1


def _fit_calls(runs: TrainingRuns, answers: Array) -> dict[str, float | None] | None:
    ran, failed = runs.statuses == RAN, runs.statuses == FAILED
    if not failed.any():
        return None
    refused = answers == TOO_LARGE
    return {
        "survivors_refused": float(refused[ran].mean()) if ran.any() else None,
        "failures_refused": float(refused[failed].mean()),
        "failures_refused_or_cannot_tell": float(
            (refused | (answers == CANNOT_TELL))[failed].mean()
        ),
        "survivors_cannot_tell": float((answers == CANNOT_TELL)[ran].mean()) if ran.any() else None,
    }


def _memory_means(errors: Array) -> dict[str, float]:
    means = error_means(errors)
    return {f"memory_{name}": means[name] for name in tuple(means)[:2]}


def _by(runs: TrainingRuns, errors: Array, memory: Array) -> dict[str, Any]:
    columns: dict[str, Array] = {"model": runs.models, "accelerator": runs.accelerators}
    columns |= {name: runs.decoders[name] for name in BY if name != "devices"}
    columns["devices"] = runs.decoders.devices
    return {
        name: {
            value if isinstance(value, str) else f"{value:g}": {
                "rows": int((of == value).sum()),
                **error_means(errors[of == value]),
                **_memory_means(memory[of == value]),
            }
            for value in np.unique(of)
        }
        for name, of in columns.items()
    }


def _worst(runs: TrainingRuns, seconds: Array) -> list[dict[str, Any]]:
    """The timed rows with the largest errors."""
    errors = np.where(runs.timed, seconds / runs.step_s - 1, 0.0)
    places = np.argsort(-np.abs(errors))[: min(WORST, int(runs.timed.sum()))]
    names = ("tensor", "data", "pipeline", "micro_batch")
    return [
        {
            "model": str(runs.models[place]),
            "devices": int(runs.decoders.devices[place]),
            **{name: int(runs.decoders[name][place]) for name in names},
            "measured_s": float(runs.step_s[place]),
            "predicted_s": float(seconds[place]),
            "error": float(errors[place]),
        }
        for place in places
    ]


def _of_own_rows(runs: TrainingRuns, software: Software, text: str) -> dict[str, Any]:
    """Errors of all other rows after a fit of three constants to ``text`` random rows.

    The other constants stay at their priors. The mean is over :data:`DRAWS` draws.
    """
    count = int(text) if text.isdigit() else 0
    if not 1 <= count <= FEW_ROWS:
        raise ConfigError(f"--kind own_rows={text}; write 1 to {FEW_ROWS}")
    runs = runs.take(runs.timed)
    if len(runs) < 2:
        raise ConfigError(
            f"--kind own_rows={count} has {len(runs)} rows with a step; give 2 or more"
        )
    priors = software.with_priors()
    random, errors = np.random.default_rng(0), []
    for _ in range(DRAWS):
        taught = np.zeros(len(runs), dtype=bool)
        taught[random.choice(len(runs), min(count, len(runs) - 1), replace=False)] = True
        names = FEW_CONSTANTS[: max(1, min(len(FEW_CONSTANTS), int(taught.sum())))]
        fitted = priors.with_constants(fit_time(runs.take(taught), priors, names).constants)
        others = runs.take(~taught)
        errors.append(np.abs(predicted_s(others, fitted) / others.step_s - 1))
    draws = [error_means(each) for each in errors]
    means = {name: float(np.mean([draw[name] for draw in draws])) for name in draws[0]}
    return {"rows": len(runs), "draws": DRAWS, "own_rows": count, **means}


def _chosen(runs: TrainingRuns, filters: Mapping[str, str]) -> Array:
    """Rows of the kind."""
    table = runs.decoders
    columns = {name: table[name] for name in ("tensor", "data", "micro_batch")}
    columns |= {"gpus": table.devices, "pipeline": np.where(table["pipeline"] > 1, "yes", "no")}
    columns |= {"model": runs.models, "accelerator": runs.accelerators}
    return rows_of_kind(filters, columns, len(runs))


def origin_name(runs: TrainingRuns) -> str:
    """The kind of the table that runs are of."""
    return next(name for name, origin in ORIGINS.items() if origin == runs.origin)


def _marks(runs: TrainingRuns) -> list[tuple[Any, ...]]:
    columns = [values.tolist() for values in runs.decoders.columns.values()]
    measured = (np.nan_to_num(runs.step_s), np.nan_to_num(runs.memory_bytes))
    return list(zip(*columns, *(column.tolist() for column in measured), strict=True))


def _together(parts: list[tuple[Array, Predictions]], count: int) -> Predictions:
    """Predictions of parts of the rows as those of all."""
    whole: dict[str, Array] = {}
    for name, values in vars(parts[0][1]).items():
        whole[name] = np.empty(count, dtype=values.dtype if values.dtype == float else object)
        for rows, part in parts:
            whole[name][rows] = getattr(part, name)
    return Predictions(**whole)


NOTHING, ENDLESS = 1e-15, 1e15


@dataclass(frozen=True)
class Term:
    """A part of the model.

    Args:
        name: of the term.
        constants: values at which it says nothing.
        settings: of the software without it.
        columns: changes the network instead.
    """

    name: str
    constants: Mapping[str, float] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    columns: Callable[[Decoders], Mapping[str, Array]] | None = None

    def without(self, software: Software) -> Software:
        """The software without the term."""
        changed = {
            name: replace(software.constants[name], value=value, fixed=True)
            for name, value in self.constants.items()
        }
        return replace(software, constants={**software.constants, **changed}, **self.settings)

    def of(self, runs: TrainingRuns) -> TrainingRuns:
        """The runs as the model without the term sees them."""
        if self.columns is None:
            return runs
        columns = {**runs.decoders.columns, **self.columns(runs.decoders)}
        return replace(runs, decoders=Decoders(columns))


def _plain(table: Decoders) -> Mapping[str, Array]:
    """A GPT's feed-forward layer: two products, four times as wide as the network."""
    return {"gated": np.zeros(len(table)), "feed_forward_size": 4 * table["hidden_size"]}


TERMS = (
    Term("nothing"),
    Term("latency of collectives", {"collective_s": NOTHING, "node_latency_factor": NOTHING}),
    Term("latency in pipelines over nodes", {"pipeline_latency_s": NOTHING}),
    Term("latency of gradients' buckets", {"gradient_latency_factor": NOTHING}),
    Term("flash attention", settings={"flash_attention": False}),
    Term("the host's floor", {"host_layer_s": NOTHING}),
    Term("longest part wins", {"sharpness": 1.0}),
    Term("gated products and their width", columns=_plain),
    Term("latency of hops", {"hop_s": NOTHING}),
    Term("element-wise passes", {"element_traffic": NOTHING}),
    Term("fixed time of a step", {"step_s": NOTHING}),
    Term("stages cut by cost", settings={"stage_cut": "layers"}),
    Term("efficiency by width", {"product_width": NOTHING}),
    Term("rate of the network", {"network_share": 1.0, "gradient_share": 1.0}),
    Term("inputs gathered again", settings={"gathered_inputs": "keep"}),
    Term("update", {"memory_share": ENDLESS}),
    Term("buffers of messages", settings={"message_buffer_bytes": 0.0}),
    Term("temporaries of the optimizer", settings={"temporary_bytes": 0.0}),
    Term("transient gathers", {"gather_bytes": NOTHING}),
    Term("fragmentation", {"fragmentation": 1.0}),
    Term("logits' bytes", {"logit_bytes": NOTHING}),
)


def term_gains(
    table: pd.DataFrame, question: ScoreQuestion, terms: tuple[Term, ...] = TERMS
) -> Iterator[dict[str, Any]]:
    """Errors without each term, by kind of row.

    Args:
        table: of published runs.
        question: what is held out; "none" counts as "model".
        terms: to take out, one after the other.

    Yields:
        ``term``, and by kind of row the mean and median errors of steps, the share within 20 %,
        the mean error of memory, and the mean regret of choices.
    """
    runs = training_runs(table, question)
    runs = replace(runs, step_s=cleaned_s(runs))
    small = runs.take(runs.decoders.devices <= LARGEST_FITTED)
    hold_out = "model" if question.hold_out == "none" else question.hold_out
    software = Software.load(question.software or runs.origin.software)
    for term in terms:
        if any(name not in software.constants for name in term.constants):
            continue
        tried = term.of(small)
        fitted = term.of(with_shipped(runs))
        predicted = held_out(tried, fitted, term.without(software), hold_out)
        yield {"term": term.name, **_errors(tried, predicted)}


def _errors(runs: TrainingRuns, predicted: Predictions) -> dict[str, Any]:
    errors = np.abs(predicted.seconds / runs.step_s - 1)
    memory = np.abs(predicted.nearer_bytes / runs.memory_bytes - 1)
    memory = memory[np.isfinite(memory)]
    alone = runs.decoders["pipeline"] == 1
    small = alone & (runs.decoders["tensor"] <= 8) & (runs.decoders.devices <= 128)
    values: dict[str, Any] = {}
    kinds = {"no_pipeline": alone, "tensor_8_gpus_128": small, "pipeline": ~alone}
    for name, kind in kinds.items():
        of = errors[kind & runs.timed]
        if len(of):
            values[name] = {"rows": len(of), **error_means(of)}
    values["memory_mean_absolute_error"] = float(memory.mean()) if len(memory) else None
    chosen = choices(runs.take(alone), predicted.seconds[alone])
    values["mean_regret"] = chosen.get("mean_regret")
    return values
