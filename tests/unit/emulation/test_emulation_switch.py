"""The model of the links, in hand-worked times: 8 Mbit/s is a byte a microsecond."""

import random

import pytest
from emulated_frames import payload_of, tcp
from scipy.stats import binomtest

from ddlbench.emulation.switch import Links, Switch, Switches

MS = 1e-3
HEADERS = 52
PACKET = tcp(bytes(1000 - HEADERS))  # 1000 bytes of IP: one millisecond


def links(**changes):
    values = {"delay_s": 10 * MS, "bits_per_s": 8e6, "loss": 0.0, "queue_bytes": 10_000}
    return Links(**{**values, "mtu": 1000, **changes})


def switch(nodes=3, numbers=None, **changes):
    draws = iter(numbers) if numbers is not None else None
    return Switch(range(nodes), links(**changes), (lambda: next(draws)) if draws else random.random)


def arrivals(model, until_s=10.0):
    """(time in ms, node, frame), as a relay that is always in time would see them."""
    frames, now_s = [], 0.0
    while (next_s := model.next_s()) is not None and next_s <= until_s:
        now_s = max(now_s, next_s)
        frames += [
            (arrival.due_s / MS, arrival.target, arrival.frame) for arrival in model.arrived(now_s)
        ]
    return frames


def times(model):
    return [at for at, _, _ in arrivals(model)]


def test_a_packet_takes_both_links_and_the_delay():
    model = switch()
    model.send(0, 1, PACKET, 0.0)
    assert arrivals(model) == [(pytest.approx(12.0), 1, PACKET)]
    assert model.next_s() is None


def test_packets_leave_one_after_the_other():
    model = switch()
    for _ in range(3):
        model.send(0, 1, PACKET, 0.0)
    assert times(model) == pytest.approx([12.0, 13.0, 14.0])


def test_both_directions_have_the_full_rate():
    model = switch()
    model.send(0, 1, PACKET, 0.0)
    model.send(1, 0, PACKET, 0.0)
    assert times(model) == pytest.approx([12.0, 12.0])


def test_a_receiver_has_one_link_for_all_senders():
    model = switch()
    model.send(0, 2, PACKET, 0.0)
    model.send(1, 2, PACKET, 0.0)
    assert times(model) == pytest.approx([12.0, 13.0])


def test_a_bundle_ends_when_its_last_packet_would():
    single, bundled = switch(), switch()
    for _ in range(4):
        single.send(0, 1, tcp(bytes(948)), 0.0)
    bundled.send(0, 1, tcp(bytes(4 * 948), packet_bytes=948), 0.0)
    # Four packets of 1 ms leave by 4 ms; the last one crosses the second link by 5 ms.
    assert times(single)[-1] == pytest.approx(15.0)
    assert times(bundled) == pytest.approx([15.0])


def test_bundles_of_two_senders_share_the_receiver_s_link():
    model = switch()
    for source in (0, 1):
        model.send(source, 2, tcp(bytes(4 * 948), packet_bytes=948), 0.0)
    assert times(model) == pytest.approx([15.0, 19.0])


def test_a_late_packet_of_another_does_not_wait_for_what_is_still_to_leave():
    model = switch()
    for _ in range(3):
        model.send(0, 2, PACKET, 0.0)  # at the switch at 1, 2 and 3 ms
    other = tcp(bytes([1]) * 948)
    model.send(1, 2, other, 0.5 * MS)  # at 1.5 ms: before the second of node 0
    actual = arrivals(model)
    assert [at for at, _, _ in actual] == pytest.approx([12.0, 13.0, 14.0, 15.0])
    assert [frame == other for _, _, frame in actual] == [False, True, False, False]


def test_no_rate_leaves_the_delay():
    model = switch(bits_per_s=None)
    for _ in range(3):
        model.send(0, 1, PACKET, 0.0)
    assert times(model) == pytest.approx([10.0] * 3)


def test_no_delay_is_due_at_once():
    model = switch(bits_per_s=None, delay_s=0.0)
    model.send(0, 1, PACKET, 1.0)
    assert [arrival.target for arrival in model.arrived(1.0)] == [1]


def test_frames_of_one_time_keep_their_order():
    model = switch(bits_per_s=None)
    frames = [tcp(bytes([index])) for index in range(20)]
    for frame in frames:
        model.send(0, 1, frame, 0.0)
    assert [frame for _, _, frame in arrivals(model)] == frames


def test_a_full_queue_drops_its_tail():
    model = switch(queue_bytes=3500)
    for _ in range(5):
        model.send(0, 1, PACKET, 0.0)
    assert len(arrivals(model)) == 3
    assert (model.dropped, model.passed, model.lost) == (2, 3, 0)


def test_a_full_queue_cuts_a_bundle():
    model = switch(queue_bytes=3500)
    payload = bytes(index % 251 for index in range(5 * 948))
    model.send(0, 1, tcp(payload, packet_bytes=948), 0.0)
    ((_, _, frame),) = arrivals(model)
    assert payload_of(frame, 52) == payload[: 3 * 948]
    assert model.dropped == 2


