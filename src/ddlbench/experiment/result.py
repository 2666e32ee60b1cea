"""result.json, the file of a finished cell, as dataclasses.

``ok``, ``out_of_memory``, ``unsupported`` and ``timeout`` are results: the cell is done, and a
figure shows the reason instead of a bar. A crash is no result: the job fails, and the cell runs
again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ddlbench.common.document import Document
from ddlbench.common.errors import ConfigError, shown
from ddlbench.common.form import Amount, Count, Form, Natural, Positive, Seconds
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.site import Accelerator
from ddlbench.experiment.status import Status
from ddlbench.experiment.training import (
    Compilation,
    Efficiency,
    Energy,
    EpochAccuracy,
    Loss,
    Training,
)


@dataclass(frozen=True)
class InputDigests(Form):
    """Digests of the files that a cell was made from; None without such a file."""

    plan_digest: str | None
    """Of the plan that was run."""
    dataset_digest: str | None
    """Of the data that was read."""
    links_digest: str | None
    """Of the links.json that it was made from; null where it used none."""
    profile_digest: str | None
    """Of the profile.json that it was made from; null where it used none."""
    network_digest: str | None = None
    """Of the code of the user's or a library's network; null of a built-in one."""


@dataclass(frozen=True)
class DeviceMemory(Form):
    """Memory of one device; ``peak_with_warmup_bytes`` is known on CUDA only."""

    device: str
    """Which device."""
    peak_bytes: Natural | None
    """Peak allocated in the measured region (CUDA) or peak of live tensors in one step (CPU)."""
    reserved_bytes: Natural | None
    """Peak reserved by the CUDA allocator, with what it kept from warm-up."""
    device_used_bytes: Natural | None
    """NVML or AMD SMI: used on the whole device."""
    total_bytes: Natural | None
    """Size of the device."""
    peak_with_warmup_bytes: Natural | None = None
    """Peak allocated, preparation and warm-up included (CUDA): with cuDNN's search, the largest
    workspace of all plans."""


@dataclass(frozen=True, kw_only=True)
class RankEntry(Form):
    """One rank of a result."""

    rank: Natural
    """Index over the whole cell."""
    role: str
    """What the process does."""
    node: Natural
    """Index of its node."""
    host: str
    """Name of its host."""
    local_rank: Natural
    """Index among the processes of its node."""
    devices: tuple[str, ...]
    """Devices that it drives."""
    cpu_model: str | None = None
    """Processor of its host."""
    gpu_models: tuple[str, ...] = ()
    """Of its devices, in their order; empty on CPU."""
    stage: Natural
    """Index of its pipeline stage."""
    replica: Natural
    """Which copy of that stage it is."""
    threads: Natural
    """CPU threads the process computes with."""
    samples: Natural
    """Samples it consumed in the measured region."""
    prepare_s: Amount
    """From process start to the first step."""
    cpu_utilisation: Amount | None
    """CPU seconds over wall seconds times threads, measured region."""
    gpu_utilisation: Amount | None
    """Mean utilisation by NVML or AMD SMI, 0 to 1, measured region."""
    cpu_s: Amount | None = None
    """Processor seconds of all its threads, measured region."""
    peak_flops_per_s: Amount | None = None
    """Operations a second that its devices reach together; null for a server, and where
    `efficiency.missing` says why."""
    parameter_bytes: Natural
    """Parameters that lie on this rank."""
    peak_rss_bytes: Natural
    """Largest resident set of the process."""
    memory: tuple[DeviceMemory, ...]
    """One entry a device."""
    cpus: str | None = None
    """Cores that it may run on (CPU affinity), as 0-3,8."""
    load_s: Amount
    """Waiting for data in the measured region; on CUDA the host's, which work of the device may
    hide."""
    communication_wait_s: Amount | None
    """Waiting for other ranks in the measured region, where the strategy can tell."""
    probe_s: tuple[Positive, ...] = ()
    """Seconds of a fixed piece of work before and after training, of one rank of each node."""


@dataclass(frozen=True)
class Epoch(Form):
    """One measured epoch, as long as its slowest rank."""

    epoch: Natural
    """Index of the measured epoch."""
    steps: Natural
    """Steps of the epoch."""
    samples: Natural
    """Samples of the epoch."""
    elapsed_s: Amount
    """Duration of the epoch."""
    load_s: Amount
    """Wait for data in the epoch."""


@dataclass(frozen=True)
class StepSummary(Form):
    """The measured steps of all epochs; low and high enclose the median with 95 % confidence."""

    median_s: Seconds | None
    """Median step."""
    low_s: Seconds | None
    """Lower end of the median's 95 % interval."""
    high_s: Seconds | None
    """Upper end of the median's 95 % interval."""
    mean_s: Seconds | None
    """Mean step."""
    p95_s: Seconds | None
    """95th percentile."""
    p99_s: Seconds | None
    """99th percentile."""
    count: Natural
    """Measured steps."""


