"""Combines the reports of a cell's ranks into result.json, its tables and its trace.

::

    plan, site, reports of the ranks --> result.json      the cell's result
                                         steps.csv        a row per step
                                         partitions.csv   a row a partition, if there are any
                                         trace.json       for chrome://tracing or ui.perfetto.dev

A step is as long as its slowest rank; an epoch is as long as the slowest rank's sum of steps.
Means are taken over seconds; rates are derived once, at the end. A checkpoint is as long as its
slowest rank. Steps do not contain its seconds; throughput is given without them
(``timing.samples_per_s``) and with them (``checkpointing.samples_per_s``).

JSON has no NaN, so such a loss is written as null. A run that diverges is a valid measurement of
time, with a note.

Steps need not be alike: a strategy may communicate in every H-th only (``Strategy.round_steps``).
The median of single steps would then hide the communication, so steps are summarised as the mean
step of whole rounds::

    steps     | s | s | s | s ++++ | s | s | s | s ++++ | s | s |      ++++ communication, H = 4
    summary   |  mean of 4 steps   |  mean of 4 steps   | left out

H consecutive steps hold one communication wherever they begin, so rounds are counted from the first
measured step.

Operations and energy come from what the ranks measured::

    ranks    cpu_s, energy_j     around the measured steps
             peak_flops_per_s    after training, all at once
             sample_flops        rank 0, after training
    result   efficiency.mfu  =  batch size * sample_flops / (median step * sum of peaks)

An energy counter belongs to a host or a GPU, which several ranks may read: it counts once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, cast

import numpy as np

from ddlbench.common.document import csv_text
from ddlbench.common.quantities import counted
from ddlbench.common.statistics import median_interval, round_means
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.result import (
    FEWEST_STEPS,
    Attempt,
    Checkpointing,
    Communication,
    Ended,
    Epoch,
    InputDigests,
    Link,
    Provenance,
    RankEntry,
    RankTraffic,
    Result,
    Staging,
    StepSummary,
    Timing,
)
from ddlbench.experiment.site import Site
from ddlbench.experiment.spans import Piece, chrome_trace
from ddlbench.experiment.status import Status, reason_code
from ddlbench.experiment.training import (
    Compilation,
    Efficiency,
    Energy,
    EnergyDomain,
    EpochAccuracy,
)
from ddlbench.planning.planner import StrategyPlan, measured_digests
from ddlbench.planning.strategy import DeviceKind, Strategy, strategy_of
from ddlbench.runtime.disturbance import disturbance_of
from ddlbench.runtime.environment import provenance_of_run, ranks_differ
from ddlbench.runtime.launch import SHARED_GPU_NOTE
from ddlbench.runtime.rank_report import (
    RankFailure,
    RankReport,
    divergence,
    loss_summary,
    mean_over_ranks,
    training_of,
)
from ddlbench.slurm.jobs import suspended_s

_STAGING = ("seconds", "reused", "bytes", "nodes", "verify_s")


def assemble(
    plan: StrategyPlan,
    site: Site,
    status: Status,
    reason: str | None,
    *,
    reports: Sequence[RankReport | RankFailure],
    staging: dict[str, Any] | None,
    link: dict[str, Any] | None = None,
    earlier: Sequence[Attempt] = (),
    measured: Mapping[str, str | None] | None = None,
    suspended: str | None = None,
) -> Result:
    """The result of a cell that is done.

    ``staging`` and ``link`` are reports of ``stage_cell`` and of an emulated fabric, ``earlier``
    attempts before the one that was measured, ``measured`` digests of the files that the plan was
    made from (None reads them now), ``suspended`` what SLURM says of the job afterwards.
    """
    cell, strategy = plan.cell, plan.strategy
    ok = sorted((r for r in reports if isinstance(r, RankReport)), key=lambda r: r.rank)
    complete = status == Status.OK
    timing = None
    if complete:
        lossy = link is not None and link["setting"]["loss"] > 0
        away_s = _suspended_s(suspended, ok)
        timing = timing_of(cell, ok, site.device, lossy=lossy, suspended_s=away_s)
    staged = None
    if staging is not None:
        staged = Staging(**{name: staging[name] for name in _STAGING if name in staging})
    saved = None if timing is None else checkpointing(cell, ok, timing, earlier)
    compiled = compilation(ok) if complete else None
    scored = () if timing is None else accuracies(ok, timing)
    synchronous = strategy.is_synchronous(cell, plan.details)
    round_steps = strategy.round_steps(cell)
    return Result(
        status=cast("Ended", status),
        reason=reason,
        reason_code=reason_code(reason, status),
        site=site.name,
        cell_id=cell.id,
        cell=cell.to_dict(),
        inputs=InputDigests(
            plan_digest=plan.digest,
            dataset_digest=None if staging is None else staging["digest"],
            **(measured_digests(cell, site.name) if measured is None else measured),
        ),
        processes=plan.world_size,
        devices=cell.devices,
        workers=sum(len(p.devices) for p in plan.processes if p.shard >= 0),
        device_kind=site.device,
        accelerator=site.accelerator,
        update_semantics="synchronous" if synchronous else "stale",
        notes=(
            *_notes(strategy, site, plan),
            *(strategy.remarks(cell, ok[0].plan_details) if complete else ()),
            *drain_notes(cell, synchronous or round_steps > 1, len(scored)),
            *checkpoint_notes(saved),
            *compilation_notes(compiled, site.device),
            *([] if timing is None else rounds_note(round_steps, timing.step_s.count)),
            *divergence(ok if complete else []),
        ),
        plan_details=ok[0].plan_details if complete else plan.details,
        ranks=tuple(_rank_entry(r) for r in ok),
        ranks_differ=ranks_differ([report.provenance for report in ok]),
        timing=timing,
        staging=staged,
        loss=loss_summary(ok, ok[0].steps_per_epoch) if complete else None,
        communication=communication(ok) if complete else None,
        efficiency=None if timing is None else efficiency(cell, ok, timing),
        energy=None if timing is None else energy(ok, timing),
        compilation=compiled,
        link=None if link is None else Link.from_dict(link),
        checkpointing=saved,
        validation=scored,
        training=training_of(plan, ok) if complete else None,
        log_tail=(),
        elapsed_s=0.0,
        provenance=_provenance(cell.seed, ok, link),
    )


def _suspended_s(answer: str | None, reports: Sequence[RankReport]) -> float | None:
    """Seconds for which SLURM suspended the job after the first measured step began."""
    begun_s = [report.measured_from_s for report in reports if report.measured_from_s is not None]
    return None if answer is None or not begun_s else suspended_s(answer, min(begun_s))


def _notes(strategy: Strategy, site: Site, plan: StrategyPlan) -> list[str]:
    shared = SHARED_GPU_NOTE if site.devices_share_gpu else None
    emulated = None if site.accelerator is None else site.accelerator.remark
    remarks = (strategy.note(site.compute_kind), shared, emulated, _unshaped(site, plan))
    return [note for note in remarks if note is not None]


def _unshaped(site: Site, plan: StrategyPlan) -> str | None:
    """Which copies bypass the links inside a node; None if none does."""
    condition = site.fabrics.get(plan.cell.fabric)
    if condition is None or condition.inside is None:
        return None
    if all(len(process.devices) == 1 for process in plan.processes):
        return None
    return f"copies between devices of one process are not shaped by fabric {plan.cell.fabric}"


def _provenance(
    seed: int, reports: Sequence[RankReport], link: dict[str, Any] | None
) -> Provenance:
    values = provenance_of_run(seed, reports[0].provenance if reports else {})
    values.pop("host", None)
    values["hosts"] = sorted({r.provenance["host"] for r in reports})
    if link is not None:  # emulated nodes do not use the kernel's own setting
        values["tcp_congestion_control"] = link["setting"]["congestion_control"]
    return Provenance.from_dict(values)


def communication(reports: Sequence[RankReport]) -> Communication | None:
    """The ``communication`` part of a result; None unless all ranks counted in the same way."""
    counted = [(r.rank, r.traffic) for r in reports if r.traffic is not None]
    methods = {(traffic.counted_by, traffic.steps) for _, traffic in counted}
    if len(counted) < len(reports) or len(methods) != 1:
        return None
    ((counted_by, steps),) = methods
    return Communication(
        cast("Any", counted_by),
        steps,
        tuple(
            RankTraffic(
                rank=rank,
                sent_bytes=traffic.sent_bytes,
                received_bytes=traffic.received_bytes,
                sent_bytes_per_step=traffic.sent_bytes / steps if steps else None,
                received_bytes_per_step=traffic.received_bytes / steps if steps else None,
            )
            for rank, traffic in counted
        ),
    )


def _rank_entry(report: RankReport) -> RankEntry:
    """One entry of the result's ``ranks``."""
    entry = {part.name: getattr(report, part.name) for part in fields(RankEntry)}
    return RankEntry(**{**entry, "load_s": sum(report.load_s)})


