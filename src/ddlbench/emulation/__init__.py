"""Emulates nodes on one machine, joined by links with a set delay, rate and loss.

::

    node0  node1  node2         network, host-name and mount namespaces (namespaces.py)
      |      |      |  eth0
      '------+------'           a switch: netem in the kernel (netem.py), or a relay process
                                (relay.py starts and runs it, switch.py is its model)

``probe`` measures the links before they are used; its ends are ``endpoint.py`` inside the nodes.
"""

from ddlbench.emulation.namespaces import EmulationFailed
from ddlbench.emulation.nodes import EmulatedNodes, available
from ddlbench.emulation.probe import LinkMissed, require

__all__ = ["EmulatedNodes", "EmulationFailed", "LinkMissed", "available", "require"]
