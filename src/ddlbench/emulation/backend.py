"""What a backend is, and what both do alike.

That is the address, MTU and congestion control of ``eth0``, how deep the queues are, and how much
may cross a link in one piece.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from ddlbench.emulation.namespaces import EmulationFailed, Held, run_tool, tool
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.fabric import LinkCondition

INTERFACE = "eth0"
# Inside the namespaces only, so it clashes with nothing outside.
NETWORK = "10.213.78.0/24"
_AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control")
# A relay that is late by some milliseconds must not lose packets for it.
_DEVICE_QUEUE_PACKETS = 5000


class Backend(Protocol):
    """What makes the links; in a ``with`` of its own it is up.

    Attributes:
        name: as a setting has it.
        header_bytes: of a packet beside IP's own, that take time on its links.
    """

    name: str
    header_bytes: int

    def without_loss(self) -> AbstractContextManager[None]:
        """Inside it no packet is lost on purpose: for the probe of the rate."""
        ...

    def correct(self, excess_s: float) -> None:
        """The one-way delay was measured to be so much above its setting."""
        ...

    def describe(self) -> dict[str, Any]:
        """What a result should say of how the links are made."""
        ...

    def usage(self) -> dict[str, Any]:
        """CPU time and losses since the last reset."""
        ...

    def reset_usage(self) -> None:
        """Begin anew."""
        ...


def set_up_interface(
    node: Held, address: str, condition: LinkCondition, bundled_packets: int
) -> None:
    """Bring ``eth0`` of a node up, with the congestion control as a property of its route.

    A namespace may not set the kernel's own default, but each of its routes may name one.

    Args:
        node: whose.
        address: of the node.
        condition: of its link.
        bundled_packets: that the kernel may hand over in one piece.

    Raises:
        ConfigError: the kernel has no such congestion control.
        EmulationFailed: anything else that ``ip`` refuses.
    """
    _ip(
        node,
        f"link set dev {INTERFACE} mtu {condition.mtu} txqueuelen {_DEVICE_QUEUE_PACKETS} "
        f"gso_max_segs {bundled_packets}",
        f"address add {address}/{NETWORK.partition('/')[2]} dev {INTERFACE}",
        f"link set dev {INTERFACE} up",
    )
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
    run_tool([*node.enter("net"), tool("ip"), "-batch", "-"], _text(lines))


def _text(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


# netem's default. Packets beyond it are dropped at the tail.
QUEUE_PACKETS = 1000
# The kernel hands over TCP's packets in bundles. A bundle is shorter than this time on the link:
# it arrives whole, when its last packet would, so its first packets are late by up to so much.
_BURST_S = 0.0005
_LARGEST_BUNDLE_BYTES = 65_000


def queue_bytes(condition: LinkCondition) -> int:
    """What may wait for a link; packets that are under way are not in the queue."""
    return QUEUE_PACKETS * condition.mtu


def netem_limit(condition: LinkCondition) -> int:
    """The limit of netem counts packets that are under way too: the bandwidth-delay product."""
    rate = condition.bandwidth_bits_per_s
    if rate is None:
        # Nothing waits where no rate is set; what is under way is bound by TCP's buffers.
        return 1_000_000
    return QUEUE_PACKETS + math.ceil(rate * condition.latency_s / 8 / condition.mtu)


def burst_packets(condition: LinkCondition) -> int:
    """Packets of full size that the kernel may hand over in one piece."""
    most = max(1, _LARGEST_BUNDLE_BYTES // condition.mtu)
    rate = condition.bandwidth_bits_per_s
    if rate is None:
        return most
    return min(most, max(1, int(rate * _BURST_S / 8 / condition.mtu)))
