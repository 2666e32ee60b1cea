"""Networks of users and libraries: what of them is called and read, and what their code may do.

Strategies without stages train any ``nn.Module`` as one block. It is called and its result is read
by one rule, so that models of torchvision, timm and Hugging Face need no wrapper of the user::

    input     the first argument of ``forward``; by keyword if that is input_ids or pixel_values
    output    the tensor; else .logits, ["logits"] or ["out"]; else the first tensor of a tuple

Libraries have networks by name. Each is built without weights of others, and never downloads
anything: with the classes, channels and sizes of the dataset that it is to read, and with the
arguments that its name gives::

    torchvision:resnet50
    timm:vit_small_patch16_224?drop_path_rate=0.1         of the function that builds it
    hf:llama?hidden_size=256,num_hidden_layers=4          of the configuration of a model type
    hf:mine.json                                          a configuration beside the Snakefile

Initial weights are often drawn by numpy or by Python's ``random``. So both are seeded as torch is,
before the user's module is imported, and again before it builds the network::

    seeds, settings kept | import the module | same seeds | build | all states as before

A module may also name another GPU, go to another folder, or turn warnings into errors. The process
has its rank's own environment, so that is undone, too.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import os
import random
import re
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from ddlbench.common.errors import ConfigError, shown
from ddlbench.common.schema import nearest
from ddlbench.experiment.dataset_spec import DatasetSpec
from ddlbench.networks.inputs import settings_kept

_KEYWORDS = ("input_ids", "pixel_values")
_KEYS = ("logits", "out")


class Whole(nn.Module):
    """A module as one block.

    Args:
        module: any module of one input.
        why: it cannot be cut, as a clause.
    """

    def __init__(self, module: nn.Module, why: str) -> None:
        super().__init__()
        self.module, self.why = module, why
        self._keyword = _keyword_of(module)

    def forward(self, inputs: Tensor) -> Tensor:
        """(N, ...) -> what the module returns for it."""
        returned = (
            self.module(inputs) if self._keyword is None else self.module(**{self._keyword: inputs})
        )
        return tensor_of(returned)


def whole(module: nn.Module, why: str) -> nn.Sequential:
    """A network of one block, called by the class of the module."""
    return nn.Sequential(OrderedDict([(type(module).__name__, Whole(module, why))]))


def why_uncut(network: nn.Sequential) -> str:
    """Why a network is one block; empty if it is made of blocks."""
    blocks = list(network._modules.values())
    return blocks[0].why if len(blocks) == 1 and isinstance(blocks[0], Whole) else ""


def tensor_of(returned: Any) -> Tensor:
    """The tensor that the loss reads, of what a module returns.

    Raises:
        ConfigError: there is none.
    """
    if isinstance(returned, Tensor):
        return returned
    if isinstance(getattr(returned, "logits", None), Tensor):
        logits: Tensor = returned.logits
        return logits
    if isinstance(returned, Mapping):
        chosen = next((returned[key] for key in _KEYS if key in returned), None)
    elif isinstance(returned, tuple | list):
        chosen = next((value for value in returned if isinstance(value, Tensor)), None)
    else:
        chosen = None
    if not isinstance(chosen, Tensor):
        raise ConfigError(
            f"the network returns {type(returned).__name__} without a tensor called logits or out; "
            "return one tensor, or wrap the module in one that does"
        )
    return chosen


def _keyword_of(module: nn.Module) -> str | None:
    """The keyword by which the first argument of ``forward`` is given; None: by its place."""
    try:
        first = next(iter(inspect.signature(module.forward).parameters), None)
    except (TypeError, ValueError):  # a forward that Python cannot look into
        return None
    return first if first in _KEYWORDS else None


def required_inputs(module: nn.Module) -> list[str]:
    """Names of what ``forward`` cannot be called without, as far as Python can look into it."""
    if module._forward_pre_hooks or type(module).__call__ is not nn.Module.__call__:
        return []  # which may add inputs
    try:
        # A decorator may add what the wrapped function wants.
        signature = inspect.signature(module.forward, follow_wrapped=False)
        parameters = signature.parameters.values()
    except (TypeError, ValueError):
        return []
    of_any_number = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [
        parameter.name
        for parameter in parameters
        if parameter.default is inspect.Parameter.empty and parameter.kind not in of_any_number
    ]


Factory = Callable[[DatasetSpec], nn.Module]

_WEIGHTS = frozenset(
    {
        "weights", "weights_backbone", "pretrained", "pretrained_backbone", "pretrained_cfg",
        "pretrained_cfg_overlay", "checkpoint_path", "cache_dir",
    }
)  # fmt: skip
_DEPTH = re.compile("layer|depth|block")
_MOST_LAYERS = 10_000
_EXAMPLES = ("hf:vit or hf:resnet", "hf:gpt2 or hf:llama")  # for images, for tokens


def torchvision(name: str) -> Factory:
    """A network of ``torchvision.models``.

    Raises:
        ConfigError: torchvision has none of this name.
    """
    written, (name, arguments) = f"torchvision:{name}", _parted("torchvision", name)
    from ddlbench.networks.torchvision_compat import models  # noqa: PLC0415 - slow to import

    known = models.list_models(module=models)
    if name in set(models.list_models()) - set(known):
        task = models.get_model_builder(name).__module__.split(".")[2].replace("_", " ")
        raise ConfigError(
            f"torchvision:{name} is a network of torchvision.models for {task}; networks here "
            f"classify images in floating point, as torchvision:resnet50 does"
        )
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
        return _called(written, spec, builder, {**values, **arguments})

    return build


def timm(name: str) -> Factory:
    """A network of ``timm``.

    Raises:
        ConfigError: timm is not installed, or has none of this name.
    """
    written, (name, arguments) = f"timm:{name}", _parted("timm", name)
    library = _library("timm", "timm")
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
        except Exception:  # most convolutional networks read any size
            network = _called(written, spec, library.create_model, values)
        return network

    return build


def hf(name: str) -> Factory:
    """A configuration of ``transformers``, for tokens or images, without weights.

    Raises:
        ConfigError: transformers is not installed, or has no such type or file.
    """
    written, (name, arguments) = f"hf:{name}", _parted("hf", name)
    library = _library("transformers", "transformers")
    configured: dict[str, Any] = {}
    model_type = name
    if name.endswith(".json"):
        configured = _read_configuration(Path(name))
        model_type = str(configured.pop("model_type", ""))
        _check_depth(f"hf:{name}", configured)
    types = list(library.CONFIG_MAPPING)
    if model_type not in types:
        remark = nearest(model_type, types)
        raise ConfigError(f"transformers has no model type {shown(model_type)}; {remark}")

    kind = library.CONFIG_MAPPING[model_type]
    words = {*dir(kind()), *kind.attribute_map}
    for word in arguments.keys() - words:  # which transformers would take, and not read
        raise ConfigError(f"hf:{name} has no argument {shown(word)}; {nearest(word, words)}")

    def build(spec: DatasetSpec) -> nn.Module:
        tokens = spec.kind == "tokens"
        if not tokens:
            _needs_images(f"hf:{name}", spec)
        model = library.AutoModelForCausalLM if tokens else library.AutoModelForImageClassification
        if kind not in model._model_mapping:
            what = "causal language model" if tokens else "image classifier"
            raise ConfigError(
                f"transformers has no {what} of type {model_type}, so hf:{name} cannot read "
                f"dataset {spec.name}; take {_EXAMPLES[tokens]}, or return such a network from a "
                "function of your own"
            )
        values = {**configured, **_of_data(spec, model_type), **arguments}
        if "is_decoder" in words:  # BERT else reads the token that it is to predict
            values = {"is_decoder": True, **values}
        return _called(written, spec, lambda **given: _made(kind, model, spec, given), values)

    return build


def _made(kind: Any, model: Any, spec: DatasetSpec, values: dict[str, Any]) -> nn.Module:
    """The network of a configuration, with as many positions as samples have."""
    config = kind(**values)
    config.architectures = config.architectures or []  # transformers reads it where it is None
    length = spec.shape[0] if spec.kind == "tokens" else 0
    if getattr(config, "max_position_embeddings", length) < length:
        config.max_position_embeddings = length
    network: nn.Module = model.from_config(config)
    return network


def _of_data(spec: DatasetSpec, model_type: str) -> dict[str, Any]:
    """Values of a configuration that follow from the dataset; a tied head belongs to no stage."""
    if spec.kind == "tokens":
        return {
            "vocab_size": spec.num_classes,
            "use_cache": False,
            "tie_word_embeddings": False,
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": 1 if "roberta" in model_type else None,  # it counts positions from it
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
        raise ConfigError(f"hf:{path} cannot be read as JSON: {error}") from None
    if not isinstance(written, dict):
        raise ConfigError(f"hf:{path} is no configuration; write an object with model_type")
    return written


def _parted(library: str, name: str) -> tuple[str, dict[str, Any]]:
    """A name, and the arguments after its question mark, as numbers where they are."""
    name, _, rest = name.partition("?")
    pairs = [pair for pair in rest.split(",") if pair]
    for pair in pairs:
        if re.fullmatch(r"\w+=[^=&]*", pair) is None:
            raise ConfigError(
                f"{library}:{name}: {pair!r} is no argument; write name=value, with commas between"
            )
    arguments = {key: _value(text) for key, _, text in (pair.partition("=") for pair in pairs)}
    for word in _WEIGHTS & arguments.keys():
        if arguments[word] not in (None, False):
            raise ConfigError(
                f"{library}:{name}: {word} would load the weights of others; leave it out, as "
                "weights are drawn from the seed of a cell"
            )
    _check_depth(f"{library}:{name}", arguments)
    return name, arguments


def _check_depth(name: str, values: Mapping[str, Any]) -> None:
    """Refuse so many layers that the modules alone, without weights, would fill the memory."""
    for word, value in values.items():
        counts_layers = _DEPTH.search(word) is not None and isinstance(value, int | float)
        if counts_layers and value > _MOST_LAYERS:
            raise ConfigError(f"{name}: {word} is {value}; write at most {_MOST_LAYERS}")


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


def _called(
    name: str, spec: DatasetSpec, builder: Callable[..., nn.Module], values: Mapping[str, Any]
) -> nn.Module:
    try:
        return builder(**values)
    except TypeError as error:
        raise ConfigError(f"network {name} does not take these arguments: {error}") from None
    except NotImplementedError:  # what the device "meta" lacks
        raise
    except Exception as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(
            f"network {name} cannot be built for {spec.name}, {'x'.join(map(str, spec.shape))}: "
            f"{why}; other arguments stand after a question mark (?name=value)"
        ) from None


def _library(module: str, package: str) -> Any:
    """A library that is not installed by default."""
    # They import torchvision, which beside torch for CPUs only loads through this module.
    importlib.import_module(_COMPAT)
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


_LARGEST_SEED = 2**32  # of numpy


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed Python, numpy and torch on the CPU; their states are as before afterwards."""
    python, numbers = random.getstate(), np.random.get_state()
    # Only the CPU's generator is forked and seeded: torch.manual_seed would seed GPUs as well.
    with torch.random.fork_rng(devices=[]):
        seed_host(seed)
        torch.default_generator.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numbers)


