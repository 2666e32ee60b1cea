"""What DeepSpeed is told, what its stages send and what they keep, without DeepSpeed."""

from __future__ import annotations

import predict_factory as make

from ddlbench.planning.memory import memory_bytes
from ddlbench.planning.strategy import strategy_of
from ddlbench.strategies.deepspeed.descriptor import kept_bytes
from ddlbench.strategies.deepspeed.executor import configuration

MB = make.MB
DEEPSPEED = strategy_of("deepspeed")


def plan_of(stage: int, **options):
    return make.plan("deepspeed", "1x4", 32, options={"stage": stage, **options})


def test_no_bucket_is_larger_than_the_network_and_nothing_is_clipped():
    told = configuration(plan_of(3), weights=1000)
    assert told["train_micro_batch_size_per_gpu"] == 8
    assert told["gradient_clipping"] == 0.0
    assert told["zero_optimization"]["stage"] == 3
    assert told["zero_optimization"]["reduce_bucket_size"] == 1000
    small = configuration(plan_of(2, bucket_bytes=400), weights=1000)
    assert small["zero_optimization"]["reduce_bucket_size"] == 100


def test_each_stage_sends_its_own():
    """Blocks have 10, 20, 30, 40 MB; the last one's gradient is ready first."""
    workload = make.workload()
    sizes = [tensor.bytes for tensor in workload.tensors]
    messages = {
        stage: DEEPSPEED.gradient_traffic(workload, plan_of(stage, bucket_bytes=50 * MB))
        for stage in (0, 1, 2)
    }
    assert messages[0].sizes == [sum(sizes)]
    assert sum(messages[1].sizes) == sum(messages[2].sizes) == sum(sizes)
    assert all(size <= 50 * MB for stage in (1, 2) for size in messages[stage].sizes)
    assert messages[1].sizes != messages[2].sizes  # filled from the other end
    assert messages[0].gathered_bytes == 0
    assert messages[1].gathered_bytes == messages[2].gathered_bytes == -(-sum(sizes) // 4)
    assert DEEPSPEED.gradient_traffic(workload, plan_of(3)) is None
    assert DEEPSPEED.sharded_traffic(workload, plan_of(2)) is None
    units = DEEPSPEED.sharded_traffic(workload, plan_of(3)).units
    assert [unit.gradient_bytes for unit in units] == [10 * MB, 20 * MB, 30 * MB, 40 * MB]
    assert all(unit.gathered_twice for unit in units)


def test_what_stays_from_step_to_step_is_that_of_zero():
    """Weights, momentum and the copy that is updated, of 400 bytes on 4 ranks."""
    assert [kept_bytes(400, 4, stage, 0.9) for stage in (0, 1, 2, 3)] == [800, 600, 600, 300]
    assert [kept_bytes(400, 4, stage, 0.0) for stage in (0, 1, 2, 3)] == [400, 500, 500, 200]


def test_what_is_shared_needs_less_where_buckets_are_small():
    workload = make.workload()
    peaks = [memory_bytes(workload, plan_of(stage, bucket_bytes=MB))[0] for stage in (0, 1, 2, 3)]
    assert peaks[0] > peaks[1] > max(peaks[2:])  # a large block is gathered whole in stage 3


def test_stages_are_those_of_zero():
    cells = [plan_of(stage).cell for stage in (0, 1, 2, 3)]
    assert [DEEPSPEED.zero_stage(cell) for cell in cells] == [0, 1, 2, 3]
