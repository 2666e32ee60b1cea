"""How deep queues are, and how much may cross a link in one piece; the same for both backends."""

from __future__ import annotations

import math

from ddlbench.experiment.fabric import LinkCondition

__all__ = ["QUEUE_PACKETS", "burst_packets", "netem_limit", "queue_bytes"]

# netem's default. Packets beyond it are dropped at the tail.
QUEUE_PACKETS = 1000
# The kernel hands over TCP's packets in bundles. A bundle is shorter than this time on the link:
# it arrives whole, when its last packet would, so its first packets are late by up to so much.
_BURST_S = 0.0005
_LARGEST_BUNDLE_BYTES = 65_000


def queue_bytes(condition: LinkCondition) -> int:
    """What may wait for a link; packets that are under way are not in the queue."""
    return QUEUE_PACKETS * condition.mtu


def netem_limit(condition: LinkCondition) -> int:
    """The limit of netem counts packets that are under way too: the bandwidth-delay product."""
    rate = condition.bandwidth_bits_per_s
    if rate is None:
        # Nothing waits where no rate is set; what is under way is bound by TCP's buffers.
        return 1_000_000
    return QUEUE_PACKETS + math.ceil(rate * condition.latency_s / 8 / condition.mtu)


def burst_packets(condition: LinkCondition) -> int:
    """Packets of full size that the kernel may hand over in one piece."""
    most = max(1, _LARGEST_BUNDLE_BYTES // condition.mtu)
    rate = condition.bandwidth_bits_per_s
    if rate is None:
        return most
    return min(most, max(1, int(rate * _BURST_S / 8 / condition.mtu)))
