"""profile.json: times and bytes of one network's layers on one device of a site.

``ddlbench.profiling`` writes it; the partitioner and predictors read it. The schema describes each
field.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.document import Document
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.json_form import OMIT_NONE, JsonForm
from ddlbench.experiment.units import MS

PROFILE_VERSION = 1


class InvalidProfile(ConfigError):  # noqa: N818 - a state of a file, shown as such
    """A profile that is missing, truncated, of another version, or wrong in itself."""


_DOCUMENT = Document("profile", "profile", InvalidProfile)


@dataclass(frozen=True, order=True)
class ProfileKey:
    """The fields of a cell that a profile depends on; equal keys share one profile."""

    dataset: str
    network: str
    precision: str = "fp32"
    threads_per_device: int = 1

    @classmethod
    def of(cls, cell: Cell) -> ProfileKey:
        """The key of a cell's profile."""
        return cls(cell.dataset, cell.network, cell.precision, cell.threads_per_device)

    @property
    def id(self) -> str:
        """``<dataset>/<network>/<precision>-<threads>t``, the profile's path."""
        network = self.network.replace(":", "@")
        return f"{self.dataset}/{network}/{self.precision}-{self.threads_per_device}t"

    @classmethod
    def from_id(cls, profile_id: str) -> ProfileKey:
        """Read a key back from its path.

        Raises:
            ConfigError: the path is not one that :attr:`id` writes.
        """
        try:
            dataset, network, last = profile_id.strip("/").split("/")
            precision, threads = last.removesuffix("t").split("-")
            key = cls(dataset, network.replace("@", ":"), precision, int(threads))
        except ValueError:
            key = None
        if key is None or key.id != profile_id.strip("/"):
            raise ConfigError(
                f"{profile_id!r} is not a profile: write dataset/network/fp32-1t "
                "(precision, threads of a device)"
            )
        return key


@dataclass(frozen=True)
class BatchTime(JsonForm):
    """Time of one pass at one batch size: the median of several, with its 95 % interval."""

    batch_size: int
    time_s: float
    interval_s: tuple[float, ...] | None


@dataclass(frozen=True)
class StepTimes(JsonForm):
    """Whole sequential optimiser steps at one batch size; ``step_s`` includes data loading."""

    batch_size: int
    count: int
    step_s: float
    interval_s: tuple[float, ...] | None
    load_s: float
    forward_s: float
    backward_s: float
    optimizer_s: float
    peak_bytes: int | None


@dataclass(frozen=True)
class LayerShape(JsonForm):
    """Channels and extents of one sample; empty where a layer takes or gives no single tensor."""

    input: tuple[int, ...]
    output: tuple[int, ...]
    kernel: int
    stride: int


@dataclass(frozen=True, kw_only=True)
class LayerProfile(JsonForm):
    """One leaf operation; ``block`` is the child of the flat network that holds it."""

    name: str
    block: int
    block_name: str
    kind: str
    parameter_bytes: int
    output_bytes_per_sample: float
    saved_bytes_per_sample: float
    shape: LayerShape | None = field(default=None, metadata=OMIT_NONE)
    forward: tuple[BatchTime, ...]
    backward: tuple[BatchTime, ...]


@dataclass(frozen=True)
class BlockProfile(JsonForm):
    """One child of the flat network, timed as a whole; a pipeline cuts between blocks.

    Args:
        input_half, weight_half: of the backward pass, run apart; empty in earlier profiles.
    """

    block: int
    name: str
    parameter_bytes: int
    buffer_bytes: int
    input_bytes_per_sample: float
    output_bytes_per_sample: float
    saved_bytes_per_sample: float
    forward: tuple[BatchTime, ...]
    backward: tuple[BatchTime, ...]
    input_half: tuple[BatchTime, ...] = ()
    weight_half: tuple[BatchTime, ...] = ()


@dataclass(frozen=True)
class ParameterTensor(JsonForm):
    """One parameter; its gradient is ready after ``ready_fraction`` of the backward pass.

    ``shape`` is missing in earlier profiles.
    """

    name: str
    block: int
    bytes: int
    ready_fraction: float
    shape: tuple[int, ...] | None = field(default=None, metadata=OMIT_NONE)


@dataclass(frozen=True)
class NodeSlowdown(JsonForm):
    """Step time with ``replicas`` on a node that do not communicate, over that of one alone."""

    replicas: int
    slowdown: float
    interval: tuple[float, ...] | None


