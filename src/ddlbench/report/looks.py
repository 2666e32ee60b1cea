"""Looks of strategies, datasets and kinds of work, without matplotlib.

A strategy has a colour and a marker, which its descriptor declares; a dataset has a shade and a
hatch, a kind of work a colour. Strategies of a family share a hue: data parallel blue, pipeline red
to orange, model green, split purple. What nobody declares is in ``looks.yaml``.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddlbench.common.schema import read_yaml
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.planning.strategy import known_strategy


@dataclass(frozen=True)
class StrategyLook:
    """Colour and marker of a strategy."""

    colour: str
    marker: str


@dataclass(frozen=True)
class DatasetLook:
    """Share of white and hatch of a dataset."""

    white: float
    hatch: str


@dataclass(frozen=True)
class KindLook:
    """Label, colour and hatch of one kind of work in timelines."""

    label: str
    colour: str
    hatch: str = ""


_DECLARED = read_yaml(Path(__file__).with_suffix(".yaml"))
FAMILIES: dict[str, list[str]] = _DECLARED["families"]
PARAMETERS: dict[Any, Any] = _DECLARED["matplotlib"]
KINDS = {name: KindLook(*look) for name, look in _DECLARED["kinds"].items()}


def strategy_look(name: str) -> StrategyLook:
    """The look that a strategy declares, else one of its family's colours chosen by its name."""
    strategy = known_strategy(name)
    # A subclass does not inherit the look, so that no two strategies look the same.
    attributes = vars(type(strategy))
    if "colour" in attributes and "marker" in attributes:
        return StrategyLook(attributes["colour"], attributes["marker"])
    number = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "big")
    shades = FAMILIES.get(strategy.family, _DECLARED["other_families"])
    markers = _DECLARED["markers"]
    return StrategyLook(shades[number % len(shades)], markers[number % len(markers)])


def dataset_look(name: str) -> DatasetLook:
    """The look of a dataset."""
    if name not in DATASETS:  # of a package that is not here
        return DatasetLook(0.6, "xxxxx")
    if name in DATASETS.declared:
        place = sorted(DATASETS.declared).index(name)
        return _nth("own_datasets", place)
    spec = DATASETS[name]
    return DatasetLook(spec.white, spec.hatch)


def condition_look(place: int) -> DatasetLook:
    """The look of the bars of one of several geometries, by its place among them."""
    return _nth("conditions", place)


def _nth(looks: str, place: int) -> DatasetLook:
    return DatasetLook(*_DECLARED[looks][place % len(_DECLARED[looks])])


def kind_look(name: str) -> KindLook:
    """The look of a kind of work; an unlisted kind is brown and labelled by its name."""
    return KINDS.get(name, KindLook(name.replace("_", " "), "#8C6D31"))
