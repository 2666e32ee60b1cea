"""Times of collectives on a ring (Kahira et al., section IV-B; Thakur et al. 2005).

Every step costs what the slowest hop of the ring costs, Hockney's latency and bytes.
"""

from __future__ import annotations

from ddlbench.predict.paradl.platform import Link

__all__ = ["all_gather_s", "all_reduce_s", "send_s"]


def send_s(size_bytes: float, link: Link) -> float:
    """One message."""
    return link.latency_s + size_bytes * link.s_per_byte


def all_gather_s(ranks: int, total_bytes: float, link: Link) -> float:
    """Everyone gets ``total_bytes``, a part of it from each: (p-1)(alpha + m/p beta)."""
    return (ranks - 1) * send_s(total_bytes / ranks, link)


def all_reduce_s(ranks: int, size_bytes: float, link: Link) -> float:
    """A buffer of ``size_bytes`` is summed over all: 2(p-1)(alpha + m/p beta)."""
    return 2 * all_gather_s(ranks, size_bytes, link)
