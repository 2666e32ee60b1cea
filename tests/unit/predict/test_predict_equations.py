"""Every predictor against numbers worked by hand from its equation."""

import predict_factory as make
import pytest
from predict_factory import MB

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.registry import PREDICTORS
from ddlbench.experiment.site import shrunk_bytes
from ddlbench.planning.step import filled_buckets
from ddlbench.planning.strategy import strategy_of
from ddlbench.planning.workload import Tensor
from ddlbench.predict.prediction import (
    Measured,
    NotPredictable,
    ask,
    modelled_strategies,
    predictor_of,
)
from ddlbench.predict.predictors.baselines import _first_steps_s
from ddlbench.predict.predictors.published import communication_s, ring_all_reduce_s
from ddlbench.strategies.ddp.descriptor import DdpOptions
from ddlbench.strategies.horovod.descriptor import HorovodOptions
from ddlbench.strategies.parameter_server.descriptor import ParameterServerOptions

EMULATED = {"provenance": {"cpu_model": make.ACCELERATOR.remark}}
SLOW_RING = make.pair([0, 0, 0, 0], bandwidth=1e9, latency_s=1e-4, slow={(3, 0): 5e8})


def prediction_of(name, plan, links=None, history=(), **profile):
    return ask(predictor_of(name), make.workload(**profile), links, plan, history)


def test_sequential_is_the_profiles_own_step():
    actual = prediction_of("sequential", make.plan("sequential", "1x1", 32))
    assert actual.step_s == pytest.approx(0.42)
    assert actual.interval_s == pytest.approx((0.98 * 0.42, 1.02 * 0.42))
    assert actual.notes == ()


def test_sequential_at_another_batch_is_read_off_the_line_and_says_so():
    actual = prediction_of("sequential", make.plan("sequential", "1x1", 64))
    assert actual.step_s == pytest.approx(0.1 + 0.64)
    assert actual.interval_s is None
    assert "extrapolated from batch 8, 16, 32" in actual.notes[0]
    assert (
        "interpolated" in prediction_of("sequential", make.plan("sequential", "1x1", 24)).notes[0]
    )


@pytest.mark.parametrize("name", ["ddlbench-eq1", "thesis-5.1-p2p", "thesis-5.1-transport"])
def test_ddlbench_eq1_has_no_micro_batches(name):
    plan = make.plan("horovod", options={"accumulate": 2})
    with pytest.raises(NotPredictable, match="computes a share at once; write accumulate: 1"):
        prediction_of(name, plan, make.table(SLOW_RING))


def test_ddlbench_eq1():
    options = {"fusion_threshold_bytes": 64 * MB}
    actual = prediction_of(
        "ddlbench-eq1", make.plan("horovod", options=options), make.table(SLOW_RING)
    )
    # G = 100 MB > th; the hop from rank 3 to 0 is the slowest of the ring.
    exposed = 2 * 3 * (1e-4 + 64e6 / (4 * 5e8))
    assert actual.compute_s == pytest.approx(0.1 + 0.01 * 8)  # the baseline has one worker's batch
    assert actual.exposed_communication_s == pytest.approx(exposed)
    # Gradients of 40, 30, 20 and 10 MB stay whole: messages of 40 and of 60 MB.
    sent = 2 * 3 * sum(1e-4 + size / (4 * 5e8) for size in (40e6, 60e6))
    assert actual.communication_s == pytest.approx(sent)
    assert actual.step_s == pytest.approx(0.18 + exposed)


def test_horovod_never_splits_a_tensor():
    """fc1 of VGG-16 on ImageNet has 411 MB: one message, whatever the fusion threshold."""
    parameters = (9 * MB, 411 * MB, 67 * MB, 16 * MB)
    step = strategy_of("horovod").step(make.workload(parameters=parameters), make.plan("horovod"))
    assert step.fused == [(16 + 67) * MB, 411 * MB, 9 * MB]  # 128 MiB, last layers first


