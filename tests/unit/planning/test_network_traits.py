"""Which strategies refuse which traits: before a job, and in every rank."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddlbench.common.quantities import few
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.registry import SHIPPED_STRATEGIES
from ddlbench.planning.network_tables import NetworkTraits
from ddlbench.planning.plan import Plan
from ddlbench.planning.planner import make_plan
from ddlbench.planning.trainable import samples_per_pass, why_not_trained

BALANCE = ("pipe-gpipe", "pipe-1f1b", "pipedream", "model-parallel-p2p")
FOUR = ("pipe-interleaved", "pipe-zb", "pipe-zbv")


def plan_of(strategy: str, batch_size: int = 16, **options) -> Plan:
    if strategy in BALANCE:
        options.setdefault("balance", "2+2")
    if strategy == "data-tensor-pipe":
        options = {"balance": "2+2", "group": 1, **options}
    if strategy in FOUR:
        options.setdefault("balance", "1+1+1+1")
    devices = {"sequential": 1, "parameter-server": 3}.get(strategy, 2)
    return make_plan(
        Cell(
            "mnist",
            "a.module:net",
            strategy,
            batch_size,
            devices_per_node=devices,
            options=tuple(sorted(options.items())),
        )
    )


BLOCKS = ("a", "b", "c", "d")
SPLITS = {"spatial", "filter", "channel", "data-filter", "data-spatial"}
SHARED = {"fsdp", "hsdp"}
PIPELINES = {*BALANCE, *FOUR, "data-tensor-pipe"}
REFUSED = {
    "scalars": SHARED,
    "strided": {*SHARED, "horovod"},
    "complex": {"horovod", "parameter-server"},
    "sparse": {*SHARED, "ddp"},
    "whole_numbers": SHARED,
    "mixed_types": SHARED,
    "bfloat16": {"horovod"},
    "irregular": {"horovod", "parameter-server", *SHARED, *SPLITS},
    "written": {*SHARED, *SPLITS, *PIPELINES},
    "borrowed": {*SHARED, *SPLITS, *PIPELINES},
    "hooked": {
        *SHARED,
        *("pipedream", "model-parallel-p2p", "spatial", "filter", "channel"),
        *("data-filter", "data-spatial", "tensor-parallel", "data-tensor", "data-tensor-pipe"),
    },
    "unused": set(),
}


@pytest.mark.parametrize("trait", REFUSED)
def test_a_trait_is_refused_by_those_that_cannot_train_it(trait):
    traits = NetworkTraits(blocks=BLOCKS, **{trait: ("b.weight",)})
    refusing = {
        strategy
        for strategy in SHIPPED_STRATEGIES
        if strategy != "deepspeed" and why_not_trained(traits, plan_of(strategy)) is not None
    }
    assert refusing == REFUSED[trait]


@pytest.mark.parametrize("strategy", ["sequential", "horovod", "parameter-server", "gpipe"])
@pytest.mark.parametrize("settings", [{"optimizer": "adamw"}, {"weight_decay": 0.1}], ids=str)
def test_torchs_optimisers_take_no_sparse_gradients(strategy, settings):
    plan = plan_of(strategy)
    plan = replace(plan, cell=plan.cell.with_(**settings))
    reason = why_not_trained(NetworkTraits(blocks=BLOCKS, sparse=("b.weight",)), plan)
    assert "takes no sparse gradients (b.weight)" in reason
    assert why_not_trained(NetworkTraits(blocks=BLOCKS), plan) is None


def test_a_hook_of_an_accumulated_gradient_needs_passes_of_the_whole_batch():
    weights = ("b.weight",)
    traits = NetworkTraits(blocks=BLOCKS, hooked=weights, hooked_after=weights)
    whole = {
        strategy
        for strategy in SHIPPED_STRATEGIES
        if strategy != "deepspeed" and why_not_trained(traits, plan_of(strategy)) is None
    }
    assert whole == {"sequential", "model-parallel"}


def test_the_sentence_names_the_weights_and_what_to_write():
    traits = NetworkTraits(blocks=BLOCKS, strided=("a.weight", "b.weight", "c.weight"))
    reason = why_not_trained(traits, plan_of("horovod"))
    assert reason is not None
    assert reason.code == "weights_unsupported"
    assert "(a.weight, b.weight and 1 more); remove .to(memory_format=...)" in reason


@pytest.mark.parametrize(
    ("strategy", "options", "refused"),
    [
        ("pipe-1f1b", {"balance": "2+2"}, True),
        ("pipe-1f1b", {"balance": "1+3"}, False),
        ("pipedream", {"balance": "2+2"}, True),
        ("model-parallel-p2p", {"balance": "3+1"}, False),
        ("pipe-zb", {}, True),
        ("ddp", {}, False),
    ],
)
def test_no_cut_where_values_have_no_gradient(strategy, options, refused):
    traits = NetworkTraits(blocks=BLOCKS, without_gradient=("b",))
    reason = why_not_trained(traits, plan_of(strategy, **options))
    assert (reason is not None and "cuts after block 'b'" in reason) == refused


@pytest.mark.parametrize(
    ("strategy", "batch_size", "samples"),
    [("sequential", 1, 1), ("ddp", 2, 1), ("ddp", 4, 2), ("pipe-gpipe", 4, 1), ("fsdp", 2, 1)],
)
def test_batch_norm_needs_two_samples_of_each_pass(strategy, batch_size, samples):
    plan = plan_of(strategy, batch_size)
    assert samples_per_pass(plan) == samples
    traits = NetworkTraits(blocks=BLOCKS, batch_norm=True, needs_two_samples=True)
    reason = why_not_trained(traits, plan)
    assert (reason is None) == (samples > 1)
    if reason is not None:
        assert f"raise batch_size to {2 * batch_size} or more" in reason


def test_messages_within_layers_are_not_differentiated_twice():
    traits = NetworkTraits(blocks=BLOCKS, gradients_within=True)
    splits = ("spatial", "filter", "channel", "data-filter", "data-spatial")
    for strategy in ("ddp", "pipedream", *splits):
        assert (why_not_trained(traits, plan_of(strategy)) is not None) == (strategy in splits)


def test_a_backward_pass_within_the_forward_pass_is_for_one_process():
    traits = NetworkTraits(blocks=BLOCKS, backward_within=True)
    assert why_not_trained(traits, plan_of("sequential")) is None
    assert why_not_trained(traits, plan_of("gpipe")) is None
    assert why_not_trained(traits, plan_of("ddp")).code == "backward_within"


def test_a_network_without_a_gradient_is_refused_by_all():
    reason = why_not_trained(NetworkTraits(blocks=BLOCKS, trains=False), plan_of("sequential"))
    assert reason is not None
    assert reason.code == "nothing_trained"


def test_names_are_few():
    assert few(["a"]) == "a"
    assert few(["a", "b"]) == "a, b"
    assert few(["a", "b", "c", "d"]) == "a, b and 2 more"