def steps_csv(reports: Sequence[RankReport]) -> str:
    """steps.csv: one row per step, warm-up (epoch 0) included; the slowest rank's seconds."""
    steps = reports[0].steps_per_epoch
    rows: list[list[Any]] = []
    warmup = [(r.warmup_step_s, r.warmup_load_s, r.warmup_loss) for r in reports]
    measured = [(r.step_s, r.load_s, r.loss) for r in reports]
    for phase, parts in (("warmup", warmup), ("measured", measured)):
        step_s = np.max([part[0] for part in parts], axis=0)
        load_s = np.max([part[1] for part in parts], axis=0)
        loss = mean_over_ranks([part[2] for part in parts])
        for index in range(len(step_s)):
            epoch, step = (0, index) if phase == "warmup" else (index // steps + 1, index % steps)
            seconds = (f"{step_s[index]:.9g}", f"{load_s[index]:.9g}")
            mean_loss = f"{loss[index]:.6g}" if loss else ""
            rows.append([epoch, step, int(phase == "warmup"), *seconds, mean_loss])
    return csv_text([["epoch", "step", "warmup", "step_s", "load_s", "loss"], *rows])


def partitions_csv(reports: Sequence[RankReport]) -> str:
    """partitions.csv: one row a partition, micro-batch and kind of work; empty without any.

    Seconds count from the start of one step after the timed region.
    """
    rows = [
        [partition, kind, micro_batch, f"{start_s:.9g}", f"{end_s:.9g}"]
        for report in reports
        for partition, kind, micro_batch, start_s, end_s in report.partition_spans
    ]
    header = ["partition", "kind", "micro_batch", "start_s", "end_s"]
    return csv_text([header, *rows]) if rows else ""


def trace_json(reports: Sequence[RankReport]) -> str:
    """trace.json: a row a rank, a piece a kind and mini-batch; empty if no rank has spans.

    Times count from the first piece, on rank 0's clock; ``plan_details.clock`` of the result has
    each rank's clock offset and its uncertainty.
    """
    ranks = sorted(reports, key=lambda report: report.rank)
    starts_s = [r.clock_offset_s + start_s for r in ranks for _, _, start_s, _ in r.spans]
    if not starts_s:
        return ""
    begin_s = min(starts_s)
    pieces = [
        Piece(
            name=f"{kind} {number}",
            kind=kind.split(" ")[0],
            process=report.node,
            thread=report.rank,
            start_s=start_s + report.clock_offset_s - begin_s,
            end_s=end_s + report.clock_offset_s - begin_s,
            arguments={"mini_batch": number},
        )
        for report in ranks
        for kind, number, start_s, end_s in report.spans
    ]
    nodes = {report.node: f"node {report.node} ({report.host})" for report in ranks}
    parts = [f"stage {report.stage}, replica {report.replica}" for report in ranks]
    rows = {
        (report.node, report.rank): f"rank {report.rank}: "
        + ("server" if report.role == "server" else part)
        for report, part in zip(ranks, parts, strict=True)
    }
    return json.dumps(chrome_trace(pieces, nodes, rows))


PEAK_RULE = (
    "products of large square matrices in {} after training, by all ranks that train at once, so "
    "that ranks which share a device or cores share its peak; median of some tenths of a second"
)
COMPILE_RULE = (
    "three steps before warm-up, less three times the last of them, with empty caches of "
    "torch.compile; slowest rank"
)
_COVERS = {"nvml": "gpu", "amdsmi": "gpu", "rapl": "host"}


def efficiency(cell: Cell, reports: Sequence[RankReport], timing: Timing) -> Efficiency:
    """The ``efficiency`` part of a result."""
    training = [report for report in reports if report.shard >= 0]
    peaks = [r.peak_flops_per_s for r in training if r.peak_flops_per_s is not None]
    peak = sum(peaks) if peaks and len(peaks) == len(training) else None
    per_sample = next((r.sample_flops for r in reports if r.sample_flops is not None), None)
    flops = None if per_sample is None else per_sample * cell.batch_size
    step_s = timing.step_s.median_s
    rate = None if flops is None or not step_s else flops / step_s
    mfu = None if rate is None or peak is None else rate / peak
    missing = next((r.efficiency_missing for r in reports if r.efficiency_missing), None)
    if mfu is None and missing is None:
        missing = "a rank ended before it had measured"
    return Efficiency(
        flops_per_step=flops,
        flops_per_s=rate,
        peak_flops_per_s=peak,
        peak_rule=PEAK_RULE.format(cell.precision),
        devices=sum(len(report.devices) for report in training),
        mfu=mfu,
        missing=missing,
    )


def energy(reports: Sequence[RankReport], timing: Timing) -> Energy:
    """The ``energy`` part of a result."""
    counted: dict[tuple[str, str], float] = {}
    for report in reports:
        for domain, joules in report.energy_j.items():
            key = (report.host, domain)
            counted[key] = max(joules, counted.get(key, 0.0))
    domains = tuple(
        EnergyDomain(host, domain.partition(" ")[2], cast("Any", domain.partition(" ")[0]), joules)
        for (host, domain), joules in sorted(counted.items())
    )
    total = sum(entry.energy_j for entry in domains) if domains else None
    samples = sum(epoch.samples for epoch in timing.epochs)
    wall_s = max((report.measured_s or 0.0 for report in reports), default=0.0)
    return Energy(
        energy_j=total,
        energy_per_sample_j=None if total is None or not samples else total / samples,
        mean_power_w=None if total is None or not wall_s else total / wall_s,
        covers=tuple(sorted({cast("Any", _COVERS[entry.counted_by]) for entry in domains})),
        domains=domains,
        missing=tuple(dict.fromkeys(text for r in reports for text in r.energy_missing)),
    )


def compilation(reports: Sequence[RankReport]) -> Compilation | None:
    """The ``compilation`` part of a result; None for a cell that is not compiled."""
    costs = [report.compilation for report in reports if report.compilation is not None]
    if not costs:
        return None
    return Compilation(
        compile_s=max(cost.compile_s for cost in costs),
        rule=COMPILE_RULE,
        graphs=max(cost.graphs for cost in costs),
        graphs_later=max(cost.graphs_later for cost in costs),
    )


def compilation_notes(part: Compilation | None, device_kind: str) -> list[str]:
    """What a reader of a compiled cell's numbers must know."""
    if part is None:
        return []
    notes = []
    if part.graphs_later:
        notes.append(
            f"torch compiled {part.graphs_later} more graphs after its trial steps: warm-up or "
            "measured steps hold these seconds"
        )
    if device_kind == "cpu":
        notes.append("compiled kernels allocate memory that is not seen on CPUs: no peak")
    return notes


def checkpointing(
    cell: Cell, reports: Sequence[RankReport], timing: Timing, earlier: Sequence[Attempt]
) -> Checkpointing | None:
    """The ``checkpointing`` part of a result; None for a cell without checkpoints."""
    if not cell.checkpoint_every_steps:
        return None
    parts = [report.checkpoints for report in reports if report.checkpoints is not None]
    save_s = [max(seconds) for seconds in zip(*(p.save_s for p in parts), strict=True)]
    elapsed_s = sum(epoch.elapsed_s for epoch in timing.epochs)
    samples = sum(epoch.samples for epoch in timing.epochs)
    with_saves_s = elapsed_s + sum(save_s)
    return Checkpointing(
        every_steps=cell.checkpoint_every_steps,
        save_s=tuple(save_s),
        total_s=sum(save_s),
        bytes=sum(part.bytes for part in parts),
        samples_per_s=samples / with_saves_s if with_saves_s > 0 else None,
        resumed=sum(attempt.kept_steps > 0 for attempt in earlier),
        restore_s=max(part.restore_s for part in parts),
        rehearsal_s=max(part.rehearsal_s for part in parts),
        lost_steps=sum(attempt.lost_steps for attempt in earlier),
        lost_s=sum(attempt.lost_s for attempt in earlier),
        attempts=tuple(earlier),
    )


def checkpoint_notes(part: Checkpointing | None) -> list[str]:
    """The note on a cell that went on from a checkpoint; empty for others."""
    if part is None or not part.resumed:
        return []
    return [
        f"resumed {counted(part.resumed, 'time')} from a checkpoint; "
        f"{counted(part.lost_steps, 'step')}, trained twice, counted once"
    ]


def drain_notes(cell: Cell, synchronous: bool, validations: int = 0) -> list[str]:
    """Notes on work under way that checkpoints and ``validations`` of a cell wait for."""
    moments = []
    if cell.checkpoint_every_steps:
        moments.append((f"every {cell.checkpoint_every_steps} steps", "a checkpoint"))
    if validations > 1:
        moments.append(("after every epoch", "the validation"))
    return [
        f"{when} all that is under way is finished for {what}; that wait is in the steps' times"
        for when, what in ([] if synchronous else moments)
    ]


def accuracies(reports: Sequence[RankReport], timing: Timing) -> tuple[EpochAccuracy, ...]:
    """The ``validation`` part of a result; empty for a cell without validation."""
    elapsed_s = [epoch.elapsed_s for epoch in timing.epochs]
    scores = [score for report in reports for score in report.scores]
    epochs = [score.steps // timing.steps_per_epoch for score in scores]
    return tuple(
        EpochAccuracy(
            epoch=epoch,
            training_s=sum(elapsed_s[:epoch]),
            samples=score.samples,
            correct=score.correct,
            accuracy=score.correct / score.samples,
            loss=score.loss,
        )
        for epoch, score in zip(epochs, scores, strict=True)
    )


CLOCKS = {
    "cpu": "time.perf_counter of each host after every step",
    "cuda": "CUDA events on every device after each step, read once the devices were idle",
}
WARMUP_RULE = "the first warmup_steps steps of the run are trained and dropped"
BARRIER_RULE = "all ranks wait for each other once, between warm-up and the first epoch"
COMBINED_RULE = "a step is as long as its slowest rank, an epoch as the slowest rank's steps"
ROUNDS_RULE = (
    "step_s is of mean steps of whole rounds of {} steps, a round as long as its slowest rank; "
    "epoch_s and samples_per_s are of whole rounds"
)

# A run is flagged as noisy if (p75 - p25) / median of its steps exceeds this.
NOISY_SPREAD = 0.25


def timing_of(
    cell: Cell,
    reports: Sequence[RankReport],
    device_kind: DeviceKind,
    *,
    lossy: bool = False,
    suspended_s: float | None = None,
) -> Timing:
    """The ``timing`` part of a result, from the reports of all ranks."""
    rank_step_s = np.array([report.step_s for report in reports])  # (ranks, steps of all epochs)
    round_steps = strategy_of(cell.strategy).round_steps(cell)
    step_s = np.max([round_means(own_s, round_steps) for own_s in rank_step_s], axis=0)
    load_s = np.max([report.load_s for report in reports], axis=0)
    steps = reports[0].steps_per_epoch
    samples = steps * cell.batch_size
    dataset_samples = reports[0].dataset_samples
    epoch_s = rank_step_s.reshape(len(reports), cell.epochs, steps).sum(axis=2).max(axis=0)
    mean_epoch_s = float(epoch_s.mean())
    if steps % round_steps:  # its epochs hold more communication than others, or less
        whole = rank_step_s.shape[1] // round_steps * round_steps
        mean_epoch_s = float(rank_step_s[:, :whole].mean(axis=1).max()) * steps
    quartiles = np.percentile(step_s, [25, 50, 75])
    known = len(step_s) >= FEWEST_STEPS and quartiles[1] > 0
    spread = float((quartiles[2] - quartiles[0]) / quartiles[1]) if known else None
    disturbance = disturbance_of(cell, reports, lossy=lossy, suspended_s=suspended_s)
    return Timing(
        clock=CLOCKS[device_kind],
        device_synchronised=True,
        barrier=BARRIER_RULE,
        combined=COMBINED_RULE if round_steps == 1 else ROUNDS_RULE.format(round_steps),
        warmup_rule=WARMUP_RULE,
        warmup_steps=cell.warmup_steps,
        epochs=tuple(
            Epoch(
                epoch=epoch + 1,
                steps=steps,
                samples=samples,
                elapsed_s=float(epoch_s[epoch]),
                load_s=float(load_s[epoch * steps : (epoch + 1) * steps].sum()),
            )
            for epoch in range(cell.epochs)
        ),
        steps_per_epoch=steps,
        samples_per_epoch=samples,
        dataset_samples=dataset_samples,
        step_s=_step_summary(step_s, rank_step_s.shape[1]),
        step_spread=spread,
        noisy=None if spread is None else spread > NOISY_SPREAD,
        epoch_s=mean_epoch_s * dataset_samples / samples,
        epoch_scaled=samples != dataset_samples,
        samples_per_s=samples / mean_epoch_s if mean_epoch_s > 0 else None,
        load_s=max(sum(report.load_s) for report in reports),
        prepare_s=max(report.prepare_s for report in reports),
        median_samples_per_s=cell.batch_size / float(quartiles[1]) if quartiles[1] > 0 else None,
        pauses=disturbance.pauses,
        suspended_s=disturbance.suspended_s,
        stalled_steps=disturbance.stalled_steps,
        disturbed=disturbance.sentence,
    )


def rounds_note(round_steps: int, steps: int) -> list[str]:
    """The note on measured steps that are no whole rounds; empty if they are."""
    if steps % round_steps == 0:
        return []
    return [
        f"measured steps ({steps}) are no whole rounds of {round_steps} steps: the step and the "
        f"rate are of the first {steps - steps % round_steps}, the bytes of all; choose max_steps "
        f"and epochs so that steps are a multiple of {round_steps}"
    ]


def _step_summary(step_s: np.ndarray, count: int) -> StepSummary:
    ends = median_interval(step_s).ends()
    return StepSummary(
        median_s=float(np.median(step_s)),
        low_s=None if ends is None else ends[0],
        high_s=None if ends is None else ends[1],
        mean_s=float(step_s.mean()),
        p95_s=float(np.percentile(step_s, 95)),
        p99_s=float(np.percentile(step_s, 99)),
        count=count,
    )
