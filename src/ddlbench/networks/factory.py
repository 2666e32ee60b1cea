"""Builds a network by name, with the same initial weights in every process, and describes it.

A network is blocks that share nothing, so that it can be cut, or else one block. :func:`main` tries
networks of users before any job is submitted.
"""

from __future__ import annotations

import copy
import json
import os
import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import MethodType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ddlbench.common.document import csv_text
from ddlbench.common.errors import ConfigError, first_line
from ddlbench.common.schema import nearest
from ddlbench.experiment.dataset_spec import DATASETS, DatasetSpec
from ddlbench.experiment.registry import LIBRARIES, NETWORKS, load, pairs
from ddlbench.experiment.site import Accelerator
from ddlbench.networks.emulated import emulated_network
from ddlbench.networks.flat import LARGEST_SMALL_SIDE, out_of_place
from ddlbench.networks.flops import FlopCounter, step_flops
from ddlbench.networks.foreign import (
    Whole,
    finding_torchvision,
    required_inputs,
    seeded,
    unchanged,
    whole,
)
from ddlbench.networks.inputs import input_dtype
from ddlbench.networks.inspection import (
    has_hooks,
    inspect,
    static_traits,
    tensors_of,
    why_step_fails,
)
from ddlbench.networks.linear_pairs import known_pairs
from ddlbench.networks.recorded import cut_by_recording
from ddlbench.networks.recording import CannotRecord
from ddlbench.networks.transformers import SHAPE, shape_of
from ddlbench.planning.layer_table import training_operations
from ddlbench.planning.network_tables import NetworkTraits
from ddlbench.planning.tried_networks import compared_before

_SAMPLES = 2  # batch normalisation needs more than one
_BUILT_BYTES = 2**28  # of the weights of a network that a login node builds

_USUAL_SIDE = DATASETS["imagenet"].width
_OF_SIZES = re.compile(r"\b(size|shape|shapes|dimension|spatial)\b", re.IGNORECASE)

_Module = TypeVar("_Module", bound=nn.Module)


def build(network: str, spec: DatasetSpec, seed: int) -> nn.Sequential:
    """Builds ``network`` for the samples of ``spec``, on the CPU, as float32.

    Args:
        network: a name of the registry, or ``package.module:callable``; the callable takes the
            DatasetSpec and returns an ``nn.Module``: a sequence of single-input single-output
            blocks, or one that a recording cuts into blocks, or else one block. On an emulated
            accelerator it is the name of a profile.
        spec: shape of a sample and number of classes.
        seed: decides the initial weights; PyTorch's global generators do not change.

    Returns:
        (N, C, H, W) -> (N, num_classes), or (N, T) -> (N, T, num_classes) of tokens; in training
        mode, safe to cut at every boundary.

    Raises:
        ConfigError: there is no such network, or it is no module.
    """
    return build_with_traits(network, spec, seed)[0]


@finding_torchvision
def build_with_traits(
    network: str, spec: DatasetSpec, seed: int, *, with_pairs: bool = False
) -> tuple[nn.Sequential, NetworkTraits]:
    """A network, and the traits that decide who can train it; a built-in network is not tried.

    ``with_pairs``: pairs of linear layers are looked for, for which torch imports its compiler:
    that takes a second and 72 MB.
    """
    accelerator = Accelerator.of_this_process()
    if accelerator is not None:
        torch.set_flush_denormal(True)  # sums of memory that nobody wrote would take long
        return emulated_network(accelerator, network, spec), NetworkTraits()
    with seeded(seed), unchanged():
        factory = load("ddlbench.networks", network)
    if not callable(factory):
        raise ConfigError(f"network {network!r} is not callable")
    with seeded(seed), unchanged(), torch.device("cpu"):
        made = out_of_place(_checked(network, _made(network, factory, spec), spec, compare=True))
    if network in NETWORKS.built_in:
        return made, static_traits(made)
    try:
        return made, _with_pairs(made, spec) if with_pairs else inspect(made, spec)
    except ConfigError as error:
        raise ConfigError(f"network {network!r}: {error}") from error


