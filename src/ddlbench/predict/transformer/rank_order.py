"""Which ranks form which rings, and how many rings share the network cards of a node.

Megatron-LM numbers ranks tensor first, then data, then pipeline:
``rank = (stage * d + replica) * t + part``. With t = 2, d = 4, p = 2 on nodes of four devices::

    node 0   0 1 2 3     stage 0     tensor  {0 1} {2 3} {4 5} {6 7}     inside a node
    node 1   4 5 6 7                 data    {0 2 4 6} {1 3 5 7}         two rings cross each node's
    node 2   8 9 ...     stage 1                                         cards at the same time

A ring enters and leaves each of its nodes once, however many of its members lie there. So the rings
of a stage that lie in one node share its cards: t of them if t devices fill less than a node.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ddlbench.predict.measured_steps import Array
from ddlbench.predict.transformer.configurations import Configurations


@dataclass(frozen=True)
class Rings:
    """Groups of one kind, for each configuration.

    Args:
        members: ranks of a group.
        crosses: whether a group spans several nodes.
        sharing: rings that leave a node at the same time; 1 where none leaves.
    """

    members: Array
    crosses: Array
    sharing: Array


def tensor_rings(table: Configurations, devices_per_node: int) -> Rings:
    """Rings of the all-reduces of activations."""
    tensor = table["tensor"]
    return Rings(tensor, tensor > devices_per_node, np.ones(len(table)))


def data_rings(table: Configurations, devices_per_node: int) -> Rings:
    """Rings of the all-reduces of gradients."""
    tensor, data = table["tensor"], table["data"]
    crosses = (tensor * data > devices_per_node) & (data > 1)
    sharing = np.where(crosses, np.minimum(tensor, devices_per_node), 1.0)
    return Rings(data, crosses, sharing)


def hop_senders(table: Configurations, devices_per_node: int) -> tuple[Array, Array]:
    """Messages between neighbouring stages.

    Returns:
        whether some stage's neighbour lies on another node, and how many devices of a node then
        send at the same time.
    """
    stage = table["tensor"] * table["data"]
    crosses = (stage * table["pipeline"] > devices_per_node) & (table["pipeline"] > 1)
    return crosses, np.where(crosses, np.minimum(stage, devices_per_node), 1.0)


def ends_rings(table: Configurations, devices_per_node: int) -> Rings:
    """Pairs of the first and last stage, which sum the gradient of the embedding that both hold."""
    crosses, senders = hop_senders(table, devices_per_node)
    return Rings(np.where(table["pipeline"] > 1, 2.0, 1.0), crosses, senders)
