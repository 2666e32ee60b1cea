"""The text of ``planning/block_table.csv``: what planning knows of the networks' blocks.

Networks are built without contents, so that even ResNet-152 on the largest images takes no memory.
``make tables`` writes the file.
"""

from __future__ import annotations

import csv
import io

import torch

from ddlbench.experiment.dataset_spec import DatasetSpec
from ddlbench.experiment.network_spec import pairs
from ddlbench.experiment.registry import load
from ddlbench.networks.flatten import out_of_place
from ddlbench.planning.block_table import COLUMNS
from ddlbench.strategies.pipelining.cutting import TensorForm, block_facts

__all__ = ["rows_of", "table"]

_SAMPLES = 2  # batch norm refuses a single value a channel


def rows_of(network: str, spec: DatasetSpec) -> list[tuple[str | int, ...]]:
    """One row a block, in the order of ``COLUMNS``; operations and output of one sample."""
    with torch.device("meta"):
        blocks = out_of_place(load("ddlbench.networks", network)(spec))
    facts = block_facts(blocks, TensorForm((_SAMPLES, *spec.shape), torch.float32), "cpu")
    return [
        (
            network,
            spec.name,
            number,
            round(fact.work / _SAMPLES),
            fact.parameter_bytes,
            fact.output.bytes // _SAMPLES,
        )
        for number, fact in enumerate(facts)
    ]


def table() -> str:
    """All built-in networks on all datasets, as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for network, spec in pairs():
        writer.writerows(rows_of(network, spec))
    return text.getvalue()