def test_eq1_sends_all_gradients_below_the_threshold_and_the_last_tensor_without_fusion():
    small = prediction_of(
        "ddlbench-eq1", make.plan("horovod"), make.table(), parameters=(2 * MB, 6 * MB)
    )
    assert small.exposed_communication_s == pytest.approx(6 * (1e-4 + 8e6 / 4e9))
    options = {"fusion_threshold_bytes": 0}
    unfused = prediction_of("ddlbench-eq1", make.plan("horovod", options=options), make.table())
    assert unfused.exposed_communication_s == pytest.approx(6 * (1e-4 + 10e6 / 4e9))


def test_thesis_5_1_takes_the_workers_batch_and_its_own_links():
    p2p = make.pair([0, 0, 0, 0], bandwidth=8e9, latency_s=0.0, method="device-copies")
    gloo = make.pair([0, 0, 0, 0], bandwidth=1e9, latency_s=0.0, method="gloo")
    table = make.table(gloo, p2p)
    ring = {"thesis-5.1-p2p": 6 * 100e6 / (4 * 8e9), "thesis-5.1-transport": 6 * 100e6 / (4 * 1e9)}
    for name, exposed in ring.items():
        actual = prediction_of(name, make.plan("horovod"), table)
        assert actual.compute_s == pytest.approx(0.1 + 0.01 * 8)  # t(B/W), not t(B)/W
        assert actual.exposed_communication_s == pytest.approx(exposed)


def test_ddlbench_eq2():
    actual = prediction_of("ddlbench-eq2", make.plan("gpipe", options={"chunks": 8}), make.table())
    # 3 cuts, there and back, of one micro-batch of 4 samples of 1000 bytes.
    exposed = 2 * 3 * (1e-4 + 4000 / 1e9)
    assert actual.exposed_communication_s == pytest.approx(exposed)
    assert actual.communication_s == pytest.approx(8 * exposed)
    assert actual.compute_s + actual.bubble_s == pytest.approx(0.42 * (4 + 8 - 1) / (4 * 8))
    assert any("on CPU" in limit for limit in actual.limits)


def test_model_parallelism_is_eq2_with_one_micro_batch():
    actual = prediction_of("model-parallel", make.plan("model-parallel"), make.table())
    assert actual.compute_s == pytest.approx(0.42)
    assert actual.bubble_s == 0
    assert actual.exposed_communication_s == pytest.approx(2 * 3 * (1e-4 + 32_000 / 1e9))


@pytest.mark.parametrize(
    ("chunks", "share"), [(12, 15 / 48), (20, 23 / 80), (28, 31 / 112), (30, 33 / 120)]
)
def test_eq_6_1_factors_of_the_thesis_table_6_1(chunks, share):
    batch = 16 * chunks
    plan = make.plan("gpipe", batch_size=batch, options={"chunks": chunks})
    actual = prediction_of("thesis-6", plan, make.table())
    sequential = chunks * (0.1 + 0.16)  # T_seq at the micro-batch size
    assert actual.compute_s + actual.bubble_s == pytest.approx(sequential * share)


def test_eq_6_2():
    # W = 4: fill 1 + 2, steady (12 - 2) 3, drain 3 + 3
    assert communication_s([1, 2, 3], 12) == 2 * (3 + 30 + 6)
    assert communication_s([3, 1, 2], 12) == 2 * (6 + 30 + (2 + 2))
    assert communication_s([5], 4) == 2 * 4 * 5
    assert communication_s([], 4) == 0
    assert communication_s([1, 1, 1], 1) == 2 * (2 + 0 + 2)  # steady never below zero


def test_eq_6_2_reads_cut_sizes_and_links():
    chain = make.pair([0, 0], bandwidth=1e6, latency_s=0.01)
    plan = make.plan("gpipe", "1x2", 32, options={"chunks": 4})
    actual = prediction_of("thesis-6", plan, make.table(chain))
    assert actual.exposed_communication_s == pytest.approx(2 * 4 * (0.01 + 8 * 1000 / 1e6))


def test_ddlbench_eq3_and_linear_are_a_share_of_the_sequential_step():
    linear = prediction_of("linear", make.plan("ddp"))
    assert linear.step_s == pytest.approx(0.42 / 4)
    plan = make.plan("ddp")
    eq3 = predictor_of("ddlbench-eq3").predict(make.workload(), None, plan, plan.cell)
    assert eq3.step_s == linear.step_s


