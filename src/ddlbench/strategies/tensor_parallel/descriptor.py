"""Tensor parallelism of pairs of linear layers, also by groups that share the mini-batch.

Of each attention a device has some heads, of each perceptron some hidden features. So a pair of
linear layers costs one all-reduce forward and one backward, where two layers split by filters cost
two each way.
A pair is known by names and kinds of layers; its share of a profile is::

    columns       weights, bias / p | input whole                | time / p
    between                           own features               | time / p
    row           weights / p, bias | own features in, whole out | time / p
    attention                         own heads                  | what is in no layer: time / p
    all else      whole

Saved bytes are those of the profile, which counts a storage once, at the layer that first saves it.
So what a pair's first layer saves is whole, and what the later ones save is shared out. In a block
with attention, what belongs to no layer is the attention of each head.

Kinds of pairs: :mod:`ddlbench.planning.network_tables`.

Source: Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model
Parallelism" (2019), section 3.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.cell import Cell, OptionValue
from ddlbench.experiment.status import Reason
from ddlbench.planning.memory import backward_peak_bytes, persistent_bytes, work_space_bytes
from ddlbench.planning.network_tables import (
    NetworkTraits,
    Pair,
    linear_pairs,
    pairs_of,
    parent_of,
    why_not_in_pairs,
)
from ddlbench.planning.plan import Options, Plan
from ddlbench.planning.step import (
    Compute,
    Group,
    GroupOptions,
    Message,
    Step,
    other_groups,
    transport_of,
    whole_buckets,
)
from ddlbench.planning.workload import FLOAT32_BYTES
from ddlbench.strategies.grouped import GroupDetails, Grouped, weights_with_hooks
from ddlbench.strategies.splits.shares import shape_of

if TYPE_CHECKING:
    from ddlbench.planning.workload import Block, Tensor, Workload


class DeviceShare:
    """What one of ``group`` devices keeps, computes and sends.

    Raises:
        ConfigError: several devices, and no pair of layers is known that they could split.
    """

    def __init__(self, workload: Workload, group: int, replicas: int, samples: float) -> None:
        self._workload, self._group, self._replicas = workload, group, replicas
        self._samples = samples
        self._entries = workload.layer_entries
        layers = [(str(entry["name"]), str(entry["kind"])) for entry in self._entries]
        self._pairs: list[Pair] = pairs_of(layers) if group > 1 else []
        if group > 1 and not self._pairs:
            raise ConfigError(
                f"{workload.network} has no two linear layers that could be split; take strategy "
                "filter or channel"
                if layers
                else f"only the blocks of {workload.network} are known here, and tensor "
                "parallelism splits layers; measure a profile of it at a site"
            )
        self._columns = {name for pair in self._pairs for name in pair.columns}
        self._rows = {pair.row for pair in self._pairs}
        self._between = {name for pair in self._pairs for name in pair.between}
        by_name = {str(entry["name"]): entry for entry in self._entries}
        self._by_pair = [(by_name[pair.columns[0]], by_name[pair.row]) for pair in self._pairs]
        self._with_heads = {
            row["block"]
            for pair, (_, row) in zip(self._pairs, self._by_pair, strict=True)
            if pair.is_attention
        }

    @property
    def forward_bytes(self) -> list[int]:
        """Bytes of each all-reduce of the forward pass: the output of a pair."""
        return [
            round(self._samples * float(row["output_bytes_per_sample"])) for _, row in self._by_pair
        ]

    @property
    def backward_bytes(self) -> list[int]:
        """Bytes of each all-reduce of the backward pass: the gradient of a pair's input.

        Raises:
            ConfigError: the profile has no shapes.
        """
        return [
            self._input_bytes(column)
            for column, _ in reversed(self._by_pair)
            if self._follows_weights(column)
        ]

    @property
    def gradient_bytes(self) -> list[int]:
        """Bytes of each all-reduce over the ranks with the same place in each group."""
        return [sum(bucket) for bucket in self._buckets] if self._replicas > 1 else []

    @property
    def updated_share(self) -> float:
        """Share of the weights that the device updates."""
        whole = self._workload.parameter_bytes
        return sum(tensor.bytes for tensor in self.tensors) / whole if whole else 1.0

    def peak_bytes(self, states: int) -> int:
        """Peak of a device's memory.

        At the end of a step of several groups, gradients are there twice: as they are, and
        flattened in the buckets of the all-reduces. A gradient that fills a bucket is not copied.
        """
        workload, blocks = self._workload, self.blocks
        weights = sum(block.parameter_bytes for block in blocks)
        buckets = self._buckets if self._replicas > 1 else []
        copied = sum(sum(bucket) for bucket in buckets if len(bucket) > 1)
        moment = max(backward_peak_bytes(blocks, self._samples), weights + copied)
        return round(
            workload.fixed_memory_bytes
            + persistent_bytes(blocks, states)
            + moment
            + work_space_bytes(workload, self._samples, states)
        )

    @property
    def _buckets(self) -> list[list[int]]:
        return whole_buckets(self.tensors, self._workload.bucket_bytes)

    @cached_property
    def tensors(self) -> list[Tensor]:
        """Weights with the bytes that a device has of them."""
        return [
            replace(tensor, bytes=round(tensor.bytes * self._weight_share(tensor.name)))
            for tensor in self._workload.tensors
        ]

    @cached_property
    def blocks(self) -> list[Block]:
        """Blocks with the device's weights and saved activations."""
        block_of = {str(entry["name"]): int(entry["block"]) for entry in self._entries}
        elsewhere: defaultdict[int, int] = defaultdict(int)
        for whole, own_part in zip(self._workload.tensors, self.tensors, strict=True):
            if own_part.bytes != whole.bytes:
                elsewhere[block_of[parent_of(whole.name)]] += whole.bytes - own_part.bytes
        blocks = []
        for index, block in enumerate(self._workload.blocks):
            entries = [entry for entry in self._entries if entry["block"] == index]
            saved = [float(entry["saved_bytes_per_sample"]) for entry in entries]
            between = block.saved_bytes - sum(saved)
            spared = sum(
                size * (1 - self._activation_share(str(entry["name"])))
                for size, entry in zip(saved, entries, strict=True)
            )
            spared += between * (1 - self._rest_share(index))
            blocks.append(
                replace(
                    block,
                    parameter_bytes=block.parameter_bytes - elsewhere[index],
                    saved_bytes=block.saved_bytes - spared,
                )
            )
        return blocks

    @cached_property
    def computed_share(self) -> float:
        """Share of a group's passes that a device computes, by times of a profile."""
        whole_s = own_s = 0.0
        for index, block in enumerate(self._workload.blocks):
            of_block_s = block.forward.at(self._samples) + block.backward.at(self._samples)
            layers_s = shared_s = 0.0
            for entry in self._entries:
                if entry["block"] == index:
                    timings = self._workload.layer_timings(entry)
                    seconds = sum(timing.at(self._samples) for timing in timings)
                    layers_s += seconds
                    shared_s += seconds * self._work_share(str(entry["name"]))
            rest_s = max(0.0, of_block_s - layers_s)
            whole_s += layers_s + rest_s
            own_s += shared_s + rest_s * self._rest_share(index)
        return own_s / whole_s if whole_s else 1.0

    def _input_bytes(self, column: Mapping[str, Any]) -> int:
        """Bytes of the gradient of a pair's input: a norm gives float32, even with bf16 layers."""
        shape = shape_of(column, self._workload.network)
        return round(self._samples * prod(shape["input"]) * FLOAT32_BYTES)

    def _follows_weights(self, column: Mapping[str, Any]) -> bool:
        """Whether something before the pair is trained, so that its input has a gradient."""
        block = int(column["block"])
        if any(earlier.parameter_bytes for earlier in self._workload.blocks[:block]):
            return True
        before = self._entries[: self._entries.index(column)]
        return any(entry["parameter_bytes"] for entry in before if entry["block"] == block)

    def _weight_share(self, tensor: str) -> float:
        layer, _, name = tensor.rpartition(".")
        is_split = layer in self._columns or (layer in self._rows and name == "weight")
        return 1 / self._group if is_split else 1.0

    def _activation_share(self, layer: str) -> float:
        return 1 / self._group if layer in self._rows | self._between else 1.0

    def _work_share(self, layer: str) -> float:
        is_split = layer in self._columns | self._rows | self._between
        return 1 / self._group if is_split else 1.0

    def _rest_share(self, block: int) -> float:
        return 1 / self._group if block in self._with_heads else 1.0


