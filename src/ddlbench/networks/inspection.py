"""Inspects a built network: its traits by one tiny training step on a copy, and its digest.

::

    block 0 -> block 1 -> ... -> sum -> backward      two samples, on the CPU
       |          |                        |
       |          output has a gradient?   which weights get one, is it sparse?
       wrote into its input?

Large networks compute nothing: they run on fake tensors, which have shapes only.

``copy.deepcopy`` refuses some modules, which are copied here all the same: torch copies no tensor
that an operation has computed. Some modules hold such a tensor as a plain attribute:
``torch.nn.utils.weight_norm`` keeps the weight of the last forward pass, for example. The next
forward pass computes it anew, so its value is enough for a copy.

The digest of a network's state is the same for the same weights and buffers, bit for bit. Ranks and
cells that begin with other weights train something else, so every cell keeps the digest of what it
began with. Hashing a gigabyte would take seconds. So large tensors are folded first, at the speed
of memory: rows of 32 KiB are added up as whole numbers, and the sum is hashed.
"""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar
from unittest.mock import patch

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.dataset_spec import DatasetSpec
from ddlbench.networks.foreign import seeded, why_uncut
from ddlbench.networks.inputs import made_up_inputs
from ddlbench.networks.recorded_state import generator_states
from ddlbench.planning.network_tables import NetworkTraits

_Module = TypeVar("_Module", bound=nn.Module)


def copy_of(module: _Module, tensors: Mapping[Tensor, Tensor] | None = None) -> _Module:
    """A deep copy of a module; what cannot be copied, as a lock or an open file, is shared.

    Some of the module's tensors may have others in their place.
    """
    known: dict[int, object] = {id(old): new for old, new in (tensors or {}).items()}
    known.update((id(tensor), tensor.detach().clone()) for tensor in _computed(module))
    with torch.no_grad():  # else copies of scripted modules hold the graph of their copying
        try:
            double = copy.deepcopy(module, dict(known))
        except Exception:
            known.update((id(value), value) for value in _uncopied(module))
            double = copy.deepcopy(module, known)
    _keep_hooks(double, module)
    return double


def _keep_hooks(double: nn.Module, module: nn.Module) -> None:
    """Give a copy the hooks of recorded modules, which torch does not copy."""
    copies = dict(double.named_modules())
    for name, part in module.named_modules():
        if isinstance(part, fx.GraphModule):
            for hooks in _HOOKS:
                setattr(copies[name], hooks, copy.copy(getattr(part, hooks)))


def copy_without_data(module: _Module, device: torch.device | str = "cpu") -> _Module:
    """A copy whose parameters and buffers have shapes only; call it within a FakeTensorMode."""
    fakes: dict[Tensor, Tensor] = {}
    for tensor in tensors_of(module):
        fake = _empty_like(tensor, device)
        if isinstance(tensor, nn.Parameter):
            fake = nn.Parameter(fake, requires_grad=tensor.requires_grad)
        fakes[tensor] = fake
    return copy_of(module, fakes)


def _empty_like(tensor: Tensor, device: torch.device | str) -> Tensor:
    if type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided:
        # A FakeTensorMode would first make a fake of the tensor, which takes five times as long.
        shape, stride = tensor.shape, tensor.stride()
        return torch.empty_strided(shape, stride, dtype=tensor.dtype, device=device)
    return torch.empty_like(tensor, device=device)


def tensors_of(module: nn.Module) -> Iterator[Tensor]:
    """Parameters and buffers."""
    yield from module.parameters()
    yield from module.buffers()


def _computed(module: nn.Module) -> Iterator[Tensor]:
    """Tensors in plain attributes, or buffers, that an operation has computed."""
    values = (*tensors_of(module), *_attributes_of(module))
    for leaf in tree_leaves(values):
        if isinstance(leaf, Tensor) and not leaf.is_leaf:
            yield leaf


def _uncopied(module: nn.Module) -> Iterator[object]:
    """Values of plain attributes that refuse a copy."""
    for value in _attributes_of(module):
        try:
            copy.deepcopy(value)
        except Exception:
            yield value


