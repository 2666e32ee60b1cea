"""How long TCP takes over a link with delay, a rate, and loss.

::

    sender    |10 segments|  ...wait R...  |20|  ...  |40|  ... |========= at the rate ======|
    receiver        (R/2 later)                                                        last byte

    T(S) = R/2 + rounds(S) R + rest(S) / B        rounds: windows of 10, 20, 40, ... segments that
                                                  are waited for before the window fills the path
    B = min(rate, window / R, what loss leaves)

What loss leaves, in segments a round trip (q: probability that a packet is lost):

* reno: sqrt(3/2) / sqrt(q)                                     Mathis et al. 1997
* cubic: the larger of reno's and 1.054 (R/q)^(3/4)             RFC 9438, section 5.1 (C = 0.4)
* bbr: does not slow down for loss (version 1): rate (1 - q)    Cardwell et al. 2016

Initial window: 10 segments, RFC 6928. Linux bounds the window by ``tcp_wmem``; whoever knows it
says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ddlbench.experiment.errors import ConfigError

__all__ = ["TcpPath"]

_HEADERS_BYTES = 52  # IPv4, TCP with timestamps
_FIRST_WINDOW = 10
_MATHIS = math.sqrt(3 / 2)
_CUBIC = 1.054  # (C (3 + beta) / (4 (1 - beta)))^(1/4) with C = 0.4, beta = 0.7


@dataclass(frozen=True)
class TcpPath:
    """One direction between two hosts.

    Args:
        round_trip_s: of a packet and its answer, queues empty.
        rate_bytes_per_s: of the link; infinite where nothing bounds it.
        loss: probability that a packet is lost, 0 to below 1.
        mtu_bytes: largest packet.
        congestion_control: "cubic", "reno" or "bbr".
        window_bytes: most that may be under way, from socket buffers.

    Raises:
        ConfigError: a number cannot be, or the congestion control has no formula here.
    """

    round_trip_s: float
    rate_bytes_per_s: float = math.inf
    loss: float = 0.0
    mtu_bytes: int = 1500
    congestion_control: str = "cubic"
    window_bytes: float = math.inf

    def __post_init__(self) -> None:
        if self.round_trip_s < 0 or not self.rate_bytes_per_s > 0 or not 0 <= self.loss < 1:
            raise ConfigError(
                f"a TCP path of round trip {self.round_trip_s} s, {self.rate_bytes_per_s} bytes/s "
                f"and loss {self.loss} cannot be; write a delay of 0 or more, a rate above 0 and a "
                "loss from 0 to below 1"
            )
        if self.congestion_control not in ("cubic", "reno", "bbr"):
            raise ConfigError(
                f"no formula for congestion control {self.congestion_control!r}; "
                "write cubic, reno or bbr"
            )

    @property
    def segment_bytes(self) -> int:
        """Payload of a full packet."""
        return self.mtu_bytes - _HEADERS_BYTES

    @property
    def bandwidth_bytes_per_s(self) -> float:
        """Payload a second of a long transfer."""
        payload = self.segment_bytes / self.mtu_bytes
        least = self.rate_bytes_per_s * payload * (1 - self.loss)
        if self.round_trip_s > 0:
            least = min(least, self.window_bytes / self.round_trip_s, self._left_by_loss())
        return least

    def message_s(self, message_bytes: float, idle_before: bool = False) -> float:
        """Seconds from the first byte sent to the last one received.

        Args:
            message_bytes: payload.
            idle_before: the connection starts from its initial window (Linux does after an idle
                time of one retransmission timeout).
        """
        rounds, rest = 0, message_bytes
        if idle_before and self.round_trip_s > 0:
            window = float(_FIRST_WINDOW * self.segment_bytes)
            filled = self.bandwidth_bytes_per_s * self.round_trip_s
            while rest > window and window < filled:
                rest -= window
                rounds += 1
                window *= 2
        stall_s = self.stall_s(message_bytes)
        return (0.5 + rounds) * self.round_trip_s + rest / self.bandwidth_bytes_per_s + stall_s

    def stall_s(self, message_bytes: float) -> float:
        """Expected wait for a lost last packet: nothing follows that would tell of the loss.

        One of the last three packets (fewer than three duplicate acknowledgements) costs a tail
        loss probe, two round trips (RFC 8985, section 7.2).
        """
        packets = min(3, math.ceil(message_bytes / self.segment_bytes))
        return (1 - (1 - self.loss) ** packets) * 2 * self.round_trip_s

    def _left_by_loss(self) -> float:
        if self.loss == 0 or self.congestion_control == "bbr":
            return math.inf
        window = _MATHIS / math.sqrt(self.loss)
        if self.congestion_control == "cubic":
            window = max(window, _CUBIC * (self.round_trip_s / self.loss) ** 0.75)
        return window * self.segment_bytes / self.round_trip_s
