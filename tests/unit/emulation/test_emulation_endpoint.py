"""How a sender keeps its rate on a machine that lets it wait."""

from __future__ import annotations

from itertools import groupby

import pytest

from ddlbench.emulation import endpoint

PER_S = 1000.0


class Machine:
    """A clock that only sleep and one wait for a core move; and the times at which packets left."""

    def __init__(self, waits_at: int, waits_s: float) -> None:
        self.now_s = 0.0
        self.left_s: list[float] = []
        self._waits_at, self._waits_s = waits_at, waits_s

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def socket(self, *_: object) -> Machine:
        return self

    def connect(self, _: object) -> None: ...

    def send(self, _: bytes) -> None:
        self.left_s.append(self.now_s)
        if len(self.left_s) == self._waits_at:
            self.now_s += self._waits_s

    def largest_burst(self) -> int:
        return max(len(list(packets)) for _, packets in groupby(self.left_s))


@pytest.mark.parametrize(("limit", "burst"), [({}, 500), ({"catch_up_packets": 100}, 100)])
def test_a_sender_that_waited_for_its_core_catches_up_to_a_limit(limit, burst, monkeypatch):
    machine = Machine(waits_at=50, waits_s=0.5)
    monkeypatch.setattr(endpoint.socket, "socket", machine.socket)
    monkeypatch.setattr(endpoint, "time", machine)
    sending = {"payload_bytes": 10, "bundle": 1, "packets_per_s": PER_S, "packets": 1000}
    assert endpoint.udp_send("node1", 1, **sending, **limit)["sent"] == 1000
    assert machine.largest_burst() == pytest.approx(burst, abs=2)
    # All others leave at the rate: what was not caught up is sent later.
    assert machine.left_s[-1] == pytest.approx(1.0 + (500 - burst) / PER_S, abs=0.003)