def _attributes_of(module: nn.Module) -> Iterator[object]:
    """Values of all plain attributes; those of torch's own are its weights, buffers and hooks."""
    for part in module.modules():
        for name, value in vars(part).items():
            if name not in _OF_TORCH and not isinstance(value, nn.Module):
                yield value


_OF_TORCH = frozenset(vars(nn.Module()))
# What runs with a pass; other hooks are of saving and loading.
_HOOKS = tuple(name for name in _OF_TORCH if "hook" in name and "state_dict" not in name)


def has_hooks(layer: nn.Module) -> bool:
    """Whether a module runs more than its class does, which a module in its place would not."""
    hooks = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
    return any(getattr(layer, name) for name in hooks)


_SAMPLES = 2  # batch norm needs more than one
_BRIGHT = 3.0  # of a white image, in standard deviations; a black one is as far below
_COMPUTED_BYTES = 2**28  # weights of the largest networks that compute
_NORMALISED = "more than 1 value per channel"  # torch's words, where batch norm has one sample


@dataclass
class _Step:
    """What a tiny step shows.

    Args:
        writes_input: blocks that overwrite what they are given.
        without_gradient: blocks whose output is no number that a gradient can belong to.
        rows_end_at: the first block that reads all rows; empty without one.
        gradients: of the copies of all trained weights; None where a step gives none.
        irregular: weights that get one in one step, and none in another.
        random: whether the step drew random numbers.
        trains: whether its loss has a gradient.
        gradients_within: whether a block computed gradients in its forward pass.
        backward_within: whether a forward pass gave weights a gradient.
        written: trained weights that the forward pass changed.
        written_by_samples: those that other samples changed otherwise.
        made: weights that the forward pass made.
        normalised_by: the softmax or sigmoid that outputs pass last; empty without one.
        normalises: whether a function of batch norm ran, with or without a layer.
    """

    writes_input: list[str] = field(default_factory=list)
    without_gradient: list[str] = field(default_factory=list)
    rows_end_at: str = ""
    gradients: dict[str, Tensor | None] = field(default_factory=dict)
    irregular: list[str] = field(default_factory=list)
    random: bool = False
    trains: bool = True
    gradients_within: bool = False
    backward_within: bool = False
    written: list[str] = field(default_factory=list)
    written_by_samples: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    normalised_by: str = ""
    normalises: bool = False


def inspect(network: nn.Sequential, spec: DatasetSpec) -> NetworkTraits:
    """Traits of a network; blocks that overwrite their input get a copy of it from now on.

    An input may still be needed by another stage, or by a recomputation, and the first block's is
    the loader's own memory. What a copy costs, every strategy pays, and results do not change.

    Args:
        network: the whole network on the CPU, with its weights.
        spec: of the data that it reads.

    Raises:
        ConfigError: its forward pass makes weights, which no optimiser would know.
    """
    step = _try_step(network, spec)
    if step.made:
        raise ConfigError(
            f"the network makes weights in its forward pass ({step.made[0]}), and no optimiser "
            "would train them; make them in __init__, or take torch's lazy layers (nn.LazyLinear)"
        )
    for name in step.writes_input:
        network.get_submodule(name).register_forward_pre_hook(_with_a_copy)
    weights = dict(network.named_parameters())
    trained = {name: weight for name, weight in weights.items() if weight.requires_grad}
    gradients = step.gradients
    batch_norm = step.normalises or normalises(network)
    return NetworkTraits(
        blocks=tuple(network._modules),
        uncut=why_uncut(network),
        without_gradient=tuple(step.without_gradient),
        rows_end_at=step.rows_end_at,
        unused=tuple(name for name, gradient in gradients.items() if gradient is None),
        irregular=tuple(step.irregular),
        sparse=tuple(n for n, g in gradients.items() if g is not None and g.is_sparse),
        scalars=tuple(name for name, weight in trained.items() if weight.dim() == 0),
        strided=tuple(name for name, weight in trained.items() if not weight.is_contiguous()),
        complex=tuple(name for name, weight in trained.items() if weight.is_complex()),
        bfloat16=tuple(n for n, weight in trained.items() if weight.dtype == torch.bfloat16),
        hooked=tuple(name for name, weight in trained.items() if _is_hooked(weight)),
        hooked_after=tuple(name for name, weight in trained.items() if _is_hooked_after(weight)),
        whole_numbers=tuple(n for n, weight in weights.items() if not _has_gradient(weight)),
        mixed_types=tuple(name for name, block in network._modules.items() if _mixed(block)),
        trains=step.trains,
        borrowed=tuple(_borrowers(network)),
        written=tuple(dict.fromkeys([*step.written, *_renormalised(network)])),
        written_by_samples=tuple(
            dict.fromkeys([*step.written_by_samples, *_renormalised(network)])
        ),
        backward_within=step.backward_within,
        gradients_within=step.gradients_within,
        synchronised=tuple(
            name for name, layer in network.named_modules() if isinstance(layer, nn.SyncBatchNorm)
        ),
        batch_norm=batch_norm,
        needs_two_samples=bool(gradients) and _needs_two(network, spec),
        random=step.random or _draws_numbers(network),
        normalised_by=step.normalised_by,
    )


