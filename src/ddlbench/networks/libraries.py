"""Networks of libraries by name: ``torchvision:resnet50``, ``timm:convnext_tiny``, ``hf:gpt2``.

Each is built without weights of others, and never downloads anything: with the classes, channels
and sizes of the dataset that it is to read, and with the arguments that its name gives::

    timm:vit_small_patch16_224?drop_path_rate=0.1         of the function that builds it
    hf:llama?hidden_size=256,num_hidden_layers=4          of the configuration of a model type
    hf:mine.json                                          a configuration beside the Snakefile
"""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from ddlbench.common.errors import ConfigError, shown
from ddlbench.common.schema import nearest
from ddlbench.experiment.dataset_spec import DatasetSpec

Factory = Callable[[DatasetSpec], nn.Module]


def torchvision(name: str) -> Factory:
    """A network of ``torchvision.models``.

    Raises:
        ConfigError: torchvision has none of this name.
    """
    from ddlbench.networks.torchvision_compat import models  # noqa: PLC0415 - slow to import

    name, arguments = _parted(name)
    known = models.list_models(module=models)
    if name not in known:
        raise ConfigError(f"torchvision has no network {shown(name)}; {nearest(name, known)}")
    builder = models.get_model_builder(name)

    def build(spec: DatasetSpec) -> nn.Module:
        _needs_images(f"torchvision:{name}", spec, channels=3)
        values: dict[str, Any] = {"weights": None, "num_classes": spec.num_classes}
        if "VisionTransformer" in str(inspect.signature(builder).return_annotation):
            values["image_size"] = spec.height
        if name in ("googlenet", "inception_v3"):  # heads that only training has
            values |= {"aux_logits": False, "init_weights": True}
        return _called(f"torchvision:{name}", builder, {**values, **arguments})

    return build


def timm(name: str) -> Factory:
    """A network of ``timm``.

    Raises:
        ConfigError: timm is not installed, or has none of this name.
    """
    library = _library("timm", "timm")
    name, arguments = _parted(name)
    known = library.list_models()
    if name.partition(".")[0] not in known:
        raise ConfigError(f"timm has no network {shown(name)}; {nearest(name, known)}")

    def build(spec: DatasetSpec) -> nn.Module:
        _needs_images(f"timm:{name}", spec)
        values: dict[str, Any] = {
            "model_name": name,
            "pretrained": False,
            "num_classes": spec.num_classes,
            "in_chans": spec.channels,
            **arguments,
        }
        sized = {"img_size": (spec.height, spec.width), **values}
        try:
            network: nn.Module = library.create_model(**sized)
        except (TypeError, AssertionError):  # most convolutional networks read any size
            network = _called(f"timm:{name}", library.create_model, values)
        return network

    return build


def hf(name: str) -> Factory:
    """A configuration of ``transformers``, for tokens or images, without weights.

    Raises:
        ConfigError: transformers is not installed, or has no such type or file.
    """
    library = _library("transformers", "transformers")
    name, arguments = _parted(name)
    written: dict[str, Any] = {}
    model_type = name
    if name.endswith(".json"):
        written = _read_configuration(Path(name))
        model_type = str(written.pop("model_type", ""))
    types = list(library.CONFIG_MAPPING)
    if model_type not in types:
        remark = nearest(model_type, types)
        raise ConfigError(f"transformers has no model type {shown(model_type)}; {remark}")

    def build(spec: DatasetSpec) -> nn.Module:
        tokens = spec.kind == "tokens"
        config = library.CONFIG_MAPPING[model_type](**{**written, **_of_data(spec), **arguments})
        if tokens and getattr(config, "max_position_embeddings", spec.shape[0]) < spec.shape[0]:
            config.max_position_embeddings = spec.shape[0]
        kind = library.AutoModelForCausalLM if tokens else library.AutoModelForImageClassification
        try:
            network: nn.Module = kind.from_config(config)
        except ValueError:
            what = "causal language model" if tokens else "image classifier"
            raise ConfigError(
                f"transformers has no {what} of type {model_type}, so hf:{name} cannot read "
                f"dataset {spec.name}"
            ) from None
        return network

    return build


def _of_data(spec: DatasetSpec) -> dict[str, Any]:
    """Values of a configuration that follow from the dataset; a tied head belongs to no stage."""
    if spec.kind == "tokens":
        return {
            "vocab_size": spec.num_classes,
            "use_cache": False,
            "tie_word_embeddings": False,
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": None,
        }
    return {
        "num_labels": spec.num_classes,
        "image_size": spec.height,
        "num_channels": spec.channels,
    }


def _read_configuration(path: Path) -> dict[str, Any]:
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"hf:{path}: cannot be read as JSON: {error}") from None
    if not isinstance(written, dict):
        raise ConfigError(f"hf:{path}: is no configuration; write an object with model_type")
    return written


def _parted(name: str) -> tuple[str, dict[str, Any]]:
    """A name, and the arguments behind its question mark, as numbers where they are."""
    name, _, rest = name.partition("?")
    pairs = (pair.partition("=") for pair in rest.split(",") if pair)
    return name, {key: _value(text) for key, _, text in pairs}


def _value(text: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def _called(name: str, builder: Callable[..., nn.Module], values: Mapping[str, Any]) -> nn.Module:
    """The network that a builder makes.

    Raises:
        ConfigError: it does not take one of these arguments.
    """
    try:
        return builder(**values)
    except TypeError as error:
        raise ConfigError(f"network {name} does not take these arguments: {error}") from None


def _library(module: str, package: str) -> Any:
    """A library that is not installed by default.

    Raises:
        ConfigError: it is missing.
    """
    # They import torchvision, which beside torch for CPUs only loads through this module.
    importlib.import_module("ddlbench.networks.torchvision_compat")
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"the package {package} is not installed here ({error}); install it with: "
            f"python -m pip install {package}"
        ) from None


def _needs_images(name: str, spec: DatasetSpec, channels: int | None = None) -> None:
    if spec.kind != "images":
        raise ConfigError(f"{name} reads images, but dataset {spec.name} has {spec.kind}")
    if channels is not None and spec.channels != channels:
        raise ConfigError(
            f"{name} reads {channels} channels, but dataset {spec.name} has {spec.channels}"
        )
