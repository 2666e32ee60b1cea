"""Configurations of transformers: their shape, how it is cut over devices, and what it counts.

::

    shape   layers, hidden_size, attention_heads, sequence_length, vocabulary
    batch   global_batch = micro-batches x micro_batch x data
    cut     tensor x data x pipeline devices, schedule, chunks of a device's stages, ZeRO's stage,
            sequence parallelism, recomputation

Operations, parameters and activations follow from the shape. A decoder of l layers: hidden size h,
a heads, sequence s, vocabulary V, micro-batch b, cut over t devices (tensor parallelism)::

    x --+-- norm - QKV - softmax(Q K') V - projection --+-- norm - h -> 4h - GELU - 4h -> h --+-- y
        |                                               |                                     |
        +-----------------------------------------------+-------------------------------------+
            h x 3h/t  a/t heads  h/t x h  sum over t     h x 4h/t  4h/t x h  sum over t

All functions take numbers or arrays of them.

Sources: Megatron-LM (Narayanan et al., SC 2021), Equations 2 (parameters) and 3 (operations);
Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (2022),
Equations 1 to 6 and Table 2 (activations).

Megatron-LM numbers ranks tensor first, then data, then pipeline:
``rank = (stage * d + replica) * t + part``. With t = 2, d = 4, p = 2 on nodes of four devices::

    node 0   0 1 2 3     stage 0     tensor  {0 1} {2 3} {4 5} {6 7}     inside a node
    node 1   4 5 6 7                 data    {0 2 4 6} {1 3 5 7}         two rings cross each node's
    node 2   8 9 ...     stage 1                                         cards at the same time

A ring enters and leaves each of its nodes once, however many of its members lie there. So the rings
of a stage that lie in one node share its cards: t of them if t devices fill less than a node.

Shapes also come from configurations as Hugging Face writes them, without its library::

    hf:llama?hidden_size=4096,num_hidden_layers=32     a model type, and what differs from its usual
    hf:mine/config.json                                a file; arguments may follow it, too

Model types call the same number differently (``hidden_size``, ``n_embd``, ``d_model``). What a
configuration leaves out has the usual value of its model type, from ``model_types.csv``: the
defaults of transformers 5.24 (Apache-2.0), whether its layers have gates, and the parameters of the
network that it builds then.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ddlbench.common.document import UnreadableJson, csv_rows, read_object
from ddlbench.common.errors import ConfigError
from ddlbench.common.form import Count, Form
from ddlbench.common.schema import nearest, read_checked, read_yaml
from ddlbench.planning.network_tables import transformer_shape
from ddlbench.predict.constants import Array
from ddlbench.predict.transformer.decoders import Decoders

Numbers = NDArray[Any] | float
"""A number, or one number per configuration."""

RECOMPUTATIONS = ("none", "selective", "full")


@dataclass(frozen=True)
class Precision:
    """Bytes of what training keeps and moves.

    Args:
        item: of one activation, and of one weight as messages carry it.
        update: read and written to update one parameter.
    """

    item: float
    update: float


PRECISIONS: Mapping[str, Precision] = {
    # Update: gradient to single precision (6), Adam on the master weight and two moments (28), the
    # new weight in half precision (2).
    "mixed": Precision(item=2, update=36),
    # SGD with momentum, as the suite's own cells: three items are read, two are written.
    "single": Precision(item=4, update=20),
}
"""By name; the first is usual: half precision with master weights in single precision, and Adam."""
HALF = 2.0
"""Bytes of an item, of which bytes of activations are given here and in the sources."""
PADDING = 128

SCHEDULES = ("1f1b", "gpipe", "interleaved-1f1b", "interleaved-zero-bubble", "zero-bubble-v")
"""As :mod:`ddlbench.planning.schedules` names them."""
_FILES = (".yaml", ".yml")


@dataclass(frozen=True)
class Shape(Form):
    """A decoder: every layer alike. Keys from key_value_heads on may be left out for a GPT."""

    layers: Count
    hidden_size: Count
    attention_heads: Count
    sequence_length: Count
    """Tokens of a sample."""
    vocabulary: Count = 50257
    """Rows of the embedding."""
    key_value_heads: Count | None = None
    """Fewer than heads with grouped queries."""
    feed_forward_size: Count | None = None
    """Four times as wide as the network if left out."""
    gated: bool = False
    """Three products in the feed-forward layer (SwiGLU) instead of two."""
    tied_embedding: bool = True
    """Embedding and logits share their weights."""
    experts: Count = 1
    """Feed-forward layers side by side (mixture of experts)."""
    active_experts: Count = 1
    """That each token goes through."""
    head_size: Count | None = None
    """Items of a head; all heads together are as wide as the network if left out."""

    @property
    def attention_width(self) -> int:
        """Items of all heads of queries."""
        return self.attention_heads * self.head_size if self.head_size else self.hidden_size

    @property
    def groups(self) -> float:
        """Heads of keys and values for each head of queries."""
        return (self.key_value_heads or self.attention_heads) / self.attention_heads

    @property
    def wide(self) -> int:
        """Width of the feed-forward layer."""
        return self.feed_forward_size or 4 * self.hidden_size

    @property
    def is_gpt(self) -> bool:
        """Whether Megatron-LM's formulas count it."""
        same = self.groups == 1 and self.wide == 4 * self.hidden_size == 4 * self.attention_width
        return same and not self.gated and self.tied_embedding and self.experts == 1

    @property
    def parameters(self) -> float:
        hidden = self.hidden_size
        if self.is_gpt:
            return float(parameters(self.layers, hidden, self.vocabulary, self.sequence_length))
        expert = (2 + self.gated) * hidden * self.wide
        attention = 2 * hidden * self.attention_width * (1 + self.groups)
        layer = attention + self.experts * expert
        return float(self.layers * layer + (2 - self.tied_embedding) * self.vocabulary * hidden)


