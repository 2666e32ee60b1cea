"""Rings, pipelines and steps of the transformer oracle."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformer_factory import decoders, table

from ddlbench.common.errors import ConfigError
from ddlbench.planning.schedules import StageDurations, gpipe, one_f_one_b, replay
from ddlbench.predict.hardware import Accelerators
from ddlbench.predict.transformer.configurations import (
    data_rings,
    ends_rings,
    hop_senders,
    tensor_rings,
)
from ddlbench.predict.transformer.layer_time import all_reduce_s, layer_times
from ddlbench.predict.transformer.step import (
    BUBBLE,
    DATA,
    EMBEDDING,
    PARTS,
    SENDS,
    replayed_s,
    schedule_of,
    steps,
)
from ddlbench.predict.transformer.training_runs import gpt_configurations

NODE = 8


@pytest.fixture(scope="module")
def platform():
    return Accelerators.load("megatron-a100")


def ranks_of(tensor, data, pipeline):
    """Megatron's groups, rank by rank."""
    number = lambda part, replica, stage: (stage * data + replica) * tensor + part  # noqa: E731
    rings = [
        [number(part, replica, stage) for replica in range(data)]
        for stage in range(pipeline)
        for part in range(tensor)
    ]
    hops = [
        (number(part, replica, stage), number(part, replica, stage + 1))
        for stage in range(pipeline - 1)
        for replica in range(data)
        for part in range(tensor)
    ]
    return rings, hops


