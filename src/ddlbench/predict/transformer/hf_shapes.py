"""Shapes of decoders from configurations as Hugging Face writes them, without its library.

::

    hf:llama?hidden_size=4096,num_hidden_layers=32     a model type, and what differs from its usual
    hf:mine/config.json                                a file; arguments may follow it, too

Model types call the same number differently (``hidden_size``, ``n_embd``, ``d_model``). What a
configuration leaves out has the usual value of its model type, from ``model_types.csv``: the
defaults of transformers 5.24 (Apache-2.0), whether its layers have gates, and the parameters of the
network that it builds then.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from ddlbench.common.document import UnreadableJson, read_object
from ddlbench.common.errors import ConfigError
from ddlbench.common.schema import nearest, read_checked
from ddlbench.predict.transformer.configurations import Shape

PREFIX = "hf:"
NAMES: Mapping[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
    "hidden_size": ("hidden_size", "n_embd", "d_model", "n_embed"),
    "attention_heads": ("num_attention_heads", "n_head", "num_heads", "n_heads"),
    "key_value_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv"),
    "head_size": ("head_dim",),
    "feed_forward_size": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "vocabulary": ("vocab_size",),
    "sequence_length": (
        "max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length",
    ),
    "tied_embedding": ("tie_word_embeddings",),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "active_experts": ("num_experts_per_tok", "num_experts_per_token"),
}  # fmt: skip
"""Fields of a shape, and the keys that configurations have for them."""
_EXPERT_WIDTH = "moe_intermediate_size"
_MULTI_QUERY = "multi_query"
"""All heads of queries share keys and values."""
_UNCOUNTED: Mapping[str, str] = {
    "kv_lora_rank": "keys and values of a lower rank (MLA)",
    "state_size": "state space layers",
    "ssm_cfg": "state space layers",
    "mamba_d_state": "state space layers",
    "linear_num_key_heads": "linear attention",
    "shared_expert_intermediate_size": "experts that all tokens share",
    "n_shared_experts": "experts that all tokens share",
    "is_encoder_decoder": "an encoder beside its decoder",
    "image_size": "images to read",
    "vision_config": "images to read",
    "audio_config": "sound to read",
    "mlp_only_layers": "layers without experts",
    "first_k_dense_replace": "layers without experts",
}
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
    values = _read(Path(where), name) if where.endswith(".json") else {"model_type": where}
    nested = values.get("text_config")
    if isinstance(nested, dict):
        values = {**values, **nested}
    values |= _arguments(rest, name)
    for key, what in _UNCOUNTED.items():
        if values.get(key):
            raise ConfigError(f"{name}: has {what} ({key}), which shapes do not count")
    for key in _STEPS:
        if values.get(key, 1) != 1:
            raise ConfigError(
                f"{name}: has layers without experts ({key}), which shapes do not count"
            )
    kind = values.get("model_type")
    if not isinstance(kind, str) or kind not in model_types():
        known = sorted(model_types())
        raise ConfigError(
            f"{name}: model_type {kind!r} is not counted; {nearest(str(kind), known)}; or write a "
            ".yaml file of its shape (docs/oracle.md)"
        )
    return _checked(read_checked(Shape, _fields(values, model_types()[kind]), name), name)


def _fields(values: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a shape; what the configuration leaves out is the model type's."""
    given = {field: _first(values, keys) for field, keys in NAMES.items()}
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
            "write a multiple, or head_dim"
        )
    if groups and heads % groups:
        raise ConfigError(f"{name}: {heads} heads do not share {groups} of keys and values evenly")
    if shape.active_experts > shape.experts:
        raise ConfigError(f"{name}: {shape.active_experts} of {shape.experts} experts are active")
    return shape


def _first(values: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    return next((values[key] for key in keys if values.get(key) is not None), None)


def _read(path: Path, name: str) -> dict[str, Any]:
    try:
        return read_object(path)
    except (OSError, UnreadableJson) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{name}: cannot be read as a configuration: {reason}") from None


def _arguments(text: str, name: str) -> dict[str, Any]:
    """``hidden_size=4096,...`` as values.

    Raises:
        ConfigError: one decides nothing of a shape, or has no value.
    """
    known = {key for keys in NAMES.values() for key in keys} | {_EXPERT_WIDTH, _MULTI_QUERY}
    values: dict[str, Any] = {}
    for pair in filter(None, text.split(",")):
        key, _, value = pair.partition("=")
        if key not in known:
            raise ConfigError(
                f"{name}: {key!r} decides nothing of a shape; {nearest(key, sorted(known))}"
            )
        try:
            values[key] = json.loads(value.lower())
        except ValueError:
            raise ConfigError(f"{name}: {key} is {value!r}; write a number") from None
    return values


@cache
def model_types() -> Mapping[str, Mapping[str, Any]]:
    """Usual fields of a shape by model type (model_types.csv)."""
    path = Path(str(files("ddlbench.predict.transformer").joinpath("model_types.csv")))
    with path.open(encoding="utf-8", newline="") as file:
        return {row["model_type"]: _usual(row) for row in csv.DictReader(file)}


def _usual(row: Mapping[str, str]) -> dict[str, Any]:
    left_out = ("model_type", "parameters")
    numbers = {key: int(text) for key, text in row.items() if key not in left_out and text}
    flags = {key: bool(numbers[key]) for key in ("gated", "tied_embedding")}
    return {**numbers, **flags}
