"""result.json, the file of a finished cell, as dataclasses.

``ok``, ``out_of_memory``, ``unsupported`` and ``timeout`` are results: the cell is done, and a
figure shows the reason instead of a bar. A crash is no result: the job fails, and the cell runs
again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.document import Document
from ddlbench.experiment.efficiency import Compilation, Efficiency, Energy
from ddlbench.experiment.errors import ConfigError, shown
from ddlbench.experiment.json_form import OMIT_NONE, SameKeys, key_of
from ddlbench.experiment.status import Status
from ddlbench.experiment.training import EpochAccuracy, Loss, Training


@dataclass(frozen=True)
class InputDigests(SameKeys):
    """Digests of the files that a cell was made from; None without such a file."""

    plan_digest: str | None
    dataset_digest: str | None
    links_digest: str | None
    profile_digest: str | None


@dataclass(frozen=True)
class DeviceMemory(SameKeys):
    """Memory of one device; ``peak_with_warmup_bytes`` is known on CUDA only."""

    device: str
    peak_bytes: int | None
    reserved_bytes: int | None
    device_used_bytes: int | None
    total_bytes: int | None
    peak_with_warmup_bytes: int | None = field(default=None, metadata=OMIT_NONE)


@dataclass(frozen=True, kw_only=True)
class RankEntry(SameKeys):
    """One rank of a result; earlier versions lack the fields that have a default."""

    rank: int
    role: str
    node: int
    host: str
    local_rank: int
    devices: tuple[str, ...]
    cpu_model: str | None = None
    gpu_models: tuple[str, ...] = ()
    stage: int
    replica: int
    threads: int
    samples: int
    prepare_s: float
    cpu_utilisation: float | None
    gpu_utilisation: float | None
    cpu_s: float | None = None
    peak_flops_per_s: float | None = None
    parameter_bytes: int
    peak_rss_bytes: int
    memory: tuple[DeviceMemory, ...]
    cpus: str | None = None
    load_s: float
    communication_wait_s: float | None
    probe_s: tuple[float, ...] = ()


@dataclass(frozen=True)
class Epoch(SameKeys):
    """One measured epoch, as long as its slowest rank."""

    epoch: int
    steps: int
    samples: int
    elapsed_s: float
    load_s: float


@dataclass(frozen=True)
class StepSummary(SameKeys):
    """The measured steps of all epochs; low and high enclose the median with 95 % confidence."""

    median_s: float | None = field(metadata=key_of("median"))
    low_s: float | None = field(metadata=key_of("low"))
    high_s: float | None = field(metadata=key_of("high"))
    mean_s: float | None = field(metadata=key_of("mean"))
    p95_s: float | None = field(metadata=key_of("p95"))
    p99_s: float | None = field(metadata=key_of("p99"))
    count: int


FEWEST_STEPS = 4
"""Of fewer steps the spread is unknown."""


@dataclass(frozen=True)
class Pauses(SameKeys):
    """Times in which ranks stood still within measured steps.

    ``count`` and ``total_s`` are of the rank that did so for longest; ``ranks`` are all that did.
    """

    count: int
    total_s: float
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Timing(SameKeys):
    """Durations of steps and epochs, and the rules of the measurement.

    ``noisy`` is None where the steps are too few to tell; earlier versions wrote false. They lack
    the fields that have a default. ``disturbed`` says why the numbers are wrong; None if nothing
    disturbed the cell.
    """

    clock: str
    device_synchronised: bool
    barrier: str
    combined: str
    warmup_rule: str
    warmup_steps: int
    epochs: tuple[Epoch, ...]
    steps_per_epoch: int
    samples_per_epoch: int
    dataset_samples: int
    step_s: StepSummary
    step_spread: float | None
    noisy: bool | None
    epoch_s: float | None
    epoch_scaled: bool
    samples_per_s: float | None
    load_s: float
    prepare_s: float
    median_samples_per_s: float | None = None
    pauses: Pauses | None = None
    suspended_s: float | None = None
    stalled_steps: tuple[int, ...] = ()
    disturbed: str | None = None


@dataclass(frozen=True)
class Staging(SameKeys):
    """The copying or making of the dataset on the nodes; earlier versions lack ``verify_s``."""

    seconds: float
    reused: bool
    bytes: int
    nodes: int
    verify_s: float | None = field(default=None, metadata=OMIT_NONE)


@dataclass(frozen=True)
class RankTraffic(SameKeys):
    """Bytes that one rank sent to others and received, over all counted steps."""

    rank: int
    sent_bytes: int
    received_bytes: int
    sent_bytes_per_step: float | None
    received_bytes_per_step: float | None


@dataclass(frozen=True)
class Communication(SameKeys):
    """Bytes that all ranks sent and received during the counted steps."""

    counted_by: str
    steps: int
    ranks: tuple[RankTraffic, ...]


@dataclass(frozen=True)
class LinkCores(SameKeys):
    """Processor cores of an emulated link and of the ranks that used it."""

    ranks: tuple[int, ...]
    relay: tuple[int, ...]
    shared: bool


@dataclass(frozen=True)
class Link(SameKeys):
    """An emulated link: its setting, the measurement of a probe, the statistics of the relay."""

    fabric: str
    setting: Mapping[str, Any]
    probe: Mapping[str, Any]
    usage: Mapping[str, Any]
    cpus: LinkCores
    host: str


@dataclass(frozen=True)
class Attempt(SameKeys):
    """An earlier attempt of a cell; ``refused`` is why its checkpoint could not be used."""

    reached_steps: int
    kept_steps: int
    lost_steps: int
    lost_s: float
    version: str
    refused: str | None = None


@dataclass(frozen=True)
class Checkpointing(SameKeys):
    """Costs of a cell's checkpoints, and work that was lost between them."""

    every_steps: int
    save_s: tuple[float, ...]
    total_s: float
    bytes: int
    samples_per_s: float | None
    resumed: int
    restore_s: float
    rehearsal_s: float
    lost_steps: int
    lost_s: float
    attempts: tuple[Attempt, ...]


