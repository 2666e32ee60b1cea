"""Output form, operations and weights of each block, without computing anything.

::

    blocks   | a | b | c | d | e |      each block runs on fake tensors (no data), which gives
    stages   |---0---|---1---|-2-|      its output's shape and its floating-point operations

Every process derives the forms of its messages in this way, so none are exchanged. :func:`table`
makes ``planning/block_table.csv``, the planner's facts about the built-in networks, for
``make tables``. It builds them on the meta device, so even ResNet-152 takes no memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, starmap

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from ddlbench.common.document import csv_text
from ddlbench.experiment.dataset_spec import DatasetSpec
from ddlbench.experiment.registry import load, pairs
from ddlbench.networks.copying import copy_of, copy_without_data
from ddlbench.networks.flatten import out_of_place
from ddlbench.networks.foreign import seeded
from ddlbench.networks.inputs import input_dtype
from ddlbench.planning.network_tables import BLOCK_COLUMNS


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


@dataclass(frozen=True)
class BlockFacts:
    """One block on one micro-batch."""

    output: TensorForm
    work: float
    parameter_bytes: int


def block_facts(
    network: nn.Sequential, micro_batch: TensorForm, device: torch.device | str
) -> list[BlockFacts]:
    """Facts of every block, in order; the network is not changed."""
    facts: list[BlockFacts] = []

    def count(double: nn.Sequential, name: str, inputs: Tensor) -> Tensor:
        with FlopCounterMode(display=False) as counter:
            outputs: Tensor = double.get_submodule(name)(inputs)
        weights = network.get_submodule(name).parameters()
        parameters = sum(p.numel() * p.element_size() for p in weights)
        facts.append(
            BlockFacts(TensorForm.of(outputs), float(counter.get_total_flops()), parameters)
        )
        return outputs

    run_blocks(network, micro_batch, device, count, forget=facts.clear)
    return facts


def block_forms(
    network: nn.Sequential, micro_batch: TensorForm, device: torch.device | str
) -> list[TensorForm]:
    """Forms of the input and of every block's output, in order; the network is not changed."""
    forms = [micro_batch]

    def look(double: nn.Sequential, name: str, inputs: Tensor) -> Tensor:
        outputs: Tensor = double.get_submodule(name)(inputs)
        forms.append(TensorForm.of(outputs))
        return outputs

    def forget() -> None:
        del forms[1:]

    run_blocks(network, micro_batch, device, look, forget)
    return forms


def run_blocks(
    network: nn.Sequential,
    sample: TensorForm,
    device: torch.device | str,
    run: Callable[[nn.Sequential, str, Tensor], Tensor],
    forget: Callable[[], None],
) -> None:
    """Run the blocks of a copy, in order.

    They run on fake tensors, which cannot run a block that reads a number, as of a loss. Then the
    copy computes, of zeros.

    Args:
        network: on any device; it is not changed.
        sample: form of its input.
        device: where it runs.
        run: (the copy, name of a block, its input) -> its output.
        forget: called before the copy computes.
    """
    try:
        with torch.enable_grad(), FakeTensorMode(allow_non_fake_inputs=True):
            _run_in_order(copy_without_data(network, device), sample.tensor(device), run)
    except Exception:
        forget()
        with torch.enable_grad(), seeded(0):
            zeros = torch.zeros(sample.shape, dtype=sample.dtype, device=device)
            _run_in_order(copy_of(network).to(device), zeros, run)


def _run_in_order(
    double: nn.Sequential, passing: Tensor, run: Callable[[nn.Sequential, str, Tensor], Tensor]
) -> None:
    for name in double._modules:  # named_children skips repeated modules
        passing = run(double, name, passing.detach())


_SAMPLES = 2  # batch norm refuses a single value per channel


def rows_of(network: str, spec: DatasetSpec) -> list[tuple[str | int, ...]]:
    """A row for each block, with ``BLOCK_COLUMNS``; operations and output bytes of one sample."""
    with torch.device("meta"):
        blocks = out_of_place(load("ddlbench.networks", network)(spec))
    facts = block_facts(blocks, sample_form(spec, _SAMPLES), "cpu")
    return [
        (
            network,
            spec.name,
            name,
            round(fact.work / _SAMPLES),
            fact.parameter_bytes,
            fact.output.bytes // _SAMPLES,
        )
        for name, fact in zip(blocks._modules, facts, strict=True)
    ]


def table() -> str:
    """All built-in networks on all datasets, as CSV."""
    return csv_text([BLOCK_COLUMNS, *chain.from_iterable(starmap(rows_of, pairs()))])
