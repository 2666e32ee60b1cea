"""Steps of ranks that share the weights, worked by hand."""

import predict_factory as make
import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.predict.links import (
    ALL_GATHER,
    ALL_REDUCE,
    BROADCAST,
    REDUCE_SCATTER,
    carried_to,
    formula_times,
    given_hockney,
)
from ddlbench.predict.prediction import NotPredictable, predictor_of

MB = make.MB
# Gathers take 1 ms + 1 s a GB that a rank gives, reduce-scatters 2 ms + 0.5 s a GB.
SWEEPS = (
    make.sweep(1e-3, 1e9, 4, operation="all_gather"),
    make.sweep(2e-3, 2e9, 4, operation="reduce_scatter"),
)

COLLECTIVES = ("all_gather", "reduce_scatter")


def prediction_of(
    strategy="fsdp", kind="cpu", *, sweeps=SWEEPS, costs=(), delays=(), tensors=None, **options
):
    """A step of blocks with 10, 20, 30, 40 MB of weights on 4 ranks."""
    if kind == "cuda":
        sweeps = tuple({**sweep, "transport": "nccl"} for sweep in SWEEPS)
    values = make.links(make.pair([0, 0, 0, 0], method="gloo"), sweeps=sweeps)
    plan = make.plan(strategy, "1x4", 32, options=options)
    values |= {"tensor_costs": list(costs), "delays": list(delays)}
    links = make.LinkTable(make.Links.from_dict(values))
    workload = make.workload(device_kind=kind, **({"tensors": tensors} if tensors else {}))
    return predictor_of("sharded").predict(workload, links, plan, plan.cell, [])


def test_on_cpus_every_message_delays_the_step():
    # Gathers of 2.5, 5, 7.5, 10 MB; all but the last block's twice. Scatters of 10 to 40 MB.
    once_s = 4e-3 + 0.025
    twice_s = once_s + 3e-3 + 0.015
    scattered_s = 4 * 2e-3 + 0.05
    actual = prediction_of()
    assert actual.exposed_communication_s == pytest.approx(twice_s + scattered_s)
    assert actual.compute_s == pytest.approx(1.6 * 0.18)  # a sequential step of 8, four replicas
    kept = prediction_of(reshard_after_forward=False)
    assert kept.exposed_communication_s == pytest.approx(once_s + scattered_s)


def test_each_micro_batch_gathers_and_scatters():
    """Groups sum their shares of the gradients once a step, of a quarter of 100 MB each."""
    plain, actual = prediction_of(), prediction_of(accumulate=2)
    assert actual.communication_s == pytest.approx(2 * plain.communication_s)
    # Two sequential steps of 4 samples, of which one updates; four replicas.
    assert actual.compute_s == pytest.approx(1.6 * (2 - 0.05) * 0.14)
    on_gpus = prediction_of(kind="cuda", accumulate=2)
    assert on_gpus.communication_s == pytest.approx(2 * plain.communication_s)
    assert 0 < on_gpus.exposed_communication_s < actual.exposed_communication_s
    plan = make.plan("hsdp", "2x4", 32, options={"accumulate": 2})
    messages = plan.strategy.step(make.workload(), plan).messages
    sums = [message.bytes for message in messages if message.operation == "all_reduce"]
    assert sums == [10 * MB, 7.5 * MB, 5 * MB, 2.5 * MB]
    assert len([message for message in messages if message.operation == "reduce_scatter"]) == 8


def test_messages_of_fsdp_itself_are_preferred_and_hold_its_copies():
    swept = tuple(make.sweep(0.1, 1e9, 4, operation=name, transport="fsdp") for name in COLLECTIVES)
    plain, actual = prediction_of(), prediction_of(sweeps=(*SWEEPS, *swept))
    assert actual.communication_s == pytest.approx(7 * 0.1 + 0.04 + 4 * 0.1 + 0.1)
    assert actual.compute_s == plain.compute_s
    elsewhere = tuple({**sweep, "level": "network", "nodes": 2} for sweep in swept)
    assert prediction_of(sweeps=(*SWEEPS, *elsewhere)).communication_s == plain.communication_s