@dataclass(frozen=True)
class Provenance(SameKeys):
    """Time, code and machine of a measurement; None if unknown."""

    created: str | None = None
    git_commit: str | None = None
    git_dirty: bool | None = None
    packages: Mapping[str, str] | None = None
    python: str | None = None
    slurm_job_id: str | None = None
    kernel: str | None = None
    tcp_congestion_control: str | None = None
    clock_resolution_s: float | None = None
    seed: int | None = None
    hosts: tuple[str, ...] = ()
    cpu_model: str | None = None
    cpu_count: int | None = None
    environment: Mapping[str, str] | None = None
    gpu_models: tuple[str, ...] = ()
    driver: str | None = None
    cuda: str | None = None
    nccl: str | None = None
    backend: str | None = None


SCHEMA_VERSION = 1
# Those that the schema allows; a failed cell has written failure.json so far.
STATUSES = tuple(s for s in Status if s.is_result or s is Status.FAILED)


class InvalidResult(ValueError):  # noqa: N818 - a state of a file, shown as such
    """A result file that is truncated, does not fit the schema, or belongs elsewhere."""


class NewerResult(InvalidResult):
    """A result that a newer ddlbench wrote: it is no fault, and nobody measures over it."""


_DOCUMENT = Document(
    "result",
    "result",
    InvalidResult,
    newer=NewerResult,
    instead=f"`ddlbench forget --state {Status.NEWER}`",
)


