"""Pipelines replayed: schedules, links and all-reduces worked by hand.

The made-up profile has four blocks of 1 ms forward and 2 ms backward a sample, 1000 bytes behind
each; here steps load nothing and update in no time, unless a test says otherwise.
"""

from __future__ import annotations

import json
from pathlib import Path

import predict_factory as make
import pytest
from predict_results import row, write_ok

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.paths import plan_file, profile_file
from ddlbench.experiment.result import InputDigests
from ddlbench.planning.plan import Plan
from ddlbench.planning.planner import make_plan
from ddlbench.planning.step import buckets
from ddlbench.planning.strategy import strategy_of
from ddlbench.planning.workload import DEFAULT_BUCKET_BYTES, Workload, backward_shares
from ddlbench.predict.evaluate import predictions
from ddlbench.predict.inputs import Inputs
from ddlbench.predict.links import LinkTable
from ddlbench.predict.prediction import (
    Measured,
    NotPredictable,
    Prediction,
    ask,
    predictor_of,
)
from ddlbench.predict.predictors.pipeline_replay import as_profiled, stage_times
from ddlbench.report.measurements import CurrentPlans

NOTHING = {"load_s": 0.0, "optimizer_s": 0.0}
ALONE = [{"replicas": 1, "slowdown": 1.0, "interval": None}]
FREE = make.pair([0] * 4, bandwidth=1e18, latency_s=0.0)
BOTH = ("ddlbench", "pipeline-replay")


def workload(**changes) -> Workload:
    steps = [{**make.step(b, 0.1 + 0.01 * b), **NOTHING} for b in make.BATCHES]
    return make.workload(**{"steps": steps, "node_slowdown": ALONE, **changes})


def plan(strategy: str, geometry: str, batch_size: int, balance: str, **options) -> Plan:
    return make.plan(strategy, geometry, batch_size, options={"balance": balance, **options})


def prediction_of(
    pipeline: Plan,
    table: LinkTable | None = None,
    name: str = "pipeline-replay",
    work: Workload | None = None,
) -> Prediction:
    return ask(predictor_of(name), work or workload(), table or make.table(FREE), pipeline)


def recorded(folder: Path, ran: Plan, stages: dict[int, tuple[float, float]]) -> Measured:
    """A finished cell whose passes took so many milliseconds, forward and backward, by stage."""
    cell = ran.cell
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps(ran.to_dict()))
    events = [
        {"ph": "X", "name": f"{kind} {chunk}.{stage} 7", "tid": stage, "ts": 0, "dur": 1e3 * ms}
        for stage, times in stages.items()
        for kind, ms in zip(("forward", "backward"), times, strict=True)
        for chunk in range(2)
    ]
    others = [
        {"ph": "M", "name": "thread_name"},
        {"ph": "X", "name": "wait 7", "tid": 0, "ts": 0, "dur": 9},
    ]
    (folder / "trace.json").write_text(json.dumps({"traceEvents": others + events}))
    return Measured(cell, 1.0, folder / "steps.csv")


# Without messages --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strategy", "geometry", "options", "work_ms", "step_ms"),
    [
        # One block a stage, 8 samples: 8 + 16 ms. (m + p - 1) (tf + tb)
        ("pipe-gpipe", "1x4", {"chunks": 4}, 4 * 24, 7 * 24),
        ("pipe-1f1b", "1x4", {"chunks": 4}, 4 * 24, 7 * 24),
        # (m + (p - 1) / v) (tf + tb) of a device's two stages
        ("pipe-interleaved", "1x2", {"chunks": 4}, 4 * 48, 4 * 48 + 24),
        # The longest stage; the sum of all
        ("pipedream", "1x4", {}, 96, 96),
        ("model-parallel-p2p", "1x4", {}, 96, 4 * 96),
    ],
)
def test_equal_stages(strategy, geometry, options, work_ms, step_ms) -> None:
    actual = prediction_of(plan(strategy, geometry, 32, "1+1+1+1", **options))
    assert actual.step_s == pytest.approx(step_ms / 1e3)
    assert actual.compute_s == pytest.approx(work_ms / 1e3)
    assert actual.bubble_s == pytest.approx((step_ms - work_ms) / 1e3)
    assert actual.exposed_communication_s == pytest.approx(0, abs=1e-12)
    assert len(actual.memory_bytes) == (4 if geometry == "1x4" else 2)


