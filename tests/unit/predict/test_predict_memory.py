"""Memory of simple networks, worked by hand."""

import predict_factory as make
import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.planning.memory import Room, memory_bytes, room_of

# Two blocks of 1000 and 500 bytes of weights; a sample keeps 30 and 40 bytes, 10 enter, 20 cross.
BLOCKS = [
    make.block(
        0,
        1000,
        buffer_bytes=8,
        input_bytes_per_sample=10,
        output_bytes_per_sample=20,
        saved_bytes_per_sample=30,
    ),
    make.block(
        1,
        500,
        input_bytes_per_sample=20,
        output_bytes_per_sample=5,
        saved_bytes_per_sample=40,
    ),
]
TENSORS = [
    {"name": "w1", "block": 1, "bytes": 500, "ready_fraction": 0.5},
    {"name": "w0", "block": 0, "bytes": 1000, "ready_fraction": 1.0},
]


def workload(**changes):
    return make.workload(blocks=BLOCKS, tensors=TENSORS, **changes)


def peak(strategy, geometry="1x1", batch_size=8, **changes):
    return memory_bytes(workload(), make.plan(strategy, geometry, batch_size, **changes))


def test_sequential_peaks_where_activations_and_gradients_together_are_most():
    # Weights and momentum 3000, buffers 8. At the last block: 8 (70 + 20 + 5) + 500 = 1260;
    # at the first: 8 (30 + 10 + 20) + 1500 = 1980.
    assert peak("sequential") == (3008 + 1980,)
    # With a large batch the activations win: 100 (70 + 25) + 500.
    assert peak("sequential", batch_size=100) == (3008 + 10_000,)


def test_plain_sgd_has_no_momentum():
    assert peak("sequential", momentum=0.0) == (1508 + 1980,)


@pytest.mark.parametrize(
    ("strategy", "options"),
    [("sequential", {}), ("ddp", {}), ("ddp", {"shard": "optimizer"}), ("fsdp", {}), ("hsdp", {}),
     ("horovod", {}), ("local-sgd", {})],
    ids=str,
)  # fmt: skip
def test_adamw_keeps_twice_what_momentum_takes(strategy, options):
    geometry = "1x1" if strategy == "sequential" else "1x2"
    plain, momentum, adamw = (
        peak(strategy, geometry, 16, options=options, **changes)
        for changes in ({"momentum": 0.0}, {}, {"optimizer": "adamw"})
    )
    assert [b - a for a, b in zip(momentum, adamw, strict=True)] == [
        b - a for a, b in zip(plain, momentum, strict=True)
    ]
    assert sum(adamw) > sum(momentum)


def test_fixed_memory_is_added():
    plan = make.plan("sequential", "1x1", 8)
    assert memory_bytes(workload(fixed_memory_bytes=7), plan) == (3008 + 1980 + 7,)


def peaks_at(*peaks):
    return [{**make.step(batch, 1.0), "peak_bytes": peak_bytes} for batch, peak_bytes in peaks]


@pytest.mark.parametrize(
    ("batch", "work_space"),
    [(8, 100), (4, 50), (12, 300), (16, 500), (20, 700), (2, 25)],
    ids=str,
)
def test_work_space_of_a_gpu_is_what_measured_peaks_exceed_the_tensors_by(batch, work_space):
    # Tensors at 8: 3008 + 1980; at 16: 3008 + max(16 * 95 + 500, 16 * 60 + 1500).
    steps = peaks_at((8, 4988 + 100), (16, 3008 + 2460 + 500))
    plan = make.plan("sequential", "1x1", batch)
    tensors = peak("sequential", batch_size=batch)[0]
    on_gpu = memory_bytes(workload(device_kind="cuda", steps=steps), plan)
    assert on_gpu == (tensors + work_space,)
    assert memory_bytes(workload(steps=steps), plan) == (tensors,)  # on a CPU


def test_no_peak_tells_of_no_work_space():
    steps = peaks_at((8, None), (16, 1))  # none, and one below the tensors
    plan = make.plan("sequential", "1x1", 8)
    assert memory_bytes(workload(device_kind="cuda", steps=steps), plan) == (4988,)


def test_ddp_holds_all_gradients_once_more_in_buckets():
    assert peak("ddp", "1x2", 16) == (3008 + 1980 + 1500,) * 2


def ddp(**options):
    return peak("ddp", "1x2", 16, options=options)