def test_buckets_fill_in_the_order_of_readiness():
    tensors = [Tensor("a", 10, 0.2), Tensor("b", 20, 0.5), Tensor("c", 5, 0.7), Tensor("d", 1, 1.0)]

    def filled(first_bytes, cap_bytes):
        actual = filled_buckets(tensors, first_bytes, cap_bytes)
        return [(message.bytes, message.ready_fraction) for message in actual]

    assert filled(25, 25) == [(30, 0.5), (6, 1.0)]
    assert filled(1, 1) == [(10, 0.2), (20, 0.5), (5, 0.7), (1, 1.0)]
    assert filled(1000, 1000) == [(36, 1.0)]
    assert filled(5, 25) == [(10, 0.2), (25, 0.7), (1, 1.0)]  # a small first one


def test_only_the_default_has_a_small_first_bucket():
    whole = make.workload().shrunk
    given = make.plan("ddp", options={"bucket_cap_bytes": 2**20 + 1})
    assert DdpOptions.of(given).caps(whole) == (2**20 + 1, 2**20 + 1)
    default = DdpOptions.of(make.plan("ddp"))
    assert default.caps(whole) == (2**20, 25 * 2**20)
    assert make.plan("ddp").details["bucket_cap_bytes"] == 26_214_400  # in plans since ever


def test_ddp_by_ring_and_by_measured_all_reduce():
    plan = make.plan("ddp", options={"bucket_cap_bytes": 1000 * MB})  # one bucket, ready at the end
    table = make.table(make.pair([0] * 4, method="gloo"), sweeps=(make.sweep(0.01, 1e9, 4),))
    ring = prediction_of("ddp-buckets", plan, table)
    assert ring.compute_s == pytest.approx(0.18)
    assert ring.exposed_communication_s == pytest.approx(6 * (1e-4 + 100e6 / 4e9))
    swept = prediction_of("ddp-all-reduce", plan, table)
    assert swept.compute_s == pytest.approx(1.6 * 0.18)  # four silent replicas on a node
    assert swept.exposed_communication_s == pytest.approx(0.01 + 0.1)


def test_one_worker_communicates_nothing():
    for name, strategy in (("ddlbench-eq1", "horovod"), ("ddp-all-reduce", "ddp")):
        actual = prediction_of(name, make.plan(strategy, "1x1"), make.table(make.pair([0, 0])))
        assert actual.exposed_communication_s == actual.communication_s == 0
    assert ring_all_reduce_s([], 1e9) == 0


def history(*cells_and_steps):
    return tuple(Measured(cell, step_s) for cell, step_s in cells_and_steps)


def test_carry_forward_scales_the_smallest_size_by_samples_a_device():
    past = history(
        (make.cell("ddp", "1x2", 16), 0.3),
        (make.cell("ddp", "1x2", 16, repeat=1), 0.5),
        (make.cell("ddp", "1x3", 30), 9.0),
        (make.cell("gpipe", "1x2", 16), 7.0),
    )
    actual = prediction_of("carry-forward", make.plan("ddp", "1x4", 64), history=past)
    assert actual.step_s == pytest.approx(0.4 * (64 / 4) / (16 / 2))
    with pytest.raises(NotPredictable, match="no smaller ddp cell"):
        prediction_of("carry-forward", make.plan("ddp", "1x2", 64), history=past)


def test_hardware_extrapolation_goes_from_one_device_to_many():
    """Thesis, section 8.3: a sequential run, and an assumption on how the strategy scales."""
    past = history(
        (make.cell("sequential", "1x1", 32), 0.4),
        (make.cell("sequential", "1x1", 32, repeat=1), 0.6),
        (make.cell("sequential", "1x1", 8), 0.1),
        (make.cell("ddp", "1x2", 32), 9.0),
    )
    many = prediction_of("hardware-extrapolation", make.plan("ddp", "4x4", 128), history=past)
    assert many.step_s == pytest.approx(0.5 * (128 / 32) / 16)
    one_node = prediction_of("hardware-extrapolation", make.plan("ddp", "1x4", 32), history=past)
    assert one_node.step_s == pytest.approx(0.5 / 4)
    pipeline = make.plan("pipe-gpipe", "1x4", 32, options={"chunks": 4})
    actual = prediction_of("hardware-extrapolation", pipeline, history=past)
    assert actual.step_s == pytest.approx(0.5 / (4 * 4 / (4 + 3)))
    with pytest.raises(NotPredictable, match="sequential training of vgg11 on mnist is not"):
        prediction_of("hardware-extrapolation", make.plan("ddp", "1x4"))


