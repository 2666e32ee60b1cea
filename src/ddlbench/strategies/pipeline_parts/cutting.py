"""Which blocks a stage holds, found without computing anything.

::

    blocks   | a | b | c | d | e |      each block is run on tensors without contents, which gives
    stages   |---0---|---1---|-2-|      its output's shape and its floating-point operations

Every process finds the same cut by itself, so nothing is exchanged.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from ddlbench.planning.partition import Chain, Node, balance
from ddlbench.strategies.executor import Unsupported

__all__ = ["BlockFacts", "TensorForm", "block_facts", "cut"]


@dataclass(frozen=True)
class TensorForm:
    """Shape and type of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @classmethod
    def of(cls, tensor: Tensor) -> TensorForm:
        """The form of a tensor."""
        return cls(tuple(tensor.shape), tensor.dtype)

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
    network: nn.Sequential, micro_batch: TensorForm, device: torch.device
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


def cut(rule: str, facts: Sequence[BlockFacts], stages: int) -> list[int]:
    """Blocks of each stage.

    Args:
        rule: "work", "size" or "blocks", else the numbers themselves, as "5+9".
        facts: of every block.
        stages: how many.

    Raises:
        Unsupported: there are fewer blocks than stages, or the numbers do not add up.
    """
    blocks = len(facts)
    if blocks < stages:
        raise Unsupported(f"the network has {blocks} blocks, too few for {stages} stages")
    if rule == "work":
        return _even([fact.work for fact in facts], stages)
    if rule == "size":
        return _even([float(fact.parameter_bytes) for fact in facts], stages)
    if rule == "blocks":
        return [blocks // stages + (stage < blocks % stages) for stage in range(stages)]
    counts = [int(count) for count in rule.split("+")]
    if sum(counts) != blocks or len(counts) != stages:
        raise Unsupported(
            f"balance {rule} deals {sum(counts)} blocks to {len(counts)} stages, "
            f"the network has {blocks} for {stages}"
        )
    return counts


def ranges(counts: Sequence[int]) -> list[range]:
    """Numbers of the blocks of each stage."""
    return [range(end - count, end) for count, end in zip(counts, accumulate(counts), strict=True)]


def _even(costs: Sequence[float], stages: int) -> list[int]:
    """The cut whose dearest stage is as cheap as can be."""
    chain = Chain(tuple(Node(str(n), cost, 0.0, 0.0, 0.0) for n, cost in enumerate(costs)))
    return list(balance(chain, stages))
