"""How many blocks the built-in networks have, so that a login node can tell without torch.

A cut lies between two blocks, so a network has at most as many stages as blocks. The table of
docs/networks.md, by images of at most 64 pixels a side or larger ones; a test compares it with
the networks themselves.
"""

from __future__ import annotations

from ddlbench.experiment.cell import Cell

__all__ = ["blocks_of"]

_LARGE = ("imagenet", "highres")
_BLOCKS = {  # mnist, cifar10, large images
    "resnet18": (14, 14, 15),
    "resnet50": (22, 22, 23),
    "resnet152": (56, 56, 57),
    "vgg11": (23, 24, 30),
    "vgg16": (33, 34, 40),
    "mobilenetv2": (22, 22, 23),
}


def blocks_of(cell: Cell) -> int | None:
    """Blocks of the cell's network; None where the network is not a built-in one."""
    counts = _BLOCKS.get(cell.network)
    datasets = ("mnist", "cifar10", *_LARGE)
    if counts is None or cell.dataset not in datasets:
        return None
    return counts[min(datasets.index(cell.dataset), 2)]
