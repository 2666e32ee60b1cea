"""What DeepSpeed is told, what its stages send and what they keep, without DeepSpeed."""

from __future__ import annotations

import predict_factory as make

from ddlbench.planning.memory import memory_bytes
from ddlbench.planning.strategy import strategy_of
from ddlbench_deepspeed.descriptor import kept_bytes
from ddlbench_deepspeed.executor import configuration

MB = make.MB
DEEPSPEED = strategy_of("deepspeed")


def plan_of(stage: int, **options):
    return make.plan("deepspeed", "1x4", 32, options={"stage": stage, **options})


def test_no_bucket_is_larger_than_the_network_and_nothing_is_clipped():
    settings = configuration(plan_of(3), weights=1000)
    assert settings["train_micro_batch_size_per_gpu"] == 8
    assert settings["gradient_clipping"] == 0.0
    assert settings["zero_optimization"]["stage"] == 3
    assert settings["zero_optimization"]["reduce_bucket_size"] == 1000
    small = configuration(plan_of(2, bucket_bytes=400), weights=1000)
    assert small["zero_optimization"]["reduce_bucket_size"] == 100


def test_each_stage_sends_its_own():
    """Blocks have 10, 20, 30, 40 MB; the last one's gradient is ready first."""
    workload = make.workload()
    sizes = [tensor.bytes for tensor in workload.tensors]
    steps = {
        stage: DEEPSPEED.step(workload, plan_of(stage, bucket_bytes=50 * MB))
        for stage in (0, 1, 2, 3)
    }
    assert steps[0].fused == [sum(sizes)]
    assert sum(steps[1].fused) == sum(steps[2].fused) == sum(sizes)
    assert all(size <= 50 * MB for stage in (1, 2) for size in steps[stage].fused)
    assert steps[1].fused != steps[2].fused  # filled from the other end
    assert steps[0].others == []
    for stage in (1, 2):
        (gathered,) = steps[stage].others
        assert (gathered.operation, gathered.bytes) == ("all_gather", -(-sum(sizes) // 4))
    operations = [message.operation for message in steps[3].messages]
    assert operations.count("all_gather") == 8  # every block's weights twice
    scattered = [m.bytes for m in steps[3].messages if m.operation == "reduce_scatter"]
    assert scattered == [40 * MB, 30 * MB, 20 * MB, 10 * MB]


def test_what_stays_from_step_to_step_is_that_of_zero():
    """Weights, momentum and the copy that is updated, of 400 bytes on 4 ranks."""
    assert [kept_bytes(400, 4, stage, 1) for stage in (0, 1, 2, 3)] == [800, 600, 600, 300]
    assert [kept_bytes(400, 4, stage, 0) for stage in (0, 1, 2, 3)] == [400, 500, 500, 200]


def test_what_is_shared_needs_less_where_buckets_are_small():
    workload = make.workload()
    peaks = [memory_bytes(workload, plan_of(stage, bucket_bytes=MB))[0] for stage in (0, 1, 2, 3)]
    assert peaks[0] > peaks[1] > max(peaks[2:])  # a large block is gathered whole in stage 3


def test_stages_are_those_of_zero():
    cells = [plan_of(stage).cell for stage in (0, 1, 2, 3)]
    assert [DEEPSPEED.zero_stage(cell) for cell in cells] == [0, 1, 2, 3]
