"""Clocks that are apart come together, and a timeline over them lines up."""

from __future__ import annotations

import json
import threading
import time

import pytest
import torch.distributed as dist
from cases.rank_reports import rank_report

from ddlbench.runtime.rendezvous import clock_offsets
from ddlbench.runtime.result import trace_json

SKEW_S = {0: 0.0, 1: 0.05, 2: -7.5}


def now_of(rank):
    return lambda: time.perf_counter() + SKEW_S[rank]


def test_skewed_clocks_line_up():
    store = dist.HashStore()
    actual = {}
    moment = time.perf_counter()

    def ask(rank):
        actual[rank] = clock_offsets(store, rank, len(SKEW_S), now_of(rank))

    threads = [threading.Thread(target=ask, args=(rank,)) for rank in SKEW_S]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert actual[0] == actual[1] == actual[2]
    for rank, offset in enumerate(actual[0]):
        assert offset.offset_s == pytest.approx(-SKEW_S[rank], abs=0.02)
        assert abs(offset.offset_s + SKEW_S[rank]) <= 10 * offset.uncertainty_s + 1e-3
    # All ranks did the same at the same moment, each by its own clock.
    reports = [
        rank_report(
            rank=rank,
            node=rank,
            host="h",
            stage=rank,
            replica=0,
            spans=[("forward", 3, moment + SKEW_S[rank], moment + SKEW_S[rank] + 0.01)],
            clock_offset_s=actual[0][rank].offset_s,
        )
        for rank in SKEW_S
    ]
    events = [e for e in json.loads(trace_json(reports))["traceEvents"] if e["ph"] == "X"]
    assert [(e["name"], e["cat"], e["tid"], e["args"]) for e in events] == [
        ("forward 3", "forward", rank, {"mini_batch": 3}) for rank in SKEW_S
    ]
    assert max(e["ts"] for e in events) < 0.02e6
    assert all(e["dur"] == pytest.approx(0.01e6) for e in events)


def test_a_single_process_is_its_own_clock():
    (offset,) = clock_offsets(None, 0, 1)
    assert (offset.offset_s, offset.uncertainty_s) == (0.0, 0.0)


def test_no_spans_no_trace():
    assert trace_json([rank_report()]) == ""
