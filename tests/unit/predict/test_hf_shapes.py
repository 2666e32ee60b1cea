"""Shapes of decoders from configurations of Hugging Face, without its library."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.predict.transformer import configurations
from ddlbench.predict.transformer.configurations import model_types, shape_of


def _counted():
    path = Path(configurations.__file__).with_name("model_types.csv")
    with path.open(encoding="utf-8") as file:
        return {row["model_type"]: int(row["parameters"]) for row in csv.DictReader(file)}


@pytest.mark.parametrize("kind", model_types())
def test_parameters_are_those_that_the_library_builds(kind):
    # Norms, biases and learnt positions are not counted.
    assert shape_of(f"hf:{kind}").parameters == pytest.approx(_counted()[kind], rel=0.012)


def test_arguments_replace_usual_values():
    shape = shape_of("hf:mistral?num_hidden_layers=4,num_key_value_heads=16,vocab_size=1000")
    usual = shape_of("hf:mistral")
    assert shape == replace(usual, layers=4, key_value_heads=16, vocabulary=1000)


def test_keys_and_values_follow_heads_where_the_type_says_nothing_else():
    assert shape_of("hf:llama?num_attention_heads=64").groups == 1
    assert shape_of("hf:falcon").key_value_heads == 1


def test_heads_wider_than_the_network():
    shape = shape_of("hf:gemma?num_hidden_layers=1")
    assert shape.attention_width == 16 * 256
    assert shape.attention_width != shape.hidden_size


def write(folder, values):
    path = folder / "config.json"
    path.write_text(values if isinstance(values, str) else json.dumps(values))
    return f"hf:{path}"


def test_a_file(tmp_path):
    values = {"model_type": "gpt2", "n_embd": 1600, "n_layer": 48, "n_head": 25, "foreign": [1]}
    shape = shape_of(write(tmp_path, values))
    assert (shape.hidden_size, shape.layers, shape.wide) == (1600, 48, 6400)
    assert shape_of(write(tmp_path, values) + "?n_layer=2").layers == 2


def test_a_text_model_in_a_larger_one(tmp_path):
    values = {"model_type": "seen", "text_config": {"model_type": "llama", "num_hidden_layers": 3}}
    assert shape_of(write(tmp_path, values)).layers == 3


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ("[]", "cannot be read"),
        ("{", "cannot be read"),
        ({}, "model_type None is not counted"),
        ({"model_type": ["llama"]}, "is not counted"),
        ({"model_type": "llama", "hidden_size": "wide"}, "hidden_size"),
        ({"model_type": "llama", "num_hidden_layers": 0}, "layers"),
        ({"model_type": "llama", "num_hidden_layers": True}, "layers"),
        ({"model_type": "llama", "hidden_size": 4097}, "do not divide"),
        ({"model_type": "llama", "num_key_value_heads": 7}, "evenly"),
        ({"model_type": "mixtral", "num_experts_per_tok": 9}, "experts are active"),
        ({"model_type": "llama", "kv_lora_rank": 512}, "MLA"),
        ({"model_type": "llama", "is_encoder_decoder": True}, "encoder"),
        ({"model_type": "seen", "text_config": {}, "vision_config": {"depth": 3}}, "images"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": [0]}, "layers without experts"),
        ({"model_type": "qwen3_moe", "decoder_sparse_step": 2}, "layers without experts"),
    ],
)
def test_what_is_no_shape_is_refused(tmp_path, values, sentence):
    with pytest.raises(ConfigError, match=sentence):
        shape_of(write(tmp_path, values))


@pytest.mark.parametrize("rest", ["hiden_size=8", "hidden_size=wide", "rope_theta=1"])
def test_wrong_arguments(rest):
    with pytest.raises(ConfigError, match=rest.partition("=")[0]):
        shape_of(f"hf:llama?{rest}")


@pytest.mark.parametrize("name", ["hf:meta-llama/Llama-3.1-8B", "hf:models/mine"])
def test_a_folder_or_a_name_of_the_hub_is_told_what_to_write(name):
    with pytest.raises(ConfigError, match=r"write the file, as hf:FOLDER/config\.json"):
        shape_of(name)
