"""What the blocks of a network do in a forward pass, operation by operation, on no device.

::

    block      kind       operations    items read, written    weights
    layer1_0   pointwise      25.7 M      0.2 M     0.2 M       16 k
               norm                0      0.2 M     0.2 M        128
               ...

Operations run on the device "meta": shapes only. Views cost nothing and are left out. Attention
without a mask of its own is one operation that keeps no scores, as on GPUs (Dao et al.,
"FlashAttention", 2022). Equal operations of a block are one row with their count. ``make tables``
writes the rows of built-in networks to ``planning/layer_table.csv``. Other networks are traced when
they are needed.
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from math import prod
from typing import Any, TextIO, cast

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from ddlbench.common.document import csv_text
from ddlbench.common.errors import ConfigError
from ddlbench.experiment.dataset_spec import DATASETS, DatasetSpec
from ddlbench.experiment.registry import pairs
from ddlbench.networks.factory import BlockFails, skeleton, tried_skeleton
from ddlbench.networks.inputs import input_dtype
from ddlbench.networks.inspection import copy_without_data, tensors_of
from ddlbench.planning.layer_table import LAYER_COLUMNS, PROFILE_IT, REFUSED

_SAMPLES = 2  # batch norm refuses a single value per channel
_FEW_CHANNELS = 4
"""Channels of images; a convolution of so few reads an image."""
_NO_KERNEL = re.compile(r"not implemented for|CUDA|NVIDIA|HIP|\bGPU")
_NORMS = ("batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm")
_SHAPES_ONLY = ("alias", "view", "detach", "empty", "expand", "reshape", "permute", "transpose")


class _Operations(TorchDispatchMode):
    """Notes each operation that runs: kind, operations, items read and written, weights."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self._weights = set(map(_storage, tensors_of(network)))
        self._frozen = {
            _storage(tensor): name.rpartition(".")[0]
            for name, tensor in network.named_parameters()
            if not tensor.requires_grad
        }
        self.rows: list[tuple[str, int, int, int, int]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        packet = func.overloadpacket
        if func.is_view or packet.__name__.startswith(_SHAPES_ONLY):
            return outputs
        inputs = tensors_in((args, kwargs or {}))
        output_items = max((tensor.numel() for tensor in tensors_in(outputs)), default=0)
        if output_items < _SAMPLES:  # counters, random states
            return outputs
        weights = [tensor for tensor in inputs if _storage(tensor) in self._weights]
        activations = [tensor for tensor in inputs if _storage(tensor) not in self._weights]
        count = flop_registry.get(packet)
        operations = count(*args, **(kwargs or {}), out_val=outputs) if count else 0
        frozen = [self._frozen[place] for t in weights if (place := _storage(t)) in self._frozen]
        if operations and frozen:
            raise _untimed(f"layer {frozen[0]} is frozen, so its backward pass is shorter")
        self.rows.append(
            (
                _kind(packet.__name__, args, operations),
                operations // _SAMPLES,
                sum(tensor.numel() for tensor in activations) // _SAMPLES,
                output_items // _SAMPLES,
                sum(tensor.numel() for tensor in weights),
            )
        )
        return outputs


@contextmanager
def _fused_attention() -> Iterator[None]:
    """Attention as GPUs compute it; the device "meta" would take it apart.

    The function is replaced, as a ``TorchFunctionMode`` sees no calls within
    ``multi_head_attention_forward``.
    """
    original = F.scaled_dot_product_attention

    def fused(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        *options: Any,
        **given: Any,
    ) -> Tensor:
        options_of = dict(zip(("dropout_p", "is_causal"), options, strict=False)) | given
        several = options_of.pop("enable_gqa", False)
        if attn_mask is not None or several or query.dim() != _BY_HEADS:
            # No fused kernel is sure to compute it.
            return original(query, key, value, attn_mask, *options, **given)
        kernel = torch.ops.aten._scaled_dot_product_efficient_attention
        outputs, *_ = kernel(query, key, value, None, True, **options_of)
        return cast(Tensor, outputs)

    F.scaled_dot_product_attention = fused
    try:
        yield
    finally:
        F.scaled_dot_product_attention = original


_BY_HEADS = 4
"""Dimensions of queries: samples, heads, tokens, features."""


def layer_rows(network: nn.Sequential, spec: DatasetSpec) -> list[tuple[Any, ...]]:
    """Rows of a network on the device "meta", without its name and its dataset's.

    The first row of a block has its tensors, buffers, output and saved bytes, and the latter two in
    autocast. A block that computes nothing has a row of kind "none". Operations and items are of
    one sample.

    Raises:
        ConfigError: a frozen weight is multiplied, or a layer is recurrent.
    """
    for name, module in network.named_modules():
        if isinstance(module, nn.RNNBase):
            raise _untimed(f"layer {name} is recurrent, which a device computes in one kernel")
    rows: list[tuple[Any, ...]] = []
    operations = _Operations(network)
    inputs = torch.zeros(_SAMPLES, *spec.shape, dtype=input_dtype(spec), device="meta")
    traced = []
    for sizes in _bytes_of_blocks(network, inputs, operations):
        traced.append((operations.rows, [size // _SAMPLES for size in sizes]))
        operations.rows = []
    halves = _half_bytes(network, spec) or [[size // 2 for size in whole] for _, whole in traced]
    for (name, block), (of_block, whole), half in zip(
        network.named_children(), traced, halves, strict=True
    ):
        rows += _rows_of_block(name, block, of_block, (*whole, *half))
    return rows


def _bytes_of_blocks(
    network: nn.Sequential, activation: Tensor, tracing: AbstractContextManager[Any]
) -> Iterator[tuple[int, int]]:
    """Runs block after block; bytes of each one's output, and of what autograd keeps for it.

    ``tracing`` is a context that can be entered again.
    """
    fixed = set(map(_storage, tensors_of(network)))
    saved: dict[int, int] = {}
    for place, block in enumerate(network.children()):
        # What a block gives and keeps, as a ReLU does, the next one keeps without further memory.
        known = fixed | ({_storage(activation)} & saved.keys())
        saved = {}

        def keep(tensor: Tensor, saved: dict[int, int] = saved, known: set[int] = known) -> Tensor:
            if _storage(tensor) not in known:
                saved[_storage(tensor)] = tensor.untyped_storage().nbytes()
            return tensor

        activation = activation.detach()
        if activation.is_floating_point() and place:
            activation.requires_grad_()
        hooks = saved_tensors_hooks(keep, lambda tensor: tensor)
        with torch.enable_grad(), _fused_attention(), tracing, hooks:
            activation = block(activation)
        yield activation.nbytes, sum(saved.values())


_FULL_PRECISION = (
    "layer_norm", "group_norm", "softmax.int", "log_softmax.int", "exp", "log",
    "pow.Tensor_Scalar", "rsqrt", "reciprocal", "softplus",
)  # fmt: skip
"""Operations of networks that autocast computes in float32 on GPUs, but not on CPUs (PyTorch's
page on automatic mixed precision, "CUDA Ops that can autocast to float32")."""


@contextmanager
def _autocast_of_gpus() -> Iterator[None]:
    """Autocast of tensors that say they are on a CPU, as on a GPU.

    No GPU is needed, and torch without CUDA cannot make up its tensors.
    """
    off = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

    def widened(operation: Any) -> Any:
        def wide(value: Any) -> Any:
            half = isinstance(value, Tensor) and value.dtype == torch.bfloat16
            return value.float() if half else value

        def kernel(*arguments: Any, **named: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(off):
                return operation(*tree_map(wide, arguments), **named)

        return kernel

    with torch.library._scoped_library("aten", "IMPL") as library:
        for name in _FULL_PRECISION:
            packet, _, overload = name.partition(".")
            operation = getattr(getattr(torch.ops.aten, packet), overload or "default")
            library.impl(name, widened(operation), "AutocastCPU")
        yield


def _half_bytes(network: nn.Sequential, spec: DatasetSpec) -> list[list[int]] | None:
    """Bytes of each block's output and of what autograd keeps for it, of one sample in autocast.

    Norms read and keep float32, products keep a copy of what they read, and indices stay as long.
    What does not grow with the batch is left out, as the copies of weights. None where a network
    cannot run so.
    """
    several, autocast = (_SAMPLES, 2 * _SAMPLES), torch.autocast("cpu", torch.bfloat16)
    try:
        with FakeTensorMode(), _autocast_of_gpus():
            fake, dtype = copy_without_data(network), input_dtype(spec)
            few, many = (
                [*_bytes_of_blocks(fake, torch.zeros(count, *spec.shape, dtype=dtype), autocast)]
                for count in several
            )
    except Exception:  # it has values beside its weights, or computes with what tensors hold
        return None
    return [
        [max(large - small, 0) // _SAMPLES for small, large in zip(*pair, strict=True)]
        for pair in zip(few, many, strict=True)
    ]


def _rows_of_block(
    name: str, block: nn.Module, rows: Sequence[tuple[Any, ...]], sizes: tuple[int, ...]
) -> Iterator[tuple[Any, ...]]:
    weights = list(block.parameters())
    tensors = " ".join(str(weight.numel() * 4) for weight in weights if weight.requires_grad)
    fixed = [*block.buffers(), *(weight for weight in weights if not weight.requires_grad)]
    buffers = sum(tensor.nbytes for tensor in fixed)
    facts: tuple[Any, ...] = (tensors, buffers, *sizes)
    for row, times in (Counter(rows) or {("none", 0, 0, 0, 0): 1}).items():
        yield (name, *row, times, *facts)
        facts = ("", *[0] * (len(facts) - 1))


def _untimed(why: str) -> ConfigError:
    return ConfigError(f"operations do not tell how long this network trains: {why}; {PROFILE_IT}")


def table() -> str:
    """All built-in networks on all datasets, as CSV."""
    rows = [
        (name, spec.name, *row)
        for name, spec in pairs()
        for row in layer_rows(skeleton(name, spec), spec)
    ]
    return csv_text([LAYER_COLUMNS, *rows])


def _kind(name: str, args: Sequence[Any], operations: int) -> str:
    if "convolution" in name:
        return _convolution(args[1], args[8])
    if operations:
        return "linear" if name in ("mm", "addmm") else "attention"
    if any(word in name for word in _NORMS):
        return "norm"
    return "elementwise"


def _convolution(weight: Tensor, groups: int) -> str:
    channels, *window = weight.shape[1:]
    if groups > 1 and channels == 1:
        return "depthwise"
    if channels * groups <= _FEW_CHANNELS:
        return "first"
    return "pointwise" if prod(window) == 1 else "spatial"


def tensors_in(values: Any) -> list[Tensor]:
    """The tensors in nested lists, tuples and dictionaries."""
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _lacks_kernel(error: BlockFails) -> bool:
    """Whether another device may run the block, for which this processor has no kernel."""
    cause = error.__cause__
    return isinstance(cause, NotImplementedError) or _NO_KERNEL.search(str(cause)) is not None


def main(network: str, dataset: str, table: TextIO | None = None) -> None:
    """Write the rows of a network to ``table``, or print them, for a process that has no torch."""
    spec = DATASETS[dataset]
    try:
        # Trying it out says what is wrong with a network, where shapes alone cannot.
        rows = layer_rows(tried_skeleton(network, spec), spec)
    except ConfigError as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        sys.exit(1 if isinstance(error, BlockFails) and _lacks_kernel(error) else REFUSED)
    text = csv_text([LAYER_COLUMNS, *((network, dataset, *row) for row in rows)])
    print(text, end="", file=table)


if __name__ == "__main__":
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as stdout:
        os.dup2(2, 1)  # a user's module may print anything
        main(sys.argv[1], sys.argv[2], stdout)
