"""Shapes of transformers: published ones by name, or a user's own file."""

from __future__ import annotations

import csv
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib.resources import files
from pathlib import Path

from ddlbench.common.errors import ConfigError
from ddlbench.common.form import Count, Form
from ddlbench.common.schema import nearest, read_checked, read_yaml
from ddlbench.planning.network_tables import transformer_shape
from ddlbench.predict.transformer import counts

_FILES = (".yaml", ".yml")


@dataclass(frozen=True)
class Shape(Form):
    """A decoder: every layer alike, embedding and logits share their weights."""

    layers: Count
    hidden_size: Count
    attention_heads: Count
    sequence_length: Count
    """Tokens of a sample."""
    vocabulary: Count = 50257
    """Rows of the embedding."""

    @property
    def parameters(self) -> float:
        return float(
            counts.parameters(self.layers, self.hidden_size, self.vocabulary, self.sequence_length)
        )

    def columns(self) -> dict[str, int]:
        """As columns of a table of configurations; the vocabulary padded for fast products."""
        padded = -(-self.vocabulary // counts.PADDING) * counts.PADDING
        return {**asdict(self), "vocabulary": padded}


@cache
def published_shapes() -> dict[str, Shape]:
    """Shapes by name (shapes.csv)."""
    path = Path(str(files("ddlbench.predict.transformer").joinpath("shapes.csv")))
    names = [field.name for field in fields(Shape)]
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return {row["name"]: Shape(*(int(row[name]) for name in names)) for row in rows}


def is_shape(name: str) -> bool:
    """Whether ``name`` is a published shape, one of ours, or a file that could hold one."""
    own = ":" in name and transformer_shape(*name.split(":", 1)) is not None
    return own or name in published_shapes() or name.endswith(_FILES)


def load_shape(name: str) -> Shape:
    """A shape by name: a published one, one of our networks as ``network:dataset``, or a file.

    The keys of a file are the fields of :class:`Shape`.

    Raises:
        ConfigError: there is none of that name, or a key is wrong.
    """
    known = published_shapes()
    if name in known:
        return known[name]
    own = transformer_shape(*name.split(":", 1)) if ":" in name else None
    if own is not None:
        return Shape(**own)
    if not name.endswith(_FILES):
        raise ConfigError(
            f"transformer {name!r} is unknown; {nearest(name, known)}; or write one of our "
            f"networks with its dataset (vit-tiny:cifar10), or a .yaml file with "
            f"{', '.join(field.name for field in fields(Shape))}"
        )
    path = Path(name)
    shape = read_checked(Shape, read_yaml(path), str(path))
    if shape.hidden_size % shape.attention_heads:
        raise ConfigError(
            f"{path}: hidden_size {shape.hidden_size} does not divide by attention_heads "
            f"{shape.attention_heads}; write a multiple"
        )
    return shape