def test_a_receiver_s_queue_is_full_for_all_senders():
    model = switch(nodes=6, queue_bytes=3500)
    for source in range(5):
        model.send(source, 5, PACKET, 0.0)
    assert len(arrivals(model)) == 3
    assert model.dropped == 2


def test_loss_is_decided_for_each_packet():
    # Below the loss: lost. The second packet of the bundle is.
    model = switch(numbers=[0.9, 0.05, 0.5], loss=0.1)
    model.send(0, 1, tcp(bytes(3 * 948), packet_bytes=948), 0.0)
    actual = arrivals(model)
    assert [len(payload_of(frame, 52)) for _, _, frame in actual] == [948, 948]
    assert (model.lost, model.passed) == (1, 2)


@pytest.mark.parametrize("loss", [0.01, 0.1])
@pytest.mark.parametrize("packets", [1, 10])
def test_loss_has_the_rate_that_was_set(loss, packets):
    model = Switch(range(2), links(loss=loss, bits_per_s=None), random.Random(20).random)
    frame = tcp(bytes(packets * 948), packet_bytes=948)
    count = 50_000 // packets
    for _ in range(count):
        model.send(0, 1, frame, 0.0)
    arrivals(model)
    assert model.lost + model.passed == count * packets
    interval = binomtest(model.lost, count * packets).proportion_ci(0.999, method="exact")
    assert interval.low <= loss <= interval.high


def test_a_new_delay_holds_from_then_on():
    model = switch(bits_per_s=None)
    model.links = links(bits_per_s=None, delay_s=5 * MS)
    model.send(0, 1, PACKET, 0.0)
    assert times(model) == pytest.approx([5.0])


def switches(nodes=2, per_node=2, inside=None, **between):
    """Links of 1 ms a packet between nodes, and of ``inside``'s properties inside them."""
    inner = links(delay_s=1 * MS, bits_per_s=16e6) if inside is None else inside
    return Switches(nodes * per_node, per_node, links(**between), inner, random.random)


def test_devices_of_a_node_meet_over_their_own_links():
    model = switches()
    model.send(2, 3, PACKET, 0.0)
    # Half a millisecond on either link at 16 Mbit/s, and 1 ms of delay.
    assert arrivals(model) == [(pytest.approx(2.0), 3, PACKET)]


def test_each_device_sends_and_receives_inside_at_its_own_rate():
    model = switches(nodes=1, per_node=4)
    for source, target in ((0, 1), (1, 0), (2, 3), (3, 2)):
        model.send(source, target, PACKET, 0.0)
    assert times(model) == pytest.approx([2.0] * 4)
    for source in (1, 2, 3):  # but what three send to one device comes one after the other
        model.send(source, 0, PACKET, 1.0)
    assert times(model) == pytest.approx([1002.0, 1002.5, 1003.0])


def test_devices_of_a_node_share_its_link_to_other_nodes():
    model = switches()
    for source, target in ((0, 2), (1, 3)):  # from node 0 to node 1
        model.send(source, target, PACKET, 0.0)
    assert arrivals(model) == [
        (pytest.approx(12.0), 2, PACKET),
        (pytest.approx(13.0), 3, PACKET),
    ]
    model.send(0, 3, PACKET, 1.0)  # what both nodes' links carry the other way does not matter
    model.send(2, 1, PACKET, 1.0)
    assert times(model) == pytest.approx([1012.0, 1012.0])


def test_links_inside_and_between_do_not_slow_each_other():
    model = switches()
    model.send(0, 1, PACKET, 0.0)
    model.send(0, 2, PACKET, 0.0)
    assert sorted(times(model)) == pytest.approx([2.0, 12.0])


def test_packets_are_lost_between_nodes_only():
    model = switches(loss=1.0)
    model.send(0, 1, PACKET, 0.0)
    model.send(0, 2, PACKET, 0.0)
    assert [target for _, target, _ in arrivals(model)] == [1]
    assert model.counts() == {"packets": 1, "lost_on_purpose": 1, "dropped_by_queue": 0}
    model.reset_counts()
    assert set(model.counts().values()) == {0}


def test_without_links_inside_a_node_is_one_end():
    model = Switches(3, 1, links(), None, random.random)
    model.send(0, 2, PACKET, 0.0)
    model.send(1, 2, PACKET, 0.0)
    assert times(model) == pytest.approx([12.0, 13.0])


def test_a_bundle_that_is_long_for_the_slower_links_is_cut():
    long = tcp(bytes(range(79)) * 48, packet_bytes=948)
    cut, whole = switch(bundled_packets=2), switch()
    cut.send(0, 1, long, 0.0)
    whole.send(0, 1, long, 0.0)
    # The first two packets need not wait for the others; the last one is as late as ever.
    assert times(cut) == pytest.approx([13.0, 15.0])
    actual = arrivals(whole)
    assert [at for at, _, _ in actual] == pytest.approx([15.0])
    cut.send(0, 1, long, 0.0)
    assert b"".join(payload_of(frame, HEADERS) for _, _, frame in arrivals(cut)) == payload_of(
        long, HEADERS
    )
