"""Decoders of published runs, as tables."""

import numpy as np
import pandas as pd

from ddlbench.predict.hardware import DeviceSheet, Fabric, Software
from ddlbench.predict.transformer.decoders import Decoders, Machines, machines

SHAPES = {
    "1B": {"layers": 16, "hidden_size": 2048, "attention_heads": 32, "feed_forward_size": 8192},
    "3B": {"layers": 28, "hidden_size": 3072, "attention_heads": 32, "feed_forward_size": 8192},
    "80B": {"layers": 80, "hidden_size": 8192, "attention_heads": 64, "feed_forward_size": 28672},
}


def decoder(model: str, **given: float) -> Decoders:
    """One layout of one of the playbook's Llamas."""
    shape = SHAPES[model]
    columns = {
        **shape,
        "key_value_heads": shape["attention_heads"],
        "vocabulary": 131072,
        "sequence_length": 4096,
        "tensor": 1,
        "data": 1,
        "pipeline": 1,
        "micro_batch": 1,
        "micro_batches": 8,
        "zero_stage": 0,
        "tied_embedding": model != "80B",
        "gated": 1,
        "devices_per_node": 8,
        **given,
    }
    words = {"recomputation": np.array([columns.pop("recomputation", "none")])}
    return Decoders({name: np.array([float(value)]) for name, value in columns.items()} | words)


def nanotron(**constants: float) -> Software:
    """The software with the constants that the published memory was counted with."""
    counted = {"logit_bytes": 11.7, "gather_bytes": 11.3, "fragmentation": 1.0}
    return Software.load("nanotron").with_constants(
        {**counted, "context_bytes": 0.28 * 2**30, **constants}
    )


def hopper(table: Decoders, software: Software) -> Machines:
    """H100 with AWS' fabric."""
    sheets = [DeviceSheet.load("h100-sxm")] * len(table)
    return machines(sheets, Fabric.load("efa-3200"), software, table["devices_per_node"])


def playbook(count: int = 40) -> pd.DataFrame:
    """Evenly chosen rows of the shipped table."""
    from ddlbench.predict.transformer.training_runs import PUBLISHED

    rows = pd.read_csv(PUBLISHED / "playbook.csv")
    return rows.iloc[:: max(1, len(rows) // count)].reset_index(drop=True)
