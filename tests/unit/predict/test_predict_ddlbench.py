"""The one predictor: a backward pass with messages by hand, and one answer for every strategy."""

from __future__ import annotations

from dataclasses import replace

import predict_factory as make
import pytest

from ddlbench.experiment.links import LibraryBackground, LinkOverlap, MessageDelay, SweepPoint
from ddlbench.experiment.registry import SHIPPED_STRATEGIES
from ddlbench.planning.strategy import strategy_of
from ddlbench.predict.prediction import NotPredictable, ask, predictor_of

MB = make.MB
# Four silent replicas take 1.6 times as long: the backward pass of 8 samples is 1.6 * 0.108 s.
BACKWARD_S = 0.1728
BARE = make.sweep(0.01, 1e9, 4)


def table(*sweeps, hidden_share=None):
    links = make.table(sweeps=sweeps)
    if hidden_share is None:
        return links
    overlap = LinkOverlap(
        transport="gloo",
        nodes=1,
        devices_per_node=4,
        ranks=4,
        message_bytes=1,
        alone_s=1.0,
        compute_s=1.0,
        both_s=2.0 - hidden_share,
        hidden_share=hidden_share,
    )
    return replace(links, links=replace(links.links, overlaps=(overlap,)))


def predicted(strategy, links, geometry="1x4", **changes):
    plan = make.plan(strategy, geometry, **changes)
    return ask(predictor_of("ddlbench"), make.workload(), links, plan)


@pytest.mark.parametrize(
    ("hidden_share", "exposed_s"),
    [
        # Buckets of 40, 30 and 30 MB, ready after 1/4, 1/2 and all of the pass.
        (1.0, 0.04),  # only the last one, which nothing can hide
        (0.0, 0.05 + 0.04 + 0.04),  # all of them
        # The first delays the pass by 0.025, the second by 0.02, and the last follows.
        (0.5, 0.025 + 0.02 + 0.04),
    ],
)
def test_messages_hide_as_far_as_the_site_lets_them(hidden_share, exposed_s):
    actual = predicted("ddp", table(BARE, hidden_share=hidden_share))
    assert actual.compute_s == pytest.approx(1.6 * 0.18)
    assert actual.exposed_communication_s == pytest.approx(exposed_s)
    assert actual.communication_s == pytest.approx(0.13)


def test_a_message_waits_for_a_core_that_computes():
    """A short one takes 0.01 s in the sweep, and 0.012 s after a computation."""
    late = MessageDelay(
        operation="all_reduce", transport="gloo", nodes=1, devices_per_node=4, ranks=4,
        message_bytes=1, after_s=0.012,
    )  # fmt: skip
    links = table(BARE, hidden_share=1.0)
    delayed = replace(links, links=replace(links.links, delays=(late,)))
    actual = predicted("ddp", delayed)
    assert actual.exposed_communication_s == pytest.approx(0.04 + 0.002)  # of the last message
    assert actual.communication_s == pytest.approx(0.13 + 3 * 0.002)


def with_processor_times(links, *points):
    """The links, whose all-reduces of so many bytes need so many seconds of the processor."""
    times = tuple(SweepPoint(size, 1.0, None, 6, cpu_s) for size, cpu_s in points)
    sweeps = tuple(replace(sweep, points=times) for sweep in links.links.sweeps)
    return replace(links, links=replace(links.links, sweeps=sweeps))


def test_a_message_takes_from_computation_what_it_needs_of_the_core():
    # The message of the overlap needs 0.5 s of the core and delays computation by as much.
    links = with_processor_times(table(BARE, hidden_share=0.5), (1, 0.5), (100 * MB, 0.5))
    contention = links.contention(1, 4, "gloo")
    assert contention.stolen_s(50 * MB, carried_s=2.0) == pytest.approx(0.5)
    assert contention.stolen_s(50 * MB, carried_s=0.1) == pytest.approx(0.1)  # no more than it all


