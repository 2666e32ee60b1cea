"""rank<k>.json, the report of each rank to the supervisor, and what reports say together.

::

    rank  -> RankReport    it finished: seconds, bytes, losses and spans
          -> RankFailure   it ended early, or its guard saw it killed: the reason

The files exist only during a run; result.json and failure.json keep their content.

Losses, and the ``training`` part of a result, come from all reports::

    ranks    warmup_loss, loss       mean over the ranks that report losses, step by step
    result   training.first_loss     warm-up | measured steps, the first 8
             loss                    measured steps: first, last, mean of the last epoch
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ddlbench.common.document import read_json, write_json
from ddlbench.common.form import Form
from ddlbench.common.quantities import GB
from ddlbench.experiment.result import DIVERGED, DeviceMemory
from ddlbench.experiment.status import Cause, Reason, Status, reason_of
from ddlbench.experiment.training import FIRST_STEPS, Loss, Training
from ddlbench.planning.planner import StrategyPlan
from ddlbench.planning.trainable import samples_per_pass
from ddlbench.runtime.environment import tmpdir_hint
from ddlbench.runtime.pauses import Pause


@dataclass(frozen=True)
class CountedBytes(Form):
    """Bytes that a rank sent to, and received from, others over ``steps`` measured steps."""

    counted_by: str
    steps: int
    sent_bytes: int
    received_bytes: int


@dataclass(frozen=True)
class CheckpointCost(Form):
    """Seconds that a rank spent on checkpoints, and ``bytes`` of its file in one of them."""

    save_s: tuple[float, ...]
    bytes: int
    restore_s: float
    rehearsal_s: float


@dataclass(frozen=True)
class CompileCost(Form):
    """Seconds of a rank's compilation, and how many graphs it made.

    ``graphs_later`` were compiled in warm-up and measured steps.
    """

    compile_s: float
    graphs: int
    graphs_later: int = 0

    def until_now(self, graphs: int) -> CompileCost:
        """The cost once the process has compiled ``graphs`` in all."""
        return replace(self, graphs_later=graphs - self.graphs)


@dataclass(frozen=True)
class Score(Form):
    """What rank 0 classified of the validation split after ``steps`` measured steps.

    ``loss`` is the mean over ``samples``; None for NaN and infinity.
    """

    steps: int
    samples: int
    correct: int
    loss: float | None


@dataclass(frozen=True, kw_only=True)
class RankReport(Form):
    """Measurements of a rank.

    Args:
        steps_per_epoch: measured steps of each epoch.
        warmup_step_s, warmup_load_s: of each warm-up step.
        step_s, load_s: of each measured step.
        warmup_loss, loss: of each step; None for NaN and infinity. Empty for a rank without losses.
        spans: (kind, mini-batch, start_s, end_s) by the rank's own clock.
        partition_spans: (partition, kind, micro-batch, start_s, end_s), from the start of one
            step after the timed ones.
        clock_offset_s: added to the rank's clock, it gives rank 0's.
        traffic: None if nothing was counted.
        checkpoints: None for a cell without checkpoints.
        compilation: None for a cell that is not compiled.
        scores: of rank 0, in the order of steps; empty for other ranks, and without validation.
        cpu_s: processor seconds of the measured steps.
        measured_s: wall seconds of the measured steps, without what is between them.
        measured_at: begin and end of each stretch of them in this process, by ``pauses.clock_s``.
        measured_from_s: when the first stretch began, in seconds since 1970.
        pauses: of the rank in these stretches; its guard adds them.
        energy_j: of the measured steps, by "nvml" or "rapl" and the domain.
        energy_missing: why GPUs or the host have no counter.
        peak_flops_per_s: of its devices together; None for a server.
        sample_flops: operations of a training step for one sample; of rank 0.
        efficiency_missing: why one of these two could not be measured.
        probe_s: of a fixed piece of work, before the strategy starts and after it has ended; of
            one rank of each node.
        initial_digest: of the weights and buffers that the rank began with; None if unknown.
        replayed_loss: of the first steps, as a replay on one device gives them; as ``loss``.
        batch_norm, random: whether the network has a batch norm, and draws random numbers.
        torch_settings: that torch says it has after the warm-up, by their names.
    """

    status: Status = Status.OK
    rank: int
    role: str
    node: int
    local_rank: int
    stage: int
    replica: int
    shard: int
    host: str
    devices: tuple[str, ...]
    cpu_model: str | None
    gpu_models: tuple[str, ...]
    threads: int
    cpus: str | None = None
    prepare_s: float
    parameter_bytes: int
    peak_rss_bytes: int
    memory: tuple[DeviceMemory, ...]
    dataset_samples: int
    samples: int
    steps_per_epoch: int
    checkpoints: CheckpointCost | None = None
    compilation: CompileCost | None = None
    scores: tuple[Score, ...] = ()
    clock_offset_s: float = 0.0
    traffic: CountedBytes | None = None
    plan_details: Mapping[str, Any]
    partition_spans: tuple[tuple[Any, ...], ...] = ()
    provenance: Mapping[str, Any]
    warmup_step_s: tuple[float, ...]
    warmup_load_s: tuple[float, ...]
    warmup_loss: tuple[float | None, ...]
    step_s: tuple[float, ...]
    load_s: tuple[float, ...]
    loss: tuple[float | None, ...]
    spans: tuple[tuple[Any, ...], ...] = ()
    communication_wait_s: float | None = None
    cpu_utilisation: float | None = None
    gpu_utilisation: float | None = None
    cpu_s: float | None = None
    measured_s: float | None = None
    measured_at: tuple[tuple[float, float], ...] = ()
    measured_from_s: float | None = None
    pauses: tuple[Pause, ...] = ()
    energy_j: Mapping[str, float] = field(default_factory=dict)
    energy_missing: tuple[str, ...] = ()
    peak_flops_per_s: float | None = None
    sample_flops: int | None = None
    efficiency_missing: str | None = None
    probe_s: tuple[float, ...] = ()
    initial_digest: str | None = None
    replayed_loss: tuple[float | None, ...] = ()
    batch_norm: bool = False
    random: bool = False
    torch_settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RankFailure(Form):
    """Why a rank ended early."""

    rank: int
    status: Status  # out_of_memory, unsupported or failed
    reason: str
    reason_code: str
    refused_checkpoint: bool = False  # it could not resume from its checkpoint
    signal: int | None = None

    def of_cell(self) -> Reason:
        return Reason(self.reason_code, f"rank {self.rank}: {self.reason}")


def write_rank_report(path: Path, report: RankReport | RankFailure) -> None:
    """Write a report atomically.

    Raises:
        ValueError: JSON cannot hold it.
    """
    write_json(path, report.to_dict())


def read_rank_report(path: Path) -> RankReport | RankFailure:
    """Read what :func:`write_rank_report` wrote."""
    values = read_json(path)
    kind = RankReport if values["status"] == Status.OK else RankFailure
    return kind.from_dict(values)


def as_written(losses: Sequence[float]) -> list[float | None]:
    """Losses as a report holds them: None in place of NaN and infinity."""
    return [float(loss) if math.isfinite(loss) else None for loss in losses]


_OUT_OF_MEMORY = re.compile(
    r"out of memory|can't allocate memory|cannot allocate memory|not enough memory|"
    r"CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED|std::bad_alloc",
    re.IGNORECASE,
)

_OF_A_GPU = re.compile(r"CUDA|CUBLAS|CUDNN|GPU|device memory", re.IGNORECASE)

# cuDNN says this if no plan's workspace fits into memory, and also if no plan exists.
_NO_ENGINE = re.compile(r"(FIND|GET) was unable to find an engine to execute this computation")
_LOW_MEMORY_SHARE = 0.1  # of a device's memory

# What torch says of layers that it does not train in this way, here or at all.
_REFUSAL = re.compile(
    r"only work with GPU modules|expected input tensor to be on GPU|"
    r"must override the setup_context|once_differentiable|Expected to have finished reduction|"
    r"stage modules that have used torch\.compile"
)

# Errors of a node, the network or a disk, rather than of the rank's own program.
_INFRASTRUCTURE = re.compile(
    r"ConnectionError|ConnectionReset|ConnectionRefused|BrokenPipe|TimeoutError|DistStoreError|"
    r"DistNetworkError|No space left|Stale file handle|Input/output error|Connection reset|"
    r"Connection closed|Connection refused|closed by peer|timed out|Broken pipe|"
    r"NCCL error|unhandled system error|uncorrectable ECC|device is busy or unavailable|"
    r"has no network interface|HorovodInternalError|Address already in use|DataError",
    re.IGNORECASE,
)


def cause_of(failed: Sequence[RankFailure]) -> Cause:
    """Whether the program or the infrastructure caused a failure.

    The infrastructure did if a rank was killed, if none left a report, or if all ranks report
    lost connections and the like. If a rank reports an error of its own, the connections of the
    others broke because of it.
    """
    if any(report.signal is not None for report in failed):
        return "infrastructure"
    if all(_INFRASTRUCTURE.search(report.reason) for report in failed):
        return "infrastructure"
    return "program"


def classify(error: BaseException) -> tuple[Status, Reason]:
    """The status (out of memory, unsupported or failed) and a one-line reason."""
    from ddlbench.strategies.executor import Unsupported  # noqa: PLC0415 - as below

    error = innermost(error)
    text = " ".join(str(error).split())
    reason = f"{type(error).__name__}: {text}"[:300] if text else type(error).__name__
    reason += tmpdir_hint(text)
    if isinstance(error, Unsupported):
        return Status.UNSUPPORTED, Reason(reason_of(error, "unsupported").code, text)
    if _REFUSAL.search(text):
        return Status.UNSUPPORTED, Reason("weights_unsupported", reason)
    if isinstance(error, MemoryError):
        return Status.OUT_OF_MEMORY, Reason("out_of_memory_host", reason)
    if isinstance(error, RuntimeError) and _OUT_OF_MEMORY.search(text):
        code = "out_of_memory_cuda" if _OF_A_GPU.search(text) else "out_of_memory_host"
        return Status.OUT_OF_MEMORY, Reason(code, reason)
    if isinstance(error, RuntimeError) and _NO_ENGINE.search(text):
        full = _full_device()
        if full is not None:
            return Status.OUT_OF_MEMORY, Reason("out_of_memory_cuda", f"{reason} ({full})")
    code = "connection_lost" if _INFRASTRUCTURE.search(reason) else "exception"
    return Status.FAILED, Reason(code, reason)


def innermost(error: BaseException) -> BaseException:
    """The error that a library has wrapped; an error of this project says what is wrong itself."""
    while error.__cause__ is not None and not type(error).__module__.startswith("ddlbench."):
        error = error.__cause__
    return error


def _full_device() -> str | None:
    """Describe a GPU of this process with less than a tenth of its memory free; None without."""
    import torch  # noqa: PLC0415 - the supervisor has none

    if not torch.cuda.is_initialized():
        return None
    with suppress(RuntimeError):  # a broken device: report the first error as it is
        for index in range(torch.cuda.device_count()):
            if torch.cuda.memory_reserved(index) == 0:
                continue  # another process's GPU: a query would open a context on it
            free, total = torch.cuda.mem_get_info(index)
            if free < _LOW_MEMORY_SHARE * total:
                return f"{GB.of(free):.2f} of {GB.text(total, '.2f')} free on cuda:{index}"
    return None


def training_of(plan: StrategyPlan, reports: Sequence[RankReport]) -> Training:
    """The ``training`` part of a cell that is ok."""
    digests = sorted({r.initial_digest for r in reports if r.initial_digest is not None})
    replayed = mean_over_ranks([report.replayed_loss for report in reports])
    return Training(
        initial_digest="+".join(digests) or None,
        first_loss=tuple(as_written(_all_losses(reports)[:FIRST_STEPS])),
        replayed_loss=tuple(as_written(replayed)),
        samples_per_pass=samples_per_pass(plan),
        batch_norm=any(report.batch_norm for report in reports),
        random=any(report.random for report in reports),
        settings=reports[0].torch_settings,
    )


def mean_over_ranks(losses: Sequence[Sequence[float | None]]) -> list[float]:
    """Mean loss of each step over the ranks that report losses; NaN if one of them is None."""
    rows = [of_rank for of_rank in losses if of_rank]
    if not rows:
        return []
    return [float(value) for value in np.mean(np.array(rows, dtype=float), axis=0)]


def _all_losses(reports: Sequence[RankReport]) -> list[float]:
    """Mean losses of warm-up and measured steps."""
    warmup = mean_over_ranks([report.warmup_loss for report in reports])
    return warmup + mean_over_ranks([report.loss for report in reports])


def loss_summary(reports: Sequence[RankReport], steps_per_epoch: int) -> Loss | None:
    """The ``loss`` part of a result; None if no rank reports losses."""
    loss = mean_over_ranks([report.loss for report in reports])
    if not loss:
        return None
    last_epoch = loss[-steps_per_epoch:]
    mean = sum(last_epoch) / len(last_epoch)
    return Loss(*as_written([loss[0], loss[-1], mean]))


def divergence(reports: Sequence[RankReport]) -> list[str]:
    """The note on a run whose loss became NaN or infinite, warm-up included; empty if none did."""
    loss = _all_losses(reports)
    warmup = len(loss) - len(mean_over_ranks([report.loss for report in reports]))
    first = next((step for step, value in enumerate(loss) if not math.isfinite(value)), None)
    if first is None:
        return []
    return [
        f"{DIVERGED}: the loss is no number from step {first + 1} of {len(loss)} on "
        f"({warmup} of them warm-up)"
    ]