def test_a_notice_waits_for_a_sender_that_computes() -> None:
    """GPipe on two equal stages: a receive is posted when the one before has been computed on.

    ::

        stage 0  | F0 | F1 | F2 | F3 |
        stage 1       | F0 |d| F1 |d| F2 |d| F3 |        and so backward
    """
    delay = {
        "operation": "p2p", "nodes": 1, "devices_per_node": 2, "ranks": 2, "message_bytes": 1024,
        "alone_s": 0.001, "after_s": 0.003, "transport": "gloo",
    }  # fmt: skip
    pipeline = plan("pipe-gpipe", "1x2", 32, "2+2", chunks=4)
    late = LinkTable(make.Links.from_dict({**make.links(FREE), "delays": [delay]}))
    added_s = [
        prediction_of(pipeline, late, name).step_s - prediction_of(pipeline, None, name).step_s
        for name in BOTH
    ]
    assert added_s == pytest.approx([2 * 3 * 0.002, 0.0])


@pytest.mark.parametrize(
    ("geometry", "balance", "replicas", "period_ms"),
    [
        ("1x3", "2+1+1", "1+1+1", 48),
        ("1x2", "3+1", "1+1", 72),
        ("1x3", "3+1", "2+1", 36),  # two take turns with the 72 ms of three blocks
        ("1x4", "3+1", "3+1", 24),
        ("1x1", "4", "1", 96),
    ],
)
def test_pipedreams_period_is_its_longest_stage(geometry, balance, replicas, period_ms) -> None:
    actual = prediction_of(plan("pipedream", geometry, 8, balance, replicas=replicas))
    assert actual.step_s == pytest.approx(period_ms / 1e3)
    ranks = int(geometry.removeprefix("1x"))
    assert actual.compute_s == pytest.approx(0.096 / ranks)


def test_replicas_that_are_not_in_step_leave_holes() -> None:
    """2-1-1 with equal loads reaches 2/3 of its bound, with one more in flight all of it."""
    per_block = [0.002, 0.001, 0.001]
    blocks = [
        make.block(n, 0, forward=make.timings(0, s / 3), backward=make.timings(0, s * 2 / 3))
        for n, s in enumerate(per_block)
    ]
    work = workload(parameters=(0, 0, 0), blocks=blocks)
    pipeline = plan("pipedream", "1x4", 8, "1+1+1", replicas="2+1+1")
    assert prediction_of(pipeline, work=work).step_s == pytest.approx(0.008 * 3 / 2)
    more = plan("pipedream", "1x4", 8, "1+1+1", replicas="2+1+1", extra_warmup=1)
    assert prediction_of(more, work=work).step_s == pytest.approx(0.008)


def test_loading_and_updates() -> None:
    """Rank 0 loads 21 ms before its first pass and updates a tenth of the weights in 2.1 ms."""
    pipeline = plan("pipe-gpipe", "1x4", 32, "1+1+1+1", chunks=4)
    actual = prediction_of(pipeline, work=make.workload(node_slowdown=ALONE))
    assert actual.step_s == pytest.approx(0.021 + 7 * 0.024 + 0.0021)
    assert actual.compute_s == pytest.approx((4 * 4 * 0.024 + 0.021 + 0.021) / 4)
    # In PipeDream's steady state only its longest stage counts: the last, with 40 % of the weights.
    flowing = prediction_of(
        plan("pipedream", "1x4", 32, "1+1+1+1"), work=make.workload(node_slowdown=ALONE)
    )
    assert flowing.step_s == pytest.approx(max(0.096 + 0.021 + 0.0021, 0.096 + 0.0084))


