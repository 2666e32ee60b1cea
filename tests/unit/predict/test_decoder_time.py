"""Steps of decoders: what must be so whatever the constants."""

from dataclasses import replace

import numpy as np
import pytest
from decoder_factory import decoder, hopper, nanotron
from predict_factory import cell

from ddlbench.planning.layer_table import training_operations
from ddlbench.planning.strategy import strategy_of
from ddlbench.predict.hardware import DeviceSheet, Fabric, Software, System
from ddlbench.predict.transformer.configurations import load_shape
from ddlbench.predict.transformer.decoder_layouts import layouts
from ddlbench.predict.transformer.decoder_time import PARTS, step_time

SILENT = (
    "product_width", "element_traffic", "host_layer_s", "collective_s", "hop_s", "step_s",
    "node_latency_factor", "pipeline_latency_s", "gradient_latency_factor",
)  # fmt: skip
NOTHING = dict.fromkeys(SILENT, 1e-15)


def seconds(table, software):
    return step_time(table, hopper(table, software), software).seconds[0]


def test_parts_add_up():
    table, software = decoder("3B", data=8, pipeline=2, micro_batches=16), nanotron()
    step = step_time(table, hopper(table, software), software)
    assert set(step.parts) == set(PARTS)
    assert step.seconds[0] == pytest.approx(sum(part[0] for part in step.parts.values()))


def test_bare_products_take_their_operations_at_the_share_of_the_peak():
    table = decoder("80B", micro_batches=1)
    software = nanotron(**NOTHING, product_efficiency=0.5, attention_efficiency=1e9)
    step = step_time(table, hopper(table, software), software)
    weights = 80 * table.layer_parameters[0] + table.embedding_parameters[0]
    logits = 40 * 4096 * 131072 / 3.35e12
    embedding = 20 * 4096 * 8192 / 3.35e12
    expected = 6 * weights * 4096 / (0.5 * 989.4e12) + logits + embedding
    assert step.parts["passes"][0] == pytest.approx(expected, rel=1e-6)


def test_a_pipeline_waits_for_its_longest_stage_and_fills_once():
    software = replace(nanotron(**NOTHING, attention_efficiency=1e9), stage_cut="layers")
    piped = decoder("1B", pipeline=2, micro_batches=10)
    step = step_time(piped, hopper(piped, software), software)
    longest = step.parts["passes"][0] / 10
    assert step.parts["bubble"][0] < longest  # the first stage is the shorter one
    assert longest > seconds(decoder("1B", layers=8, micro_batches=1, vocabulary=1), software) / 2


def test_the_host_is_the_floor_of_small_micro_batches():
    software = nanotron(**{**NOTHING, "host_layer_s": 1.0})
    table = decoder("1B", micro_batches=3)
    assert seconds(table, software) == pytest.approx(3 * 16 * 1.0, rel=0.05)


def test_a_tensor_group_over_nodes_pays_latency():
    inside, outside = (seconds(decoder("1B", tensor=t), nanotron()) for t in (8, 16))
    assert outside > 1.5 * inside


def test_pipelines_over_nodes_pay_more_latency_with_tensor_groups_only():
    free, slow = nanotron(pipeline_latency_s=1e-15), nanotron(pipeline_latency_s=1e-2)
    for table, differ in (
        (decoder("1B", tensor=4, data=2, pipeline=4), True),
        (decoder("1B", data=8, pipeline=4), False),
        (decoder("1B", tensor=4, pipeline=2), False),  # one node
    ):
        assert (seconds(table, slow) > seconds(table, free) * 1.01) == differ


def test_fsdp_hides_its_gathers_where_computing_is_long():
    software = Software.load("fsdp")

    def passes(**layout):
        table = decoder("3B", **layout)
        return step_time(table, hopper(table, software), software).parts["passes"][0]

    long, short = (
        passes(data=64, zero_stage=3, micro_batch=b) / passes(micro_batch=b) for b in (8, 1)
    )
    assert 1 < long < 1.01
    assert short > 1.2


def passes_s(software, **layout):
    table = decoder("3B", **layout)
    return step_time(table, hopper(table, software), software).parts


