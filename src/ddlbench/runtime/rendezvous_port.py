"""A port for the rendezvous that nobody else can take."""

from __future__ import annotations

import socket

__all__ = ["LISTEN_FD", "listen"]

# Variable that tells rank 0 which inherited socket is the rendezvous.
LISTEN_FD = "DDLBENCH_LISTEN_FD"


def listen(address: str) -> socket.socket:
    """A socket that listens on a free port of ``address`` and can be inherited."""
    listener = socket.create_server((address, 0), backlog=128)
    listener.set_inheritable(True)
    return listener