def test_time_on_the_wire_delays_no_computation():
    # Buckets of 40, 30, 30 MB need 4, 3, 3 ms; what is beside computation delays it.
    busy = with_processor_times(table(BARE, hidden_share=0.0), (1, 1e-10), (100 * MB, 0.01))
    overlap = replace(busy.links.overlaps[0], alone_s=1e-10, compute_s=1e-10)
    links = replace(busy, links=replace(busy.links, overlaps=(overlap,)))
    actual = predicted("ddp", links)
    assert actual.exposed_communication_s == pytest.approx(0.004 + 0.003 + 0.04)


def test_an_idle_library_slows_computation_down():
    swept = make.sweep(0.01, 1e9, 4, transport="horovod")
    quiet = table(swept, hidden_share=1.0)
    idle = LibraryBackground(
        library="horovod", nodes=1, devices_per_node=4, ranks=4, alone_s=1.0, beside_s=1.25
    )
    busy = replace(quiet, links=replace(quiet.links, backgrounds=(idle,)))
    computes = [predicted("horovod", links).compute_s for links in (quiet, busy)]
    assert computes[1] == pytest.approx(1.25 * computes[0])


def test_what_an_idle_library_uses_anyway_is_no_messages_doing():
    swept = make.sweep(0.01, 1e9, 4, transport="horovod")
    idle = LibraryBackground(
        library="horovod", nodes=1, devices_per_node=4, ranks=4, alone_s=1.0, beside_s=1.25
    )
    # Messages take 1 s each; the small one uses 0.4 s of the core, the large one 0.7 s.
    links = with_processor_times(table(BARE, swept, hidden_share=0.0), (1, 0.4), (100 * MB, 0.7))
    beside = replace(links, links=replace(links.links, backgrounds=(idle,)))
    all_of_it = links.contention(1, 4, "horovod").stolen_s(100 * MB, 9.0)
    assert beside.contention(1, 4, "horovod").stolen_s(100 * MB, 9.0) == pytest.approx(
        all_of_it * 0.3 / 0.7
    )
    assert beside.contention(1, 4, "horovod").stolen_s(1, 9.0) == 0.0
    assert beside.contention(1, 4, "gloo") == links.contention(1, 4, "gloo")


def test_where_overlap_was_not_measured_a_cpu_hides_nothing():
    actual = predicted("ddp", table(BARE))
    assert actual.exposed_communication_s == pytest.approx(0.13)
    assert "overlap was not measured: nothing of a message is hidden" in actual.notes
    assert "copies of ddp were not measured; measure the links again" in actual.notes


def test_copies_of_the_reducer_are_never_hidden():
    whole = make.sweep(0.012, 5e8, 4, transport="ddp")
    copied_s = 0.042 + 0.032 + 0.032
    serial = predicted("ddp", table(BARE, whole, hidden_share=0.0))
    assert serial.exposed_communication_s == pytest.approx(0.13 + copied_s)
    hidden = predicted("ddp", table(BARE, whole, hidden_share=1.0))
    assert hidden.exposed_communication_s == pytest.approx(0.04 + copied_s)


def test_horovod_sends_what_is_ready_when_it_is_free():
    swept = make.sweep(0.01, 1e9, 4, transport="horovod")
    actual = predicted("horovod", table(swept, hidden_share=1.0))
    # 40, 30 and 20 MB one after the other behind the pass; 10 MB at its end.
    assert actual.exposed_communication_s == pytest.approx(0.02)


