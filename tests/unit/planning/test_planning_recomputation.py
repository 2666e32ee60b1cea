"""What a step costs whose blocks compute their activations again, from a profile without."""

from __future__ import annotations

import predict_factory as make
import pytest

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.profile import Profile
from ddlbench.planning import pipeline_stages
from ddlbench.planning.memory import backward_peak_bytes, held_bytes, memory_bytes
from ddlbench.planning.planner import make_plan
from ddlbench.planning.recomputation import RecomputedWorkload

SAMPLES = 8
PLAIN = make.workload()
AGAIN = RecomputedWorkload(PLAIN)


def test_all_blocks_but_the_last_go_forward_twice():
    (forward_s, backward_s), (_, later_s) = AGAIN.passes_s(SAMPLES), PLAIN.passes_s(SAMPLES)
    assert forward_s == PLAIN.passes_s(SAMPLES)[0]
    expected = [f + b for f, b in zip(forward_s[:-1], later_s[:-1], strict=True)]
    assert backward_s == pytest.approx([*expected, later_s[-1]])


def test_a_step_takes_their_share_of_its_forward_pass_longer():
    step, plain = AGAIN.step(SAMPLES), PLAIN.step(SAMPLES)
    again_s = 0.75 * plain.forward_s  # three of four equal blocks
    assert step.step_s - plain.step_s == pytest.approx(again_s)
    assert step.backward_s - plain.backward_s == pytest.approx(again_s)
    assert (step.forward_s, step.optimizer_s) == (plain.forward_s, plain.optimizer_s)
    assert step.low_s - plain.low_s == pytest.approx(again_s)


def test_gradients_are_ready_later_but_for_the_last_ones():
    """Backward passes of 2 become 3, but the last block's::

    without   | 4 4 | 3 3 | 2 2 | 1 1 |           of 8
    with      | 4 4 | f 3 3 | f 2 2 | f 1 1 |     of 11
    """
    ready = {tensor.block: tensor.ready_fraction for tensor in AGAIN.tensors}
    assert ready == pytest.approx({3: 2 / 11, 2: 5 / 11, 1: 8 / 11, 0: 1.0})


def test_a_gradient_within_a_block_keeps_its_distance_to_the_block_s_end():
    early = {"name": "w", "block": 2, "bytes": 4, "ready_fraction": 3 / 8}  # half of its pass
    (tensor,) = RecomputedWorkload(make.workload(tensors=[early])).tensors
    assert tensor.ready_fraction == pytest.approx(4 / 11)


def test_one_block_s_activations_exist_at_a_time():
    """Inputs of all blocks, and what the block saves that goes backward."""
    weights = [block.parameter_bytes for block in PLAIN.blocks]
    inputs = 100 + 1000 + 1000
    last = 3000 + 1000 + 1000
    first = 100 + 3000 + 100 + 1000
    expected = max(SAMPLES * (inputs + last) + weights[-1], SAMPLES * first + sum(weights))
    assert backward_peak_bytes(AGAIN.blocks, SAMPLES) == expected
    assert backward_peak_bytes(AGAIN.blocks, 10**6) < backward_peak_bytes(PLAIN.blocks, 10**6)


def test_work_space_is_what_a_step_without_took_beside_its_tensors():
    plan = make_plan(Cell("mnist", "vgg11", "ddp", 16, devices_per_node=2))
    steps = [{**make.step(size, 0.1), "peak_bytes": 10**9} for size in make.BATCHES]
    measured = make.workload(device_kind="cuda", steps=steps)
    again = RecomputedWorkload(measured)
    saved = [backward_peak_bytes(workload.blocks, SAMPLES) for workload in (measured, again)]
    less = memory_bytes(measured, plan)[0] - memory_bytes(again, plan)[0]
    assert less == pytest.approx(saved[0] - saved[1], abs=1)


def test_a_stage_holds_less_in_flight():
    profile = Profile.from_dict(make.profile())
    for recompute in (False, True):
        options = (("balance", "2+2"), ("chunks", 8), ("recompute", recompute))
        plan = make_plan(
            Cell("mnist", "vgg11", "pipe-gpipe", 64, devices_per_node=2, options=options)
        )
        pipeline = plan.strategy.pipeline_of(plan)
        first, _ = held_bytes(plan, pipeline, profile)
        kept = 2 * 3000 if not recompute else 100 + 1000
        assert first == 2 * 30 * make.MB + 64 * kept


def test_a_cut_by_times_counts_the_second_forward_pass(monkeypatch):
    profile = Profile.from_dict(make.profile())
    monkeypatch.setattr(pipeline_stages, "_profile", lambda *_: profile)
    options = (("balance", "profile"), ("recompute", True))
    cell = Cell("mnist", "vgg11", "pipe-1f1b", 32, devices_per_node=2, options=options)
    chain = pipeline_stages.measured_chain(cell, "local", SAMPLES)
    assert [node.time_s for node in chain.nodes] == pytest.approx([0.032, 0.032, 0.032, 0.024])
    assert [node.saved_bytes for node in chain.nodes] == [800, 8000, 8000, 24000]