_ANSWERS = ("gated", "tied_embedding")


@cache
def published_shapes() -> dict[str, Shape]:
    """Shapes by name (shapes.csv)."""
    rows = csv_rows(Path(__file__).with_name("shapes.csv"))
    return {row["name"]: Shape(**_numbers(row)) for row in rows}


def _numbers(row: Mapping[str, str]) -> dict[str, Any]:
    """Fields of a shape in a row of a table; what it leaves empty has its default."""
    of_table = ("name", "source", "model_type", "parameters")
    given = {name: int(text) for name, text in row.items() if name not in of_table and text}
    return {name: bool(n) if name in _ANSWERS else n for name, n in given.items()}


def is_shape(name: str) -> bool:
    """Whether ``name`` is a published shape, one of ours, or a file that could hold one."""
    shape = ":" in name and transformer_shape(*name.split(":", 1)) is not None
    return shape or name in published_shapes() or name.endswith(_FILES)


def load_shape(name: str) -> Shape:
    """A shape by name: a published one, one of our networks as ``network:dataset``, or a file.

    The keys of a file are the fields of :class:`Shape`.

    Raises:
        ConfigError: there is none of that name, or a key is wrong.
    """
    known = published_shapes()
    if name in known:
        return known[name]
    values: Mapping[str, Any] | None = None
    if ":" in name:
        values = transformer_shape(*name.split(":", 1))
    if values is not None:
        return Shape(**values, tied_embedding=False)  # as ours are (docs/networks.md)
    if not name.endswith(_FILES):
        raise ConfigError(
            f"transformer {name!r} is unknown; write one of our networks with its dataset "
            f"(vit-tiny:cifar10), a .yaml file with "
            f"{', '.join(field.name for field in fields(Shape))}, or a published one: "
            f"{nearest(name, known)}"
        )
    path = Path(name)
    return _checked(read_checked(Shape, read_yaml(path), name), name)


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


def tensor_rings(table: Decoders, devices_per_node: int) -> Rings:
    """Rings of the all-reduces of activations."""
    tensor = table["tensor"]
    return Rings(tensor, tensor > devices_per_node, np.ones(len(table)))