@pytest.mark.parametrize("hidden_share", [None, 0.0, 0.5, 1.0])
@pytest.mark.parametrize("latency_s", [1e-5, 0.01, 0.5, 5.0])
def test_hiding_takes_at_most_a_pass_and_a_message_longer(latency_s, hidden_share):
    """All 100 MB are one message after the pass; the pass runs at half speed, and one is sent."""
    swept = make.sweep(latency_s, 1e9, 4, transport="horovod")
    actual = predicted("horovod", table(BARE, swept, hidden_share=hidden_share))
    at_the_end_s, backward_s = latency_s + 0.1, 0.6 * actual.compute_s
    assert actual.exposed_communication_s <= (backward_s + 2 * at_the_end_s) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("buffer_mb", "sent_mb"), [(50, [40, 50, 10]), (10, [40, 30, 20, 10]), (200, [100])]
)
def test_a_fused_message_never_cuts_a_tensor(buffer_mb, sent_mb):
    plan = make.plan("horovod", options={"fusion_threshold_bytes": buffer_mb * MB})
    step = strategy_of("horovod").step(make.workload(), plan)  # tensors of 40, 30, 20 and 10 MB
    assert step.fused == [size * MB for size in sent_mb]


def test_replicas_never_make_each_other_faster():
    entry = {"replicas": 4, "slowdown": 0.9, "interval": None}
    workload = make.workload(node_slowdown=[entry])
    plan = make.plan("ddp")
    actual = ask(predictor_of("ddlbench"), workload, table(BARE, hidden_share=1.0), plan)
    assert actual.compute_s == pytest.approx(0.18)


def test_a_parameter_server_hides_as_much_as_the_site_lets_it():
    def exposed_s(name, hidden_share):
        plan = make.plan("parameter-server")
        links = table(BARE, hidden_share=hidden_share)
        return ask(predictor_of(name), make.workload(), links, plan).exposed_communication_s

    serial, messages = (
        exposed_s(name, 0.0) for name in ("parameter-server", "parameter-server-messages")
    )
    assert messages < serial
    # One server has three workers: two thirds of the time its link carries what is of others.
    for hidden_share in (0.0, 0.5, 1.0):
        expected_s = messages + (1 - hidden_share) * (serial - messages) / 3
        assert exposed_s("ddlbench", hidden_share) == pytest.approx(expected_s)


def test_blocks_give_the_shares_of_a_stage_and_whole_steps_the_level():
    workload = make.workload(node_slowdown=[])
    links = table(BARE, hidden_share=1.0)
    plan = make.plan("model-parallel-p2p", options={"balance": "1+1+1+1"})
    step = workload.step(32)
    actual = ask(predictor_of("ddlbench"), workload, links, plan)
    assert actual.compute_s == pytest.approx(step.step_s / 4)  # the work of all ranks, on average


@pytest.mark.parametrize(
    "strategy", [name for name in SHIPPED_STRATEGIES if name != "parameter-server"]
)
def test_every_strategy_has_an_answer_or_a_reason(strategy):
    sweeps = (BARE, make.sweep(0.01, 1e9, 4, transport="horovod"))
    descriptor = strategy_of(strategy)
    options = {"balance": "1+1+1+1"} if "balance" in descriptor.options.defaults() else {}
    if "group" in descriptor.options.defaults() and options:
        options["group"] = 1
    geometry = "1x2" if strategy in ("pipe-interleaved", "pipe-zb", "pipe-zbv") else "1x4"
    try:
        actual = predicted(strategy, table(*sweeps), geometry, options=options)
    except NotPredictable as error:
        assert descriptor.family == "split" or strategy == "data-tensor-pipe", error
    else:
        assert actual.predictor == "ddlbench"
        assert actual.step_s > 0


@pytest.mark.parametrize(
    ("strategy", "longer"), [("model-parallel-p2p", False), ("pipedream", True)]
)
def test_ends_of_messages_cost_time_where_nobody_waits_for_them(strategy, longer):
    """A rank that waits for a message has the time; one whose message came before has not."""
    sweep = make.sweep(0.001, 1e9, 2, operation="p2p")
    quiet = table(BARE, sweep, hidden_share=1.0)
    busy = with_processor_times(quiet, (1, 1e-6), (100 * MB, 1e-6))
    free, charged = (
        predicted(strategy, links, options={"balance": "1+1+1+1"}).step_s for links in (quiet, busy)
    )
    assert (charged > free * (1 + 1e-9)) == longer
    assert charged == pytest.approx(free, rel=1e-3)