def _with_pairs(network: nn.Sequential, spec: DatasetSpec) -> NetworkTraits:
    return replace(inspect(network, spec), pairs=known_pairs(network, spec))


@finding_torchvision
def skeleton(network: str, spec: DatasetSpec) -> nn.Sequential:
    """The network on the device "meta": shapes only, without memory and random numbers.

    A network that reads its weights while it is built is built on the CPU.

    Raises:
        ConfigError: there is no such network, or it is no module.
    """
    factory = load("ddlbench.networks", network)
    try:
        with unchanged(), torch.device("meta"):
            return out_of_place(_checked(network, _made(network, factory, spec), spec))
    except (NotImplementedError, RuntimeError, TypeError):  # this device has no values to read
        with unchanged():
            return out_of_place(_checked(network, _made(network, factory, spec), spec)).to("meta")


def _made(network: str, factory: Any, spec: DatasetSpec) -> Any:
    """What a factory makes.

    Raises:
        ConfigError: it ends Python, as ``argparse`` does with arguments of another program.
    """
    process = os.getpid()
    try:
        return factory(spec)
    except SystemExit as error:
        raise ConfigError(
            f"network {network!r} cannot be built for {spec.name}: it ends Python (exit status "
            f"{error.code}); read no command line in it, and return the network"
        ) from error
    finally:
        if os.getpid() != process:  # a fork that goes on would do all that follows once more
            os._exit(0)


def _checked(name: str, made: Any, spec: DatasetSpec, *, compare: bool = False) -> nn.Sequential:
    """What a factory has made, with all of its weights.

    ``compare``: recorded blocks are compared with it, unless that was done before.
    """
    network = checked(name, made)
    _make_lazy_layers(network, spec)
    network.train()  # a module may freeze weights there
    network = apart(network)
    block = network[0]
    if not isinstance(block, Whole):
        return network
    try:
        compare = compare and not compared_before(name, spec.name)
        return cut_by_recording(block, spec, compare=compare)
    except CannotRecord as error:
        block.why = str(error)
        return network


def _make_lazy_layers(network: nn.Sequential, spec: DatasetSpec) -> None:
    """Have layers that learn their size from the first input make their weights from the seed."""
    if not any(is_lazy(tensor) for tensor in tensors_of(network)):
        return
    modes = {module: module.training for module in network.modules()}
    with torch.no_grad():
        network.eval()(torch.zeros(_SAMPLES, *spec.shape, dtype=input_dtype(spec)))
    for module, training in modes.items():
        module.training = training


def checked(name: str, network: Any) -> nn.Sequential:
    """The network as a sequence of blocks; one that is not called block after block is one block.

    A block without weights and buffers may occur twice; it is then two blocks.

    Raises:
        ConfigError: it is no module, has no blocks, is scripted or patched, or wants two inputs.
    """
    where = f"network {name!r}"
    if not isinstance(network, nn.Module):
        raise ConfigError(
            f"{where} must return a torch.nn.Module, not {type(network).__name__}; a "
            "torch.nn.Sequential of single-input single-output blocks can be cut into stages, too"
        )
    parts = {"the network": network}
    if isinstance(network, nn.Sequential):
        parts |= {f"block {place!r}": block for place, block in network._modules.items()}
    for place, part in parts.items():
        if isinstance(part, torch.jit.ScriptModule):
            raise ConfigError(
                f"{where}: {place} is scripted, and copies of it do not share its weights; "
                "return the module itself"
            )
    _refuse_patched(network, where)
    why = _why_one_block(network)
    called = [network] if why else list(network.children())
    for module in called:
        _check_inputs(where, module)
    if why:
        return whole(network, why)
    assert isinstance(network, nn.Sequential)
    if len(network) == 0:
        raise ConfigError(f"{where} has no blocks")
    _part_repeated(network)
    return network