def test_data_extrapolation_is_the_first_steps_of_repeat_0(tmp_path):
    steps = tmp_path / "steps.csv"
    rows = ["0,0,1,9.0,0,0", *(f"1,{n},0,{0.1 * n},0,0" for n in range(1, 30))]
    steps.write_text("epoch,step,warmup,step_s,load_s,loss\n" + "\n".join(rows) + "\n")
    plan = make.plan("ddp", repeat=2)
    past = (Measured(plan.cell.with_(repeat=0), 1.0, steps),)
    actual = prediction_of("data-extrapolation", plan, history=past)
    assert actual.step_s == pytest.approx(0.55)  # median of 0.1 .. 1.0
    with pytest.raises(NotPredictable):
        prediction_of("data-extrapolation", plan)


def measured_beside(cell, steps_file):
    """Every kind of cell from which a predictor without a model extrapolates."""
    cells = (
        cell.with_(strategy="sequential", nodes=1, devices_per_node=1, options=()),
        cell.with_(nodes=1, devices_per_node=1),
        cell,
    )
    return tuple(Measured(variant, 0.2, steps_file) for variant in cells)


@pytest.mark.parametrize("name", sorted(PREDICTORS))
def test_a_step_is_compute_and_bubble_and_exposed_communication(name, tmp_path):
    predictor = predictor_of(name)
    modelled = modelled_strategies(predictor) or ("ddp",)
    strategy = modelled[0]
    assert predictor.name == name
    assert predictor.source
    if "pipedream" in modelled:
        return
    steps = tmp_path / "steps.csv"
    steps.write_text("step_s,warmup\n" + "0.2,0\n" * 20)
    geometry = "1x1" if strategy == "sequential" else "1x4"
    table = make.table(sweeps=(make.sweep(1e-3, 1e9, 4),))
    plan = make.plan(strategy, geometry)
    work = strategy_of(strategy).device_work(plan.cell)
    alone = {"work": work, "count": 9, "step_s": 0.1, "interval_s": None, "messages": []}
    device = EMULATED if name == "torchgpipe-replay" else {}
    past = measured_beside(plan.cell, steps)
    made = {"alone": [alone] if work else [], **device}
    if name == "linear-pairs":
        made["layers"] = [{**layer, "kind": "Linear"} for layer in make.profile()["layers"]]
    actual = prediction_of(name, plan, table, past, **made)
    total = actual.compute_s + actual.bubble_s + actual.exposed_communication_s
    assert actual.step_s == pytest.approx(total)
    assert actual.communication_s >= actual.exposed_communication_s >= 0
    assert actual.step_s > 0
    assert actual.memory_bytes
    assert actual.limits, "a Prediction's limits say what its model leaves out"


def test_a_predictor_refuses_what_it_does_not_speak_of():
    with pytest.raises(NotPredictable, match="is of horovod, not of ddp"):
        prediction_of("ddlbench-eq1", make.plan("ddp"), make.table())
    with pytest.raises(NotPredictable, match="needs the links of this fabric"):
        prediction_of("ddlbench-eq1", make.plan("horovod"), None)
    with pytest.raises(ConfigError, match="unknown predictor 'eq1'"):
        predictor_of("eq1")
    with pytest.raises(ConfigError, match="is not a predictor"):
        predictor_of("ddlbench.experiment.cell:Cell")


