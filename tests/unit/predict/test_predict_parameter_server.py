"""Parameter servers, predicted: numbers worked by hand.

The profile has 100 MB of weights in tensors of 40, 30, 20 and 10 MB, ready after quarters of the
backward pass; a step of b samples takes 0.1 + 0.01 b s, 60 % of it backward, 5 % the optimiser.
Links carry 1e9 bytes/s after 1e-4 s. A process sends or receives its messages one by one.
"""

import predict_factory as make
import pytest
from predict_factory import MB

from ddlbench.planning.memory import memory_bytes
from ddlbench.predict.prediction import ask, predictor_of

L = 1e-4


def prediction_of(name, geometry, batch_size=32, *pairs, **options):
    plan = make.plan("parameter-server", geometry, batch_size, options=options)
    links = make.table(*pairs or [make.pair([0] * 8)])
    return ask(predictor_of(name), make.workload(), links, plan)


def test_in_step_all_workers_share_the_servers_links():
    actual = prediction_of("parameter-server", "1x3")  # two workers of 16 samples: 0.26 s
    assert actual.compute_s == pytest.approx(0.26)
    assert actual.exposed_communication_s == pytest.approx(2 * (2 * L + 0.2))
    assert actual.communication_s == pytest.approx(actual.exposed_communication_s)


def test_two_servers_halve_transfer_and_update():
    actual = prediction_of("parameter-server", "1x4", servers=2)
    assert actual.compute_s == pytest.approx(0.26 - 0.013 / 2)
    assert actual.exposed_communication_s == pytest.approx(2 * (2 * L + 0.1))
    # More servers than workers do not help: a worker's own link is full.
    more = prediction_of("parameter-server", "1x6", servers=4)
    assert more.exposed_communication_s == pytest.approx(2 * (4 * L + 0.1))


def test_each_worker_counts_with_its_own_hop():
    slow = make.pair([0, 0, 0], slow={(2, 0): 5e8})
    actual = prediction_of("parameter-server", "1x3", 32, slow)
    assert actual.exposed_communication_s == pytest.approx(2 * (2 * L + 0.1 + 0.2))
    between_workers = make.pair([0, 0, 0], slow={(1, 2): 5e8})
    actual = prediction_of("parameter-server", "1x3", 32, between_workers)
    assert actual.exposed_communication_s == pytest.approx(2 * (2 * L + 0.2))


@pytest.mark.parametrize("geometry", ["3x2", "2x4", "5x1"])
def test_places_that_no_matrix_tells_apart_count_like_each_of_them(geometry):
    measured = make.pair([0, 0, 1, 1], slow={(0, 2): 2e8, (3, 1): 4e8, (1, 0): 5e8})
    links, plan = (
        make.table(measured),
        make.plan("parameter-server", geometry, options={"servers": 2}),
    )
    places = [(process.node, process.devices[0]) for process in plan.processes]
    servers, workers = places[:2], places[2:]

    def seconds(first, second):
        ways = [links.hop("transport", *ends)[0] for ends in ((first, second), (second, first))]
        return 50 * MB / min(way.bandwidth_bytes_per_s for way in ways)

    busiest_s = max(
        *(sum(seconds(worker, server) for worker in workers) for server in servers),
        *(sum(seconds(worker, server) for server in servers) for worker in workers),
    )
    actual = prediction_of(
        "parameter-server", geometry, 32 if geometry != "5x1" else 33, measured, servers=2
    )
    messages = max(len(servers), len(workers))
    assert actual.exposed_communication_s == pytest.approx(2 * (messages * L + busiest_s))


def test_out_of_step_a_worker_has_the_links_alone_until_they_are_full():
    two = prediction_of("parameter-server", "1x3", mode="async")
    assert two.step_s == pytest.approx(0.26 + 2 * (L + 0.1))
    six = prediction_of("parameter-server", "1x7", 96, mode="async")
    assert six.step_s == pytest.approx(6 * (0.1 + L))
    assert six.communication_s >= six.exposed_communication_s


def test_messages_leave_while_backward_runs():
    actual = prediction_of("parameter-server-messages", "1x2", message_bytes=50 * MB)
    # t(32) = 0.42, backward 0.252, optimiser 0.021. Two messages, ready at halves of the pass:
    # pushed 0.176, 0.302; updated 0.1866, 0.3126; pulled 0.2366, 0.3626; back L later.
    waited_s = 0.3626 + L - 0.252
    assert actual.compute_s == pytest.approx(0.42)
    assert actual.exposed_communication_s == pytest.approx(waited_s - 0.021)
    assert actual.communication_s == pytest.approx(2 * (L + 0.1))
    whole = prediction_of("parameter-server-messages", "1x2", message_bytes=1000 * MB)
    closed = prediction_of("parameter-server", "1x2")
    assert whole.step_s == pytest.approx(closed.step_s)


def test_the_interval_is_that_of_the_workers_step():
    actual = prediction_of("parameter-server", "1x3")
    spread_s = 0.02 * 0.26
    assert actual.interval_s == pytest.approx((actual.step_s - spread_s, actual.step_s + spread_s))


def test_memory_of_servers_and_workers():
    blocks = [
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
    workload = make.workload(blocks=blocks, tensors=[], fixed_memory_bytes=7)
    plan = make.plan("parameter-server", "1x3", 16)
    # Server: weights, momentum and two buffers of 1500. Worker: 1508, and going backward at the
    # first block 8 (30 + 10 + 20) + 1500 gradients + 1000 that are not added yet.
    assert memory_bytes(workload, plan) == (6007, 4495, 4495)
    plain = make.plan("parameter-server", "1x3", 16, momentum=0.0)
    assert memory_bytes(workload, plain) == (4507, 4495, 4495)
    halves = make.plan("parameter-server", "1x4", 16, options={"servers": 2})
    assert memory_bytes(workload, halves) == (3007, 3007, 4495, 4495)
