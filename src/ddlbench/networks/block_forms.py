"""The form of every block's output, without computing anything.

::

    blocks   | a | b | c | d | e |      each block runs on fake tensors (no data), which gives
    stages   |---0---|---1---|-2-|      its output's shape and type

Every process of a pipeline derives the forms of its messages in this way, so none are exchanged.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ddlbench.experiment.dataset_spec import DatasetSpec
from ddlbench.networks.foreign import seeded
from ddlbench.networks.inputs import input_dtype
from ddlbench.networks.inspection import copy_of, copy_without_data


@dataclass(frozen=True)
class TensorForm:
    """Shape and type of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> TensorForm:
        return cls(tuple(tensor.shape), tensor.dtype)

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def tensor(self, device: torch.device | str) -> Tensor:
        """An uninitialised tensor of this form."""
        return torch.empty(self.shape, dtype=self.dtype, device=device)


def sample_form(
    spec: DatasetSpec, samples: int, floating: torch.dtype = torch.float32
) -> TensorForm:
    """Form of a batch of a dataset's samples; those that are no integers are ``floating``."""
    return TensorForm((samples, *spec.shape), input_dtype(spec, floating))


def block_forms(
    network: nn.Sequential, micro_batch: TensorForm, device: torch.device | str
) -> list[TensorForm]:
    """Forms of the input and of every block's output, in order; the network is not changed."""

    def look(double: nn.Sequential, name: str, inputs: Tensor) -> tuple[Tensor, TensorForm]:
        outputs = double.get_submodule(name)(inputs)
        return outputs, TensorForm.of(outputs)

    return [micro_batch, *run_blocks(network, micro_batch, device, look)]


_Seen = TypeVar("_Seen")
_RunBlock = Callable[[nn.Sequential, str, Tensor], tuple[Tensor, _Seen]]


def run_blocks(
    network: nn.Sequential, sample: TensorForm, device: torch.device | str, run: _RunBlock[_Seen]
) -> list[_Seen]:
    """Run the blocks of a copy, in order; returns what is seen of each.

    They run on fake tensors, which cannot run a block that reads a number, as of a loss. Then the
    copy computes, of zeros. A block that torch compiles runs as it was written: what is seen of it
    by hooks is not to be compiled with it.

    Args:
        network: on any device; it is not changed.
        sample: form of its input.
        device: where it runs.
        run: (the copy, name of a block, its input) -> its output, and what is seen of it.
    """
    with torch.enable_grad(), _as_written():
        try:
            with FakeTensorMode(allow_non_fake_inputs=True):
                return _in_order(copy_without_data(network, device), sample.tensor(device), run)
        except Exception:
            with seeded(0):
                zeros = torch.zeros(sample.shape, dtype=sample.dtype, device=device)
                return _in_order(copy_of(network).to(device), zeros, run)


def _as_written() -> AbstractContextManager[object]:
    """Nothing is compiled within it. Torch's compiler takes a second to import, if nobody has."""
    if "torch._dynamo" not in sys.modules:
        return nullcontext()
    return torch.compiler.set_stance("force_eager")


def _in_order(double: nn.Sequential, passing: Tensor, run: _RunBlock[_Seen]) -> list[_Seen]:
    all_seen = []
    for name in double._modules:  # named_children skips repeated modules
        passing, seen = run(double, name, passing.detach())
        all_seen.append(seen)
    return all_seen