def test_serial_hides_nothing():
    swept = make.sweep(0.01, 1e9, 4)
    links = make.table(sweeps=(swept, make.sweep(0.02, 5e8, 4, transport="horovod")))
    options = {"bucket_cap_bytes": 25 * 2**20}
    actual = prediction_of("ddp-serial", make.plan("ddp", options=options), links)
    alone = 1.6 * (0.1 + 0.01 * 8)
    assert actual.compute_s == pytest.approx(alone)
    sizes = [m.bytes for m in filled_buckets(make.workload().tensors, 2**20, 25 * 2**20)]
    assert actual.exposed_communication_s == pytest.approx(sum(0.01 + s / 1e9 for s in sizes))
    options = {"fusion_threshold_bytes": 64 * MB}
    actual = prediction_of("horovod-serial", make.plan("horovod", options=options), links)
    assert actual.step_s == pytest.approx(alone + 2 * 0.02 + 100e6 / 5e8)


def test_a_few_steps_of_rounds_are_whole_rounds(tmp_path):
    plan, steps = make.plan("local-sgd"), tmp_path / "steps.csv"
    rows = ["step_s,warmup", "9,1", *(f"{t},0" for t in [0.1, 0.1, 0.1, 0.9] * 5)]
    steps.write_text("\n".join(rows) + "\n")
    past = (Measured(plan.cell.with_(repeat=0), 1.0, steps),)
    actual = prediction_of("data-extrapolation", plan, history=past)
    assert actual.step_s == pytest.approx(0.3)
    assert actual.notes == ("first 12 steps of repeat 0",)


def test_averaged_weights_are_sent_once_a_round():
    links = make.table(sweeps=(make.sweep(0.01, 1e9, 4),))
    actual = prediction_of("averaged-weights", make.plan("local-sgd"), links)
    assert actual.compute_s == pytest.approx(1.6 * (0.1 + 0.01 * 8))
    # Buckets of at most 25 MiB in the order of the weights: 10, 20, 30, 40 MB.
    assert actual.exposed_communication_s == pytest.approx((4 * 0.01 + 0.1) / 4)
    often = make.plan("local-sgd", options={"average_every_steps": 1})
    assert prediction_of("averaged-weights", often, links).communication_s == pytest.approx(
        4 * 0.01 + 0.1
    )


@pytest.mark.parametrize(
    ("checkpoint", "recomputed"), [("never", 0), ("except_last", 3), ("always", 4)]
)
def test_torchgpipes_partitions_take_turns_on_cpu(checkpoint, recomputed):
    options = {"chunks": 4, "checkpoint": checkpoint}
    actual = prediction_of("torchgpipe-turns", make.plan("gpipe", "1x4", 32, options=options))
    whole, part = 0.1 + 0.32, 0.1 + 0.08  # a step of 32 samples, and of 8
    # Forward is 0.3 of a step, backward 0.6, loading and the update 0.1.
    expected = 0.1 * whole + 4 * 0.9 * part + recomputed * 0.3 * part
    assert actual.step_s == pytest.approx(expected)
    assert actual.bubble_s == actual.communication_s == 0
    assert actual.step_s > whole  # no speed-up, whatever the devices
    low, high = actual.interval_s
    assert (low, high) == pytest.approx((0.98 * expected, 1.02 * expected))


def test_turns_are_independent_of_devices_and_links_and_say_nothing_of_gpus():
    plans = [make.plan("gpipe", geometry, 32) for geometry in ("1x2", "1x4")]
    two, four = (prediction_of("torchgpipe-turns", plan) for plan in plans)
    assert two.step_s == four.step_s
    parallel = prediction_of("torchgpipe-turns", make.plan("model-parallel", "1x4", 32))
    assert parallel.step_s == pytest.approx(0.42)  # one micro-batch: the sequential step
    for other in ({"device_kind": "cuda"}, EMULATED):
        with pytest.raises(NotPredictable, match="on other devices compute at once"):
            prediction_of("torchgpipe-turns", plans[0], **other)