class TensorParallel(Grouped):
    """All devices split every pair of linear layers (Megatron-LM), by torch's DTensor."""

    name: ClassVar[str] = "tensor-parallel"
    label: ClassVar[str] = "Tensor"
    colour: ClassVar[str] = "#6A3D9A"
    marker: ClassVar[str] = "$\\bigstar$"
    executor: ClassVar[str] = "ddlbench.strategies.tensor_parallel.executor:TensorParallelExecutor"
    splits_pairs: ClassVar[bool] = True
    predictors: ClassVar[tuple[str, ...]] = ("linear-pairs",)
    # As the splits, not ranked by a recommender of single models on CPUs, where the host's time for
    # DTensor's operations is not modelled.
    preferred_predictor: ClassVar[Mapping[str, str]] = {"cuda": "linear-pairs"}

    def limit(self, cell: Cell) -> str | None:
        return why_not_in_pairs(linear_pairs(cell), cell, self.group_size(cell))

    def why_not_layers(self, traits: NetworkTraits, cell: Cell) -> Reason | None:
        return why_not_in_pairs(traits.pairs, cell, self.group_size(cell))

    def why_not_network(self, traits: NetworkTraits, plan: Plan) -> Reason | None:
        return weights_with_hooks(traits, self.label)

    def step(self, workload: Workload, plan: Plan) -> Step:
        """Both passes with an all-reduce a pair, sums of gradients over groups, the update."""
        share, details = _share(workload, plan), GroupDetails.of(plan)
        within = Group.widest(plan, range(details.group))
        over = Group.widest(plan, range(0, plan.world_size, details.group))
        tasks: list[Compute | Message] = [Compute("load")]
        for phase, sizes in (("forward", share.forward_bytes), ("backward", share.backward_bytes)):
            pieces = len(sizes) + 1
            for size in (*sizes, None):
                tasks.append(Compute(phase, share.computed_share / pieces))  # type: ignore[arg-type]
                if size is not None:
                    tasks.append(Message("all_reduce", size, group=within))
        tasks += [Message("all_reduce", size, group=over) for size in share.gradient_bytes]
        tasks.append(Compute("update", share.updated_share))
        samples = plan.cell.batch_size / details.replicas
        return Step(tuple(tasks), samples, transport_of(workload.device_kind))

    def memory_bytes(self, workload: Workload, plan: Plan) -> tuple[int, ...]:
        return (_share(workload, plan).peak_bytes(plan.cell.optimizer_states),) * plan.world_size


class DataTensor(TensorParallel):
    """Groups split pairs of linear layers; gradients are averaged over groups."""

    name: ClassVar[str] = "data-tensor"
    label: ClassVar[str] = "Data + tensor"
    colour: ClassVar[str] = "#CAB2D6"
    marker: ClassVar[str] = "$\\divideontimes$"
    options: ClassVar[type[Options]] = GroupOptions

    def refinements(self, cell: Cell) -> Iterator[Mapping[str, OptionValue]]:
        """Groups that send less within layers, or smaller gradients."""
        yield from ({"group": size} for size in other_groups(cell, self.group_size(cell)))


def _share(workload: Workload, plan: Plan) -> DeviceShare:
    details = GroupDetails.of(plan)
    samples = plan.cell.batch_size / details.replicas
    return DeviceShare(workload, details.group, details.replicas, samples)
