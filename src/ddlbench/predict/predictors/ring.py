"""The ring all-reduce of DDLBench's Eq. 1, with the slowest hop of the ring.

::

    t(S) = 2 (W-1) max_i ( L_{i,i+1} + S / (W BW_{i,i+1}) )        2 (W-1) rounds of S/W bytes
"""

from __future__ import annotations

from collections.abc import Sequence

from ddlbench.predict.link_table import Hop

__all__ = ["ring_all_reduce_s"]


def ring_all_reduce_s(hops: Sequence[Hop], message_bytes: float) -> float:
    """Seconds of an all-reduce of ``message_bytes`` a worker over a ring with these hops."""
    workers = len(hops)
    if workers < 2 or message_bytes == 0:
        return 0.0
    slowest = max(hop.time_s(message_bytes / workers) for hop in hops)
    return 2 * (workers - 1) * slowest
