"""The network: a namespace for each node and the controller, joined by a bridge in another one.

The bridge is not on the host, so that the host's firewall (Docker's drops what it forwards) has no
say in what nodes send to each other. The host has one link to it.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from .errors import TestBedError
from .layout import CONTROLLER, HOST_LINK, PREFIX, SWITCH, namespace
from .options import Options, bytes_per_s
from .processes import Identity, end, identify
from .shell import system

_KERNEL_HINT = "this kernel seems to lack network namespaces, bridges or veth links"
_TBF_HINT = (
    "this kernel seems to have no token bucket filter (try `modprobe sch_tbf`); "
    "leave out --bandwidth"
)


def check_free(options: Options) -> None:
    """Refuse a subnet that this machine routes already.

    Raises:
        TestBedError: it is in use.
    """
    routes = json.loads(system("ip", "-json", "route", "show", "root", options.subnet) or "[]")
    taken = [route["dst"] for route in routes if route.get("dev") != HOST_LINK]
    taken = [destination for destination in taken if destination != "default"]
    exact = json.loads(system("ip", "-json", "route", "show", "match", options.subnet) or "[]")
    taken += [route["dst"] for route in exact if route["dst"] != "default"]
    if taken:
        raise TestBedError(
            f"this machine uses {taken[0]} already; choose other addresses with --subnet"
        )


def build(options: Options) -> None:
    """Make the switch, the host's link to it, and the namespaces with their eth0."""
    system("ip", "netns", "add", SWITCH, hint=_KERNEL_HINT)
    system("ip", "-n", SWITCH, "link", "add", "br0", "type", "bridge", hint=_KERNEL_HINT)
    for link in ("lo", "br0"):
        system("ip", "-n", SWITCH, "link", "set", link, "up")
    _connect(None, HOST_LINK, "host", options.host_address, options)
    addresses = {node: options.address(node) for node in options.node_names}
    for name, address in {CONTROLLER: options.controller_address, **addresses}.items():
        system("ip", "netns", "add", namespace(name), hint=_KERNEL_HINT)
        system("ip", "-n", namespace(name), "link", "set", "lo", "up")
        _connect(namespace(name), "eth0", name, address, options)
    if options.bandwidth is not None:
        shape(options.node_names, options.bandwidth)


def _connect(where: str | None, link: str, port: str, address: str, options: Options) -> None:
    """A link between the switch's ``port`` and ``link`` in a namespace, or on the host."""
    inside = ["ip"] if where is None else ["ip", "-n", where]
    system(
        *inside,
        *("link", "add", link, "type", "veth", "peer", "name", port, "netns", SWITCH),
        hint=_KERNEL_HINT,
    )
    system("ip", "-n", SWITCH, "link", "set", port, "master", "br0", "up")
    system(*inside, "address", "add", f"{address}/{options.prefix_length}", "dev", link)
    system(*inside, "link", "set", link, "up")


def shape(nodes: list[str], rate: str | None) -> None:
    """Limit both directions of the nodes' links to ``rate``; None takes the limit away.

    The bucket holds 2 ms of the link's rate (at least 32 KiB): so much passes at once. With less, a
    late timer loses time that cannot be made up: 1 ms gave 270 of 400 Mbit/s.
    """
    for node in nodes:
        for where, link in ((namespace(node), "eth0"), (SWITCH, node)):
            if rate is None:
                system("tc", "-n", where, "qdisc", "delete", "dev", link, "root", check=False)
                continue
            burst = max(32 * 1024, round(bytes_per_s(rate) * 2e-3))
            system(
                *("tc", "-n", where, "qdisc", "replace", "dev", link, "root", "tbf"),
                *("rate", rate, "burst", f"{burst}b", "latency", "50ms"),
                hint=_TBF_HINT,
            )


def ping(options: Options) -> None:
    """Check that the first node reaches the host and the last node.

    Raises:
        TestBedError: it does not.
    """
    first, last = options.node_names[0], options.node_names[-1]
    for address in (options.host_address, options.address(last)):
        system(
            *("nsenter", f"--net=/run/netns/{namespace(first)}"),
            *("ping", "-n", "-q", "-c1", "-W5", address),
            hint="a firewall of this machine may drop the test bed's packets; allow its subnet",
        )


def _namespaces() -> list[str]:
    folder = Path("/run/netns")
    return sorted(path.name for path in folder.glob(f"{PREFIX}*")) if folder.is_dir() else []


def processes_within() -> list[Identity]:
    """Every process in the bed's network namespaces: daemons, jobs, holders."""
    processes = []
    for name in _namespaces():
        pids = system("ip", "netns", "pids", name, check=False).split()
        processes += [process for pid in pids if (process := identify(int(pid))) is not None]
    return processes


def remove() -> None:
    """End what runs in the namespaces and delete them with all links."""
    end(processes_within(), grace_s=0.5)
    if Path("/sys/class/net", HOST_LINK).exists():
        system("ip", "link", "delete", HOST_LINK, check=False)
    for name in _namespaces():
        system("ip", "netns", "delete", name, check=False)
        with contextlib.suppress(OSError):  # a name that a crash left without its namespace
            Path("/run/netns", name).unlink()