def _refuse_patched(network: nn.Module, where: str) -> None:
    """Refuse modules whose forward is a closure: it stays bound to what a copy is made of."""
    for place, part in network.named_modules():
        forward = vars(part).get("forward")
        if isinstance(forward, MethodType) and forward.__self__ is part:
            continue  # of the copied module in a copy
        if not getattr(forward, "__closure__", None) or hasattr(part, "_orig_mod"):
            continue  # a compiled module knows how to be copied
        kind, which = type(part).__name__, f"its layer {place}" if place else "it"
        raise ConfigError(
            f"{where}: a forward was put into {which} ({kind}), and copies of it would call the "
            f"original; write a class that inherits from {kind} instead"
        )


def _check_inputs(where: str, module: nn.Module) -> None:
    """Check that a module can be called with one input.

    Raises:
        ConfigError: its forward wants more.
    """
    names = required_inputs(module)
    if len(names) > 1:
        raise ConfigError(
            f"{where}: the forward of {type(module).__name__} wants {len(names)} inputs "
            f"({', '.join(names)}), and only one is given; give the others defaults, or wrap the "
            "module in one that makes them"
        )


def _why_one_block(network: nn.Module) -> str:
    """Why a module is not its blocks, one after the other; empty if it is."""
    kind = type(network)
    if not isinstance(network, nn.Sequential):
        return f"it returns a {kind.__name__}, not a torch.nn.Sequential of blocks"
    if kind.forward is not nn.Sequential.forward or kind.__call__ is not nn.Sequential.__call__:
        return f"its class {kind.__name__} has a forward or a call of its own"
    if has_hooks(network):
        return "it has hooks, which belong to no block"
    tensors = [*network._parameters, *network._buffers]
    return f"{tensors[0]!r} is outside of its blocks" if tensors else ""


def apart(network: nn.Sequential) -> nn.Sequential:
    """The same network; one whose blocks share a weight, buffer or memory, as one block.

    Views of the same memory count, too.
    """
    owner: dict[int, str] = {}
    for block_name, block in network._modules.items():
        assert block is not None
        for key, tensor in _memories(block):
            if owner.setdefault(key, block_name) != block_name:
                what = "parameter" if isinstance(tensor, nn.Parameter) else "buffer"
                return whole(
                    network,
                    f"its blocks {owner[key]!r} and {block_name!r} share a {what}, and may lie on "
                    "two devices",
                )
    return network


def _memories(block: nn.Module) -> Iterator[tuple[int, Tensor]]:
    """A number for the memory of each parameter and buffer; of empty ones for the object."""
    for tensor in tensors_of(block):
        if is_lazy(tensor) or tensor.numel() == 0 or tensor.layout != torch.strided:
            yield id(tensor), tensor
        else:
            yield tensor.untyped_storage()._cdata, tensor


def _part_repeated(network: nn.Sequential) -> None:
    """Have each place of the sequence a module of its own, where nothing is kept in it."""
    seen: set[int] = set()
    for place, block in list(network._modules.items()):
        assert block is not None
        if id(block) in seen and not any(True for _ in tensors_of(block)):
            network._modules[place] = copy.copy(block)
        seen.add(id(block))


def without_dropout(module: _Module) -> _Module:
    """Sets the probability of every dropout in ``module`` to zero, in place; returns ``module``."""
    for child in module.modules():
        if isinstance(child, nn.modules.dropout._DropoutNd):
            child.p = 0.0
    return module


def transformer_table() -> str:
    """``planning/transformer_shapes.csv``: each built-in transformer with each dataset it reads."""
    lines = [",".join(["network", "dataset", *SHAPE])]
    for name, spec in pairs():
        with torch.device("meta"):  # shapes only: no memory, no random numbers
            network = load("ddlbench.networks", name)(spec)
            shape = shape_of(network, torch.zeros(1, *spec.shape, dtype=input_dtype(spec)))
        if shape is not None:
            lines.append(",".join([name, spec.name, *(str(shape[column]) for column in SHAPE)]))
    return "\n".join([*lines, ""])