@pytest.mark.parametrize(
    ("tensor", "data", "pipeline"),
    [
        layout
        for layout in itertools.product([1, 2, 4, 8, 16], [1, 2, 4, 16], [1, 2, 4])
        if layout[0] * layout[1] * layout[2] in (8, 16, 64, 256)
    ],
)
def test_rings_that_share_a_nodes_cards_are_those_of_megatrons_ranks(tensor, data, pipeline):
    rings, hops = ranks_of(tensor, data, pipeline)
    decoder = decoders(tensor=tensor, data=data, pipeline=pipeline)
    nodes_of = [{rank // NODE for rank in ring} for ring in rings]
    leaving = [nodes for nodes in nodes_of if len(nodes) > 1]
    actual = data_rings(decoder, NODE)
    assert bool(actual.crosses[0]) == bool(leaving)
    if leaving:
        shared = max(sum(node in nodes for nodes in leaving) for node in range(64))
        assert actual.sharing[0] == shared
    crossing = [hop for hop in hops if hop[0] // NODE != hop[1] // NODE]
    crosses, senders = hop_senders(decoder, NODE)
    assert bool(crosses[0]) == bool(crossing)
    if crossing:
        sources = [source // NODE for source, _ in crossing]
        assert senders[0] >= max(map(sources.count, set(sources))) / (pipeline - 1)
        if tensor * data >= NODE:
            assert senders[0] == max(map(sources.count, set(sources)))
    assert bool(tensor_rings(decoder, NODE).crosses[0]) == (tensor > NODE)


def test_rings_on_one_card_share_it(platform):
    rings = data_rings(decoders({"tensor": 1}, {"tensor": 8}, data=64, pipeline=1), NODE)
    bytes_ = np.full(2, 1e9)
    first, second = all_reduce_s(rings, bytes_, platform)
    assert second > 7 * first  # eight rings of as many bytes each through the same cards


def test_ends_of_the_pipeline_sum_the_embedding():
    assert ends_rings(decoders({"pipeline": 1}, {"pipeline": 4}), NODE).members.tolist() == [1, 2]


def test_only_a_tied_embedding_is_summed_by_both_ends(platform):
    rows = ({"tied_embedding": word} for word in ("yes", "no"))
    tied, untied = steps(decoders(*rows), platform).parts[EMBEDDING]
    assert tied > 0 and untied == 0
    assert steps(decoders(), platform).parts[EMBEDDING][0] == tied  # as GPTs usually are


@given(
    st.integers(1, 6),
    st.integers(1, 12),
    st.floats(0.1, 2.0),
    st.floats(0.1, 4.0),
    st.floats(0.0, 3.0),
)
def test_the_formula_is_the_replay_where_the_last_stage_is_the_slowest(
    p, m, forward, backward, end
):
    forwards = [forward] * (p - 1) + [forward + end]
    backwards = [backward] * (p - 1) + [backward + end]
    slot = forwards[-1] + backwards[-1]
    formula = sum(forwards) + sum(backwards) + (m - 1) * slot
    for schedule in (one_f_one_b(p, m), gpipe(p, m)):
        durations = StageDurations(forwards, backwards)
        assert replay(schedule, durations).end_s == pytest.approx(formula)


@pytest.mark.parametrize("recomputation", ["none", "full"])
def test_a_step_of_1f1b_is_its_replay(platform, recomputation):
    decoder = decoders(recomputation=recomputation, global_batch=64)
    actual = steps(decoder, platform)
    times = layer_times(decoder, platform)
    hop_s = float(actual.parts[SENDS][0]) / 2 / (4 + 8 - 1)
    forward, backward = float(times.forward.seconds[0]), float(times.backward.seconds[0])
    head, embedding = float(times.head.seconds[0]), float(times.embedding.seconds[0])
    forwards, backwards = [8 * forward + hop_s] * 4, [8 * backward + hop_s] * 4
    forwards[0] += embedding / 3
    backwards[0] += embedding * 2 / 3
    forwards[-1] += head / 3
    backwards[-1] += head * 2 / 3
    end_s = replay(one_f_one_b(4, 8), StageDurations(forwards, backwards)).end_s
    passes = sum(actual.parts[part][0] for part in PARTS[: PARTS.index(BUBBLE) + 1])
    assert passes == pytest.approx(end_s)


REPLAYED = pytest.mark.parametrize(
    ("name", "chunks"),
    [("interleaved-1f1b", 2), ("interleaved-zero-bubble", 1), ("zero-bubble-v", 2)],
)


def several(name, chunks, micro_batches):
    """The passes of a step of three configurations: all of them, and their durations."""
    ends = np.arange(4 * chunks)[:, None] == 4 * chunks - 1
    forward_s = np.array([1.0, 0.9, 1.3]) + 0.2 * ends
    backward_s, share = np.array([2.1, 2.0, 1.1]) + 0.4 * ends, np.array([0.5, 0.6, 0.7])
    counts = np.full(3, micro_batches)
    times_s = replayed_s(
        name, 4, chunks, counts, forward_s=forward_s, backward_s=backward_s, input_share=share
    )
    return times_s, (forward_s, backward_s, share)


@REPLAYED
def test_passes_of_many_configurations_are_the_replay_of_each(name, chunks):
    actual, (forward_s, backward_s, share) = several(name, chunks, 12)
    for place in range(3):
        durations = StageDurations(
            forward_s[:, place].tolist(), backward_s[:, place].tolist(), share[place]
        )
        end_s = replay(schedule_of(name, 4, chunks, 12), durations).end_s
        assert actual[place] == pytest.approx(end_s)


@REPLAYED
def test_a_long_step_repeats_itself(name, chunks):
    """What is left out of a long replay changes nothing."""
    actual, (forward_s, backward_s, share) = several(name, chunks, 48)
    for place in range(3):
        durations = StageDurations(
            forward_s[:, place].tolist(), backward_s[:, place].tolist(), share[place]
        )
        end_s = replay(schedule_of(name, 4, chunks, 48), durations).end_s
        assert actual[place] == pytest.approx(end_s, rel=1e-3)


def test_schedules_with_less_bubble_take_less_time(platform):
    names = ("1f1b", "interleaved-1f1b", "zero-bubble-v")
    rows = [{"schedule": name, "chunks": 2} for name in names]
    actual = steps(decoders(*rows, pipeline=8, data=2, global_batch=32), platform)
    assert np.all(np.diff(actual.seconds) < 0)
    assert np.all(np.diff(actual.parts[BUBBLE]) < 0)


def test_parts_add_up_and_none_is_negative(platform):
    rows = [
        {"tensor": t, "data": d, "pipeline": 64 // t // d} for t in (2, 4, 8) for d in (1, 4, 8)
    ]
    actual = steps(decoders(*rows), platform)
    assert np.sum([actual.parts[part] for part in PARTS], axis=0) == pytest.approx(actual.seconds)
    for part in PARTS:
        assert np.all(actual.parts[part] >= -1e-9), part


def test_what_is_not_there_costs_nothing(platform):
    parts = steps(decoders(tensor=1, data=1, pipeline=1), platform).parts
    for part in ("tensor parallelism", "sends", "bubble", "data parallelism", "tied embedding"):
        assert parts[part][0] == pytest.approx(0, abs=1e-9), part


def test_zero_sends_as_much_as_an_all_reduce_and_updates_less(platform):
    rows = ({"zero": zero} for zero in (0, 1, 2))
    actual = steps(decoders(*rows, data=16, tensor=1, gradient_bytes=2), platform)
    assert actual.parts[DATA] == pytest.approx(actual.parts[DATA][0], rel=0.01)
    assert actual.parts["update"][1] == pytest.approx(actual.parts["update"][0] / 16)


def test_the_embedding_counts_once_where_there_is_one_stage(platform):
    """The formula's slot of a single stage is the whole network."""
    short_s, middle_s = steps(
        decoders({"global_batch": 2}, {"global_batch": 4}, data=1, pipeline=1), platform
    ).seconds
    long_s = steps(decoders(global_batch=6, data=1, pipeline=1), platform).seconds[0]
    assert middle_s - short_s == pytest.approx(long_s - middle_s)


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"tensor": 0}, "line 2: tensor is 0; write a whole number of 1 or more"),
        ({"layers": 2.5}, "write a whole number"),
        ({"pipeline": 64}, "pipeline is 64; write at most the number of layers"),
        ({"schedule": "1f2b"}, "did you mean '1f1b'?"),
        ({"zero": 4}, "zero is 4; write 0, 1, 2 or 3"),
        ({"tied_embedding": "maybe"}, "tied_embedding 'maybe' is unknown"),
        ({"devices": 65}, "write their product or leave it out"),
    ],
)
def test_a_wrong_value_is_said_in_one_sentence(columns, sentence):
    with pytest.raises(ConfigError, match=sentence.replace("?", r"\?")):
        decoders(**columns)


def test_a_missing_column_is_named_and_unknown_ones_do_not_matter():
    with pytest.raises(ConfigError, match="table: column 'tensor' is missing; needed: hidden_size"):
        gpt_configurations(table().drop(columns="tensor"), "table")
    assert len(decoders(colour="blue")) == 1
