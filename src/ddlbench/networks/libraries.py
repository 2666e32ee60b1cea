"""Networks of libraries by name: ``torchvision:resnet50``, ``timm:convnext_tiny``, ``hf:gpt2``.

Each is built without weights of others, and never downloads anything: with the classes, channels
and sizes of the dataset that it is to read, as far as the library's function takes them.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
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

    known = models.list_models()
    if name not in known:
        raise ConfigError(f"torchvision has no network {shown(name)}; {nearest(name, known)}")
    builder = models.get_model_builder(name)

    def build(spec: DatasetSpec) -> nn.Module:
        _needs_images(f"torchvision:{name}", spec, channels=3)
        wanted = {"weights": None, "weights_backbone": None, "num_classes": spec.num_classes}
        taken = {key: value for key, value in wanted.items() if _takes(builder, key)}
        if "VisionTransformer" in str(inspect.signature(builder).return_annotation):
            taken["image_size"] = spec.height
        if name in ("googlenet", "inception_v3"):
            taken |= {"aux_logits": False, "init_weights": True}
        network: nn.Module = models.get_model(name, **taken)
        return network

    return build


def timm(name: str) -> Factory:
    """A network of ``timm``.

    Raises:
        ConfigError: timm is not installed, or has none of this name.
    """
    library = _library("timm", "timm")
    known = library.list_models()
    if name not in known:
        raise ConfigError(f"timm has no network {shown(name)}; {nearest(name, known)}")

    def build(spec: DatasetSpec) -> nn.Module:
        _needs_images(f"timm:{name}", spec)
        sizes = {"num_classes": spec.num_classes, "in_chans": spec.channels}
        try:
            network: nn.Module = library.create_model(
                name, pretrained=False, img_size=(spec.height, spec.width), **sizes
            )
        except TypeError:  # most convolutional networks read any size
            network = library.create_model(name, pretrained=False, **sizes)
        return network

    return build


def hf(model_type: str) -> Factory:
    """The default configuration of a model type of ``transformers``, for tokens or images.

    Raises:
        ConfigError: transformers is not installed, or has no such type.
    """
    library = _library("transformers", "transformers")
    types = list(library.CONFIG_MAPPING)
    if model_type not in types:
        remark = nearest(model_type, types)
        raise ConfigError(f"transformers has no model type {shown(model_type)}; {remark}")

    def build(spec: DatasetSpec) -> nn.Module:
        config = library.CONFIG_MAPPING[model_type]()
        if spec.kind == "tokens":
            wanted = {"vocab_size": spec.num_classes, "use_cache": False}
            if config.max_position_embeddings < spec.shape[0]:
                wanted["max_position_embeddings"] = spec.shape[0]
            kind = library.AutoModelForCausalLM
        else:
            wanted = {
                "num_labels": spec.num_classes,
                "image_size": spec.height,
                "num_channels": spec.channels,
            }
            kind = library.AutoModelForImageClassification
        for key, value in wanted.items():
            setattr(config, key, value)
        try:
            network: nn.Module = kind.from_config(config)
        except ValueError as error:
            what = "tokens" if spec.kind == "tokens" else spec.kind
            raise ConfigError(
                f"hf:{model_type} has no form that reads {what} of {spec.name}: "
                f"{str(error).splitlines()[0][:120]}"
            ) from None
        return network

    return build


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


def _takes(builder: Callable[..., Any], key: str) -> bool:
    """Whether a builder, or the class that it hands further arguments to, takes a keyword."""
    parameters = inspect.signature(builder).parameters
    open_ended = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())
    return key in parameters or (open_ended and key == "num_classes")


def _needs_images(name: str, spec: DatasetSpec, channels: int | None = None) -> None:
    if spec.kind != "images":
        raise ConfigError(f"{name} reads images, but dataset {spec.name} has {spec.kind}")
    if channels is not None and spec.channels != channels:
        raise ConfigError(
            f"{name} reads {channels} channels, but dataset {spec.name} has {spec.channels}"
        )