def pairs_table() -> str:
    """One row for each pair of built-in network and dataset, as CSV."""
    rows: list[tuple[object, ...]] = [
        ("network", "dataset", "sample", "blocks", "layers", "parameter_tensors", "parameters")
    ]
    for name, spec in pairs():
        with torch.device("meta"):  # shapes only: no memory, no random numbers
            network = load("ddlbench.networks", name)(spec)
        sample = "x".join(str(size) for size in spec.shape)
        tensors = len(list(network.parameters()))
        sizes = (len(network), num_layers(network), tensors, num_parameters(network))
        rows.append((name, spec.name, sample, *sizes))
    return csv_text(rows)


def num_parameters(module: nn.Module) -> int:
    """Number of trained values; running statistics do not count."""
    return sum(parameter.numel() for parameter in module.parameters())


def num_layers(module: nn.Module) -> int:
    """Number of convolutions and linear layers, as in a network's published name."""
    return sum(isinstance(child, nn.Conv2d | nn.Conv3d | nn.Linear) for child in module.modules())


def training_flops(network: str, spec: DatasetSpec) -> int:
    """Floating-point operations of a training step (:mod:`ddlbench.networks.flops`), of one sample.

    Those of a built-in network are in a table. Another one runs on the device "meta", where nothing
    is computed, or else computes two samples on the CPU.

    Raises:
        ConfigError: the network cannot be loaded or built.
    """
    known = training_operations(network, spec.name)
    if known is not None:
        return known
    try:
        return step_flops(skeleton(network, spec), spec)
    except Exception:  # what the device lacks, or what is wrong: the CPU tells
        return step_flops(build(network, spec, seed=0), spec)


class BlockFails(ConfigError):  # noqa: N818 - what happened
    """A block cannot compute its output on the CPU; a GPU may."""


@dataclass(frozen=True)
class TriedNetwork:
    """What trying a network tells.

    Args:
        work: floating-point operations of a forward pass of one sample, of each block.
        traits: which decide the strategies that can train it.
    """

    work: dict[str, float]
    traits: NetworkTraits

    @property
    def operations(self) -> int:
        return round(sum(self.work.values()))


def try_network(network: str, spec: DatasetSpec) -> TriedNetwork:
    """Build a network and run it; a small one is also trained for a step, on the CPU.

    Raises:
        ConfigError: it cannot be loaded, built or run, or returns a wrong shape.
    """
    _, blocks, work = _tried(network, spec)
    if sum(tensor.nbytes for tensor in tensors_of(blocks)) > _BUILT_BYTES:
        return TriedNetwork(work, _with_pairs(blocks.to("meta"), spec))
    where = f"network {network!r}"
    try:
        built, traits = build_with_traits(network, spec, seed=0, with_pairs=True)
    except ConfigError:
        raise
    except Exception as error:
        raise _cannot_be_built(where, spec, error) from error
    # The meta device does not compare types of numbers.
    _run_blocks(where, built, spec, "cpu")
    fault = why_step_fails(built, spec)
    if fault is not None:
        raise BlockFails(f"{where} cannot be trained: {_sentence(fault)}") from fault
    return TriedNetwork(work, traits)


def try_out(network: str, spec: DatasetSpec) -> int:
    """Floating-point operations of a forward pass of one sample; the network is built and run once.

    It is built on the meta device, which takes no memory; a network that this device cannot run is
    built on the CPU.

    Raises:
        ConfigError: it cannot be loaded, built or run, or returns a wrong shape.
    """
    return round(sum(_tried(network, spec)[2].values()))