def test_devices_that_compute_at_a_time_slow_each_other_down() -> None:
    """GPipe of 4 and 4 works 4/7 of the time: 16/7 devices, between 1 (1.0) and 4 (1.6)."""
    pipeline = plan("pipe-gpipe", "1x4", 32, "1+1+1+1", chunks=4)
    slowed = workload(node_slowdown=[*ALONE, {"replicas": 4, "slowdown": 1.6, "interval": None}])
    factor = 1 + 0.6 * (16 / 7 - 1) / 3
    assert prediction_of(pipeline, work=slowed).step_s == pytest.approx(7 * 0.024 * factor)
    one_at_a_time = plan("model-parallel-p2p", "1x4", 32, "1+1+1+1")
    assert prediction_of(one_at_a_time, work=slowed).step_s == pytest.approx(0.384)
    across = make.plan("pipe-gpipe", "4x1", 32, options={"balance": "1+1+1+1", "chunks": 4})
    apart = make.table(make.pair([0, 1, 2, 3], bandwidth=1e18, latency_s=0.0))
    assert prediction_of(across, apart, work=slowed).step_s == pytest.approx(7 * 0.024)


# With messages -----------------------------------------------------------------------------------


def test_torchs_gpipe_hides_no_message() -> None:
    """Two stages, two micro-batches of 16: passes 32 and 64 ms, messages 1 + 8 ms.

    ::

        F of rank 1     41-73   83-115        m1 leaves at 74, when word of its receive is there
        B of rank 1            115-179 179-243
        B of rank 0                   188-252 262-326     g1 leaves at 253
    """
    links = make.table(make.pair([0, 0], bandwidth=16_000 / 0.008, latency_s=0.001))
    actual = prediction_of(plan("pipe-gpipe", "1x2", 32, "2+2", chunks=2), links)
    assert actual.step_s == pytest.approx(0.326)
    assert actual.compute_s == pytest.approx(0.192)
    assert actual.bubble_s == pytest.approx(0.096)
    assert actual.exposed_communication_s == pytest.approx(0.038)
    # Four messages of 9 ms, two of which wait 1 ms for word: all of it is exposed.
    assert actual.communication_s == pytest.approx(4 * 0.009 + 2 * 0.001)


def test_model_parallelism_crosses_every_cut_twice() -> None:
    links = make.table(make.pair([0, 0], bandwidth=8_000 / 0.001, latency_s=0.001))
    actual = prediction_of(plan("model-parallel-p2p", "1x2", 8, "2+2"), links)
    assert actual.step_s == pytest.approx(0.096 + 2 * 0.002)
    assert actual.communication_s == pytest.approx(0.004)


def test_a_slow_link_holds_a_full_pipeline_up() -> None:
    """Stages of 16 + 32 ms, messages of 60: there and back 216 ms, two mini-batches under way."""
    links = make.table(make.pair([0, 0], bandwidth=8_000 / 0.060, latency_s=0.0))
    actual = prediction_of(plan("pipedream", "1x2", 8, "2+2"), links)
    assert actual.step_s == pytest.approx(0.108)
    assert actual.exposed_communication_s == pytest.approx(0.108 - 0.048)
    quick = make.table(make.pair([0, 0], bandwidth=8_000 / 0.010, latency_s=0.0))
    assert prediction_of(plan("pipedream", "1x2", 8, "2+2"), quick).step_s == pytest.approx(
        0.116 / 2
    )
    deeper = plan("pipedream", "1x2", 8, "2+2", extra_warmup=1)  # one more hides all of it
    assert prediction_of(deeper, quick).step_s == pytest.approx(0.048)


def test_links_are_those_of_the_placement() -> None:
    """Ranks 0, 1 on node 0, 2 and 3 on node 1: the middle cut is between nodes."""
    links = make.table(
        make.pair([0, 0], bandwidth=1e18, latency_s=0.0),
        make.pair([0, 1], bandwidth=8_000 / 0.005, latency_s=0.0),
    )
    actual = prediction_of(plan("model-parallel-p2p", "2x2", 8, "1+1+1+1"), links)
    assert actual.step_s == pytest.approx(0.096 + 2 * 0.005)


