"""Output form, operations and weights of each block, without computing anything.

::

    blocks   | a | b | c | d | e |      each block runs on fake tensors (no data), which gives
    stages   |---0---|---1---|-2-|      its output's shape and its floating-point operations

Every process derives the forms of its messages in this way, so none are exchanged. :func:`table`
makes ``planning/block_table.csv``, the planner's facts about the built-in networks, for
``make tables``. It builds them on the meta device, so even ResNet-152 takes no memory.
"""

from __future__ import annotations

import csv
import io
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS, DatasetSpec
from ddlbench.experiment.registry import load, pairs
from ddlbench.networks.copying import copy_with_its_tensors
from ddlbench.networks.flatten import out_of_place
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


def input_form(network: nn.Module, cell: Cell, samples: int) -> TensorForm:
    """Form of a batch of inputs, (samples, C, ...) of the weights' type, or tokens (samples, T)."""
    floating = (p.dtype for p in network.parameters() if p.is_floating_point())
    dtype = next(floating, torch.float32)
    return sample_form(DATASETS[cell.dataset], samples, dtype)


def sample_form(
    spec: DatasetSpec, samples: int, floating: torch.dtype = torch.float32
) -> TensorForm:
    """Form of a batch of a dataset's samples; those that are no integers are ``floating``."""
    return TensorForm((samples, *spec.shape), input_dtype(spec, floating))


@dataclass(frozen=True)
class BlockFacts:
    """One block on one micro-batch.

    Args:
        output: form of its output.
        work: floating-point operations of its forward pass (convolutions, matrix products).
        parameter_bytes: of its weights.
    """

    output: TensorForm
    work: float
    parameter_bytes: int


def block_facts(
    network: nn.Sequential, micro_batch: TensorForm, device: torch.device | str
) -> list[BlockFacts]:
    """Facts of every block, in order; the network is not changed.

    Args:
        network: the whole network, on any device.
        micro_batch: form of its input.
        device: where the network will run, as precision depends on it.
    """
    facts = []
    with FakeTensorMode(allow_non_fake_inputs=True):
        passing = micro_batch.tensor(device)
        for block in network:
            state = {**dict(block.named_parameters()), **dict(block.named_buffers())}
            double = copy_with_its_tensors(block)
            fakes = {n: torch.empty_like(t, device=device) for n, t in state.items()}
            with FlopCounterMode(display=False) as counter:
                passing = functional_call(double, fakes, (passing,))
            parameters = sum(p.numel() * p.element_size() for p in block.parameters())
            facts.append(
                BlockFacts(TensorForm.of(passing), float(counter.get_total_flops()), parameters)
            )
    return facts


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
            number,
            round(fact.work / _SAMPLES),
            fact.parameter_bytes,
            fact.output.bytes // _SAMPLES,
        )
        for number, fact in enumerate(facts)
    ]


def table() -> str:
    """All built-in networks on all datasets, as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(BLOCK_COLUMNS)
    for network, spec in pairs():
        writer.writerows(rows_of(network, spec))
    return text.getvalue()
