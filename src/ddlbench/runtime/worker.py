"""Entry of every process of a cell: ``python -m ddlbench.runtime.worker job.json``.

How it went, it writes to rank<k>.json, also when it fails. SIGUSR1 makes it dump its stacks.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import random
import signal
import socket
import sys
import time
import traceback
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil
import torch

from ddlbench.datasets.loader import BatchLoader, EpochStream
from ddlbench.datasets.loading import open_split
from ddlbench.datasets.staging import hold
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS, DataRequest
from ddlbench.experiment.paths import scratch_dir
from ddlbench.experiment.result import DeviceMemory
from ddlbench.networks import build
from ddlbench.planning.strategy import Process, strategy_of
from ddlbench.runtime.checkpoint.rank import RefusedCheckpoint, open_checkpoints
from ddlbench.runtime.environment import rank_provenance
from ddlbench.runtime.failure import classify
from ddlbench.runtime.job import Job, report_file, stacks_file
from ddlbench.runtime.loop import Extent, Measurement, measure
from ddlbench.runtime.meters import (
    TcpTraffic,
    cpu_peak_bytes,
    device_memory,
    peak_rss_bytes,
    restart_peaks,
)
from ddlbench.runtime.network_address import address_of, use_interface
from ddlbench.runtime.placement import (
    apply_settings,
    gpu_models,
    own_cores,
    own_devices,
    own_process,
)
from ddlbench.runtime.progress import Reporter
from ddlbench.runtime.rank_report import RankFailure, RankReport, as_written, write_rank_report
from ddlbench.runtime.rendezvous import ClockOffset, barrier, clock_offsets, join_store, leave
from ddlbench.strategies.executor import Context, Executor
from ddlbench.strategies.training import with_precision


def main(job_path: str) -> int:
    """Run this process's part of a cell; 0 when it went well."""
    faulthandler.enable()
    job = Job.load(Path(job_path))
    process = own_process(job.plan.processes)
    stacks = stacks_file(job.run_dir, process.rank).open("w", encoding="utf-8")
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    try:
        report = _run(job, process)
        write_rank_report(report_file(job.run_dir, process.rank), report)
    except BaseException as error:
        traceback.print_exc()
        if not report_file(job.run_dir, process.rank).exists():  # else it has measured all
            status, reason = classify(error)
            failure = RankFailure(
                rank=process.rank,
                status=status,
                reason=reason,
                reason_code=reason.code,
                refused_checkpoint=isinstance(error, RefusedCheckpoint),
            )
            write_rank_report(report_file(job.run_dir, process.rank), failure)
        # Libraries may hang on exit when the others are gone: leave without asking them.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
    return 0


def _run(job: Job, process: Process) -> RankReport:
    plan, cell = job.plan, job.plan.cell
    cores = own_cores()
    interface = use_interface(job.interface)
    threads = cell.threads_per_device
    apply_settings(cell)
    devices = own_devices(job.device_kind, process)
    store = None
    if plan.world_size > 1:
        host, port = job.rendezvous_host, job.rendezvous_port
        store = join_store(host, port, process.rank, plan.world_size, job.patience_s)
    network = build(cell.network, DATASETS[cell.dataset], cell.seed)
    network = with_precision(network, cell.precision, job.device_kind)
    torch.manual_seed(cell.seed + process.rank)
    random.seed(cell.seed + process.rank)
    stream, extent, dataset_samples = _data(job, process, devices[0])
    reporter = Reporter(extent.total_steps, cell.batch_size)
    executor = _executor(cell)
    checkpoints = open_checkpoints(
        job.checkpoints, executor, process.rank, plan.world_size, store=store, devices=devices
    )
    context = Context(
        devices=devices,
        store=store,
        interface=interface,
        local_address=address_of(interface),
        patience_s=job.patience_s,
        progress=reporter if process.rank == 0 else (lambda _done: None),
        fixed={} if checkpoints is None else checkpoints.fixed(),
    )
    executor.prepare(plan, process, network, stream, context)
    offsets = clock_offsets(store, process.rank, plan.world_size)
    prepare_s = time.time() - psutil.Process().create_time()
    peaks_before: list[int] = []

    def rendezvous() -> None:
        reporter.phase_done(extent.warmup_steps)
        peaks_before.extend(restart_peaks(devices))
        if checkpoints is not None and process.rank == 0:
            checkpoints.follow(reporter, extent)
        barrier(store, "measured", plan.world_size)
        if process.rank == 0:
            reporter.phase("measured")

    traffic = _traffic(executor, job)
    measured = measure(
        executor, extent, devices, threads, rendezvous, checkpoints=checkpoints, traffic=traffic
    )
    barrier(store, "counted", plan.world_size)  # nobody sends more before all have counted
    if process.rank == 0:
        reporter.phase("done")
    context.progress = lambda _done: None
    peak = None
    if job.device_kind == "cpu":
        peak = cpu_peak_bytes(executor, extent.total_steps - 1)
    provenance = rank_provenance()
    report = RankReport(
        rank=process.rank,
        role=process.role,
        node=process.node,
        local_rank=process.local_rank,
        stage=process.stage,
        replica=process.replica,
        shard=process.shard,
        host=socket.gethostname(),
        devices=tuple(str(device) for device in devices),
        cpu_model=provenance["cpu_model"],
        gpu_models=tuple(gpu_models(devices)),
        threads=threads,
        cpus=cores,
        prepare_s=prepare_s,
        parameter_bytes=sum(p.numel() * p.element_size() for p in network.parameters()),
        peak_rss_bytes=peak_rss_bytes(),
        memory=tuple(
            DeviceMemory.from_dict(entry) for entry in device_memory(devices, peak, peaks_before)
        ),
        dataset_samples=dataset_samples,
        samples=_samples(cell, process, extent),
        steps_per_epoch=extent.steps_per_epoch,
        checkpoints=None if checkpoints is None else checkpoints.report(),
        clock_offset_s=offsets[process.rank].offset_s,
        traffic=None if traffic is None else traffic.report(),
        plan_details=executor.details(),
        partition_spans=tuple(_partition_spans(executor, extent.total_steps - 1)),
        provenance=provenance,
        **_times(measured),
    )
    # From here on the cell is measured: what fails below costs a picture, not the result.
    write_rank_report(report_file(job.run_dir, process.rank), report)
    barrier(store, "written", plan.world_size)
    report = _with_spans(report, executor, extent.total_steps - 1, offsets)
    barrier(store, "reported", plan.world_size)
    executor.close()
    leave(store, process.rank, plan.world_size)
    return report


