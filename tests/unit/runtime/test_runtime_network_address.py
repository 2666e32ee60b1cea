"""The port of a rendezvous belongs to a run from its choice to its end."""

import errno
import socket

import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.runtime.addresses import keep_port, listen

HOST = "127.0.0.1"


def test_a_kept_port_is_rank_0s_and_nobody_elses():
    """srun's rank 0 binds the port seconds after it was chosen; others bind ports meanwhile."""
    listener = listen(HOST)
    port = listener.getsockname()[1]
    with keep_port(listener):
        with socket.socket() as other, pytest.raises(OSError, match="already in use"):
            other.bind((HOST, port))
        with listen(HOST, port) as taken_over, socket.create_connection((HOST, port)):
            taken_over.settimeout(10)
            taken_over.accept()[0].close()  # every connection is the listener's


def test_a_kept_port_is_free_when_it_is_closed():
    listener = listen(HOST)
    port = listener.getsockname()[1]
    keep_port(listener).close()
    with socket.socket() as other:
        other.bind((HOST, port))


def test_an_address_without_a_way_to_it_is_one_sentence(monkeypatch):
    """As in a container whose loopback is down: a port may be bound, and nobody reaches it."""

    def unreachable(*_arguments):
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.setattr(socket.socket, "connect", unreachable)
    with pytest.raises(ConfigError, match=f"meet at {HOST} .*unreachable; bring"):
        listen(HOST)