FEWEST_STEPS = 4
"""Of fewer steps the spread is unknown."""


@dataclass(frozen=True)
class Pauses(Form):
    """Times in which ranks stood still within measured steps.

    ``count`` and ``total_s`` are of the rank that did so for longest; ``ranks`` are all that did.
    """

    count: Natural
    """Pauses of the rank that stood still for longest, in measured steps."""
    total_s: Amount
    """Their duration, to a quarter of a second each."""
    ranks: tuple[Natural, ...]
    """Ranks that stood still."""


@dataclass(frozen=True)
class Timing(Form):
    """Durations of steps and epochs, and the rules of the measurement.

    ``noisy`` is None where the steps are too few to tell. ``disturbed`` says why the numbers are
    wrong; None if nothing disturbed the cell.
    """

    clock: str
    """What times were read from."""
    device_synchronised: bool
    """The device had finished before the clock was read."""
    barrier: str
    """Where ranks waited for each other."""
    combined: str
    """How times of ranks became one."""
    warmup_rule: str
    """Which steps are dropped."""
    warmup_steps: Natural
    """How many steps are dropped."""
    epochs: tuple[Epoch, ...]
    steps_per_epoch: Natural
    """Steps of one epoch."""
    samples_per_epoch: Natural
    """Samples that were really processed each epoch."""
    dataset_samples: Natural
    """Training images of the dataset that the cell used."""
    step_s: StepSummary
    step_spread: Amount | None
    """(p75 - p25) / median of the steps: a noisy run is one above 0.25; null below four steps."""
    noisy: bool | None
    """`step_spread` is above its threshold; null below four steps."""
    epoch_s: Positive | None
    """Mean of the measured epochs, scaled to all dataset_samples where an epoch was cut short."""
    epoch_scaled: bool
    """`epoch_s` was scaled because an epoch left out samples (max_steps, incomplete last batch)."""
    samples_per_s: Positive | None
    """Samples over seconds, derived last."""
    load_s: Amount
    """Slowest rank's wait for data, measured region; on CUDA the host's, which work of the device
    may hide."""
    prepare_s: Amount
    """Slowest rank, process start to first step."""
    median_samples_per_s: Positive | None = None
    """Samples of a step over the median step; far above samples_per_s where few steps are long."""
    pauses: Pauses | None = None
    suspended_s: Amount | None = None
    """How long SLURM suspended the job in measured steps; null where it was not asked."""
    stalled_steps: tuple[Count, ...] = ()
    """Measured steps that took many times their neighbours, counted from 1 over all epochs."""
    disturbed: str | None = None
    """What stopped the cell in measured steps, so that it gives no speed-up and should be measured
    again; null if nothing did."""


@dataclass(frozen=True)
class Staging(Form):
    """The copying or making of the dataset on the nodes."""

    seconds: Amount
    """Duration of bringing the data to the nodes."""
    reused: bool
    """The data lay there already."""
    bytes: Natural
    """Size of the data on one node."""
    nodes: Natural
    """Nodes that hold the data."""
    verify_s: Amount | None = None
    """Of these, reading data that lay there and comparing its checksums; 0 where that was done
    since the last boot."""


@dataclass(frozen=True)
class RankTraffic(Form):
    """Bytes that one rank sent to others and received, over all counted steps."""

    rank: Natural
    """Rank."""
    sent_bytes: Natural
    """Bytes that the rank sent to others, over all counted steps."""
    received_bytes: Natural
    """Bytes that it received."""
    sent_bytes_per_step: Amount | None
    """Mean of a step."""
    received_bytes_per_step: Amount | None
    """Mean of a step."""


@dataclass(frozen=True)
class Communication(Form):
    """Bytes that all ranks sent and received during the counted steps."""

    counted_by: Literal["tcp_info"]
    """The kernel's count of each rank's TCP connections, the rendezvous store's left out."""
    steps: Natural
    """Measured steps that were counted; after a restart those since then."""
    ranks: tuple[RankTraffic, ...]
    """Of each rank."""


