"""A read-only view of profile.json: times and bytes of a network at any batch size.

A zero-bubble schedule runs the two halves of a backward pass apart, while a profile times them
together::

    backward       | gradients of input and weights |       1
    apart          | of the input | | of the weights |      input_share + weight_share >= 1

A profile has timed the halves of each block apart. In one that has not, they follow from a block's
layers. For a convolution or matrix product either gradient takes as many operations, so half the
time each (a rule, not a measurement). A layer without weights has the gradient of its input only. A
normalisation computes both at once, so it runs in both halves.

Source: Zero Bubble Pipeline Parallelism (Qi et al., ICLR 2024), section 2, on the operations of a
matrix product's two gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from statistics import median
from typing import Any, Literal

from ddlbench.common.errors import ConfigError
from ddlbench.common.fits import Timing
from ddlbench.common.statistics import grouped
from ddlbench.experiment.profile import LoneRun
from ddlbench.experiment.site import ComputeKind, is_emulated, shrunk_bytes

DEFAULT_BUCKET_BYTES = 25 * 2**20  # torch's DDP; our own all-reduces take the same


def backward_shares(layers: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """``input_share`` and ``weight_share`` of a block's backward pass, from its layers' entries.

    Half each if no layer was timed.
    """
    whole_s = input_s = weight_s = 0.0
    for layer in layers:
        if not layer["backward"]:
            continue
        seconds = max(layer["backward"], key=lambda timing: int(timing["batch_size"]))["time_s"]
        for_input, for_weights = _halves(layer)
        whole_s += seconds
        input_s += for_input * seconds
        weight_s += for_weights * seconds
    if whole_s == 0:
        return {"input_share": 0.5, "weight_share": 0.5}
    return {"input_share": input_s / whole_s, "weight_share": weight_s / whole_s}


def _halves(layer: Mapping[str, Any]) -> tuple[float, float]:
    if not layer["parameter_bytes"]:
        return 1.0, 0.0
    return (1.0, 1.0) if "Norm" in layer["kind"] else (0.5, 0.5)


FLOAT32_BYTES = 4


@dataclass(frozen=True)
class Block:
    """One child of the flat network; activations in bytes a sample.

    ``recomputed_bytes`` are saved between a block's recomputation and the end of its backward pass.
    ``input_share`` and ``weight_share`` are the shares of the backward pass for the gradient of the
    input and of the weights, in a schedule that runs them apart.
    """

    name: str
    parameter_bytes: int
    buffer_bytes: int
    input_bytes: float
    output_bytes: float
    saved_bytes: float
    forward: Timing
    backward: Timing
    input_share: float = 0.5
    weight_share: float = 0.5
    recomputed_bytes: float = 0.0


@dataclass(frozen=True)
class Tensor:
    """One parameter tensor; its gradient is ready after ``ready_fraction`` of the backward pass.

    ``block`` is the index of its block.
    """

    name: str
    bytes: int
    ready_fraction: float
    shape: tuple[int, ...] | None = None
    block: int = 0


@dataclass(frozen=True)
class Step:
    """A sequential optimiser step at one batch size, seconds; ``low_s``, ``high_s``: 95 %."""

    step_s: float
    load_s: float
    forward_s: float
    backward_s: float
    optimizer_s: float
    low_s: float | None
    high_s: float | None
    remark: str | None

    def interval(self, factor: float, further_s: float) -> tuple[float, float] | None:
        """Interval of ``factor`` steps plus ``further_s``, which counts as certain."""
        if self.low_s is None or self.high_s is None:
            return None
        return self.low_s * factor + further_s, self.high_s * factor + further_s


class Workload:
    """Costs of one network with one dataset on one device of a site.

    ``profile`` must have been checked against its schema; ``where`` names its file in messages.
    """

    def __init__(self, profile: Mapping[str, Any], where: str = "the profile") -> None:
        self._profile, self._where = profile, where
        self.network: str = profile["network"]
        self.dataset: str = profile["dataset"]
        self.device_kind: Literal["cpu", "cuda"] = profile["device_kind"]
        self.runs: int = profile.get("runs", 1)
        self.fixed_memory_bytes: int = profile["fixed_memory_bytes"]
        self.device_memory_bytes: int | None = profile.get("device_memory_bytes")
        self._shrink = float(profile.get("shrink") or 1.0)
        self.step = cache(self._step)
        self.passes_s = cache(self._passes_s)
        self.extrapolated = cache(self._extrapolated)

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Blocks in forward order, as a step runs them.

        Raises:
            ConfigError: the profile has none.
        """
        return self.measured_blocks

    @cached_property
    def measured_blocks(self) -> tuple[Block, ...]:
        """Blocks in forward order, as they were profiled.

        Raises:
            ConfigError: the profile has none.
        """
        entries = self._profile.get("blocks") or []
        if not entries:
            raise ConfigError(f"{self._where} holds no blocks; measure the profile again")
        layers = self.layers_by_block
        return tuple(
            Block(
                name=entry["name"],
                parameter_bytes=entry["parameter_bytes"],
                buffer_bytes=entry["buffer_bytes"],
                input_bytes=entry["input_bytes_per_sample"],
                output_bytes=entry["output_bytes_per_sample"],
                saved_bytes=entry["saved_bytes_per_sample"],
                forward=self._timing(entry["forward"], f"block {entry['name']}"),
                backward=self._timing(entry["backward"], f"block {entry['name']}"),
                **(self._timed_shares(entry) or backward_shares(layers.get(entry["block"], []))),
            )
            for entry in sorted(entries, key=lambda entry: entry["block"])
        )

    @cached_property
    def compute_kind(self) -> ComputeKind:
        """What was profiled; an emulated device names itself as the processor."""
        processor = self._profile.get("provenance", {}).get("cpu_model")
        return "emulated" if is_emulated(processor) else self.device_kind

    @cached_property
    def halves_timed(self) -> bool:
        """Whether the halves of every block's backward pass were timed."""
        entries = self._profile.get("blocks") or []
        return bool(entries) and all(self._timed_shares(entry) for entry in entries)

    @staticmethod
    def _timed_shares(entry: Mapping[str, Any]) -> dict[str, float] | None:
        """The halves of a block over its whole backward pass, median over batch sizes."""
        whole = {timing["batch_size"]: timing["time_s"] for timing in entry["backward"]}
        shares: dict[str, float] = {}
        for half in ("input", "weight"):
            ratios = [
                timing["time_s"] / whole[timing["batch_size"]]
                for timing in entry.get(f"{half}_half") or []
                if whole.get(timing["batch_size"])
            ]
            if not ratios:
                return None
            shares[f"{half}_share"] = median(ratios)
        return shares

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(
            Tensor(
                entry["name"],
                entry["bytes"],
                entry["ready_fraction"],
                None if entry.get("shape") is None else tuple(entry["shape"]),
                entry["block"],
            )
            for entry in self._profile["tensors"]
        )

    @cached_property
    def peaks(self) -> tuple[tuple[float, float], ...]:
        """Batch size and peak bytes of every whole step that has one, ascending."""
        entries = ((entry["batch_size"], entry["peak_bytes"]) for entry in self._profile["steps"])
        return tuple(sorted((batch, peak) for batch, peak in entries if peak is not None))

    @cached_property
    def parameter_bytes(self) -> int:
        if self.tensors:
            return sum(tensor.bytes for tensor in self.tensors)
        return sum(block.parameter_bytes for block in self.blocks)

    def shrunk(self, size_bytes: int) -> int:
        """A size threshold of a strategy, divided as the bytes of this workload are."""
        return shrunk_bytes(size_bytes, self._shrink)

    @property
    def bucket_bytes(self) -> int:
        """Bytes of a bucket of our own all-reduces."""
        return self.shrunk(DEFAULT_BUCKET_BYTES)

    @cached_property
    def alone(self) -> Mapping[str, LoneRun]:
        """Runs of one device alone, by ``Strategy.device_work``."""
        runs = map(LoneRun.from_dict, self._profile.get("alone") or [])
        return {run.work: run for run in runs}

    @property
    def layer_entries(self) -> list[Mapping[str, Any]]:
        """Leaf operations in forward order, as in profile.json."""
        return list(self._profile["layers"])

    @property
    def layers_by_block(self) -> Mapping[int, list[Mapping[str, Any]]]:
        """The entries of each block by its index, where the profile has any."""
        return grouped((layer["block"], layer) for layer in self._profile["layers"])

    def layer_timings(self, entry: Mapping[str, Any]) -> tuple[Timing, Timing]:
        name = f"layer {entry['name']}"
        return self._timing(entry["forward"], name), self._timing(entry["backward"], name)

    def slowdown(self, replicas: float) -> float:
        """Step time of a replica among ``replicas`` on a node, over one alone, without messages.

        Linear between measured numbers of replicas; beyond them the last one holds.
        """
        points: dict[float, float] = {1: 1.0} | {
            entry["replicas"]: entry["slowdown"] for entry in self._profile["node_slowdown"]
        }
        below = max(count for count in points if count <= replicas)
        above = min((count for count in points if count > replicas), default=below)
        if below in (replicas, above):
            return points[below]
        share = (replicas - below) / (above - below)
        return points[below] + share * (points[above] - points[below])

    def _passes_s(self, samples: float) -> tuple[tuple[float, ...], tuple[float, ...]]:
        forward_s = tuple(block.forward.at(samples) for block in self.blocks)
        return forward_s, tuple(block.backward.at(samples) for block in self.blocks)

    def _extrapolated(self, samples: float) -> str | None:
        timings = (timing for block in self.blocks for timing in (block.forward, block.backward))
        outside = any(timing.extrapolates(samples) for timing in timings)
        return f"times of blocks at {samples:g} samples are extrapolated" if outside else None

    def _step(self, batch_size: float) -> Step:
        """A sequential step with ``batch_size`` samples, data loading included.

        If no whole step was measured (the network was profiled piece by piece), it is the sum of
        the blocks' forward and backward times, and ``remark`` says so.
        """
        entries = {entry["batch_size"]: entry for entry in self._profile["steps"]}
        if not entries:
            forward_s, backward_s = map(sum, self.passes_s(batch_size))
            lack = "no whole step was measured: the sum of the blocks, without load and optimiser"
            return Step(forward_s + backward_s, 0.0, forward_s, backward_s, 0.0, None, None, lack)
        parts = {name: timing.between(batch_size) for name, timing in self._step_timings.items()}
        measured = entries.get(batch_size)
        low_s, high_s = (measured or {}).get("interval_s") or (None, None)
        outside = self._step_timings["step_s"].extrapolates(batch_size)
        remark: str | None = None
        if measured is None:
            sizes = ", ".join(str(size) for size in sorted(entries))
            kind = "extrapolated" if outside else "interpolated"
            remark = f"step time at batch {batch_size:g} is {kind} from batch {sizes}"
        return Step(**parts, low_s=low_s, high_s=high_s, remark=remark)

    @cached_property
    def _step_timings(self) -> dict[str, Timing]:
        names = ("step_s", "load_s", "forward_s", "backward_s", "optimizer_s")
        return {
            name: self._timing(
                [{**entry, "time_s": entry[name]} for entry in self._profile["steps"]],
                f"{name} of a step",
            )
            for name in names
        }

    def _timing(self, entries: list[dict[str, Any]], name: str) -> Timing:
        points = [(entry["batch_size"], entry["time_s"]) for entry in entries]
        return Timing.through(points, f"{self._where}: {name}")