def _data(
    job: Job, process: Process, device: torch.device
) -> tuple[EpochStream | None, Extent, int]:
    cell = job.plan.cell
    request: DataRequest = job.data
    folder = hold(request, scratch_dir(job.scratch))
    dataset = open_split(folder, request, "train")
    steps = len(dataset) // cell.batch_size
    if cell.max_steps is not None:
        steps = min(steps, cell.max_steps)
    extent = Extent(cell.warmup_steps, cell.epochs, steps, cell.checkpoint_every_steps)
    if steps == 0:
        raise ValueError(
            f"{len(dataset)} training images are fewer than one mini-batch of {cell.batch_size}"
        )
    if process.shard < 0 or not process.needs:
        return None, extent, len(dataset)
    feed = BatchLoader(
        dataset,
        global_batch=cell.batch_size,
        shard=process.shard,
        num_shards=process.num_shards,
        seed=cell.seed,
        loader_workers=cell.loader_workers,
        device=device,
        labels_only="inputs" not in process.needs,
    )
    feed.start()
    turn = process.replica % process.turns  # 0 where nobody takes turns
    stream = EpochStream(feed, cell.warmup_steps, steps, turn, process.turns)
    return stream, extent, len(dataset)


def _samples(cell: Cell, process: Process, extent: Extent) -> int:
    """Samples that enter here; a pipeline's later stages take them from the first."""
    if process.shard < 0 or "inputs" not in process.needs:
        return 0
    turn = process.replica % process.turns
    own = sum(len(range(turn, len(part), process.turns)) for part in extent.segments())
    return own * (cell.batch_size // process.num_shards)


def _with_spans(
    report: RankReport, executor: Executor, mini_batch: int, offsets: list[ClockOffset]
) -> RankReport:
    """The report with spans of one more step, where no measured one was recorded, and with clocks.

    All else is written by now: this step counts for nothing.
    """
    if report.rank == 0:
        Reporter.phase("recorded")  # a sign of life: the step before was the last one that counts
    record = getattr(executor, "record_step", None)
    if not report.spans and record is not None:
        report = replace(report, spans=tuple(record(mini_batch)))
    if not report.spans:
        return report
    clock = {"reference_rank": 0, "ranks": [asdict(offset) for offset in offsets]}
    return replace(report, plan_details={**report.plan_details, "clock": clock})


def _traffic(executor: Executor, job: Job) -> TcpTraffic | None:
    """What counts a rank's bytes; None where there are no others, or they do not talk over TCP."""
    if job.plan.world_size == 1 or getattr(executor, "transport", None) != "tcp":
        return None
    return TcpTraffic(job.rendezvous_port)


def _partition_spans(executor: Executor, mini_batch: int) -> list[Any]:
    """What the partitions of one process did when; strategies without such have nothing to tell."""
    tell = getattr(executor, "partition_spans", None)
    if tell is None:
        return []
    try:
        return list(tell(mini_batch))
    except RuntimeError:  # the cell is measured; it must not be lost for want of a picture
        traceback.print_exc()
        return []


def _executor(cell: Cell) -> Executor:
    module_name, _, attribute = strategy_of(cell.strategy).executor.partition(":")
    executor: Executor = getattr(importlib.import_module(module_name), attribute)()
    return executor


def _times(measurement: Measurement) -> dict[str, Any]:
    record = measurement.measured
    return {
        "warmup_step_s": tuple(measurement.warmup.step_s),
        "warmup_load_s": tuple(measurement.warmup.load_s),
        "warmup_loss": tuple(as_written(measurement.warmup.loss)),
        "step_s": tuple(record.step_s),
        "load_s": tuple(record.load_s),
        "loss": tuple(as_written(record.loss)),
        "spans": tuple(record.spans),
        "communication_wait_s": record.communication_wait_s,
        "cpu_utilisation": measurement.utilisation.cpu,
        "gpu_utilisation": measurement.utilisation.gpu,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