@pytest.mark.parametrize(("when", "period_ms"), [("sync", (72 + 18) / 2), ("async", 72 / 2)])
def test_replicas_of_a_stage_wait_for_their_sum(when, period_ms) -> None:
    """Gradients of 10, 20 and 30 MB are three buckets of 6 ms; asynchronous, 72 ms hide them."""
    sweep = make.sweep(0.006, 1e18, 2)
    links = make.table(FREE, sweeps=(sweep,))
    pipeline = plan("pipedream", "1x3", 8, "3+1", replicas="2+1", stage_all_reduce=when)
    actual = prediction_of(pipeline, links)
    assert actual.step_s == pytest.approx(period_ms / 1e3)
    assert actual.communication_s == pytest.approx(0.018 / 2)


def test_replicas_of_a_synchronous_pipeline_sum_at_the_end() -> None:
    """Two pipelines of two stages, two micro-batches of 8 each: 3 * 48 ms, and the sums."""
    links = make.table(FREE, sweeps=(make.sweep(0.006, 1e18, 2),))
    actual = prediction_of(plan("pipe-gpipe", "1x4", 32, "2+2", chunks=2, replicas=2), links)
    # Rank 0 ends last. Gradients of 10 and 20 MB do not fit into one bucket, nor do 30 and 40.
    assert actual.step_s == pytest.approx(3 * 0.048 + 0.012)
    assert actual.communication_s == pytest.approx(0.012 + 0.012)


def test_replicas_sum_what_the_runtime_sends() -> None:
    """A tensor above the bucket's size is one message, as VGG's fc1 of 411 MB; small ones share."""
    fc1, few = 411_041_792, 1_000_000
    tensors = [
        {**tensor, "block": block, "bytes": size}
        for tensor, block, size in zip(
            2 * make.profile()["tensors"], (3, 2, 1, 1, 0, 0), (few, fc1, few, few, few, few),
            strict=False,
        )
    ]  # fmt: skip
    links = make.table(FREE, sweeps=(make.sweep(0.006, 1e18, 2),))
    pipeline = plan("pipedream", "1x3", 8, "3+1", replicas="2+1")
    actual = prediction_of(pipeline, links, work=workload(tensors=tensors))
    sent = buckets([few, few, few, few, fc1], DEFAULT_BUCKET_BYTES)  # as GradientSum
    assert [len(bucket) for bucket in sent] == [4, 1]
    assert actual.communication_s == pytest.approx(len(sent) * 0.006 / 2)


# Halves of the backward pass ---------------------------------------------------------------------


def _layer(kind: str, parameter_bytes: int, backward_s: float) -> dict[str, object]:
    times = [{"batch_size": 8, "time_s": backward_s, "interval_s": None}]
    return {"kind": kind, "parameter_bytes": parameter_bytes, "backward": times}


def test_halves_of_a_backward_pass_follow_from_its_layers() -> None:
    layers = [_layer("Conv2d", 100, 2.0), _layer("ReLU", 0, 1.0), _layer("BatchNorm2d", 8, 1.0)]
    assert backward_shares(layers) == {"input_share": 3 / 4, "weight_share": 2 / 4}
    untimed = {**_layer("ReLU", 0, 1.0), "backward": []}
    assert backward_shares([untimed]) == {"input_share": 0.5, "weight_share": 0.5}


def test_halves_that_were_timed_count() -> None:
    timed = {"input_half": make.timings(0.0, 0.0015), "weight_half": make.timings(0.0, 0.0007)}
    work = workload(blocks=[make.block(index, 0, **timed) for index in range(4)])
    pipeline = plan("pipe-zb", "1x2", 32, "1+1+1+1", chunks=4)
    times = stage_times(work, pipeline, 8, 32, as_profiled(work))
    assert times.passes_s["backward_input"] == pytest.approx((0, 0.012, 0.012, 0.012))
    assert times.passes_s["backward_weight"] == pytest.approx((0.016, 0.0056, 0.0056, 0.0056))
    assert not any("halves" in limit for limit in prediction_of(pipeline, work=work).limits)