def test_a_sharded_optimiser_keeps_the_momentum_of_its_own_tensors():
    # Rank 0 updates the tensor of 1000 bytes, rank 1 that of 500.
    whole = 3008 + 1980 + 1500
    assert ddp(shard="optimizer") == (whole - 500, whole - 1000)
    plain = peak("ddp", "1x2", 16, options={"shard": "optimizer"}, momentum=0.0)
    assert plain == (whole - 1500,) * 2


def test_accumulation_keeps_activations_of_one_micro_batch_and_all_gradients():
    # 4 samples at once: 4 x 95 at the last block, and gradients of 1500 beside a new one of 500;
    # 4 x 60 at the first block, beside a new one of 1000. The inputs of the others wait: 4 x 10.
    assert ddp(accumulate=2) == (3008 + 40 + 240 + 1500 + 1000 + 1500,) * 2
    large = {"options": {"accumulate": 2}}
    assert peak("ddp", "1x2", 200, **large) == (3008 + 500 + 50 * 95 + 1500 + 500 + 1500,) * 2


def test_gradients_in_buckets_are_there_once():
    # Plain: at the first block 8 x 60 activations, 1500 of gradients and 1500 of buckets. Now
    # buckets of 1500 and a new gradient of 1000.
    assert ddp(bucket_view=True) == (3008 + 8 * 60 + 1500 + 1000,) * 2
    view = ddp(bucket_view=True, accumulate=2)
    assert ddp(accumulate=2)[0] - view[0] == 1500
    sharded = ddp(bucket_view=True, shard="optimizer")
    assert sharded == (3008 + 480 + 2500 - 500, 3008 + 480 + 2500 - 1000)


def test_fp16_gradients_are_copies_of_half_their_bytes():
    assert ddp(hook="fp16") == (3008 + 1980 + 1500 + 750,) * 2


def test_powersgd_keeps_what_it_has_not_sent_and_factors():
    shapes = {"w1": [5, 25], "w0": [10, 25]}
    tensors = [{**tensor, "shape": shapes[tensor["name"]]} for tensor in TENSORS]
    shaped = make.workload(blocks=BLOCKS, tensors=tensors)
    # Factors of rank one, 4 (5 + 25 + 10 + 25); twice a bucket of 1500 while it is under way.
    plan = make.plan("ddp", "1x2", 16, options={"hook": "powersgd"})
    assert memory_bytes(shaped, plan) == (3008 + 1980 + 1500 + 1500 + 260 + 3000,) * 2


def test_horovods_fusion_buffer_is_no_larger_than_its_threshold():
    assert peak("horovod", "1x2", 16) == (3008 + 1980 + 1500,) * 2
    assert (
        peak("horovod", "1x2", 16, options={"fusion_threshold_bytes": 100})
        == (3008 + 1980 + 100,) * 2
    )


def test_fsdp_shares_all_but_the_weights_of_one_block():
    # Shares of weights and momentum 2 x 750, buffers 8; 8 samples a rank. The worst moment is when
    # the first block's weights come back: 8 x 30 activations, 250 of gradients that are done, 500
    # that were given to be summed, and 500 given, 1000 received, 1000 copied out.
    gpus, kept = workload(device_kind="cuda"), {"reshard_after_forward": False}
    plan = make.plan("fsdp", "1x2", 16)
    assert memory_bytes(gpus, plan) == (1508 + 240 + 250 + 500 + 2500,) * 2
    # Kept, they are there already: its backward pass with 1000 of gradients is the worst.
    plan = make.plan("fsdp", "1x2", 16, options=kept)
    assert memory_bytes(gpus, plan) == (1508 + 1000 + 250 + 500 + 8 * 60 + 1000,) * 2
    # On CPUs it is their sum: 8 x 10 of input, 750 that are done then, 1000 three times.
    for options in ({}, kept):
        assert peak("fsdp", "1x2", 16, options=options) == (1508 + 80 + 750 + 3000,) * 2


def test_fsdp_keeps_a_share_of_the_gradients_of_earlier_micro_batches():
    # 4 samples at once, and 4 wait: 40 of input before, and 40 of input at the worst moment, when
    # the first block's gradient is there three times. Beside all shares of gradients, 750, is the
    # new one, 500.
    accumulated = peak("fsdp", "1x2", 16, options={"accumulate": 2})
    assert accumulated == (1508 + 40 + 40 + 750 + 500 + 3000,) * 2


def test_local_sgd_copies_its_weights_when_activations_are_gone():
    # Gradients 1500 and a copy of 1500 are more than the 1980 of the backward pass.
    assert peak("local-sgd", "1x2", 16) == (3008 + 3000,) * 2
    # The outer optimiser holds weights and momentum always, and a tensor while it updates it.
    outer = {"outer_optimizer": "nesterov"}
    assert peak("local-sgd", "1x2", 16, options=outer) == (3008 + 3000 + 1000 + 3000,) * 2
    # With a large batch the backward pass is the worst moment.
    assert peak("local-sgd", "1x2", 200, options=outer) == (3008 + 10_000 + 3000,) * 2


