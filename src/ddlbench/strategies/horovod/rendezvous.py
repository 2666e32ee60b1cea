"""Where Horovod's gloo connects its ranks: a small server, run by rank 0."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Sequence
from typing import Any

__all__ = ["serve_rendezvous"]


def serve_rendezvous(hosts: Sequence[str]) -> tuple[Any, int]:
    """Start the server.

    Args:
        hosts: the host name of every rank, in the order of ranks.

    Returns:
        the server, which lives as long as it is referenced, and its port.
    """
    assign = importlib.import_module("horovod.runner.common.util.hosts")
    http = importlib.import_module("horovod.runner.http.http_server")
    server = http.RendezvousServer(verbose=0)
    port = server.start()
    infos = [assign.HostInfo(name, count) for name, count in Counter(hosts).items()]
    server.init(assign.get_host_assignments(infos, len(hosts)))
    return server, port