@pytest.mark.parametrize("strategy", ["pipe-zb", "pipe-zbv"])
def test_zero_bubble_schedules_fill_with_weight_gradients(strategy) -> None:
    pipeline = plan(strategy, "1x2", 32, "1+1+1+1", chunks=4)
    work = workload()
    times = stage_times(work, pipeline, 8, 32, as_profiled(work))
    assert times.passes_s["backward_input"] == pytest.approx((0, 0.008, 0.008, 0.008))
    assert times.passes_s["backward_weight"] == pytest.approx((0.016, 0.008, 0.008, 0.008))
    actual = prediction_of(pipeline)
    assert actual.compute_s == pytest.approx(4 * 2 * 0.024)
    interleaved = prediction_of(plan("pipe-interleaved", "1x2", 32, "1+1+1+1", chunks=4))
    assert actual.compute_s <= actual.step_s * (1 + 1e-9)
    assert actual.step_s < interleaved.step_s
    assert any("halves" in limit for limit in actual.limits)


# Recorded passes ---------------------------------------------------------------------------------

# Stages of two blocks, 16 samples in two micro-batches: 16 and 32 ms in the profile.
RECORDED = {0: (32.0, 32.0), 1: (16.0, 64.0)}


def test_recorded_passes_serve_other_schedules_and_cuts(tmp_path) -> None:
    ran = recorded(tmp_path / "a", plan("pipe-gpipe", "1x2", 16, "2+2", chunks=2), RECORDED)
    pipeline = plan("pipe-1f1b", "1x2", 16, "1+3", chunks=2)
    work = workload(node_slowdown=[*ALONE, {"replicas": 2, "slowdown": 3.0, "interval": None}])
    actual = ask(predictor_of("pipeline-recorded"), work, make.table(FREE), pipeline, (ran,))
    # Of 8 samples: stage 0 has one block of 2 x 8 and 1 x 16 ms, stage 1 one like it and two of
    # 1 x 8 and 2 x 16 ms: F 16, B 16; F 32, B 80. Replicas slow nothing further.
    assert actual.compute_s == pytest.approx(2 * (32 + 112) / 2 / 1e3)
    assert actual.notes == (f"passes as recorded in {ran.cell.id}",)


def test_halves_of_a_recorded_backward_pass_add_up(tmp_path) -> None:
    ran = recorded(tmp_path / "a", plan("pipe-zb", "1x2", 16, "1+1+1+1", chunks=2), {})
    halves = {"forward": 8.0, "backward_input": 6.0, "backward_weight": 26.0}
    events = [
        {"ph": "X", "name": f"{kind} 0.{stage} 7", "tid": 0, "ts": 0, "dur": 1e3 * ms}
        for stage in range(4)
        for kind, ms in halves.items()
    ]
    (tmp_path / "a" / "trace.json").write_text(json.dumps({"traceEvents": events}))
    pipeline = plan("pipe-1f1b", "1x2", 16, "2+2", chunks=2)
    actual = ask(predictor_of("pipeline-recorded"), workload(), make.table(FREE), pipeline, (ran,))
    assert actual.compute_s == pytest.approx(2 * 2 * (8 + 32) / 1e3)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: (folder / "trace.json").unlink(),
        lambda folder: (folder / "plan.json").unlink(),
        lambda folder: (folder / "trace.json").write_text('{"traceEvents": [3]}'),
        lambda folder: (folder / "trace.json").write_text("{"),
    ],
)
def test_without_a_readable_record_there_is_no_prediction(tmp_path, spoil) -> None:
    ran = recorded(tmp_path / "a", plan("pipe-gpipe", "1x2", 16, "2+2", chunks=2), RECORDED)
    spoil(tmp_path / "a")
    pipeline = plan("pipe-1f1b", "1x2", 16, "2+2", chunks=2)
    with pytest.raises(NotPredictable, match="needs a run of another pipeline of vgg11 at 1x2"):
        ask(predictor_of("pipeline-recorded"), workload(), make.table(FREE), pipeline, (ran,))


