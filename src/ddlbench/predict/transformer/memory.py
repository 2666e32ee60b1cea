"""Memory of the fullest device of a transformer's configuration.

::

    weights, gradients, the optimizer's state          bytes a parameter, by the precision
    activations of the micro-batches that the schedule holds
    one layer's activations while it goes backward (recomputation), and the logits

The first stage holds the most micro-batches, the last one the logits; the fuller of both counts.
What fragments, contexts and NCCL's buffers take is not counted.

Sources: Korthikanti et al. 2022 (activations), ZeRO (Rajbhandari et al., SC 2020; what each stage
divides by the number of replicas).
"""

from __future__ import annotations

import numpy as np

from ddlbench.predict.measured_steps import Array
from ddlbench.predict.transformer.configurations import Configurations
from ddlbench.predict.transformer.counts import HALF, activation_bytes
from ddlbench.predict.transformer.pipeline import chunks_of, in_flight
from ddlbench.predict.transformer.step import stage_parameters

LOGIT_BYTES = 10.0
"""In half precision, in single precision, and their gradient."""


def memory_bytes(table: Configurations) -> Array:
    """Bytes of each configuration's fullest device."""
    return state_bytes(table) + working_bytes(table)


def state_bytes(table: Configurations) -> Array:
    """Weights, gradients and the optimizer's state; each of ZeRO's stages divides one more."""
    zero, data = table["zero"], table["data"]
    each = (
        table.bytes_of("optimizer") / np.where(zero >= 1, data, 1.0)
        + table.bytes_of("gradient") / np.where(zero >= 2, data, 1.0)
        + table.bytes_of("weight") / np.where(zero >= 3, data, 1.0)
    )
    return stage_parameters(table) * each


def working_bytes(table: Configurations) -> Array:
    """Activations, of the fuller of the first and the last stage."""
    held = np.array(
        [
            in_flight(name, int(ranks), chunks_of(name, int(chunks)), int(count))
            for name, ranks, chunks, count in zip(
                table["schedule"], table["pipeline"], table["chunks"], table.micro_batches,
                strict=True,
            )
        ]
    )  # fmt: skip
    full, selective = table.is_("recomputation", "full"), table.is_("recomputation", "selective")
    rest = np.where(selective, _of_layer(table, "selective"), _of_layer(table, "none"))
    kept = np.where(full, _of_layer(table, "full"), rest)  # of a micro-batch, by a layer
    layers = table.stage_layers
    tokens = table["micro_batch"] * table["sequence_length"]
    logits = LOGIT_BYTES * tokens * table.vocabulary / table["tensor"]
    alone = table["pipeline"] == 1
    # While a layer goes backward, what it recomputed is there as a whole.
    going = np.where(table.is_("recomputation", "none"), 0.0, _of_layer(table, "none") - kept)
    first = held * layers * kept + np.maximum(going, np.where(alone, logits, 0.0))
    last_held = np.where(table.is_("schedule", "gpipe"), held, 1.0)
    last = last_held * layers * kept + np.maximum(going, logits)
    return np.maximum(first, last)


def _of_layer(table: Configurations, recomputation: str) -> Array:
    half = activation_bytes(
        table["micro_batch"],
        table["sequence_length"],
        table["hidden_size"],
        table["attention_heads"],
        table["tensor"],
        recomputation=recomputation,
        sequence_parallel=table["sequence_parallel"] > 0,
    )
    return np.asarray(half * table.bytes_of("item") / HALF)
