"""rank<k>.json: the report of each rank to the supervisor.

::

    rank  -> RankReport    it finished: seconds, bytes, losses and spans
          -> RankFailure   it ended early, or its guard saw it killed: the reason

The files exist only during a run; result.json and failure.json keep their content.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ddlbench.common.document import write_json
from ddlbench.common.form import Form
from ddlbench.common.text import read_json
from ddlbench.experiment.result import DeviceMemory
from ddlbench.experiment.status import Reason, Status
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
        """The same when the process has compiled ``graphs`` in all."""
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