def tried_skeleton(network: str, spec: DatasetSpec) -> nn.Sequential:
    """The :func:`skeleton` of a network that was tried out.

    Raises:
        ConfigError: as :func:`try_out`.
    """
    device, blocks, _ = _tried(network, spec)
    return blocks if device == "meta" else skeleton(network, spec)


@finding_torchvision
def _tried(network: str, spec: DatasetSpec) -> tuple[str, nn.Sequential, dict[str, float]]:
    """Where a network could be built and run, its blocks there, and the work of each."""
    where = f"network {network!r}"
    factory = _load(network)
    if not callable(factory) or isinstance(factory, nn.Module):
        what = "is a network itself" if callable(factory) else "is not callable"
        raise ConfigError(f"{where} {what}; name a function that returns the network")
    try:
        return "meta", *_tried_on("meta", network, factory, spec)
    except Exception:  # what the device lacks, or what is wrong: the CPU tells
        return "cpu", *_tried_on("cpu", network, factory, spec)


def _modules_here() -> list[str]:
    """Modules and packages beside the Snakefile that a network may be of."""
    packages = (path.parent for path in Path.cwd().glob("*/__init__.py"))
    return [path.stem for path in (*Path.cwd().glob("*.py"), *packages)]


def _load(network: str) -> Any:
    try:
        with unchanged():
            return load("ddlbench.networks", network)
    except ConfigError as error:
        lacking = getattr(error.__cause__, "name", None)
        if isinstance(error.__cause__, ModuleNotFoundError) and network.startswith(str(lacking)):
            near = nearest(str(lacking).removesuffix(".py"), [*LIBRARIES, *_modules_here()])
            instead = near if "?" in near else "put its file or folder beside the Snakefile"
            raise ConfigError(
                f"network {network!r}: there is no module {lacking}; {instead}"
            ) from error
        raise
    except Exception as error:
        module = network.partition(":")[0]
        raise ConfigError(f"network {network!r}: {module} fails: {_sentence(error)}") from error


def _cannot_be_built(where: str, spec: DatasetSpec, error: Exception) -> ConfigError:
    why = f"{_sentence(error)}{_if_call(error)}"
    return ConfigError(f"{where} cannot be built for {spec.name}: {why}")


def _tried_on(
    device: str, network: str, factory: Any, spec: DatasetSpec
) -> tuple[nn.Sequential, dict[str, float]]:
    where = f"network {network!r}"
    try:
        with unchanged(), torch.device(device):
            made = _made(network, factory, spec)
    except ConfigError:
        raise
    except Exception as error:
        raise _cannot_be_built(where, spec, error) from error
    blocks = out_of_place(_checked(network, made, spec))
    until = _run_blocks(where, blocks, spec, device)
    each = (last - first for first, last in pairwise([0, *until]))
    work = {name: total / _SAMPLES for name, total in zip(blocks._modules, each, strict=True)}
    return blocks, work


def _run_blocks(where: str, blocks: nn.Sequential, spec: DatasetSpec, device: str) -> list[int]:
    """Run two samples through the blocks; operations until the end of each."""
    # Some networks take gradients within their forward pass.
    with torch.enable_grad(), FlopCounter() as counter:
        inputs = torch.zeros(_SAMPLES, *spec.shape, dtype=input_dtype(spec), device=device)
        passing: Any = inputs
        until = []
        for name, block in blocks._modules.items():  # named_children skips repeated modules
            assert block is not None
            shape = tuple(passing.shape)
            try:
                passing = block(passing)
            except ConfigError as error:  # which says what is wrong
                raise ConfigError(f"{where}: {error}") from error
            except Exception as error:
                raise BlockFails(
                    f"{where}: block {name!r} fails on an input of shape {shape} ({spec.name}): "
                    f"{_sentence(error)}{_if_of_other_size(spec, error)}"
                ) from error
            until.append(counter.total)
            if not isinstance(passing, Tensor):
                raise ConfigError(
                    f"{where}: block {name!r} must return one tensor, not "
                    f"{type(passing).__name__}; put what it returns into one tensor"
                )
    wanted = (*spec.target_shape, spec.num_classes)
    if tuple(passing.shape) != (_SAMPLES, *wanted):
        each = "a token at each position" if spec.target_shape else "a class"
        returned = f"{tuple(passing.shape)} for two samples"
        if passing.shape[:1] == (_SAMPLES,):
            returned = f"{('N', *passing.shape[1:])}"
        elif not passing.shape:
            returned = "one number, as a loss is"
        raise ConfigError(
            f"{where} must return a tensor of shape {('N', *wanted)} for {spec.name}, one "
            f"value {each}, not {returned}".replace("'N'", "N")
        )
    return until


