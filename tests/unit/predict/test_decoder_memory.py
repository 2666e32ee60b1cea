"""Memory of decoders against values that were counted by hand and measured by others."""

from dataclasses import replace

import numpy as np
import pytest
from decoder_factory import decoder, nanotron

from ddlbench.predict.hardware import Software
from ddlbench.predict.transformer.decoder_memory import (
    CANNOT_TELL,
    FITS,
    TOO_LARGE,
    layer_bytes,
    memory_bytes,
    memory_calls,
)
from ddlbench.predict.transformer.decoders import stage_cut

GIB = 2**30
AGAIN, KEPT, FIRST = np.zeros(1), np.ones(1), np.zeros(1, dtype=int)


@pytest.mark.parametrize(
    ("model", "layout", "kept", "counted", "measured"),
    [
        ("80B", {"tensor": 32}, AGAIN, 51.5, 51.7),
        ("80B", {"tensor": 32, "data": 2}, AGAIN, 56.2, 56.2),
        ("3B", {"tensor": 8}, KEPT, 11.6, 11.7),
        ("3B", {"tensor": 8, "data": 2}, KEPT, 12.4, 12.5),
    ],
)
def test_memory_is_what_was_counted_by_hand(model, layout, kept, counted, measured):
    given = memory_bytes(decoder(model, **layout), nanotron(), kept, FIRST)[0] / GIB
    assert given == pytest.approx(counted, abs=0.06)
    assert given == pytest.approx(measured, rel=0.02)


@pytest.mark.parametrize(
    ("stages", "cut"),
    [(1, (16,)), (2, (10, 6)), (4, (5, 5, 5, 1)), (8, (3, 2, 3, 2, 3, 2, 1, 0))],
)
def test_stages_are_cut_by_cost(stages, cut):
    assert stage_cut(16, stages, 1.0, 4.0)[0] == cut


def test_stages_of_layers_alone_are_even():
    assert stage_cut(16, 4, 1.0, 0.0)[0] == (4, 4, 4, 4)
    assert stage_cut(10**9, 4, 1.0, 0.0)[0] == (250_000_000,) * 4


def test_a_layer_keeps_what_its_modules_need():
    table = decoder("1B")
    items = 4096 * 2048
    assert layer_bytes(table)[0] == 18 * items + 8 * 4096 * 8192
    grouped = decoder("1B", key_value_heads=8)
    assert layer_bytes(grouped)[0] == 15 * items + 8 * 4096 * 8192
    plain = decoder("1B", gated=0)
    assert layer_bytes(plain)[0] == (18 + 16) * items
    scores = layer_bytes(plain, flash=False)[0] - layer_bytes(plain)[0]
    assert scores == 5 * 32 * 4096**2  # Korthikanti et al.: 5 a s^2 b
    again = decoder("1B", gated=0, recomputation="selective")
    assert layer_bytes(again, flash=False)[0] == 34 * items  # section 4.2: 34 s b h


def test_experts_are_counted_as_published():
    """Jiang et al., Mixtral of Experts (2024): 47 billion parameters, 13 of them active."""
    mixtral = decoder(
        "1B", layers=32, hidden_size=4096, attention_heads=32, key_value_heads=8,
        feed_forward_size=14336, vocabulary=32000, tied_embedding=0, experts=8, active_experts=2,
    )  # fmt: skip
    assert mixtral.parameters[0] == pytest.approx(46.7e9, rel=1e-3)
    active = 32 * mixtral.active_parameters[0] + 2 * mixtral.embedding_parameters[0]
    assert active == pytest.approx(12.9e9, rel=5e-3)


def test_devices_that_share_experts_hold_a_part_of_them():
    given = {"experts": 8, "active_experts": 2, "data": 8}
    alone, together = (decoder("1B", **given, expert_parallel=x) for x in (1, 8))
    gone = alone.held_parameters[0] - together.held_parameters[0]
    assert gone == pytest.approx(7 * alone.expert_parameters[0])


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("together", [1, 8, 32])
def test_zero_loses_no_state_of_experts(together, groups):
    """All devices together hold as many whole copies as there are groups that share weights."""
    table = decoder(
        "1B", experts=32, data=32, zero_stage=3, shards=32 / groups, expert_parallel=together
    )
    less, more = (
        memory_bytes(table, replace(nanotron(), gradient_bytes=g), AGAIN, FIRST)[0] for g in (4, 16)
    )
    experts = 16 * 32 * table.expert_parameters[0]
    copies = min(groups, 32 / together)  # of experts
    expected = (table.parameters[0] - experts) * groups + experts * copies
    assert 32 * (more - less) == pytest.approx(12 * expected)


