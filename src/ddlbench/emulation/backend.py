"""The interface of a backend, and the parts that both backends share.

These are the address, MTU and congestion control of ``eth0``, the depth of the queues, and how many
packets may cross a link in one bundle.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from ddlbench.common.errors import ConfigError
from ddlbench.emulation.namespaces import EmulationFailed, Held, run_tool, tool
from ddlbench.experiment.fabric import LinkCondition

INTERFACE = "eth0"
# It exists inside the namespaces only, so it cannot clash with a network outside.
NETWORK = "10.213.78.0/24"
_AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
# Large enough that a relay which is late by some milliseconds loses no packets.
_DEVICE_QUEUE_PACKETS = 5000


class Backend(Protocol):
    """The maker of the links.

    Attributes:
        name: as in a setting.
        header_bytes: of a packet beside IP's own, which take time on the links.
    """

    name: str
    header_bytes: int

    def without_loss(self) -> AbstractContextManager[None]:
        """Lose no packets on purpose within a ``with``, to probe the rate."""

    def correct(self, excess_s: float, inside: bool = False) -> None:
        """Shorten the one-way delay, which was measured to be ``excess_s`` above its setting.

        The delay is that between nodes, or of the links ``inside`` them.
        """

    def describe(self) -> dict[str, Any]:
        """How the links are made, for the result."""

    def usage(self) -> dict[str, Any]:
        """CPU time and losses since the last reset."""

    def reset_usage(self) -> None: ...


def set_up_interface(
    node: Held, address: str, condition: LinkCondition, bundled_packets: int
) -> None:
    """Configure ``eth0`` of a node and bring it up.

    ``bundled_packets`` is the largest bundle that the kernel may hand over.

    Raises:
        ConfigError: the kernel lacks the congestion control.
        EmulationFailed: ``ip`` refuses anything else.
    """
    _ip(
        node,
        f"link set dev {INTERFACE} mtu {condition.mtu} txqueuelen {_DEVICE_QUEUE_PACKETS} "
        f"gso_max_segs {bundled_packets}",
        f"address add {address}/{NETWORK.partition('/')[2]} dev {INTERFACE}",
        f"link set dev {INTERFACE} up",
    )
    # A namespace may not change the kernel's default, but its routes may name a congestion control.
    control = condition.congestion_control
    route = f"route replace {NETWORK} dev {INTERFACE} proto kernel scope link src {address}"
    try:
        _ip(node, f"{route} congctl {control}")
    except EmulationFailed as error:
        known = _AVAILABLE.read_text(encoding="ascii").split()
        if control in known:
            raise
        raise ConfigError(
            f"congestion_control {control!r}: this kernel has {', '.join(sorted(known))}"
        ) from error


def _ip(node: Held, *lines: str) -> None:
    run_tool([*node.enter("net"), tool("ip"), "-batch", "-"], "".join(f"{one}\n" for one in lines))


QUEUE_PACKETS = 1000  # netem's default; further packets are dropped at the tail
_LARGEST_BUNDLE_BYTES = 65_000


def queue_bytes(condition: LinkCondition) -> int:
    """Capacity of a link's queue; packets in transit do not count."""
    return QUEUE_PACKETS * condition.mtu


def netem_limit(condition: LinkCondition) -> int:
    """Limit of netem, which also counts packets in transit: the bandwidth-delay product."""
    rate = condition.bandwidth_bits_per_s
    if rate is None:
        # Without a rate nothing waits, and TCP's buffers limit the packets in transit.
        return 1_000_000
    return QUEUE_PACKETS + math.ceil(rate * condition.latency_s / 8 / condition.mtu)


def burst_packets(condition: LinkCondition) -> int:
    """Largest bundle, in packets of full size, that the kernel may hand over."""
    most = max(1, _LARGEST_BUNDLE_BYTES // condition.mtu)
    rate = condition.bandwidth_bits_per_s
    if rate is None:
        return most
    return min(most, max(1, int(rate * condition.burst_s / 8 / condition.mtu)))
