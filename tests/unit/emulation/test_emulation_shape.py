"""Depth of queues and length of bundles."""

import pytest

from ddlbench.emulation.namespaces import burst_packets, netem_limit, queue_bytes
from ddlbench.experiment.fabric import LinkCondition


def condition(latency_s=0.1, rate=1e9, mtu=1500):
    return LinkCondition(latency_s, rate, 0.0, mtu=mtu)


def test_netem_counts_what_is_under_way():
    # 1 Gbit/s for 0.1 s are 12.5 MB: 8334 packets of 1500 bytes.
    assert netem_limit(condition()) == 1000 + 8334
    assert queue_bytes(condition()) == 1_500_000


@pytest.mark.parametrize("slow_down", [1, 4, 40])
def test_a_slowed_link_has_bundles_of_as_many_packets(slow_down):
    """So a byte costs as many frames, however slow the devices are."""
    fast = condition(rate=200e6)
    assert burst_packets(fast.slowed(slow_down)) == burst_packets(fast) == 8
    assert burst_packets(fast.slowed(4).shrunk(4)) == 2  # and a message has a quarter of them


@pytest.mark.parametrize(
    ("rate", "mtu", "packets"),
    [(1e9, 1500, 41), (500e6, 1500, 20), (1e6, 1500, 1), (1e9, 9000, 6), (None, 1500, 43)],
)
def test_a_bundle_is_half_a_millisecond_at_most(rate, mtu, packets):
    assert burst_packets(condition(rate=rate, mtu=mtu)) == packets