def test_a_cells_own_record_is_not_asked(tmp_path) -> None:
    pipeline = plan("pipe-gpipe", "1x2", 16, "2+2", chunks=2)
    ran = recorded(tmp_path / "a", pipeline, RECORDED)
    elsewhere = recorded(tmp_path / "b", plan("pipe-1f1b", "2x1", 16, "2+2", chunks=2), RECORDED)
    with pytest.raises(NotPredictable, match="none is measured"):
        predictor = predictor_of("pipeline-recorded")
        ask(predictor, workload(), make.table(FREE), pipeline, (ran, elsewhere))


# The partitioner's own word ----------------------------------------------------------------------


def test_of_a_measured_plan_it_is_what_the_partitioner_promised(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    links = make.links(make.pair([0] * 4, bandwidth=1e8))
    make.write_site(tmp_path / "results", make.profile(), links)
    pipeline = make_plan(make.cell("pipedream", "1x4", 16, options={"balance": "profile"}), "local")
    inputs = Inputs("local")
    actual = ask(
        predictor_of("pipeline-period"),
        inputs.workload(pipeline.cell),
        inputs.links(pipeline.cell),
        pipeline,
    )
    assert actual.step_s == pipeline.details["planned_period_s"]
    assert actual.memory_bytes


def test_periods_by_hand() -> None:
    """Blocks of 24 ms and 8 kB; 1 kB/ms: a cut costs 16 ms, 60 MB of weights far more."""
    links = make.table(make.pair([0] * 4, bandwidth=1e6))
    straight = plan("pipedream", "1x4", 8, "1+1+1+1")
    for name in ("pipeline-period", "pipeline-period-paper"):
        actual = prediction_of(straight, links, name)
        assert actual.step_s == pytest.approx(0.024)
        assert actual.communication_s == pytest.approx(3 * 0.016)
        assert actual.exposed_communication_s == 0
    replicated = plan("pipedream", "1x3", 8, "3+1", replicas="2+1")
    released = prediction_of(replicated, links, "pipeline-period")
    assert released.step_s == pytest.approx((0.072 + 4 * 60 / 2) / 2)
    assert prediction_of(replicated, links, "pipeline-period-paper").step_s == pytest.approx(
        2 * 60 / 2
    )
    assert released.bubble_s == pytest.approx(0.036 - 0.032)


def test_between_nodes_the_partitioner_has_the_links_of_the_network() -> None:
    links = make.table(make.pair([0, 0], bandwidth=1e9), make.pair([0, 1], bandwidth=1e5))
    actual = prediction_of(plan("pipedream", "2x2", 8, "1+1+1+1"), links, "pipeline-period")
    assert actual.step_s == pytest.approx(2 * 0.08)


# Who is asked, and what for ----------------------------------------------------------------------


def test_a_profile_of_other_blocks_is_refused() -> None:
    pipeline = plan("pipe-gpipe", "1x2", 32, "3+3", chunks=2)
    with pytest.raises(ConfigError, match="has 4 blocks, the plan cuts 6: profile the network"):
        prediction_of(pipeline)
    with pytest.raises(NotPredictable, match="not of gpipe"):
        prediction_of(make.plan("gpipe", "1x2"))


def test_one_device_needs_no_links() -> None:
    pipeline = plan("pipe-gpipe", "1x1", 32, "4", chunks=4)
    actual = ask(predictor_of("pipeline-replay"), workload(), None, pipeline)
    assert actual.step_s == pytest.approx(4 * 4 * 0.024)
    with pytest.raises(NotPredictable, match="needs the links"):
        ask(predictor_of("pipeline-replay"), workload(), None, plan("pipedream", "1x2", 8, "2+2"))


def test_cells_of_one_shape_share_their_events() -> None:
    strategy = strategy_of("pipe-1f1b")
    first = strategy.pipeline_run(plan("pipe-1f1b", "1x2", 32, "2+2", chunks=4))
    second = strategy.pipeline_run(plan("pipe-1f1b", "2x1", 64, "3+1", chunks=4))
    assert first.real_of(1) is second.real_of(1)


def test_what_ran_is_predicted_by_the_plan_that_it_ran_with(tmp_path, monkeypatch) -> None:
    """Through the table, from files: plan.json of a cell counts, not what would be planned now."""
    monkeypatch.chdir(tmp_path)
    make.write_site(tmp_path / "results", make.profile(node_slowdown=ALONE), make.links(FREE))
    cells = [
        make.cell("pipedream", "1x2", 8, options={"balance": "2+2"}),
        make.cell("pipedream", "1x2", 16, options={"balance": "profile", "replicas": "1+1"}),
        make.cell("gpipe", "1x2", 8, options={"balance": "profile", "chunks": 1}),
    ]
    write_ok(tmp_path / "results", cells[0], 0.05)
    other = make.plan("pipedream", "1x2", 8, options={"balance": "3+1"})
    ran = {**make_plan(cells[0]).to_dict(), "details": other.details}
    plan_file("local", cells[0].id).write_text(json.dumps(ran))
    frame = predictions([row(cell) for cell in cells], make.site())
    replayed = frame[frame["predictor"] == "pipeline-replay"].set_index("cell_id")
    assert len(replayed) == 2
    # Three blocks of 8 samples, loading 9 ms and updating 60 % in 5.4 ms; two of 16.
    assert replayed["predicted_step_s"].tolist() == pytest.approx(
        [0.072 + 0.009 + 0.0054, 2 * 0.048 + 0.013 + 0.3 * 0.013]
    )
    assert replayed["signed_error"].iloc[0] == pytest.approx(0.0864 / 0.05 - 1)
    assert replayed["predicted_memory_bytes"].notna().all()
    gpipe = frame[(frame["strategy"] == "gpipe") & (frame["predictor"] == "thesis-6")]
    assert gpipe["predicted_step_s"].notna().all()


def test_a_result_of_stages_that_a_newer_profile_would_not_cut_is_stale(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cell = make.cell("gpipe", "1x2", 8, options={"balance": "profile", "chunks": 1})
    make.write_site(tmp_path / "results", make.profile(), None)
    root = tmp_path / "results"
    measured = InputDigests(
        plan_digest=make_plan(cell, "local").digest,
        dataset_digest=None,
        links_digest=None,
        profile_digest=None,
    )
    assert not CurrentPlans("local", root).differ_from(measured, cell)
    slow = [make.block(n, 0, forward=make.timings(0, 0.01 if n else 0.1)) for n in range(4)]
    make.write_site(tmp_path / "results", make.profile(blocks=slow), None)
    assert CurrentPlans("local", root).differ_from(measured, cell)
    profile_file("local", "mnist/vgg11/fp32-1t").unlink()
    assert not CurrentPlans("local", root).differ_from(measured, cell)  # nobody can tell


def test_no_part_of_a_prediction_lies_below_zero_by_rounding():
    """Steps of one device have no bubble, and 0.1 + 0.2 - 0.3 is not 0."""
    for milliseconds in range(1, 40):
        blocks = [
            make.block(index, 0, forward=make.timings(0.0, 1e-4 * milliseconds * (index + 1) / 3))
            for index in range(4)
        ]
        alone = prediction_of(plan("pipe-1f1b", "1x1", 32, "4"), work=workload(blocks=blocks))
        assert 0 <= alone.bubble_s < 1e-9 * alone.step_s


def test_a_part_that_is_wrong_stays_as_it_is():
    assert Prediction("any", 0.07, bubble_s=-0.01).bubble_s == -0.01