@pytest.mark.parametrize(
    ("name", "first", "second"), [("fsdp", 1, 1), ("deepspeed", 2, 2), ("ddlbench", 2, 1)]
)
def test_zero_scatters_sums_and_gathers_weights(name, first, second):
    """Half an all-reduce each (Rajbhandari et al. 2020, section 7); some sum whole."""
    software = Software.load(name).with_constants(NOTHING)

    def gradients_s(stage, micro_batches):
        given = {"data": 64, "zero_stage": stage, "micro_batches": micro_batches}
        return passes_s(software, **given)["gradients"][0]

    half_s = gradients_s(0, 4) / 2  # of an all-reduce
    assert gradients_s(1, 4) == pytest.approx((first + 1) * half_s)
    # Shared gradients are summed after each micro-batch, weights are gathered once.
    assert gradients_s(2, 4) == pytest.approx((4 * second + 1) * half_s)


def test_groups_of_fsdp_gather_in_their_node_and_sum_between_nodes():
    software = Software.load("fsdp")
    all_, node = (passes_s(software, data=64, zero_stage=3, shards=shards) for shards in (0, 8))
    assert node["passes"][0] < all_["passes"][0]
    assert node["gradients"][0] > all_["gradients"][0] == 0


@pytest.mark.parametrize("shards", [2, 4, 8, 16])
def test_groups_of_fsdp_send_the_whole_sum_through_the_cards_of_their_nodes(shards):
    """Each device sums a part over its card, or over as many as there are groups in a node."""
    software = Software.load("fsdp").with_constants(NOTHING)
    table = decoder("3B", data=64, zero_stage=3, shards=shards)
    machines = hopper(table, software)
    actual_s = step_time(table, machines, software).parts["gradients"][0]
    card = machines.network_bytes_per_s[0] / 8 * software.constant("gradient_share")
    groups = 64 / shards
    sent = 2 * 2 * table.parameters[0] / shards * (1 - 1 / groups)
    assert actual_s == pytest.approx(sent / (card * max(8 / shards, 1)))


def test_devices_with_other_experts_sum_them_over_their_own_cards():
    software = nanotron(**NOTHING)
    given = {"experts": 8, "active_experts": 2, "data": 64, "expert_parallel": 8}
    table = decoder("3B", **given)
    machines = hopper(table, software)
    card = machines.network_bytes_per_s[0] / 8 * software.constant("gradient_share")
    experts = 28 * table.held_experts[0]
    others = table.parameters[0] - 28 * 8 * table.expert_parameters[0]
    by_hand_s = 2 * 4 * (others * 63 / 64 / 8 + experts * 7 / 8) / card
    assert step_time(table, machines, software).parts["gradients"][0] == pytest.approx(by_hand_s)


def test_devices_that_share_a_sequence_compute_a_part_of_it():
    software = nanotron(**NOTHING)
    whole, half = (passes_s(software, context=c, micro_batch=4)["passes"][0] for c in (1, 2))
    assert half == pytest.approx(whole / 2, rel=0.02)  # the ring is hidden


def test_keys_and_values_leave_a_node_by_one_card():
    free = {"product_efficiency": 1e9, "attention_efficiency": 1e9, "sharpness": 50.0}
    software = nanotron(**NOTHING, **free)
    table = decoder("3B", context=16, sequence_length=2**20, vocabulary=1)
    machines = hopper(table, software)
    card = machines.network_bytes_per_s[0] / 8 * software.constant("network_share")
    once_s = 15 * 2 * 2 * 2**16 * 3072 / card
    passes_s = step_time(table, machines, software).parts["passes"][0]
    assert passes_s == pytest.approx(8 * 28 * 3 * once_s, rel=0.01)  # backward with gradients


def test_a_token_is_computed_by_its_active_experts_alone():
    software = nanotron(**NOTHING)
    given = {"micro_batch": 4, "experts": 8}
    parts = [passes_s(software, **given, active_experts=k)["passes"][0] for k in (1, 2, 3)]
    assert parts[2] - parts[1] == pytest.approx(parts[1] - parts[0], rel=1e-6)
    dense_s = passes_s(software, micro_batch=4)["passes"][0]
    assert parts[0] == pytest.approx(dense_s, rel=1e-6)


def test_exchanges_of_tokens_cost_more_between_nodes():
    given = {"experts": 64, "active_experts": 2, "data": 64}
    software = nanotron(product_width=1e-15)
    none, node, nodes = (
        passes_s(software, **given, expert_parallel=x)["passes"][0] for x in (1, 8, 64)
    )
    assert none < node < nodes


