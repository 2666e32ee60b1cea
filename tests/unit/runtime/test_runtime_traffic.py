"""Bytes of a process's connections, and what ranks tell of them."""

from __future__ import annotations

import socket
from operator import sub

import pytest

from ddlbench.runtime.traffic import communication, connection_bytes


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


@pytest.mark.parametrize(
    "reports",
    [
        [{"rank": 0}, {"rank": 1}],  # reports of an earlier version
        [{"rank": 0, "traffic": None}, {"rank": 1, "traffic": None}],
        [
            {"rank": 0, "traffic": {"counted_by": "tcp_info", "steps": 1,
                                    "sent_bytes": 1, "received_bytes": 1}},
            {"rank": 1, "traffic": None},
        ],
    ],
)  # fmt: skip
def test_what_not_every_rank_counted_is_not_told(reports):
    assert communication(reports) is None
