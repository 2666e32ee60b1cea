"""Which address of this node the others should use."""

from __future__ import annotations

import socket

import psutil

from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.site import Site

__all__ = ["address_of", "meeting_point"]


def address_of(interface: str | None) -> str:
    """IPv4 address of ``interface``; without one, what the host's own name resolves to.

    Raises:
        ConfigError: there is no such interface, or it has no address.
    """
    if interface is None:
        try:
            return socket.gethostbyname(socket.gethostname())
        except OSError:
            return "127.0.0.1"
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


def meeting_point(site: Site) -> tuple[str, str | None]:
    """Address that all processes of a job reach this node by, and the interface they talk over."""
    if site.launcher == "local":
        return "127.0.0.1", "lo"
    return address_of(site.interface), site.interface
