"""What crosses a cut behind each block, and what each block costs, found without computing.

::

    blocks   | a | b | c | d | e |      each block is run on tensors without contents, which gives
    stages   |---0---|---1---|-2-|      its output's shape and its floating-point operations

Every process finds the forms of its messages by itself, so none are exchanged. :func:`table` makes
``planning/block_table.csv``, what planning knows of the built-in networks, for ``make tables``.
They are built without contents, so even ResNet-152 on the largest images takes no memory.
"""

from __future__ import annotations

import copy
import csv
import io
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from ddlbench.experiment.dataset_spec import DatasetSpec
from ddlbench.experiment.registry import load, pairs
from ddlbench.networks.flatten import out_of_place
from ddlbench.planning.network_tables import BLOCK_COLUMNS


@dataclass(frozen=True)
class TensorForm:
    """Shape and type of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> TensorForm:
        """The form of a tensor."""
        return cls(tuple(tensor.shape), tensor.dtype)

    @property
    def bytes(self) -> int:
        """Size of such a tensor."""
        return math.prod(self.shape) * self.dtype.itemsize

    def tensor(self, device: torch.device | str) -> Tensor:
        """A tensor of this form, with whatever contents."""
        return torch.empty(self.shape, dtype=self.dtype, device=device)


@dataclass(frozen=True)
class BlockFacts:
    """One block and one micro-batch.

    Args:
        output: form of what it gives on.
        work: floating-point operations of its forward pass (convolutions, matrix products).
        parameter_bytes: its weights.
    """

    output: TensorForm
    work: float
    parameter_bytes: int


def block_facts(
    network: nn.Sequential, micro_batch: TensorForm, device: torch.device | str
) -> list[BlockFacts]:
    """Facts of every block, in order; the network stays as it is.

    Args:
        network: the whole network, on any device.
        micro_batch: form of its input.
        device: where it will run: precision depends on it.
    """
    facts = []
    with FakeTensorMode(allow_non_fake_inputs=True):
        passing = micro_batch.tensor(device)
        for block in network:
            state = {**dict(block.named_parameters()), **dict(block.named_buffers())}
            # Its Python attributes are copied, its tensors are not: a block may count its calls.
            double = copy.deepcopy(block, {id(tensor): tensor for tensor in state.values()})
            fakes = {n: torch.empty_like(t, device=device) for n, t in state.items()}
            with FlopCounterMode(display=False) as counter:
                passing = functional_call(double, fakes, (passing,))
            parameters = sum(p.numel() * p.element_size() for p in block.parameters())
            facts.append(
                BlockFacts(TensorForm.of(passing), float(counter.get_total_flops()), parameters)
            )
    return facts


_SAMPLES = 2  # batch norm refuses a single value a channel


def rows_of(network: str, spec: DatasetSpec) -> list[tuple[str | int, ...]]:
    """One row a block, in the order of ``BLOCK_COLUMNS``; operations and output of one sample."""
    with torch.device("meta"):
        blocks = out_of_place(load("ddlbench.networks", network)(spec))
    facts = block_facts(blocks, TensorForm((_SAMPLES, *spec.shape), torch.float32), "cpu")
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
