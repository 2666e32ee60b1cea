"""Networks of strangers are trained as one device does, or refused; by real ranks.

Each network has a trait that a public bug report is about; see ``cases/strangers_networks.py``.
"""

from __future__ import annotations

import importlib.util

import pytest
from cases import strangers_networks

from ddlbench.equivalence.examination import Examination
from ddlbench.experiment.cell import Cell

STAGED = ("pipedream", "model-parallel-p2p")
PIPELINES = ("pipe-1f1b", "pipe-interleaved", "pipe-zb", "pipe-zbv")
SPLITS = ("filter", "channel")

EQUAL = {
    "frozen": (*STAGED, "pipe-zb"),
    "whole_number_parameter": (*STAGED, "pipe-1f1b"),
    "detached": ("ddp", *STAGED, "pipe-1f1b"),
    "hooked_input": ("pipe-1f1b", "pipedream"),
    "masked_weight": ("ddp", "gpipe"),
    "hooked_after": ("sequential", "model-parallel"),
    "recomputed": STAGED,
    "recomputed_reentrant": STAGED,
    "from_numpy": ("ddp", "local-sgd", "fsdp"),
    "lazy": ("ddp", "fsdp", "pipe-1f1b", "local-sgd", "parameter-server"),
    "whole_numbers": ("pipe-1f1b", *STAGED),
    "sparse": ("sequential", "horovod", "parameter-server"),
    "unused": ("ddp", "fsdp"),
    "weight_norm": (*STAGED, *PIPELINES, *SPLITS),
    "strided": ("ddp", "pipedream"),
    "channels_last": ("ddp", "pipedream"),
    "in_place": ("gpipe", "fsdp", *STAGED, "pipe-1f1b"),
    "in_place_first": ("gpipe", "fsdp", *STAGED),
    "in_place_recorded": ("gpipe",),
    "scalar": ("ddp", "pipedream"),
    "complex_weights": ("ddp", "pipedream"),
    "batch_norm": ("ddp", "gpipe", "pipe-1f1b"),
    "functional_batch_norm": ("pipe-1f1b",),
    "noisy": ("sequential", "model-parallel-p2p"),
}
REFUSED = {
    ("hooked_input", "pipe-zb"): "splits backward passes",
    ("recomputed_reentrant", "pipe-zbv"): "When use_reentrant=True",
    ("hooked_weight", "pipedream"): "has none of the hooks",
    ("hooked_weight", "fsdp"): "drops hooks",
    ("hooked_after", "ddp"): "mask or scale a gradient by register_hook",
    ("hooked_after", "gpipe"): "a pass sees a part of the batch",
    ("from_the_system", "ddp"): "different initial weights",
    ("from_the_system", "sequential"): "one seed gives two different networks",
    ("sparse", "ddp"): "sparse gradients of other rows",
    ("sparse", "fsdp"): "cannot sum sparse gradients",
    ("strided", "horovod"): "contiguous weights only",
    ("channels_last", "fsdp"): "contiguous weights only",
    ("scalar", "fsdp"): "a weight without a dimension",
    ("complex_weights", "horovod"): "real numbers only",
    ("complex_weights", "parameter-server"): "real numbers only",
}


@pytest.fixture(scope="module")
def examination() -> Examination:
    return Examination()


def cell_of(network: str, strategy: str) -> Cell:
    if strategy == "horovod" and importlib.util.find_spec("horovod") is None:
        pytest.skip("Horovod is not built here")
    name = f"cases.strangers_networks:{network}"
    return Cell("cifar10", name, strategy, batch_size=1, learning_rate=0.05)


@pytest.mark.parametrize(
    ("network", "strategy"), [(name, s) for name, strategies in EQUAL.items() for s in strategies]
)
def test_it_is_trained_as_one_device_does(examination, network, strategy):
    verdict = examination.verdict_of(cell_of(network, strategy))
    assert verdict.kind == "equal", verdict.reason


@pytest.mark.parametrize(("network", "strategy"), REFUSED)
def test_it_is_refused_in_a_sentence(examination, network, strategy):
    verdict = examination.verdict_of(cell_of(network, strategy))
    sentence = REFUSED[network, strategy]
    assert sentence in (verdict.reason or ""), verdict
    assert verdict.kind == "unsupported" or "not with balance" in verdict.reason


@pytest.mark.parametrize("network", ["batch_norm", "functional_batch_norm"])
def test_one_sample_of_a_batch_norm_is_refused(network):
    alone = Examination(batch_size=2)
    verdict = alone.verdict_of(cell_of(network, "ddp"))
    assert verdict.kind == "unsupported"
    assert "raise batch_size to 4 or more" in verdict.reason


def test_every_network_is_tried():
    tried = {*EQUAL, *(network for network, _ in REFUSED)}
    # "plain" is that of test_check.py, which tries it with every strategy.
    assert tried | {"dropout", "tied", "plain"} == set(strangers_networks.ALL)