def why_step_fails(network: nn.Sequential, spec: DatasetSpec) -> Exception | None:
    """What a training step on the CPU raises; None if it works."""
    with seeded(0):
        try:
            _step(network, spec, computes=True)
        except Exception as error:
            return error
    return None


def static_traits(network: nn.Sequential) -> NetworkTraits:
    """The traits of a built-in network, which are those of its layers."""
    return NetworkTraits(batch_norm=normalises(network), random=_draws_numbers(network))


def normalises(network: nn.Module) -> bool:
    """Whether a layer normalises over the samples of a pass."""
    return any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in network.modules())


def _draws_numbers(network: nn.Module) -> bool:
    """Whether there is a layer of dropout."""
    dropouts = (
        layer for layer in network.modules() if isinstance(layer, nn.modules.dropout._DropoutNd)
    )
    return any(layer.p > 0 for layer in dropouts)


def _with_a_copy(_block: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (inputs[0].clone(), *inputs[1:])


def _is_hooked(weight: Tensor) -> bool:
    return bool(weight._backward_hooks) or _is_hooked_after(weight)


def _is_hooked_after(weight: Tensor) -> bool:
    return bool(getattr(weight, "_post_accumulate_grad_hooks", None))


def _mixed(block: nn.Module | None) -> bool:
    weights = block.parameters() if block is not None else ()
    return len({weight.dtype for weight in weights if weight.requires_grad}) > 1


def _has_gradient(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _try_step(network: nn.Sequential, spec: DatasetSpec) -> _Step:
    """A step that computes, of a small network; else one on fake tensors, if it can run so."""
    for computes in (True,) if _is_small(network) else (False, True):
        with seeded(0):
            try:
                return _step(network, spec, computes=computes)
            except Exception:  # fake tensors or this CPU cannot: training tells what is wrong
                continue
    return _Step()


def _is_small(network: nn.Module) -> bool:
    return sum(tensor.nbytes for tensor in tensors_of(network)) <= _COMPUTED_BYTES


def _step(network: nn.Sequential, spec: DatasetSpec, *, computes: bool) -> _Step:
    """Several passes each way of a copy, as not every step of a network uses the same weights."""
    step = _Step()
    with _computing(computes), torch.enable_grad():
        double = (copy_of(network) if computes else copy_without_data(network)).train()
        inputs = made_up_inputs(spec, _SAMPLES, "cpu")
        states = generator_states() if computes else ()  # fakes draw nothing
        kept = {n: w.detach().clone() for n, w in double.named_parameters()} if computes else {}
        known = {name for name, _ in double.named_parameters()}
        drawn = torch.get_rng_state()
        outputs = _forward(double, inputs, step)
        step.made = [name for name, _ in double.named_parameters() if name not in known]
        step.random = computes and generator_states() != states
        step.backward_within = any(weight.grad is not None for weight in double.parameters())
        step.written = _changed(double, kept)
        if step.written:
            written = {name: w.detach().clone() for name, w in double.named_parameters()}
            other, others = copy_of(network).train(), made_up_inputs(spec, _SAMPLES, "cpu")
            torch.set_rng_state(drawn)  # so that noise changes them alike
            _forward(other, others, _Step())
            step.written_by_samples = _changed(
                other, {name: written[name] for name in step.written}
            )
        step.normalised_by = _normalised_by(outputs)
        step.gradients = _backward(double, outputs, step)
        for further in _further_inputs(spec):
            double.zero_grad()
            outputs = _forward(double, further, _Step())
            _compare(step, _backward(double, outputs, _Step()))
    return step


def _further_inputs(spec: DatasetSpec) -> Iterator[Tensor]:
    """A dark and a bright sample, and one sample twice: an expert may be for some samples only."""
    inputs = made_up_inputs(spec, _SAMPLES, "cpu")
    if inputs.is_floating_point():
        brightness = torch.linspace(-_BRIGHT, _BRIGHT, _SAMPLES)
        inputs = (inputs.flatten(1) + brightness[:, None]).view_as(inputs)
    yield inputs
    yield made_up_inputs(spec, 1, "cpu").repeat_interleave(_SAMPLES, 0)


# Names of autograd for what puts outputs between 0 and 1, and for what keeps them there.
_NORMALISING = {"SoftmaxBackward0": "softmax", "SigmoidBackward0": "sigmoid"}
_KEEPING = re.compile(
    r"(Unsafe)?(View|Alias|ReshapeAlias|Squeeze|Unsqueeze|Transpose|Permute|T|Expand|Slice|Select"
    r"|Clone|ToCopy)Backward\d+"
)


def _normalised_by(outputs: Tensor) -> str:
    """The softmax or sigmoid that outputs pass last; empty without one."""
    node = outputs.grad_fn
    while node is not None and _KEEPING.fullmatch(node.name()):
        node = node.next_functions[0][0]
    return "" if node is None else _NORMALISING.get(node.name(), "")


def _changed(network: nn.Module, before: Mapping[str, Tensor]) -> list[str]:
    """Trained weights that differ from what they were."""
    return [
        name
        for name, weight in network.named_parameters()
        if weight.requires_grad
        and name in before
        and not (weight.shape == before[name].shape and torch.equal(weight.detach(), before[name]))
    ]


def _renormalised(network: nn.Module) -> Iterator[str]:
    """Trained weights of embeddings whose rows have a largest norm: some pass will shorten one."""
    for name, layer in network.named_modules():
        shortens = isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.max_norm is not None
        if shortens and layer.weight.requires_grad:
            yield f"{name}.weight"


def _compare(step: _Step, gradients: dict[str, Tensor | None]) -> None:
    """Note the weights that this step uses and the first did not, or the other way round."""
    for name, gradient in gradients.items():
        if (gradient is None) != (step.gradients[name] is None) and name not in step.irregular:
            step.irregular.append(name)
    for name in step.irregular:
        step.gradients[name] = None


def _forward(double: nn.Sequential, inputs: Tensor, step: _Step) -> Tensor:
    """Outputs; what the pass shows goes into the step."""
    passing = inputs
    for name, block in double._modules.items():  # named_children skips repeated modules
        assert block is not None
        given = passing.clone()  # as a block that overwrites it gets from now on
        version = given._version
        with _watching_gradients(step), _watching_batch_norm(step):
            passing = block(given)
        if given._version != version:
            step.writes_input.append(name)
        if not _has_gradient(passing):
            step.without_gradient.append(name)
        if not step.rows_end_at and reads_all_rows(block, given.dim(), passing.dim()):
            step.rows_end_at = name
    return passing


MEANS = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)
_MAXIMA = (nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d)
_HEADS = (nn.Linear, nn.Flatten, *MEANS, *_MAXIMA)


def reads_all_rows(block: nn.Module | None, inputs: int, outputs: int) -> bool:
    """Whether what a block computes at one place needs the whole image.

    It is linear, flattening or adaptive pooling, or has outputs of other dimensions than inputs.

    ``inputs`` and ``outputs`` are numbers of dimensions.
    """
    return isinstance(innermost(block), _HEADS) or inputs != outputs


def innermost(block: nn.Module | None) -> nn.Module | None:
    """The layer inside wrappers, as of autocast, that contain nothing else."""
    while block is not None and len(children := list(block.children())) == 1:
        block = children[0]
    return block


def _backward(double: nn.Sequential, outputs: Tensor, step: _Step) -> dict[str, Tensor | None]:
    step.trains = outputs.requires_grad
    if step.trains:
        outputs.abs().sum().backward()
    return {name: w.grad for name, w in double.named_parameters() if w.requires_grad}


def _borrowers(network: nn.Sequential) -> Iterator[str]:
    """Blocks with a weight, buffer or layer of another block in a plain attribute."""
    owner: dict[int, str] = {}
    for name, block in network._modules.items():
        assert block is not None
        for thing in (*block.modules(), *tensors_of(block)):
            owner.setdefault(id(thing), name)
    for name, block in network._modules.items():
        assert block is not None
        things = (leaf for leaf in tree_leaves(tuple(_attributes_of(block))))
        if any(owner.get(id(thing), name) != name for thing in things):
            yield name


def _watching_gradients(step: _Step) -> AbstractContextManager[object]:
    """Note calls of ``torch.autograd.grad`` whose result is differentiated again."""
    original = torch.autograd.grad

    def grad(*arguments: Any, **named: Any) -> Any:
        step.gradients_within |= bool(named.get("create_graph"))
        return original(*arguments, **named)

    return patch.object(torch.autograd, "grad", grad)


def _watching_batch_norm(step: _Step) -> AbstractContextManager[object]:
    """Note calls of batch norm that use the statistics of the samples (``F.batch_norm``)."""
    original = torch.batch_norm

    def batch_norm(*arguments: Any, **named: Any) -> Tensor:
        training = named["training"] if "training" in named else arguments[_TRAINING]
        step.normalises |= bool(training)
        return original(*arguments, **named)

    return patch.object(torch, "batch_norm", batch_norm)


_TRAINING = 5  # the place of this argument of torch.batch_norm


def _computing(computes: bool) -> AbstractContextManager[object]:
    return nullcontext() if computes else FakeTensorMode(allow_non_fake_inputs=True)


def _needs_two(network: nn.Sequential, spec: DatasetSpec) -> bool:
    """Whether a network that a step has trained fails on one sample.

    One leaves nothing to normalise over, or loses its dimension by ``squeeze``.
    """
    computes = _is_small(network)
    try:
        with seeded(0), _computing(computes), torch.enable_grad():
            double = copy_of(network) if computes else copy_without_data(network)
            outputs = double.train()(made_up_inputs(spec, 1, "cpu"))
    except Exception as error:  # what fake tensors cannot do is no trait
        return computes or _NORMALISED in str(error)
    wanted = (*spec.target_shape, spec.num_classes)
    return tuple(outputs.shape) == wanted


_ROW_WORDS = 4096  # of 8 bytes
_ROWS_AT_ONCE = 64  # 2 MiB, which caches hold


def state_digest(network: nn.Module) -> str:
    """16 hexadecimal digits of all parameters and buffers, their names, shapes and types."""
    digest = hashlib.blake2b(digest_size=8)
    for name, tensor in (*network.named_parameters(), *network.named_buffers()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        for part in _folded(tensor.detach()):
            digest.update(part.numpy().data)
    return digest.hexdigest()


def _folded(tensor: Tensor) -> Iterator[Tensor]:
    """At most one row, and the rest; each byte counts, with its place."""
    values = tensor.cpu().contiguous().view(-1)
    if not values.numel():
        return
    words = values.view(torch.uint8)
    row_bytes = 8 * _ROW_WORDS
    whole = words.numel() // row_bytes * row_bytes
    if whole:
        rows = words[:whole].view(torch.int64).view(-1, _ROW_WORDS)
        total = torch.zeros(_ROW_WORDS, dtype=torch.int64)
        for number, some in enumerate(rows.split(_ROWS_AT_ONCE)):
            # Odd factors tell rows that changed places.
            factors = 2 * torch.arange(len(some)) + 2 * _ROWS_AT_ONCE * number + 1
            total += (some * factors[:, None]).sum(0)
        yield total
    yield words[whole:]
