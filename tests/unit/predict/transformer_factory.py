"""Configurations and runs of transformers for tests."""

import pandas as pd

from ddlbench.predict.transformer.training_runs import training_runs

USUAL = {
    "hidden_size": 4096,
    "attention_heads": 32,
    "layers": 32,
    "sequence_length": 2048,
    "global_batch": 512,
    "micro_batch": 2,
    "tensor": 4,
    "data": 4,
    "pipeline": 4,
}


def table(*rows, **columns):
    """Rows of usual values, each changed as said; ``columns`` change all of them."""
    return pd.DataFrame([{**USUAL, **columns, **row} for row in rows or ({},)])


def decoders(*rows, **columns):
    given = table(*rows, **{"step_s": 1.0, **columns})
    return training_runs(given, where="table").decoders