@dataclass(frozen=True)
class LinkCores(Form):
    """Processor cores of an emulated link and of the ranks that used it."""

    ranks: tuple[Natural, ...]
    """Cores that the ranks could use."""
    relay: tuple[Natural, ...]
    """Core of the relay; empty where the kernel made the link."""
    shared: bool
    """Ranks and relay competed for cores."""


@dataclass(frozen=True)
class Link(Form):
    """An emulated link: its setting, the measurement of a probe, the statistics of the relay."""

    fabric: str
    """Its name in the site file."""
    setting: Mapping[str, Any]
    """What was asked for: delay, rate, loss, MTU, congestion control, backend; inside: delay and
    rate of links inside nodes."""
    probe: Mapping[str, Any]
    """What was measured on it before the ranks started; `earlier_misses`: of probes before."""
    usage: Mapping[str, Any]
    """CPU seconds of the relay, its share of a core, packets that its queue dropped; over: during
    which part of the run."""
    cpus: LinkCores
    host: str
    """The machine that stood for all nodes."""


@dataclass(frozen=True)
class Attempt(Form):
    """An earlier attempt of a cell; ``refused`` is why its checkpoint could not be used."""

    reached_steps: Natural
    """Measured steps that an attempt had done when it ended early."""
    kept_steps: Natural
    """Of these, in its newest checkpoint."""
    lost_steps: Natural
    """The others."""
    lost_s: Amount
    """Seconds that went into the others."""
    version: str
    """Of the code that wrote the checkpoint."""
    refused: str | None = None
    """Why its checkpoint could not be used; null where it was."""


@dataclass(frozen=True)
class Checkpointing(Form):
    """Costs of a cell's checkpoints, and work that was lost between them."""

    every_steps: Count
    """Measured steps from one checkpoint to the next."""
    save_s: tuple[Amount, ...]
    """Of each checkpoint, slowest rank; in no step's time."""
    total_s: Amount
    """Of all checkpoints."""
    bytes: Natural
    """Of one checkpoint, files of all ranks."""
    samples_per_s: Positive | None
    """Samples over seconds with checkpoints; timing.samples_per_s is without."""
    resumed: Natural
    """How often the cell went on from a checkpoint."""
    restore_s: Amount
    """Reading the last of these, slowest rank."""
    rehearsal_s: Amount
    """Warm-up before it, slowest rank; its effect is overwritten."""
    lost_steps: Natural
    """Steps trained twice, as they came after a checkpoint; they count once."""
    lost_s: Amount
    """Seconds that went into them the first time."""
    attempts: tuple[Attempt, ...]
    """Attempts that ended before the one that was measured, in order."""


@dataclass(frozen=True)
class Provenance(Form):
    """Time, code and machine of a measurement; None if unknown."""

    created: str | None = None
    """When the result was written."""
    git_commit: str | None = None
    """Commit of the measuring code."""
    git_dirty: bool | None = None
    """The code had changes beside the commit."""
    packages: Mapping[str, str] | None = None
    """Versions by package."""
    python: str | None = None
    """Version of Python."""
    slurm_job_id: str | None = None
    """Where SLURM ran the cell."""
    kernel: str | None = None
    """Operating system's kernel."""
    tcp_congestion_control: str | None = None
    """Of the kernel."""
    clock_resolution_s: Amount | None = None
    """Smallest step of the clock."""
    seed: Natural | None = None
    """Of weights, data and order."""
    hosts: tuple[str, ...] = ()
    """Names of the hosts."""
    cpu_model: str | None = None
    """Processor."""
    cpu_count: Count | None = None
    """Cores."""
    environment: Mapping[str, str] | None = None
    """Variables that change behaviour."""
    gpu_models: tuple[str, ...] = ()
    """GPUs."""
    driver: str | None = None
    """GPU driver."""
    cuda: str | None = None
    """CUDA."""
    nccl: str | None = None
    """NCCL."""
    rocm: str | None = None
    """ROCm, of a torch for AMD's GPUs."""
    rccl: str | None = None
    """RCCL, which torch calls NCCL there."""
    backend: str | None = None
    """Communication library of the run."""


SCHEMA_VERSION = 1
# A failed cell has written failure.json so far.
Ended = Literal[Status.OK, Status.OUT_OF_MEMORY, Status.UNSUPPORTED, Status.TIMEOUT, Status.FAILED]


class InvalidResult(ValueError):  # noqa: N818 - a state of a file, shown as such
    """A result file that is truncated, is not of its form, or belongs elsewhere."""


class NewerResult(InvalidResult):
    """A result that a newer ddlbench wrote: it is no fault, and nobody measures over it."""