def test_devices_that_share_a_sequence_keep_a_part_of_its_activations():
    whole, half = (layer_bytes(decoder("1B", context=c))[0] for c in (1, 2))
    assert half == whole / 2


def test_groups_that_share_weights_hold_more_than_all_replicas_would():
    given = {"data": 64, "zero_stage": 3}
    all_, node = (
        memory_bytes(decoder("3B", **given, shards=z), nanotron(), AGAIN, FIRST)[0] for z in (0, 8)
    )
    parameters = decoder("3B").parameters[0]
    assert node - all_ == pytest.approx((2 + 4 + 12 + 4) * parameters * (1 / 8 - 1 / 64), rel=0.3)


@pytest.mark.parametrize(
    ("name", "bytes_"),
    [("deepspeed", 2 + 2 + 12), ("megatron", 2 + 4 + 12), ("ddlbench", 4 + 4 + 4)],
)
def test_a_parameter_alone_has_the_bytes_of_its_software(name, bytes_):
    """ZeRO (2020), section 3.1; this project trains with SGD and momentum in single precision."""
    software = Software.load(name)
    few, many = (decoder("1B", layers=layers, micro_batch=1e-9) for layers in (1, 101))
    held = memory_bytes(many, software, AGAIN, FIRST) - memory_bytes(few, software, AGAIN, FIRST)
    assert held[0] == pytest.approx(bytes_ * 100 * few.layer_parameters[0], rel=1e-6)


def test_our_transformers_keep_no_scores():
    """A sample more of ViT-B takes 121.4 MB on an H200 (docs/validation/gpu/h200/steps.csv)."""
    vit = {
        "layers": 12, "hidden_size": 768, "attention_heads": 12, "feed_forward_size": 3072,
        "gated": 0, "key_value_heads": 12, "sequence_length": 197, "vocabulary": 1000,
    }  # fmt: skip
    software = Software.load("ddlbench")
    few, many = (
        memory_bytes(decoder("1B", **vit, micro_batch=samples), software, AGAIN, FIRST)[0]
        for samples in (64, 128)
    )
    assert (many - few) / 64 == pytest.approx(121.4e6, rel=0.1)


def test_zero_divides_one_more_part_with_each_stage():
    software = nanotron()
    each = [
        memory_bytes(decoder("3B", data=8, zero_stage=stage), software, AGAIN, FIRST)[0]
        for stage in range(4)
    ]
    assert each == sorted(each, reverse=True)
    parameters = decoder("3B").parameters[0]
    assert each[0] - each[1] == pytest.approx(12 * parameters * 7 / 8)
    assert each[1] - each[2] == pytest.approx(4 * parameters * 7 / 8)


def test_recomputation_keeps_the_inputs_of_layers():
    less = memory_bytes(decoder("1B", recomputation="full"), nanotron(), AGAIN, FIRST)[0]
    more = memory_bytes(decoder("1B"), nanotron(), AGAIN, FIRST)[0]
    assert more - less == pytest.approx(15 * layer_bytes(decoder("1B"))[0] - 16 * 2 * 4096 * 2048)


def test_replicas_hold_whole_weights_in_single_precision_too():
    """ZeRO's stages 1 and 2 divide both moments, but not the weight, which is its own master."""
    software = replace(nanotron(), precision="fp32")
    each = [
        memory_bytes(decoder("3B", data=8, zero_stage=stage), software, AGAIN, FIRST)[0]
        for stage in range(3)
    ]
    parameters = decoder("3B").parameters[0]
    assert each[0] - each[1] == pytest.approx(8 * parameters * 7 / 8)
    assert each[1] - each[2] == pytest.approx(4 * parameters * 7 / 8)


def test_a_stage_without_layers_recomputes_none():
    last = np.array([7])
    given = [
        memory_bytes(decoder("1B", pipeline=8, recomputation=how), nanotron(), AGAIN, last)[0]
        for how in ("none", "full")
    ]
    table = decoder("1B", pipeline=8)
    assert table.stages(nanotron().stage_cut).layers[0, -1] == 0
    assert given[0] == given[1]


@pytest.mark.parametrize(
    ("layout", "answer"),
    [
        ({"tensor": 8, "micro_batch": 1}, FITS),
        ({"tensor": 1, "micro_batch": 16}, TOO_LARGE),
        ({"tensor": 16, "micro_batch": 32}, CANNOT_TELL),  # with inputs kept it is too large
        ({"tensor": 8, "pipeline": 16, "micro_batches": 8}, TOO_LARGE),  # 1F1B needs 15
    ],
)
def test_three_answers(layout, answer):
    calls = memory_calls(decoder("3B", **layout), nanotron(), np.array([80.0 * GIB]))
    assert calls.answers[0] == answer