@pytest.mark.parametrize(("checkpoint", "again"), [("never", 0), ("except_last", 3), ("always", 4)])
def test_torchgpipes_partitions_compute_at_once_on_emulated_devices(checkpoint, again):
    options = {"chunks": 4, "checkpoint": checkpoint, "balance": "1+1+1+1"}
    prediction = prediction_of(
        "torchgpipe-replay", make.plan("gpipe", "1x4", 32, options=options), **EMULATED
    )
    whole, part = 0.1 + 0.32, 0.1 + 0.08  # a step of 32 samples, and of 8
    forward_s, backward_s = 0.3 * part / 4, 0.6 * part / 4  # of a partition, as all are alike
    # Fill and drain of 4 partitions. The first recomputes the last micro-batch while it waits,
    # each later one between two backward passes (torchgpipe_step).
    passes_s = (4 + 3) * (forward_s + backward_s)
    passes_s += again * forward_s
    assert prediction.step_s == pytest.approx(0.1 * whole + passes_s)
    assert prediction.compute_s == pytest.approx(
        0.1 * whole + 4 * (forward_s + backward_s) + again * forward_s
    )
    assert prediction.communication_s == 0
    low, high = prediction.interval_s
    assert (low, high) == pytest.approx((0.98 * prediction.step_s, 1.02 * prediction.step_s))


def test_model_parallelism_on_emulated_devices_is_one_device_after_the_other():
    prediction = prediction_of(
        "torchgpipe-replay", make.plan("model-parallel", "1x4", 32), **EMULATED
    )
    assert prediction.step_s == pytest.approx(0.42)
    assert prediction.bubble_s == pytest.approx(0.75 * 0.9 * 0.42)


def test_a_replay_of_partitions_says_nothing_of_cores_and_gpus():
    plan = make.plan("gpipe", "1x4", 32)
    for kind in ("cpu", "cuda"):
        with pytest.raises(NotPredictable, match="is of emulated accelerators"):
            prediction_of("torchgpipe-replay", plan, device_kind=kind)


@pytest.mark.parametrize("strategy", ["gpipe", "model-parallel"])
def test_ddlbench_knows_what_torchgpipe_runs_on(strategy):
    plan = make.plan(strategy, "1x4", 32)
    assert prediction_of("ddlbench", plan).step_s == prediction_of("torchgpipe-turns", plan).step_s
    emulated = prediction_of("ddlbench", plan, **EMULATED)
    assert emulated.step_s == prediction_of("torchgpipe-replay", plan, **EMULATED).step_s


def test_only_on_cores_does_the_thesis_equation_lack_that_partitions_take_turns():
    plan, links = make.plan("gpipe", "1x4", 32), make.table()
    for profile, lacks in (({}, True), (EMULATED, False)):
        limits = prediction_of("thesis-6", plan, links, **profile).limits
        assert any("one after the other" in limit for limit in limits) == lacks


def test_sizes_at_which_strategies_send_are_divided_as_the_profile_s_bytes_are():
    """As a rank of such a site divides them: ``Accelerator.shrunk``."""
    small = make.workload(shrink=20)
    assert small.bucket_bytes == small.shrunk(25 * 2**20) == shrunk_bytes(25 * 2**20, 20)
    horovod = make.plan("horovod", options={"fusion_threshold_bytes": 64 * 2**20})
    assert strategy_of("horovod").step(small, horovod).fusion_bytes == 3_355_443
    assert DdpOptions.of(make.plan("ddp")).caps(small.shrunk) == (52_429, 1_310_720)
    server = ParameterServerOptions.of(make.plan("parameter-server"))
    assert server.message_cap(small.shrunk) == 209_715
    assert server.message_cap(lambda size: 3) == 64
    none = make.plan("horovod", options={"fusion_threshold_bytes": 0})
    assert HorovodOptions.of(none).fusion_cap(small.shrunk) == 0


@pytest.mark.parametrize(
    "text", ["", "epoch,step\n0,1\n", "step_s,warmup\n0.1\n", "step_s,warmup\nx,0\n"]
)
def test_damaged_steps_predict_nothing(tmp_path, text):
    path = tmp_path / "steps.csv"
    path.write_text(text)
    try:
        assert _first_steps_s(path, 4) == []
    except NotPredictable as error:
        assert "steps.csv cannot be read" in str(error)
    assert _first_steps_s(tmp_path / "none.csv", 4) == []