DIVERGED = "training diverged"  # how the note on a loss that is no number begins


@dataclass(frozen=True, kw_only=True)
class Result(Form):
    """The content of result.json."""

    schema_version: int = SCHEMA_VERSION
    """Version of this format."""
    status: Ended
    """How the cell ended."""
    reason: str | None
    """One sentence; null when ok."""
    reason_code: str | None = None
    """What to count reasons by."""
    site: str
    """Name of the site."""
    cell_id: str
    """The cell's path below `results/<site>/cells/`."""
    cell: Mapping[str, Any]
    """Every field of the cell, options as a mapping."""
    inputs: InputDigests
    processes: Natural
    """Processes that ran."""
    devices: Natural
    """Devices that the cell occupied."""
    workers: Natural
    """Devices that do training work: what speed-up is plotted over."""
    device_kind: Literal["cpu", "cuda"]
    """What kind of device."""
    accelerator: Accelerator | None = None
    """The devices that the site emulated; null where devices computed."""
    update_semantics: Literal["synchronous", "stale"]
    """Whether gradients are of the current weights."""
    notes: tuple[str, ...]
    """What a reader of the numbers must know."""
    plan_details: Mapping[str, Any]
    """What the strategy fixed when it ran (balance, micro-batches, buckets)."""
    ranks: tuple[RankEntry, ...]
    """Those that wrote a report."""
    ranks_differ: Mapping[str, str] = field(default_factory=dict)
    """What ranks had otherwise than others: cores of their hosts, versions of software."""
    timing: Timing | None
    """Null when not measured."""
    staging: Staging | None
    """Null when nothing was staged."""
    loss: Loss | None
    """Null when not measured; a number in it is null where training had diverged."""
    communication: Communication | None
    """Bytes between ranks in the measured steps; null for a single process, and where nothing
    counts them."""
    efficiency: Efficiency | None = None
    """How far the step uses the devices; null without a measurement."""
    energy: Energy | None = None
    """Energy of the measured steps; null without a measurement."""
    compilation: Compilation | None = None
    """Compilation of the network; null where the cell is not compiled."""
    link: Link | None = None
    """The emulated link that the cell ran over; null where it was the site's own network."""
    checkpointing: Checkpointing | None = None
    """Null where the cell writes no checkpoints."""
    validation: tuple[EpochAccuracy, ...] = ()
    """Accuracy after each measured epoch, or once at the end where max_steps cuts epochs; empty
    where the cell does not validate."""
    training: Training | None = None
    """How the cell began to train, to be compared with one device; null if it is not ok."""
    log_tail: tuple[str, ...]
    """Last lines of the log when not ok."""
    elapsed_s: Amount
    """Of the whole cell, process starts included."""
    provenance: Provenance

    @property
    def diverged(self) -> str:
        """The note on a loss that is no number; empty if there is none."""
        return next((note for note in self.notes if note.startswith(DIVERGED)), "")

    @property
    def own_data(self) -> str | None:
        """Digest of the user's own data that was read; None of generated data."""
        try:
            is_own = Cell.from_id(self.cell_id).data_source != "synthetic"
        except ConfigError:
            return None
        return self.inputs.dataset_digest if is_own else None


_DOCUMENT = Document(
    Result,
    SCHEMA_VERSION,
    "result",
    InvalidResult,
    newer=NewerResult,
    instead=f"`ddlbench status forget --state {Status.NEWER}`",
    remade=True,
)


def write_result(path: Path, result: Result) -> None:
    """Validate and write a result atomically.

    Raises:
        InvalidResult: the result is not of its form.
    """
    _DOCUMENT.write(path, result)


def read_result(path: Path) -> Result:
    """Read and validate a result.

    Raises:
        NewerResult: a newer ddlbench wrote it.
        InvalidResult: the file is no result of this schema version.
    """
    return _DOCUMENT.read(path)


def cell_result(path: Path, site: str, cell_id: str) -> Result | None:
    """The result of a cell: the one rule of what counts as a result, for all who ask.

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
        raise InvalidResult(f"{path} is the result of {shown(result.cell_id)}")
    if result.site != site:
        raise InvalidResult(f"{path} is the result of site {shown(result.site)}, not of {site}")
    return complete(result, path)


def complete(result: Result, path: Path) -> Result:
    """The result.

    Raises:
        InvalidResult: it is ok without times.
    """
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
    status: Ended
    elapsed_s: float
    step_s: float | None
    start_s: float | None

    @classmethod
    def of(cls, cell: Cell, result: Result) -> Glance:
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
