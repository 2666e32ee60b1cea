"""Links that the kernel makes: a bridge, a veth pair a node, and ``tc netem`` at both ends.

::

    node0  eth0 ====== port0  bridge  port1 ====== eth0  node1
           rate               rate, delay, loss

Delay and loss act on the way to the receiver. TCP counts packets that wait at the sender as its own
and would stop sending.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ddlbench.common.quantities import US
from ddlbench.emulation.namespaces import (
    INTERFACE,
    QUEUE_PACKETS,
    EmulationFailed,
    Held,
    HelperKilled,
    Space,
    burst_packets,
    netem_limit,
    run_tool,
    set_up_interface,
    tool,
)
from ddlbench.experiment.fabric import LinkCondition


def missing_netem(space: Space) -> str | None:
    """Why the kernel's netem cannot be used; None if it can.

    Raises:
        HelperKilled: a signal ended the program that tried it.
    """
    try:
        run_tool(
            [
                *(*space.enter(), tool("unshare"), "--net"),
                *(tool("tc"), "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"),
            ]
        )
    except HelperKilled:
        raise
    except EmulationFailed as error:
        return f"tc netem: {error}"
    return None


def egress(condition: LinkCondition) -> list[str]:
    """Options of netem for packets from a node; empty without a rate."""
    rate = condition.bandwidth_bits_per_s
    if rate is None:
        return []
    return ["rate", f"{rate:.0f}bit", "limit", str(QUEUE_PACKETS)]


def ingress(condition: LinkCondition) -> list[str]:
    """Options of netem for packets to a node."""
    options = ["delay", f"{US.of(condition.latency_s):.0f}us"]
    if condition.loss:
        options += ["loss", f"{condition.loss * 100:g}%"]
    if condition.bandwidth_bits_per_s is not None:
        options += ["rate", f"{condition.bandwidth_bits_per_s:.0f}bit"]
    return [*options, "limit", str(netem_limit(condition))]


class Netem:
    """Links of the kernel, a :class:`~ddlbench.emulation.namespaces.Backend`.

    ``hosts`` becomes /etc/hosts of the bridge.

    Raises:
        EmulationFailed: the kernel refuses a part of the setup.
        ConfigError: the kernel lacks the congestion control.
    """

    name = "netem"
    header_bytes = 14  # Ethernet's

    def __init__(
        self,
        space: Space,
        hosts: str,
        nodes: Sequence[Held],
        addresses: Sequence[str],
        condition: LinkCondition,
    ) -> None:
        self._nodes, self._condition = nodes, condition
        self._switch = space.hold("switch", hosts)
        self._ip("link add name bridge type bridge")
        self._ip(f"link set dev bridge mtu {condition.mtu} up")
        # netem drops whole frames: to lose single packets, each frame must be one packet.
        bundle = 1 if condition.loss else burst_packets(condition)
        for index, (node, address) in enumerate(zip(nodes, addresses, strict=True)):
            self._ip(f"link add port{index} type veth peer name {INTERFACE} netns {node.pid}")
            self._ip(f"link set dev port{index} master bridge mtu {condition.mtu} up")
            set_up_interface(node, address, condition, bundle)
            if egress(condition):
                self._netem(node, "add", INTERFACE, egress(condition))
        self._shape("add", condition)
        self._dropped_before = 0
        self.reset_usage()

    @contextmanager
    def without_loss(self) -> Iterator[None]:
        self._shape("change", replace(self._condition, loss=0.0))
        try:
            yield
        finally:
            self._shape("change", self._condition)

    def correct(self, excess_s: float, inside: bool = False) -> None:
        """Do nothing: the kernel's timers are exact, and the excess is the machine's own."""

    def describe(self) -> dict[str, Any]:
        return {
            "backend": self.name,
            "egress": " ".join(egress(self._condition)),
            "ingress": " ".join(ingress(self._condition)),
        }

    def usage(self) -> dict[str, Any]:
        """Drops; the CPU time of netem cannot be separated from that of the nodes' network."""
        dropped = self._dropped() - self._dropped_before
        return {
            "backend": self.name,
            "cpu_s": None,
            "wall_s": None,
            "share_of_core": None,
            "saturated": False,
            # netem has one counter for packets lost on purpose and packets at a full queue.
            "dropped_by_queue": None if self._condition.loss else dropped,
        }

    def reset_usage(self) -> None:
        self._dropped_before = self._dropped()

    def _shape(self, verb: str, condition: LinkCondition) -> None:
        for index in range(len(self._nodes)):
            self._netem(self._switch, verb, f"port{index}", ingress(condition))

    def _netem(self, where: Held, verb: str, device: str, options: Sequence[str]) -> None:
        qdisc = ("qdisc", verb, "dev", device, "root", "netem", *options)
        run_tool([*where.enter("net"), tool("tc"), *qdisc])

    def _ip(self, line: str) -> None:
        run_tool([*self._switch.enter("net"), tool("ip"), *line.split()])

    def _dropped(self) -> int:
        return sum(
            sum(drops_of(run_tool([*where.enter("net"), tool("tc"), "-s", "qdisc", "show"])))
            for where in (self._switch, *self._nodes)
        )


def drops_of(shown: str) -> list[int]:
    """Drops of each netem queue in the output of ``tc -s qdisc show``.

    ::

        qdisc netem 8001: dev port0 root refcnt 2 limit 1000 delay 10ms
         Sent 98 bytes 1 pkt (dropped 3, overlimits 0 requeues 0)
    """
    drops, is_netem = [], False
    for line in shown.splitlines():
        if line.startswith("qdisc"):
            is_netem = line.split()[1] == "netem"
        elif is_netem and "(dropped " in line:
            drops.append(int(line.split("(dropped ")[1].split(",")[0]))
    return drops
