"""Bytes of a process's connections, and what ranks tell of them."""

from __future__ import annotations

import socket
from dataclasses import replace
from operator import sub

import pytest
from cases.rank_reports import rank_report

from ddlbench.experiment.result import RankTraffic
from ddlbench.runtime.rank_report import CountedBytes
from ddlbench.runtime.rendezvous import connection_bytes
from ddlbench.runtime.result import communication


def test_only_connections_of_other_ports_count():
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    with listener, socket.create_connection(("127.0.0.1", port)) as client:
        server, _ = listener.accept()
        with server:
            before = connection_bytes(store_port=0)
            assert len(before) - len(connection_bytes(store_port=port)) == 2
            client.sendall(b"x" * 1000)
            while len(server.recv(1000, socket.MSG_PEEK)) < 1000:
                pass
            after = connection_bytes(store_port=0)
    moved = [tuple(map(sub, after[key], before[key])) for key in after]
    assert sorted(moved)[-2:] == [(0, 1000), (1000, 0)]


COUNTED = CountedBytes("tcp_info", steps=2, sent_bytes=1, received_bytes=3)


@pytest.mark.parametrize(
    "counted",
    [(None, None), (COUNTED, None), (COUNTED, replace(COUNTED, steps=1))],
)
def test_what_not_every_rank_counted_in_one_way_is_not_told(counted):
    reports = [rank_report(rank=rank, traffic=traffic) for rank, traffic in enumerate(counted)]
    assert communication(reports) is None


def test_bytes_of_every_rank_and_of_a_step():
    actual = communication([rank_report(rank=rank, traffic=COUNTED) for rank in (0, 1)])
    assert (actual.counted_by, actual.steps) == ("tcp_info", 2)
    assert actual.ranks == tuple(RankTraffic(rank, 1, 3, 0.5, 1.5) for rank in (0, 1))