@dataclass(frozen=True, kw_only=True)
class Result(SameKeys):
    """The content of result.json.

    Args:
        status: ok, out_of_memory, unsupported, timeout or failed.
        reason: why it is not ok; None if it is.
        reason_code: of the reason; None also in results of earlier versions.
        cell: all fields of the cell; see :meth:`ddlbench.experiment.cell.Cell.from_dict`.
        plan_details: specific to the strategy.
        ranks: those that wrote a report.
        timing, loss: None if the cell is not ok.
        communication: None unless every rank counted its bytes.
        compilation: None for a cell that is not compiled.
        efficiency, energy: None if the cell is not ok, and in results of earlier versions.
        link: None on the site's own network.
        checkpointing: None for a cell without checkpoints.
        validation: empty for a cell without validation.
        training: None if the cell is not ok, and in results of earlier versions.
    """

    schema_version: int = SCHEMA_VERSION
    status: Status
    reason: str | None
    reason_code: str | None = None
    site: str
    cell_id: str
    cell: Mapping[str, Any]
    inputs: InputDigests
    processes: int
    devices: int
    workers: int
    device_kind: str
    update_semantics: str
    notes: tuple[str, ...]
    plan_details: Mapping[str, Any]
    ranks: tuple[RankEntry, ...]
    timing: Timing | None
    staging: Staging | None
    loss: Loss | None
    communication: Communication | None
    efficiency: Efficiency | None = None
    energy: Energy | None = None
    compilation: Compilation | None = None
    link: Link | None = None
    checkpointing: Checkpointing | None = None
    validation: tuple[EpochAccuracy, ...] = ()
    training: Training | None = None
    log_tail: tuple[str, ...]
    elapsed_s: float
    provenance: Provenance

    @property
    def own_data(self) -> str | None:
        """Digest of the user's own data that was read; None of generated data."""
        try:
            is_own = Cell.from_id(self.cell_id).data_source != "synthetic"
        except ConfigError:
            return None
        return self.inputs.dataset_digest if is_own else None


def write_result(path: Path, result: Result) -> None:
    """Validate and write a result atomically.

    Raises:
        InvalidResult: the result does not fit the schema.
    """
    _DOCUMENT.write(path, result.to_dict())


def read_result(path: Path) -> Result:
    """Read and validate a result.

    Raises:
        NewerResult: a newer ddlbench wrote it.
        InvalidResult: the file is no result of this schema version.
    """
    return _DOCUMENT.read_as(Result, path)


def cell_result(path: Path, site: str, cell_id: str) -> Result | None:
    """The result of a cell: the one rule of what counts as a result, for all who ask.

    Args:
        path: where it lies.
        site: whose folder that is.
        cell_id: of the cell.

    Returns:
        what the file says; None without a file. The cell is done if ``status.is_result``.

    Raises:
        NewerResult, InvalidResult: as :func:`read_result`.
        InvalidResult: also if it is the result of another cell or site, or is ok without times.
    """
    try:
        result = read_result(path)
    except InvalidResult as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            return None
        raise
    if result.cell_id != cell_id:
        raise InvalidResult(f"{path}: is the result of {shown(result.cell_id)}")
    if result.site != site:
        raise InvalidResult(f"{path}: is the result of site {shown(result.site)}, not of {site}")
    if result.status == Status.OK and (result.timing is None or result.timing.epoch_s is None):
        raise InvalidResult(f"{path}: the status is ok, but there is no epoch_s")
    return result


@dataclass(frozen=True)
class Glance:
    """The few fields of a result that tell what a cell costs.

    Args:
        cell: what was measured.
        status: how it ended.
        elapsed_s: of the whole cell.
        step_s: mean of its steps; None where none was timed, or something disturbed them.
        start_s: all that is no step: processes, imports, rendezvous, the end; None as above.
    """

    cell: Cell
    status: Status
    elapsed_s: float
    step_s: float | None
    start_s: float | None

    @classmethod
    def of(cls, cell: Cell, result: Result) -> Glance:
        """What the result of ``cell`` says."""
        timing = result.timing
        step_s = None if timing is None or timing.disturbed is not None else timing.step_s.mean_s
        if timing is None or step_s is None:
            return cls(cell, result.status, result.elapsed_s, None, None)
        steps = cell.warmup_steps + sum(epoch.steps for epoch in timing.epochs)
        start_s = max(0.0, result.elapsed_s - steps * step_s)
        return cls(cell, result.status, result.elapsed_s, step_s, start_s)


def glance(path: Path, site: str, cell_id: str) -> Glance | None:
    """What a cell costs, by its result; None without a result."""
    try:
        result = cell_result(path, site, cell_id)
        return None if result is None else Glance.of(Cell.from_id(cell_id), result)
    except ValueError:  # InvalidResult; ConfigError of a cell of another version
        return None
