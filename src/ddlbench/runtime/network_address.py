"""Which address of this node the others should use, and a port there that is free."""

from __future__ import annotations

import os
import socket

import psutil

from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.site import Site


def address_of(interface: str | None) -> str:
    """IPv4 address of ``interface``; without one, what the host's own name resolves to.

    Where that name resolves to nothing, or to loopback as in many clusters' /etc/hosts, the first
    interface that is up is taken: no other node could reach a loopback address.

    Raises:
        ConfigError: there is no such interface, or it has no address.
    """
    if interface is None:
        address = _resolved()
        return address if address is not None else _first_up()[1]
    found = psutil.net_if_addrs()
    if interface not in found:
        raise ConfigError(
            f"{socket.gethostname()} has no network interface {interface!r}; "
            f"it has {', '.join(sorted(found))}: set 'interface' in the site file"
        )
    for entry in found[interface]:
        if entry.family == socket.AF_INET:
            return entry.address
    raise ConfigError(f"interface {interface!r} of {socket.gethostname()} has no IPv4 address")


def interface_to_use(interface: str | None) -> str | None:
    """``interface``; without one, None where the host's name resolves, else the first that is up.

    Communication libraries look the host's name up themselves when no interface is named.
    """
    if interface is not None or _resolved() is not None:
        return interface
    return _first_up()[0]


def use_interface(wanted: str | None) -> str | None:
    """The same, and gloo and NCCL of this process are told."""
    interface = interface_to_use(wanted)
    if interface is not None:
        os.environ.update(GLOO_SOCKET_IFNAME=interface, NCCL_SOCKET_IFNAME=interface)
    return interface


def _resolved() -> str | None:
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        return None
    return None if address.startswith("127.") else address


def _first_up() -> tuple[str, str]:
    """Name and address of the first interface that is up; loopback only where there is no other."""
    states = psutil.net_if_stats()
    for name, entries in psutil.net_if_addrs().items():
        for entry in entries:
            up = states[name].isup if name in states else False
            if entry.family == socket.AF_INET and up and not entry.address.startswith("127."):
                return name, entry.address
    return "lo", "127.0.0.1"


def meeting_point(site: Site) -> tuple[str, str | None]:
    """Address that all processes of a job reach this node by, and the interface they talk over."""
    if site.launcher == "local":
        return "127.0.0.1", "lo"
    return address_of(site.interface), site.interface


# Variable that tells rank 0 which inherited socket is the rendezvous.
LISTEN_FD = "DDLBENCH_LISTEN_FD"


def listen(address: str) -> socket.socket:
    """A socket that listens on a free port of ``address`` and can be inherited."""
    listener = socket.create_server((address, 0), backlog=128)
    listener.set_inheritable(True)
    return listener