def test_tokens_go_to_experts_of_other_nodes_by_a_card_and_to_others_inside():
    free = {"product_efficiency": 1e9, "attention_efficiency": 1e9, "sharpness": 50.0}
    software = nanotron(**NOTHING, **free)
    table = decoder(
        "3B", experts=16, active_experts=2, data=16, expert_parallel=16, vocabulary=1,
        sequence_length=2**18,
    )  # fmt: skip
    machines = hopper(table, software)
    card = machines.network_bytes_per_s[0] / 8 * software.constant("network_share")
    # Two exchanges forward and two backward of both copies of a token; half of them leave the node.
    by_hand_s = 4 * (2 * 2 * 2**18 * 3072) * (8 / 16) / card
    passes_s = step_time(table, machines, software).parts["passes"][0]
    assert passes_s == pytest.approx(8 * 28 * by_hand_s, rel=0.02)


def test_recomputation_costs_a_forward_pass():
    ratio = seconds(decoder("80B", tensor=8, recomputation="full"), nanotron()) / seconds(
        decoder("80B", tensor=8), nanotron()
    )
    assert 1.25 < ratio < 1.4


def test_layouts_rank_those_that_fit_first():
    system = System(DeviceSheet.load("h100-sxm"), Fabric.load("infiniband-400"), 8, 8)
    ranked = layouts(load_shape("megatron-7.5b"), system, Software.load("megatron"), 512)
    assert (ranked["tensor"] * ranked["data"] * ranked["pipeline"] == 64).all()
    assert (ranked["data"] * ranked["micro_batch"] * ranked["micro_batches"] == 512).all()
    fit = ranked[ranked["fits"] == "fits"]
    assert fit["step_s"].is_monotonic_increasing
    assert (ranked["fits"].iloc[: len(fit)] == "fits").all()
    assert (fit["low_s"] < fit["step_s"]).all() and (fit["step_s"] < fit["high_s"]).all()
    assert ranked["equal_to_best"].iloc[0]
    assert np.all(fit["peak_share"] < 1)


@pytest.mark.parametrize("hidden_size", [768, 4096])
def test_the_interval_of_a_small_model_holds_that_of_its_host(hidden_size):
    software = Software.load("fsdp")
    shape = replace(load_shape("gpt-7b"), hidden_size=hidden_size, feed_forward_size=None)
    first = layouts(shape, System(DeviceSheet.load("h100-sxm"), None, 1, 8), software, 64).iloc[0]
    errors = software.intervals["no pipeline"]
    ends = np.array([errors.low, errors.high]) * first["step_s"]
    if hidden_size == 768:  # the fitted runs do not tell how long the host takes
        assert first["low_s"] < 0.95 * ends[0] and first["high_s"] > 1.05 * ends[1]
    else:
        assert (first["low_s"], first["high_s"]) == pytest.approx(tuple(ends))


def test_our_software_has_the_zero_stages_of_our_strategies():
    """A pipeline of ours shares nothing among its replicas."""
    shared = [
        cell("ddp"), cell("ddp", options={"shard": "optimizer"}), cell("fsdp"),
        cell("fsdp", options={"reshard_after_forward": False}),
    ]  # fmt: skip
    piped = cell("pipe-1f1b", options={"replicas": 2})
    ours = Software.load("ddlbench")
    assert {strategy_of(of.strategy).zero_stage(of) for of in shared} == set(ours.zero_stages)
    assert {strategy_of(piped.strategy).zero_stage(piped)} == set(ours.cut_zero_stages)
    system = System(DeviceSheet.load("h100-sxm"), None, 1, 8)
    ranked = layouts(load_shape("gpt-small:tokens-gpt2"), system, ours, 64)
    cut = ranked["pipeline"] > 1
    assert set(ranked["zero_stage"][cut]) == {0}
    assert set(ranked["zero_stage"][~cut]) == {0, 1, 2, 3}


@pytest.mark.parametrize("network", ["gpt-tiny:tokens", "gpt-small:tokens-gpt2"])
def test_utilisation_counts_the_operations_of_a_measured_cell(network):
    software, device = Software.load("ddlbench"), DeviceSheet.load("h100-sxm")
    ranked = layouts(load_shape(network), System(device, None, 1, 8), software, 16)
    rate = ranked["peak_share"] * 8 * device.peak(software.precision)
    actual = rate * ranked["step_s"] / 16
    assert actual.to_numpy() == pytest.approx(training_operations(*network.split(":")), rel=0.01)