def test_each_further_tensor_of_a_block_costs_its_calls():
    shape = {"library": "fsdp", "nodes": 1, "devices_per_node": 4, "ranks": 4}
    costs = [
        {**shape, "operation": name, "tensor_s": seconds}
        for name, seconds in zip(COLLECTIVES, (0.001, 0.002), strict=True)
    ]
    tensors = [
        {"name": f"w{block}.{number}", "block": block, "bytes": 1, "ready_fraction": 1.0}
        for block, count in enumerate((1, 1, 4, 2))
        for number in range(count)
    ]
    dear, cheap = (prediction_of(costs=each, tensors=tensors) for each in (costs, ()))
    # Three further tensors are gathered twice; one, of the last block, once.
    added_s = 3 * (2 * 0.001 + 0.002) + 1 * (0.001 + 0.002)
    assert dear.exposed_communication_s - cheap.exposed_communication_s == pytest.approx(added_s)


def test_a_message_after_a_computation_takes_longer_on_cpus():
    shape = {"nodes": 1, "devices_per_node": 4, "ranks": 4, "message_bytes": 1, "transport": "gloo"}
    delays = [
        {**shape, "operation": name, "after_s": after_s}
        for name, after_s in zip(COLLECTIVES, (0.003, 0.0005), strict=True)
    ]
    late, early = prediction_of(delays=delays), prediction_of()
    # A gather takes 3 ms instead of 1 ms, seven times; a scatter is not shortened.
    assert late.exposed_communication_s - early.exposed_communication_s == pytest.approx(0.014)
    on_gpus = [prediction_of(kind="cuda", delays=each).communication_s for each in (delays, ())]
    assert on_gpus[0] == on_gpus[1]


def test_weights_in_half_the_bytes_are_gathered_in_half_of_them():
    actual = prediction_of(param_dtype="bf16")
    assert actual.communication_s == pytest.approx(7e-3 + 0.02 + 4 * 2e-3 + 0.05)


def test_on_gpus_messages_run_beside_computation():
    actual, serial = prediction_of(kind="cuda"), prediction_of()
    assert 0 < actual.exposed_communication_s < serial.exposed_communication_s
    assert actual.communication_s == pytest.approx(serial.communication_s)


def test_strategies_without_shares_are_refused():
    with pytest.raises(NotPredictable, match="ranks that share the weights; ddp"):
        prediction_of("ddp")


def test_what_was_not_swept_is_named():
    values = make.links(make.pair([0, 0, 0, 0], method="gloo"), sweeps=SWEEPS[:1])
    with pytest.raises(ConfigError, match="no reduce-scatter through gloo was swept within a node"):
        make.LinkTable(make.Links.from_dict(values)).collective(REDUCE_SCATTER, 1, 4, "gloo")


@pytest.mark.parametrize(
    ("operation", "seconds"),
    [
        (ALL_REDUCE, 6e-3 + 1.5e-3),
        (REDUCE_SCATTER, 3e-3 + 0.75e-3),
        (ALL_GATHER, 3e-3 + 3e-3),
        (BROADCAST, 2e-3 + 2e-3),
    ],
)
def test_the_formula_over_four_ranks(operation, seconds):
    times = formula_times(operation, 4, 1e-3, 1e9)
    assert times.time_s(MB) == pytest.approx(seconds)
    carried = carried_to(operation, formula_times(operation, 8, 1e-3, 1e9).fit, 8, 4)
    assert carried.time_s(MB) == pytest.approx(seconds)
    assert "carried from 8" in carried.notes[0]


def test_a_sweep_over_as_many_ranks_is_taken_as_it_is():
    assert carried_to(ALL_GATHER, given_hockney(1e-3, 1e9), 4, 4).notes == ()