def _if_call(error: Exception) -> str:
    """The end of an error's sentence where a callable does not take what it is called with."""
    innermost = traceback.extract_tb(error.__traceback__)[-1].name
    if isinstance(error, TypeError) and (
        innermost == _made.__name__ or DatasetSpec.__name__ in str(error)
    ):
        return "; it is called with one DatasetSpec (docs/networks.md)"
    return ""


def _if_of_other_size(spec: DatasetSpec, error: Exception) -> str:
    """The end of an error's sentence where images may not have the size for a network."""
    is_of_sizes = _OF_SIZES.search(str(error)) is not None
    if spec.kind != "images" or not is_of_sizes:
        return ""
    if spec.source and spec.native_format not in ("idx", "cifar"):  # their files have one size
        is_usual = (spec.height, spec.width) == (_USUAL_SIDE, _USUAL_SIDE)
        advice = f"a network for images of {_USUAL_SIDE} pixels needs size: {_USUAL_SIDE}"
        return "" if is_usual else f"; {advice} at data.{spec.name}"
    if max(spec.height, spec.width) > LARGEST_SMALL_SIDE:
        return ""
    return f"; a network for images of {_USUAL_SIDE} pixels may need those of imagenet"


def _sentence(error: Exception) -> str:
    """The first line of an error, and the line of the user's file that raised it."""
    text = first_line(error)
    if not isinstance(error, SyntaxError):  # which says its line itself
        package = Path(__file__).resolve().parents[1]
        frames = traceback.extract_tb(error.__traceback__)
        frames_of_user = [
            frame
            for frame in frames
            if not {"site-packages", "importlib"} & set(Path(frame.filename).parts)
            and package not in Path(frame.filename).parents
            and not frame.filename.startswith("<")
        ]
        if frames_of_user:
            text += f" ({Path(frames_of_user[-1].filename).name}, line {frames_of_user[-1].lineno})"
    return f"{type(error).__name__}: {text}"


def main(pairs: str, answers_at: str) -> None:
    """Try pairs of network and dataset, and add an answer to each to a file, a line of JSON."""
    for network, dataset in json.loads(pairs):
        answer = json.dumps(_answer(network, dataset))
        with Path(answers_at).open("a", encoding="utf-8") as answers:  # networks may close files
            print(answer, file=answers)


def _answer(network: str, dataset: str) -> dict[str, Any]:
    """What a try tells: ``operations``, the ``largest`` block's name and share, and ``traits``.

    Or an ``error``, with ``on_cpu`` true if a GPU may do better.
    """
    try:
        tried = try_network(network, DATASETS[dataset])
    except ConfigError as error:
        return {"error": str(error), "on_cpu": isinstance(error, BlockFails)}
    except Exception as error:
        sentence = f"network {network!r} cannot be tried: {_sentence(error)}"
        return {"error": sentence, "on_cpu": True}
    answer: dict[str, Any] = {"operations": tried.operations, "traits": tried.traits.to_dict()}
    if tried.operations and not tried.traits.uncut:
        name = max(tried.work, key=tried.work.__getitem__)
        answer["largest"] = [name, tried.work[name] / tried.operations]
    return answer
