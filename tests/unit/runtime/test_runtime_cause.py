"""Whose fault a failure is decides whether the cell is tried again by itself."""

import socket

import pytest
from cases.rank_reports import rank_failure

from ddlbench.runtime.addresses import address_of, interface_to_use
from ddlbench.runtime.rank_report import cause_of


@pytest.mark.parametrize(
    ("failed", "cause"),
    [
        ([rank_failure("ValueError: wrong shape")], "program"),
        ([rank_failure("killed by signal 9 (SIGKILL)", signal=9)], "infrastructure"),
        ([rank_failure("RuntimeError: Connection closed by peer [10.0.0.1]")], "infrastructure"),
        # The connection broke because the program crashed.
        ([rank_failure("Connection reset"), rank_failure("KeyError: 'x'")], "program"),
        ([rank_failure("OSError: [Errno 28] No space left on device")], "infrastructure"),
        ([rank_failure("OSError: [Errno 98] Address already in use")], "infrastructure"),
        ([], "infrastructure"),
    ],
)
def test_cause(failed, cause):
    assert cause_of(failed) == cause


def unresolvable(_name):
    raise socket.gaierror


@pytest.mark.parametrize("resolve", [unresolvable, lambda _name: "127.0.1.1"])
def test_a_host_name_that_leads_nowhere_is_not_used(monkeypatch, resolve):
    monkeypatch.setattr(socket, "gethostbyname", resolve)
    interface = interface_to_use(None)
    assert interface is not None
    assert address_of(None) == address_of(interface)


def test_a_host_name_that_resolves_is_used(monkeypatch):
    monkeypatch.setattr(socket, "gethostbyname", lambda _name: "10.1.2.3")
    assert interface_to_use(None) is None
    assert address_of(None) == "10.1.2.3"
    assert interface_to_use("lo") == "lo"
