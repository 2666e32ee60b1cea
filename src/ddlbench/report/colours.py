"""One colour and marker a strategy, one shade and hatch a dataset, one colour a kind of work.

The colours are those of Okabe and Ito (2008), which colour-blind readers tell apart. Families
share a hue: data parallel blue, pipeline red to orange, model green, split purple.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from matplotlib.colors import to_hex, to_rgb

from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.planning.strategy import known_strategy

__all__ = [
    "FAMILIES",
    "KINDS",
    "DatasetLook",
    "KindLook",
    "StrategyLook",
    "dataset_look",
    "kind_look",
    "shade",
    "strategy_look",
]


@dataclass(frozen=True)
class StrategyLook:
    """How a strategy is drawn."""

    colour: str
    marker: str


@dataclass(frozen=True)
class DatasetLook:
    """How a dataset is drawn: its share of white, and its hatch."""

    white: float
    hatch: str


@dataclass(frozen=True)
class KindLook:
    """How one kind of work is drawn in a timeline, and what the legend calls it."""

    label: str
    colour: str
    hatch: str = ""


FAMILIES = {
    "baseline": ("#000000", "#444444"),
    "data parallel": ("#003F66", "#3C89C9", "#8CCBF0", "#1F5F8B"),
    "pipeline": ("#8F3F00", "#F0B040", "#B07800", "#E8854A"),
    "model": ("#00543E", "#4DBB9D", "#2E7D5B"),
    "split": ("#CC79A7", "#8A4A70", "#E3B3CC"),
}
_OTHERS = ("#F0E442", "#7A7A00", "#8C6D31", "#999999")
_MARKERS = ("X", "p", "h", "<", ">", "*", "8", "d")
KINDS = {
    "forward": KindLook("forward", "#56B4E9"),
    "recompute": KindLook("recompute", "#56B4E9", "/////"),
    "loss": KindLook("loss", "#0072B2"),
    "backward": KindLook("backward", "#009E73"),
    "backward_input": KindLook("backward, inputs", "#009E73"),
    "backward_weight": KindLook("backward, weights", "#F0E442"),
    "all_reduce": KindLook("all-reduce", "#E69F00"),
    "all_reduce_bucket": KindLook("bucket of gradients under way", "#7A4A00"),
    "gather": KindLook("all-gather", "#D55E00"),
    "halo": KindLook("halo exchange", "#D55E00", "....."),
    "update": KindLook("update", "#CC79A7"),
    "wait": KindLook("waiting", "#777777"),
}


def strategy_look(name: str) -> StrategyLook:
    """Give a strategy its look; one that names none has a shade of its family's, by its name."""
    strategy = known_strategy(name)
    # A subclass does not inherit its look: two strategies must be told apart.
    own = {} if strategy is None else vars(type(strategy))
    if "colour" in own and "marker" in own:
        return StrategyLook(own["colour"], own["marker"])
    number = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "big")
    shades = _OTHERS if strategy is None else FAMILIES.get(strategy.family, _OTHERS)
    return StrategyLook(shades[number % len(shades)], _MARKERS[number % len(_MARKERS)])


def dataset_look(name: str) -> DatasetLook:
    """Give a dataset its look."""
    if name not in DATASETS:  # of a package that is not here
        return DatasetLook(0.6, "xxxxx")
    spec = DATASETS[name]
    return DatasetLook(spec.white, spec.hatch)


def kind_look(name: str) -> KindLook:
    """Give a kind of work its look; one that is not listed is brown, by its own name."""
    return KINDS.get(name, KindLook(name.replace("_", " "), "#8C6D31"))


def shade(colour: str, white: float) -> str:
    """``colour`` mixed with a share of white."""
    red, green, blue = to_rgb(colour)
    return to_hex((red + (1 - red) * white, green + (1 - green) * white, blue + (1 - blue) * white))
