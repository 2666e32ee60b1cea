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


def memory_bytes(asked: Configurations) -> Array:
    """Bytes of each configuration's fullest device."""
    return state_bytes(asked) + working_bytes(asked)


def state_bytes(asked: Configurations) -> Array:
    """Weights, gradients and the optimizer's state; each of ZeRO's stages divides one more."""
    zero, data = asked["zero"], asked["data"]
    each = (
        asked.bytes_of("optimizer") / np.where(zero >= 1, data, 1.0)
        + asked.bytes_of("gradient") / np.where(zero >= 2, data, 1.0)
        + asked.bytes_of("weight") / np.where(zero >= 3, data, 1.0)
    )
    return stage_parameters(asked) * each


def working_bytes(asked: Configurations) -> Array:
    """Activations, of the fuller of the first and the last stage."""
    held = np.array(
        [
            in_flight(name, int(ranks), chunks_of(name, int(chunks)), int(count))
            for name, ranks, chunks, count in zip(
                asked["schedule"], asked["pipeline"], asked["chunks"], asked.micro_batches,
                strict=True,
            )
        ]
    )  # fmt: skip
    full, selective = asked.is_("recomputation", "full"), asked.is_("recomputation", "selective")
    rest = np.where(selective, _of_layer(asked, "selective"), _of_layer(asked, "none"))
    kept = np.where(full, _of_layer(asked, "full"), rest)  # of a micro-batch, by a layer
    layers = asked.stage_layers
    tokens = asked["micro_batch"] * asked["sequence_length"]
    logits = LOGIT_BYTES * tokens * asked.vocabulary / asked["tensor"]
    alone = asked["pipeline"] == 1
    # While a layer goes backward, what it recomputed is there as a whole.
    going = np.where(asked.is_("recomputation", "none"), 0.0, _of_layer(asked, "none") - kept)
    first = held * layers * kept + np.maximum(going, np.where(alone, logits, 0.0))
    last_held = np.where(asked.is_("schedule", "gpipe"), held, 1.0)
    last = last_held * layers * kept + np.maximum(going, logits)
    return np.maximum(first, last)


def _of_layer(asked: Configurations, recomputation: str) -> Array:
    half = activation_bytes(
        asked["micro_batch"],
        asked["sequence_length"],
        asked["hidden_size"],
        asked["attention_heads"],
        asked["tensor"],
        recomputation=recomputation,
        sequence_parallel=asked["sequence_parallel"] > 0,
    )
    return np.asarray(half * asked.bytes_of("item") / HALF)