SWAP = "swap"  # messages to other ranks and from them, all posted before one is waited for


@dataclass(frozen=True)
class LoneMessage(JsonForm):
    """A message that one rank would exchange with others.

    Args:
        operation: "all_reduce", "all_gather", "broadcast" or "swap".
        ranks: of the whole cell, ascending: the group; of a swap the rank and its partners.
        bytes: as links.json counts them: the buffer that is reduced, the part that a rank gives, of
            a swap the longest message to or from a partner.
        count: how often in a step.
    """

    operation: str
    ranks: tuple[int, ...]
    bytes: int
    count: int


@dataclass(frozen=True)
class LoneRun(JsonForm):
    """A step of one device of a cell without its peers, and the messages that it would exchange.

    Args:
        work: ``Strategy.device_work`` of the cell.
        count: steps that were timed.
        step_s: median, with data loading and without messages.
        interval_s: of 95 %.
    """

    work: str
    count: int
    step_s: float
    interval_s: tuple[float, ...] | None
    messages: tuple[LoneMessage, ...]


@dataclass(frozen=True, kw_only=True)
class Profile(JsonForm):
    """The content of profile.json.

    Args:
        blocks: empty in profiles of earlier versions.
        alone: of cells whose devices compute each layer together; empty in earlier profiles.
        runs: jobs that it is the median of.
        device_memory_bytes: of one device; None if unknown.
        shrink: of the emulated device: bytes of the network over bytes here. None where they are
            the same.
    """

    schema_version: int = PROFILE_VERSION
    site: str
    profile_id: str
    dataset: str
    network: str
    precision: str
    threads_per_device: int
    device_kind: str
    batch_sizes: tuple[int, ...]
    runs: int = 1
    steps: tuple[StepTimes, ...]
    layers: tuple[LayerProfile, ...]
    blocks: tuple[BlockProfile, ...] = ()
    tensors: tuple[ParameterTensor, ...]
    node_slowdown: tuple[NodeSlowdown, ...]
    alone: tuple[LoneRun, ...] = ()
    fixed_memory_bytes: int
    device_memory_bytes: int | None = None
    shrink: float | None = field(default=None, metadata=OMIT_NONE)
    notes: tuple[str, ...]
    provenance: Mapping[str, Any]


def write_profile(path: Path, profile: Profile) -> None:
    """Check and write a profile atomically.

    Raises:
        InvalidProfile: it does not fit the schema.
    """
    _DOCUMENT.write(path, profile.to_dict())


def read_profile(path: Path) -> Profile:
    """Read and check a profile.

    Raises:
        InvalidProfile: there is none, or it does not fit the schema.
    """
    if not path.is_file():
        raise InvalidProfile(
            f"{path}: no such profile; make it with `snakemake --profile ... {path}`"
        )
    return _DOCUMENT.read_as(Profile, path)


_COLUMNS = ("node", "layer", "forward_ms", "backward_ms", "activation_bytes", "parameter_bytes")


def as_csv(profile: Profile, batch_size: int) -> str:
    """A profile at one of its batch sizes, as a table of blocks for pipeline partitioners.

    Node 1 is the input, without time of its own, as in PipeDream's profiles.

    Raises:
        InvalidProfile: some block was not timed at that batch size.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COLUMNS)
    image_bytes = profile.blocks[0].input_bytes_per_sample * batch_size
    writer.writerow((1, "Input", "0.000", "0.000", round(image_bytes), 0))
    for node, block in enumerate(profile.blocks, start=2):
        writer.writerow(
            (
                node,
                block.name,
                f"{MS.of(_seconds(profile, block.name, block.forward, batch_size)):.6f}",
                f"{MS.of(_seconds(profile, block.name, block.backward, batch_size)):.6f}",
                round(block.output_bytes_per_sample * batch_size),
                block.parameter_bytes,
            )
        )
    return out.getvalue()


def _seconds(profile: Profile, block: str, times: tuple[BatchTime, ...], batch_size: int) -> float:
    for time in times:
        if time.batch_size == batch_size:
            return time.time_s
    raise InvalidProfile(
        f"profile {profile.profile_id}: block {block!r} was not timed at batch size "
        f"{batch_size}; take one of {', '.join(map(str, profile.batch_sizes))}"
    )