def data_rings(table: Decoders, devices_per_node: int) -> Rings:
    """Rings of the all-reduces of gradients."""
    tensor, data = table["tensor"], table["data"]
    crosses = (tensor * data > devices_per_node) & (data > 1)
    sharing = np.where(crosses, np.minimum(tensor, devices_per_node), 1.0)
    return Rings(data, crosses, sharing)


def hop_senders(table: Decoders, devices_per_node: int) -> tuple[Array, Array]:
    """Messages between neighbouring stages.

    Returns:
        whether some stage's neighbour lies on another node, and how many devices of a node then
        send at the same time.
    """
    stage = table["tensor"] * table["data"]
    crosses = (stage * table["pipeline"] > devices_per_node) & (table["pipeline"] > 1)
    return crosses, np.where(crosses, np.minimum(stage, devices_per_node), 1.0)


def ends_rings(table: Decoders, devices_per_node: int) -> Rings:
    """Pairs of the first and last stage, which sum the gradient of a tied embedding."""
    crosses, senders = hop_senders(table, devices_per_node)
    return Rings(np.where(table["pipeline"] > 1, 2.0, 1.0), crosses, senders)


def padded_vocabulary(vocabulary: Numbers, tensor: Numbers) -> Numbers:
    """Rows of the embedding; if it is cut, a multiple of 128 on each of ``tensor`` devices."""
    rows = np.asarray(vocabulary, dtype=float)
    unit = PADDING * np.asarray(tensor, dtype=float)
    return np.where(np.asarray(tensor) > 1, np.ceil(rows / unit) * unit, rows)


def layer_parameters(hidden: Numbers) -> Numbers:
    """Weights and biases of a layer: 12 h^2 + 13 h."""
    return 12 * hidden**2 + 13 * hidden


def embedding_parameters(hidden: Numbers, vocabulary: Numbers, sequence: Numbers) -> Numbers:
    """Embeddings of words and positions, (V + s) h; the logits use the words' again."""
    return (vocabulary + sequence) * hidden


def bytes_of(table: Decoders, kind: str) -> Array:
    """A field of each configuration's :class:`~Precision`."""
    return np.array([getattr(PRECISIONS[name], kind) for name in table["precision"]])


def words_of(table: Decoders) -> Array:
    """Rows of the embedding on one device, padded."""
    return np.asarray(padded_vocabulary(table["vocabulary"], table["tensor"])) / table["tensor"]


def stage_layers(table: Decoders) -> Array:
    """Layers of the fullest device."""
    return np.ceil(table["layers"] / table["pipeline"])


def parameters(layers: Numbers, hidden: Numbers, vocabulary: Numbers, sequence: Numbers) -> Numbers:
    """All parameters: 12 l h^2 (1 + 13 / 12h + (V + s) / 12 l h), Megatron-LM's Equation 2."""
    each = layer_parameters(hidden)
    return layers * each + embedding_parameters(hidden, vocabulary, sequence)


PREFIX = "hf:"
_KEYS = read_yaml(Path(__file__).with_name("configuration_keys.yaml"))
NAMES: Mapping[str, Sequence[str]] = _KEYS["fields"]
"""Fields of a shape, and the keys that configurations have for them."""
_EXPERT_WIDTH = "moe_intermediate_size"
_MULTI_QUERY = "multi_query"
"""All heads of queries share keys and values."""
_UNCOUNTED: Mapping[str, str] = _KEYS["uncounted"]
"""Keys of networks with parts that :mod:`.decoders` does not count, and what they have."""
_STEPS = ("decoder_sparse_step", "interleave_moe_layer_step")
"""Keys that say after how many layers the next one has experts."""


def is_configuration(name: str) -> bool:
    """Whether a network's name is of a configuration."""
    return name.startswith(PREFIX)