@contextmanager
def unchanged() -> Iterator[None]:
    """Undo what foreign code does to torch's settings and to the process."""
    with settings_kept(), _host_kept():
        yield


@contextmanager
def _host_kept() -> Iterator[None]:
    """Undo changes of the folder, of warnings, and of variables that libraries read."""
    folder, variables, depth = Path.cwd(), _variables(), sys.getrecursionlimit()
    with warnings.catch_warnings():
        try:
            yield
        finally:
            os.chdir(folder)
            sys.setrecursionlimit(depth)
            for name in _variables().keys() - variables.keys():
                del os.environ[name]
            os.environ.update(variables)


_Given = ParamSpec("_Given")
_Built = TypeVar("_Built")


def finding_torchvision(build: Callable[_Given, _Built]) -> Callable[_Given, _Built]:
    """Have ``build`` called once more if foreign code imports torchvision beside torch for CPUs.

    It loads there only after :mod:`ddlbench.networks.torchvision_compat`.
    """

    @functools.wraps(build)
    def called(*arguments: _Given.args, **named: _Given.kwargs) -> _Built:
        try:
            return build(*arguments, **named)
        except Exception as error:
            if not any("operator torchvision::" in str(e) for e in (error, error.__cause__)):
                raise
        importlib.import_module(_COMPAT)
        return build(*arguments, **named)

    return called


_COMPAT = "ddlbench.networks.torchvision_compat"

_READ_BY_LIBRARIES = re.compile(
    r"(CUDA|CUBLAS|NVIDIA|OMP|MKL|OPENBLAS|NCCL|GLOO|HOROVOD|TORCH|PYTORCH|MASTER|SLURM|DDLBENCH)_|"
    r"(LOCAL_)?RANK$|(LOCAL_)?WORLD_SIZE$"
)


def _variables() -> dict[str, str]:
    return {name: text for name, text in os.environ.items() if _READ_BY_LIBRARIES.match(name)}


def seed_host(seed: int) -> None:
    """Seed what draws random numbers on the host beside torch."""
    random.seed(seed)
    np.random.seed(seed % _LARGEST_SEED)
