"""What the partitions of a recorded step of torchgpipe did between their passes.

::

    partition 1   | F0 | F1 | F2 |
    partition 2  | w  |s| F0 |s| F1 |      s  sending: the input is computed, the partition is free,
                                              and the pass has not begun
                                           w  waiting: the input is not computed, or there is none

A step is recorded as passes only (``partitions.csv``). What lies between two passes of a partition
follows from them: a forward pass needs the one of the partition before, a backward pass that of the
partition behind. The thesis asks of such a step how much of it is computing, sending and waiting
(Figure 6.1), and whether passes hide the messages (Figure 6.3). Where one process drives partitions
in turns, as torchgpipe on CPUs, sending includes waiting for the turn.
"""

from __future__ import annotations

import pandas as pd

from ddlbench.report.tables import rows_of

SENDING, WAITING = "sending", "waiting"
_FROM = {"forward": -1, "backward": 1}  # the partition that computes a pass' input
_COLUMNS = ["partition", "kind", "micro_batch", "start_s", "end_s"]


def idle_of(spans: pd.DataFrame) -> pd.DataFrame:
    """What partitions do when they do not compute, from the first pass of the step to the last.

    Args:
        spans: passes of one step: ``partition``, ``kind``, ``micro_batch``, ``start_s``, ``end_s``.

    Returns:
        the same columns; ``kind`` is sending or waiting, ``micro_batch`` that of the next pass.
    """
    ends = {(row.kind, row.micro_batch, row.partition): row.end_s for row in rows_of(spans)}
    first_s, last_s = spans["start_s"].min(), spans["end_s"].max()
    idle: list[tuple[int, str, int, float, float]] = []
    for partition in sorted({int(value) for value in spans["partition"]}):
        of_partition = spans[spans["partition"] == partition].sort_values("start_s")
        free_s, number = first_s, 0
        for row in rows_of(of_partition):
            number = int(row.micro_batch)
            source = (row.kind, row.micro_batch, partition + _FROM.get(row.kind, 0))
            there_s = ends.get(source) if row.kind in _FROM else None
            sent_s = row.start_s if there_s is None else min(max(free_s, there_s), row.start_s)
            idle.append((partition, WAITING, number, free_s, sent_s))
            idle.append((partition, SENDING, number, sent_s, row.start_s))
            free_s = max(free_s, row.end_s)
        idle.append((partition, WAITING, number, free_s, last_s))
    frame = pd.DataFrame(idle, columns=_COLUMNS)
    return frame[frame["end_s"] > frame["start_s"]].reset_index(drop=True)


def parts_of(spans: pd.DataFrame) -> dict[str, float]:
    """Seconds of a recorded step, as means over partitions; they add up to its length.

    Returns:
        ``compute_s``, ``exposed_communication_s`` (sending) and ``bubble_s`` (waiting), named as
        predictions are.
    """
    idle, partitions = idle_of(spans), spans["partition"].nunique()
    seconds = (idle["end_s"] - idle["start_s"]).groupby(idle["kind"]).sum() / partitions
    return {
        "compute_s": float((spans["end_s"] - spans["start_s"]).sum()) / partitions,
        "exposed_communication_s": float(seconds.get(SENDING, 0.0)),
        "bubble_s": float(seconds.get(WAITING, 0.0)),
    }


def gap_over_pass(spans: pd.DataFrame, kind: str) -> float:
    """Median time between two passes of a kind on a partition, over the median pass.

    NaN with fewer than two passes.
    """
    passes = spans[spans["kind"] == kind].sort_values(["partition", "start_s"])
    before = passes.groupby("partition")["end_s"].shift()
    gaps = (passes["start_s"] - before).clip(lower=0.0)
    return float(gaps.median() / (passes["end_s"] - passes["start_s"]).median())
