"""What each term of the model buys: take it out, fit again, and score rows that were held out.

A term is taken out by a value at which it says nothing, which is then not fitted, or by another
setting of the software or of the network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from ddlbench.predict.constants import Array
from ddlbench.predict.hardware import Software
from ddlbench.predict.run_tables import ScoreQuestion, error_means
from ddlbench.predict.transformer.decoder_fit import LARGEST_FITTED
from ddlbench.predict.transformer.decoders import Decoders
from ddlbench.predict.transformer.run_scores import Predictions, choices, held_out, with_shipped
from ddlbench.predict.transformer.training_runs import TrainingRuns, cleaned_s, training_runs

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
