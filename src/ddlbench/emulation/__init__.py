"""Nodes of a slow network on one machine: delay, rate and loss of every link are set.

::

    node0  node1  node2         network, host-name and mount namespaces (namespaces.py)
      |      |      |  eth0
      '------+------'           a switch: netem in the kernel (netem.py), or a relay process
                                (relay_backend.py starts it, relay.py runs, switch.py is its model)

``probe`` measures what the links do before anything trusts them.
"""

from ddlbench.emulation.namespaces import EmulationFailed
from ddlbench.emulation.nodes import EmulatedNodes, available
from ddlbench.emulation.probe import LinkMissed, require

__all__ = ["EmulatedNodes", "EmulationFailed", "LinkMissed", "available", "require"]