def pipeline(checkpoint, chunks=4, batch_size=8):
    options = {"checkpoint": checkpoint, "chunks": chunks, "balance": "1+1"}
    return peak("gpipe", "1x2", batch_size, options=options)


def test_gpipe_keeps_every_micro_batch_without_recomputation():
    # mb = 2. Device 0: persistent 2008; first backward 3 x 60 + [2 (30 + 30) + 1000];
    # second 2 x 60 + [2 (30 + 30) + 1000 + 1000], as gradients exist.
    # Device 1: persistent 1000; 3 x 80 + [2 (40 + 25) + 500]; 2 x 80 + [130 + 500 + 500].
    assert pipeline("never") == (2008 + 120 + 2120, 1000 + 160 + 1130)


def test_gpipe_recomputes_all_but_the_last_micro_batch():
    # The input of a partition waits instead: 20 and 40 bytes a micro-batch of 2; while one is
    # recomputed its input is still there.
    assert pipeline("except_last") == (2008 + 40 + 20 + 2120, 1000 + 80 + 40 + 1130)
    assert pipeline("always") == pipeline("except_last")


def test_gpipe_with_one_micro_batch_recomputes_nothing_unless_told():
    device0 = 2008 + 8 * 60 + 1000
    assert pipeline("except_last", chunks=1)[0] == device0
    assert pipeline("always", chunks=1)[0] == device0 + 8 * 10


def test_recomputation_saves_memory_where_activations_are_large():
    assert all(
        less < more
        for less, more in zip(
            pipeline("except_last", 8, 8000), pipeline("never", 8, 8000), strict=True
        )
    )


def test_model_parallel_is_one_micro_batch_of_a_partition():
    options = {"balance": "1+1"}
    assert peak("model-parallel", "1x2", 8, options=options) == (
        2008 + 8 * 60 + 1000,
        1000 + 8 * 65 + 500,
    )


def test_partitions_of_one_process_share_its_memory_on_cpu_only():
    cpu, gpu = workload(), workload(device_kind="cuda")

    def room(profile, strategy):
        return room_of(profile, make.plan(strategy, "1x2", 8), (30, 10), make.site(), 20)

    assert room(cpu, "gpipe") == Room(40, 20, True, 2)
    assert room(gpu, "gpipe") == Room(30, 20, False)
    assert room(cpu, "ddp") == Room(30, 20, False)


STAGED = {"network": "my.module:net", "options": {"balance": "1+1"}}


def test_model_parallel_over_processes_keeps_one_mini_batch():
    # Rank 0: 2000 + 8, and going backward 8 (30 + 10 + 20) + 1000.
    # Rank 1: 1000, and going backward 8 (40 + 20 + 5) + 500.
    assert peak("model-parallel-p2p", "1x2", 8, **STAGED) == (2008 + 1480, 1000 + 1020)


def test_pipedream_keeps_two_mini_batches_and_two_versions_on_its_first_stage():
    # One more mini-batch of 8 x 30 and one more version of 1000 than model parallelism.
    assert peak("pipedream", "1x2", 8, **STAGED) == (3488 + 240 + 1000, 2020)


def test_1f1b_keeps_as_many_micro_batches_as_stages_follow():
    options = {"balance": "1+1", "chunks": 4}
    actual = peak("pipe-1f1b", "1x2", 8, network="my.module:net", options=options)
    # Micro-batches of 2. Rank 0: 2008, one waiting 2 x 30, the gradient of the cut 4 x 2 x 20,
    # and a backward pass beside an earlier gradient: 2 (30 + 10 + 20) + 2 x 1000.
    # Rank 1: 1000, nothing waits, 4 x 2 x 20 arrive, 2 (40 + 20 + 5) + 2 x 500.
    assert actual == (2008 + 60 + 160 + 2120, 1000 + 160 + 1130)


def test_a_profile_of_another_network_is_refused():
    with pytest.raises(ConfigError, match="the profile has 2 blocks, the plan cuts 3"):
        peak("pipedream", "1x2", 8, network="my.module:net", options={"balance": "1+2"})


def test_uneven_shares_are_refused():
    with pytest.raises(ConfigError, match="a mini-batch of 9 does not divide over 2 workers"):
        peak("ddp", "1x2", 9)
