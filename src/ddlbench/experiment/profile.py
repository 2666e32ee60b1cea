"""profile.json: times and bytes of one network's layers on one device of a site.

``ddlbench.profiling`` writes it; the partitioner and predictors read it. The schema describes each
field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, MinLen

from ddlbench.common.document import Document, read_once
from ddlbench.common.errors import ConfigError
from ddlbench.common.form import Amount, Count, Form, Interval, Natural, Positive, Share
from ddlbench.experiment.cell import Cell, Optimizer, Precision, from_path, in_path
from ddlbench.experiment.config import making_anew

PROFILE_VERSION = 1


class InvalidProfile(ConfigError):  # noqa: N818 - a state of a file, shown as such
    """A profile that is missing, truncated, of another version, or wrong in itself."""


@dataclass(frozen=True, order=True)
class ProfileKey:
    """The fields of a cell that a profile depends on; equal keys share one profile."""

    dataset: str
    network: str
    precision: str = "fp32"
    threads_per_device: int = 1
    optimizer: str = "sgd"

    @classmethod
    def of(cls, cell: Cell) -> ProfileKey:
        return cls(**{each.name: getattr(cell, each.name) for each in fields(cls)})

    @property
    def id(self) -> str:
        """``<dataset>/<network>/<precision>-<threads>t``, the profile's path.

        With another optimiser than SGD its name follows: ``fp32-1t-adamw``.
        """
        parts = [self.precision, f"{self.threads_per_device}t"]
        if self.optimizer != "sgd":
            parts.append(self.optimizer)
        return f"{self.dataset}/{in_path(self.network)}/{'-'.join(parts)}"

    @classmethod
    def from_id(cls, profile_id: str) -> ProfileKey:
        """Read a key back from its path.

        Raises:
            ConfigError: the path is not one that :attr:`id` writes.
        """
        try:
            dataset, network, last = profile_id.strip("/").split("/")
            precision, threads, *optimizer = last.split("-")
            number = int(threads.removesuffix("t"))
            key = cls(dataset, from_path(network), precision, number, *optimizer)
        except (ValueError, TypeError):  # TypeError: too many parts
            key = None
        if key is None or key.id != profile_id.strip("/"):
            raise ConfigError(
                f"{profile_id!r} is not a profile: write dataset/network/fp32-1t "
                "(precision, threads of a device), or fp32-1t-adamw"
            )
        return key


@dataclass(frozen=True)
class BatchTime(Form):
    """Time of one pass at one batch size: the median of several, with its 95 % interval."""

    batch_size: Count
    time_s: Amount
    interval_s: Interval | None


@dataclass(frozen=True)
class StepTimes(Form):
    """Whole sequential optimiser steps at one batch size; ``step_s`` includes data loading."""

    batch_size: Count
    count: Count
    step_s: Positive
    """With data loading."""
    interval_s: Interval | None
    load_s: Amount
    """Wait for data; on CUDA what step_s exceeds the three parts by."""
    forward_s: Amount
    backward_s: Amount
    optimizer_s: Amount
    peak_bytes: Natural | None
    """Peak of live tensors (CPU) or of the allocator after warm-up (CUDA)."""


@dataclass(frozen=True)
class LayerShape(Form):
    """Channels and extents of one sample; empty where a layer takes or gives no single tensor."""

    input: tuple[Natural, ...]
    output: tuple[Natural, ...]
    kernel: Count
    stride: Count


@dataclass(frozen=True, kw_only=True)
class LayerProfile(Form):
    """One leaf operation; ``block`` is the child of the flat network that holds it."""

    name: str
    block: Natural
    block_name: str
    kind: str
    """Class of the module, e.g. Conv2d."""
    parameter_bytes: Natural
    output_bytes_per_sample: Amount
    saved_bytes_per_sample: Amount
    """What autograd keeps for the backward pass beyond parameters, shared storage counted once,
    with the layer that first saves it."""
    shape: LayerShape | None = None
    """Channels and extents of one sample; empty where the layer takes or gives no single tensor."""
    forward: tuple[BatchTime, ...]
    """One entry a batch size; missing where it did not fit."""
    backward: tuple[BatchTime, ...]
    """One entry a batch size; missing where it did not fit."""


@dataclass(frozen=True)
class BlockProfile(Form):
    """One child of the flat network, timed as a whole; a pipeline cuts between blocks."""

    block: Natural
    name: str
    parameter_bytes: Natural
    buffer_bytes: Natural
    input_bytes_per_sample: Amount
    output_bytes_per_sample: Amount
    saved_bytes_per_sample: Amount
    forward: tuple[BatchTime, ...]
    """One entry a batch size; missing where it did not fit."""
    backward: tuple[BatchTime, ...]
    """One entry a batch size; missing where it did not fit."""
    input_half: tuple[BatchTime, ...] = ()
    """The gradient of the input alone, as zero-bubble schedules run it."""
    weight_half: tuple[BatchTime, ...] = ()
    """The gradients of the weights, after that."""


@dataclass(frozen=True)
class ParameterTensor(Form):
    """One parameter; its gradient is ready after ``ready_fraction`` of the backward pass."""

    name: str
    block: Natural
    bytes: Natural
    ready_fraction: Share
    """Of the backward pass, when the gradient was ready (at the largest batch size)."""
    shape: tuple[Natural, ...] | None = None


@dataclass(frozen=True)
class NodeSlowdown(Form):
    """Step time with ``replicas`` on a node that do not communicate, over that of one alone."""

    replicas: Count
    slowdown: Positive
    interval: Interval | None


SWAP = "swap"  # messages to other ranks and from them, all posted before one is waited for


@dataclass(frozen=True)
class LoneMessage(Form):
    """A message that one rank would exchange with others."""

    operation: Literal["all_reduce", "all_gather", "broadcast", "swap"]
    """Swap: messages to other ranks and from them, all posted before one is waited for."""
    ranks: tuple[Natural, ...]
    """Of the cell: the group; of a swap the device's own and its partners'."""
    bytes: Natural
    """As links.json counts them; of a swap the longest message to or from a partner."""
    count: Count
    """A step."""


@dataclass(frozen=True)
class LoneRun(Form):
    """A step of one device of a cell without its peers, and the messages that it would exchange."""

    work: str
    """Strategy, groups, options and samples of a group."""
    count: Count
    """Steps that were timed."""
    step_s: Positive
    """With data loading, without messages."""
    interval_s: Interval | None
    """Of 95 %."""
    messages: tuple[LoneMessage, ...]
    """What the device would exchange in a step."""


@dataclass(frozen=True, kw_only=True)
class Profile(Form):
    """The content of profile.json."""

    schema_version: int = PROFILE_VERSION
    site: str
    profile_id: str
    dataset: str
    network: str
    precision: Precision
    threads_per_device: Count
    optimizer: Optimizer = "sgd"
    """Of the whole steps."""
    device_kind: Literal["cpu", "cuda"]
    batch_sizes: Annotated[tuple[Count, ...], MinLen(1)]
    """At which layers were timed."""
    runs: Count = 1
    """Jobs that it is the median of; 1 where missing."""
    steps: tuple[StepTimes, ...]
    """Whole sequential optimiser steps on staged data, as a sequential cell runs them; the thesis'
    statistical predictor starts here."""
    layers: tuple[LayerProfile, ...]
    """Leaf operations in the order of their forward; `block` is the index of the child of the flat
    nn.Sequential that holds it."""
    blocks: tuple[BlockProfile, ...] = ()
    """Children of the flat nn.Sequential, each timed as a whole (a pipeline cuts between them)."""
    tensors: tuple[ParameterTensor, ...]
    """Parameter tensors in the order in which their gradients become ready in a backward pass."""
    node_slowdown: tuple[NodeSlowdown, ...]
    """Step time of one replica while so many run on the node without talking, over that of one
    alone."""
    alone: tuple[LoneRun, ...] = ()
    """Steps of one device without its peers, of cells whose devices compute each layer together."""
    fixed_memory_bytes: Natural
    """CUDA context, allocator; 0 on CPU, where live tensors are counted."""
    device_memory_bytes: Natural | None = None
    """Memory of one device; null where it is not known (on CPU: what the site gives a device)."""
    shrink: Annotated[float, Ge(1)] | None = None
    """Of an emulated device: bytes of the network over bytes here; 1 where missing."""
    notes: tuple[str, ...]
    provenance: Mapping[str, Any]


_DOCUMENT = Document(Profile, PROFILE_VERSION, "profile", InvalidProfile, instead=making_anew)


def write_profile(path: Path, profile: Profile) -> None:
    """Check and write a profile atomically.

    Raises:
        InvalidProfile: it is not of its form.
    """
    _DOCUMENT.write(path, profile)


@read_once(64)
def read_profile(path: Path) -> Profile:
    """Read and check a profile.

    Raises:
        InvalidProfile: there is none, or it is not of its form.
    """
    if not path.is_file():
        raise InvalidProfile(
            f"{path}: no such profile; make it with `snakemake --profile ... {path}`"
        )
    return _DOCUMENT.read(path)
