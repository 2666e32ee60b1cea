"""Training whose groups of devices split pairs of linear layers: messages and work of a step.

::

    a group     | pair | g | pair | g | ... | pair | f | pair | f |     g, f: all-reduces within it
                  forward                     backward
    groups                                                         | gradients over groups | update

Source: Shoeybi et al., "Megatron-LM" (2019), section 3.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TensorTraffic:
    """All all-reduces of a step, and what is left of its work for one device.

    Args:
        group: devices that compute the same samples.
        replicas: number of groups.
        activations: bytes of each all-reduce within a group, those of the forward pass first.
        gradients: bytes of each all-reduce over the ranks with the same place in each group.
        computed_share: of both passes over a group's samples, by times of a profile.
        updated_share: of the weights that a device updates.
        transport: library of the all-reduces, as links.json names it.
    """

    group: int
    replicas: int
    activations: tuple[int, ...]
    gradients: tuple[int, ...]
    computed_share: float
    updated_share: float
    transport: str

    @property
    def sent_bytes(self) -> float:
        """That every rank sends in a step, by ring all-reduces."""
        within, over = ((ranks - 1) / ranks for ranks in (self.group, self.replicas))
        return 2 * (within * sum(self.activations) + over * sum(self.gradients))
