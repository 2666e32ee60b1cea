"""Steps of devices that compute each layer together, worked by hand."""

from __future__ import annotations

from typing import Any

import predict_factory as make
import pytest

from ddlbench.predict.prediction import DEFAULT_PREDICTOR, NotPredictable, predictor_of

MB = 1_000_000

# An all-reduce over two ranks takes 1 ms + 1 s a GB, an all-gather 2 ms + 2 s a GB; over two nodes
# an all-reduce takes 3 ms + 4 s a GB.
SWEEPS = (
    make.sweep(1e-3, 1e9, 2),
    make.sweep(2e-3, 0.5e9, 2, operation="all_gather"),
    make.sweep(3e-3, 0.25e9, 2, level="network", nodes=2, devices_per_node=1),
)


def message(operation: str, ranks: list[int], size: int, count: int) -> dict[str, Any]:
    return {"operation": operation, "ranks": ranks, "bytes": size, "count": count}


def alone(work: str, *messages: dict[str, Any], interval: Any = None) -> dict[str, Any]:
    """A device that takes 100 ms a step by itself."""
    return {
        "work": work,
        "count": 10,
        "step_s": 0.1,
        "interval_s": interval,
        "messages": list(messages),
    }


FILTER = alone(
    "filter group=2 replicas=1 samples=8",
    message("all_gather", [0, 1], MB, 3),
    message("all_reduce", [0, 1], 2 * MB, 2),
    interval=[0.09, 0.12],
)
ROWS = alone(
    "spatial group=4 replicas=1 samples=8 split=height until=head",
    message("swap", [0, 1, 2], MB, 5),
)
GROUPS = alone(
    "data-filter group=2 replicas=2 samples=8",
    message("all_gather", [0, 1], MB, 1),
    message("all_reduce", [1, 3], MB, 1),
)


def prediction_of(
    predictor: str,
    strategy: str,
    geometry: str,
    batch_size: int = 8,
    delays: Any = (),
) -> Any:
    slow = {(1, 2): 0.1e9, (2, 1): 0.1e9}
    values = make.links(
        make.pair([0, 0, 0, 0], 1e9, 1e-3, slow=slow, method="gloo"),
        make.pair([0, 0, 1, 1], 1e9, 1e-3, method="gloo"),
        sweeps=SWEEPS,
    )
    plan = make.plan(strategy, geometry, batch_size)
    links = make.LinkTable(make.Links.from_dict({**values, "delays": list(delays)}))
    workload = make.workload(alone=[FILTER, ROWS, GROUPS])
    return predictor_of(predictor).predict(workload, links, plan, plan.cell, [])


@pytest.mark.parametrize("predictor", ["split-layers", DEFAULT_PREDICTOR])
def test_a_device_alone_and_its_messages(predictor):
    actual = prediction_of(predictor, "filter", "1x2")
    sent_s = 3 * (0.002 + 0.002) + 2 * (0.001 + 0.002)
    slowdown = 1.2  # two replicas, between one (1) and four (1.6)
    assert actual.predictor == predictor
    assert actual.compute_s == pytest.approx(slowdown * 0.1)
    assert actual.exposed_communication_s == pytest.approx(sent_s)
    assert actual.interval_s == pytest.approx((0.09 * slowdown + sent_s, 0.12 * slowdown + sent_s))


def test_messages_wait_for_a_core():
    delay = {
        "operation": "all_reduce", "transport": "gloo", "nodes": 1, "devices_per_node": 2,
        "ranks": 2, "message_bytes": MB, "alone_s": None, "after_s": 0.005,
    }  # fmt: skip
    late, swept = (
        prediction_of("split-layers", "filter", "1x2", delays=each) for each in ([delay], ())
    )
    # An all-reduce of 1 MB takes 2 ms in a row, 5 ms after a computation: two of them, 3 ms each.
    assert late.communication_s - swept.communication_s == pytest.approx(2 * 0.003)


def test_rows_take_the_longest_hop_of_a_swap():
    actual = prediction_of("split-layers", "spatial", "1x4")
    assert actual.communication_s == pytest.approx(5 * (0.001 + 0.01))
    assert actual.compute_s == pytest.approx(1.6 * 0.1)
    assert actual.interval_s is None


def test_groups_share_the_link_between_nodes():
    actual = prediction_of("split-layers", "data-filter", "2x2", 16)
    within_s = 0.002 + 0.002
    over_s = 0.003 + 2 * 0.004  # two devices of each node send at once
    assert actual.communication_s == pytest.approx(within_s + over_s)


@pytest.mark.parametrize("predictor", ["split-layers", DEFAULT_PREDICTOR])
def test_a_profile_without_the_run_is_refused(predictor):
    with pytest.raises(NotPredictable, match="alone .*add channel"):
        prediction_of(predictor, "channel", "1x2")


def test_other_strategies_are_refused():
    with pytest.raises(NotPredictable, match="compute each layer together; ddp is not"):
        prediction_of("split-layers", "ddp", "1x2")
