"""Addresses and ports at which the ranks of a job reach each other."""

from __future__ import annotations

import os
import socket

import psutil

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.site import Site


def address_of(interface: str | None) -> str:
    """IPv4 address of ``interface``; if None, the address that the host's own name resolves to.

    The name may resolve to nothing, or to loopback as in many clusters' /etc/hosts, which no other
    node can reach. Then this is the address of the first interface that is up.

    Raises:
        ConfigError: there is no such interface, or it has no address.
    """
    if interface is None:
        address = _resolved()
        return address if address is not None else _first_up()[1]
    addresses = psutil.net_if_addrs()
    if interface not in addresses:
        raise ConfigError(
            f"{socket.gethostname()} has no network interface {interface!r}; "
            f"it has {', '.join(sorted(addresses))}: set 'interface' in the site file"
        )
    for entry in addresses[interface]:
        if entry.family == socket.AF_INET:
            return entry.address
    raise ConfigError(
        f"interface {interface!r} of {socket.gethostname()} has no IPv4 address, which ranks "
        "need to meet; set 'interface' in the site file to one that has"
    )


def interface_to_use(interface: str | None) -> str | None:
    """The interface to name to communication libraries; None if they need none.

    Without a name they look up the host's name themselves. If that name does not resolve to an
    address that others reach, this is the first interface that is up.
    """
    if interface is not None or _resolved() is not None:
        return interface
    return _first_up()[0]


def use_interface(wanted: str | None) -> str | None:
    """Set :func:`interface_to_use` for gloo and NCCL of this process, and return it."""
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
    """Name and address of the first interface that is up; loopback only if there is no other."""
    states = psutil.net_if_stats()
    for name, entries in psutil.net_if_addrs().items():
        for entry in entries:
            up = states[name].isup if name in states else False
            if entry.family == socket.AF_INET and up and not entry.address.startswith("127."):
                return name, entry.address
    return "lo", "127.0.0.1"


def rendezvous_address(site: Site, nodes: int) -> tuple[str, str | None]:
    """Address at which all processes of a job reach this node, and the interface they use.

    Raises:
        ConfigError: the job has several nodes, and others cannot reach this one.
    """
    if site.launcher == "local":
        return "127.0.0.1", "lo"
    address = address_of(site.interface)
    if nodes > 1 and address.startswith("127."):
        raise ConfigError(
            f"{socket.gethostname()} has no IPv4 address that other nodes could reach; set "
            "'interface' in the site file to a network interface that has one"
        )
    return address, site.interface


def listen(address: str, port: int = 0) -> socket.socket:
    """An inheritable socket that listens on a port, by default a free one, of ``address``.

    Raises:
        ConfigError: nobody would reach it, as in a container whose loopback is down.
    """
    # Without it a port that ``keep_port`` keeps could not be taken over.
    reuse_port = hasattr(socket, "SO_REUSEPORT")
    try:
        with socket.socket(type=socket.SOCK_DGRAM) as sender:
            sender.connect((address, 1))  # sends nothing; a port may be bound where no way leads
        listener = socket.create_server((address, port), backlog=128, reuse_port=reuse_port)
    except OSError as error:
        raise ConfigError(
            f"ranks cannot meet at {address} of {socket.gethostname()}: {error.strerror}; bring "
            "the network interface of this address up (of 127.0.0.1: ip link set lo up)"
        ) from error
    listener.set_inheritable(True)
    return listener


def free_port(address: str) -> int:
    """A port of ``address`` that nobody listens on now."""
    with socket.create_server((address, 0)) as server:
        return int(server.getsockname()[1])


def keep_port(listener: socket.socket) -> socket.socket | None:
    """A socket that keeps the port of ``listener``, which is closed, until it is closed itself.

    It does not listen. Only a process of the same user can ``listen`` on the port meanwhile, so
    neither a stranger nor an outgoing connection takes it before rank 0 does. None where the system
    cannot share a port.
    """
    kept = None
    if hasattr(socket, "SO_REUSEPORT"):
        kept = socket.socket()
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(listener.getsockname())
    listener.close()
    return kept