def shape_of(name: str) -> Shape:
    """The shape of ``hf:TYPE?name=value,...`` or ``hf:FILE.json``.

    Its samples are as long as the network has positions.

    Args:
        name: of the network.

    Raises:
        ConfigError: the file cannot be read, the model type is unknown, a value is wrong, or the
            network has parts that are not counted.
    """
    where, _, rest = name.removeprefix(PREFIX).partition("?")
    if "/" in where and not where.endswith(".json"):
        raise ConfigError(
            f"{name}: {where!r} is no model type, and nothing is downloaded; write the file, as "
            "hf:FOLDER/config.json"
        )
    values = _read(Path(where), name) if where.endswith(".json") else {"model_type": where}
    nested = values.get("text_config")
    if isinstance(nested, dict):
        values = {**values, **nested}
    values |= _arguments(rest, name)
    for key, what in _UNCOUNTED.items():
        if values.get(key):
            raise ConfigError(f"{name} has {what} ({key}), which shapes do not count")
    for key in _STEPS:
        if values.get(key, 1) != 1:
            raise ConfigError(
                f"{name} has layers without experts ({key}), which shapes do not count"
            )
    kind = values.get("model_type")
    if not isinstance(kind, str) or kind not in model_types():
        known = sorted(model_types())
        raise ConfigError(
            f"{name}: model_type {kind!r} is not counted; write a .yaml file of its shape "
            f"(docs/oracle.md), or another model_type: {nearest(str(kind), known)}"
        )
    return _checked(read_checked(Shape, _fields(values, model_types()[kind]), name), name)


def _fields(values: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a shape; what the configuration leaves out is the model type's."""
    known = {key: value for key, value in values.items() if value is not None}
    given = {
        field: next((known[key] for key in keys if key in known), None)
        for field, keys in NAMES.items()
    }
    if _MULTI_QUERY in values and not values.get("new_decoder_architecture"):
        given["key_value_heads"] = 1 if values[_MULTI_QUERY] is True else given["attention_heads"]
    fields = {**usual, **{name: value for name, value in given.items() if value is not None}}
    if fields.get("experts", 1) != 1 and values.get(_EXPERT_WIDTH) is not None:
        fields["feed_forward_size"] = values[_EXPERT_WIDTH]
    return fields


def _checked(shape: Shape, name: str) -> Shape:
    heads, groups = shape.attention_heads, shape.key_value_heads
    if shape.head_size is None and shape.hidden_size % heads:
        raise ConfigError(
            f"{name}: {shape.hidden_size} items (hidden size) do not divide by {heads} heads; "
            "write a multiple, or the items of a head"
        )
    if groups and heads % groups:
        raise ConfigError(f"{name}: {heads} heads do not share {groups} of keys and values evenly")
    if shape.active_experts > shape.experts:
        raise ConfigError(f"{name}: {shape.active_experts} of {shape.experts} experts are active")
    return shape


def _read(path: Path, name: str) -> dict[str, Any]:
    try:
        return read_object(path)
    except (OSError, UnreadableJson) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{name} cannot be read as a configuration: {reason}") from None


def _arguments(text: str, name: str) -> dict[str, Any]:
    """``hidden_size=4096,...`` as values.

    Raises:
        ConfigError: one has no effect on a shape, or has no value.
    """
    known = {key for keys in NAMES.values() for key in keys} | {_EXPERT_WIDTH, _MULTI_QUERY}
    values: dict[str, Any] = {}
    for pair in filter(None, text.split(",")):
        key, _, value = pair.partition("=")
        if key not in known:
            raise ConfigError(
                f"{name}: {key!r} has no effect on a shape; {nearest(key, sorted(known))}"
            )
        try:
            values[key] = json.loads(value.lower())
        except ValueError:
            raise ConfigError(f"{name}: {key} is {value!r}; write a number") from None
    return values


@cache
def model_types() -> Mapping[str, Mapping[str, Any]]:
    """Usual fields of a shape by model type (model_types.csv)."""
    rows = csv_rows(Path(__file__).with_name("model_types.csv"))
    return {row["model_type"]: _numbers(row) for row in rows}
