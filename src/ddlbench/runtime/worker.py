"""Entry of every process of a cell: ``python -m ddlbench.runtime.worker job.json``.

It reports success or failure in rank<k>.json. SIGUSR1 makes it dump its stacks.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch import nn

from ddlbench.datasets.loader import BatchLoader, EpochStream
from ddlbench.datasets.loading import open_split
from ddlbench.datasets.staging import hold
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.paths import scratch_dir
from ddlbench.experiment.result import DeviceMemory
from ddlbench.experiment.site import Accelerator
from ddlbench.networks import build
from ddlbench.planning.plan import Process
from ddlbench.planning.strategy import too_few_steps
from ddlbench.runtime.checkpoint.rank import RefusedCheckpoint, open_checkpoints
from ddlbench.runtime.compilation import (
    compile_ahead,
    compiled_graphs,
    ready_to_compile,
)
from ddlbench.runtime.energy import EnergyMeter
from ddlbench.runtime.environment import rank_provenance
from ddlbench.runtime.failure import classify
from ddlbench.runtime.initial_state import check_settings, initial_state
from ddlbench.runtime.job import Job, kept_folder, report_file, stacks_file
from ddlbench.runtime.loop import Extent, Measurement, measure
from ddlbench.runtime.meters import (
    cpu_peak_bytes,
    device_memory,
    peak_rss_bytes,
    probe_s,
    restart_peaks,
)
from ddlbench.runtime.network_address import SECRET, address_of, use_interface
from ddlbench.runtime.pauses import MeasuredTimes
from ddlbench.runtime.placement import gpu_models, own_cores, own_devices, own_process
from ddlbench.runtime.progress import Reporter
from ddlbench.runtime.rank_efficiency import measured_by_rank
from ddlbench.runtime.rank_report import RankFailure, RankReport, as_written, write_rank_report
from ddlbench.runtime.rendezvous import ClockOffset, barrier, clock_offsets, join_store, leave
from ddlbench.runtime.replayed import replayed_losses
from ddlbench.runtime.socket_folder import (
    remove_socket_folder,
    use_short_socket_folder,
)
from ddlbench.runtime.tcp_traffic import TcpTraffic
from ddlbench.runtime.validation import Validator
from ddlbench.strategies.executor import Context, Executor, Unsupported, executor_of
from ddlbench.strategies.training import apply_torch_settings, with_precision


def main(job_path: str) -> int:
    """Run this process's part of a cell; returns 0, or exits with 1."""
    faulthandler.enable()
    job = Job.load(Path(job_path))
    process = own_process(job.plan.processes)
    report_path = report_file(job.run_dir, process.rank)
    stacks = stacks_file(job.run_dir, process.rank).open("w", encoding="utf-8")
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    use_short_socket_folder()
    try:
        write_rank_report(report_path, _run(job, process))
    except BaseException as error:
        traceback.print_exc()
        if not report_path.exists():  # else the measurement was complete
            status, reason = classify(error)
            failure = RankFailure(
                rank=process.rank,
                status=status,
                reason=reason,
                reason_code=reason.code,
                refused_checkpoint=isinstance(error, RefusedCheckpoint),
            )
            write_rank_report(report_path, failure)
        # Libraries may hang at exit when other ranks are gone, so skip their exit handlers.
        sys.stdout.flush()
        sys.stderr.flush()
        remove_socket_folder()
        _end_children()
        os._exit(1)
    return 0


def _end_children() -> None:
    """End the loader's processes, which would outlive a process that ends at once."""
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            child.kill()


def _run(job: Job, process: Process) -> RankReport:
    plan, cell = job.plan, job.plan.cell
    cores = own_cores()
    interface = use_interface(job.interface)
    apply_torch_settings(cell)
    devices = own_devices(job.device_kind, process)
    store = _store(job, process)
    wait_for_all = partial(barrier, store, world_size=plan.world_size)
    initial = initial_state(plan, store, process.rank)
    network = with_precision(initial.network, cell.precision, job.device_kind)
    stream, extent, dataset_samples = _data(job, process, devices[0])
    reporter = Reporter(extent.total_steps, cell.batch_size)
    executor = _executor(job)
    checkpoints = open_checkpoints(
        job.checkpoints, executor, process.rank, plan.world_size, store=store, devices=devices
    )
    validation = _validation(job, process, store, devices, reporter.alive)
    context = Context(
        devices=devices,
        store=store,
        interface=interface,
        local_address=address_of(interface),
        secret=os.environ.get(SECRET),
        patience_s=job.patience_s,
        folder=kept_folder(job.run_dir),
        progress=reporter if process.rank == 0 else (lambda _done: None),
        fixed={} if checkpoints is None else checkpoints.fixed(),
        traits=initial.traits,
    )
    before_s = _probe(process, devices[0], "before", wait_for_all)
    executor.prepare(plan, process, network, stream, context)
    offsets = clock_offsets(store, process.rank, plan.world_size)
    prepare_s = time.time() - psutil.Process().create_time()
    compiled = compile_ahead(executor, context, cell, sign=process.rank == 0)
    peaks_before: list[int] = []

    def end_warmup() -> None:
        reporter.phase_done(extent.warmup_steps)
        check_settings(initial.settings)
        peaks_before.extend(restart_peaks(devices))
        if checkpoints is not None and process.rank == 0:
            checkpoints.follow(reporter, extent)
        wait_for_all("measured")
        if process.rank == 0:
            reporter.phase("measured")

    traffic = _traffic(executor, job)
    energy = EnergyMeter(devices, of_host=process.local_rank == 0)
    times = MeasuredTimes()
    measured = measure(
        executor,
        extent,
        devices,
        cell.threads_per_device,
        end_warmup,
        checkpoints=checkpoints,
        validation=validation,
        traffic=traffic,
        energy=energy,
        times=times,
        segment_done=reporter.phase_done,
    )
    check_settings(initial.settings)
    wait_for_all("counted")  # before that, no rank sends bytes that do not count
    if process.rank == 0:
        reporter.phase("done")
    context.progress = lambda _done: None
    last = extent.total_steps - 1
    peak = _cpu_peak(job, executor, last)
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
        threads=cell.threads_per_device,
        cpus=cores,
        prepare_s=prepare_s,
        parameter_bytes=_parameter_bytes(network),
        peak_rss_bytes=peak_rss_bytes(),
        memory=tuple(
            DeviceMemory.from_dict(entry)
            for entry in device_memory(
                devices, peak, peaks_before, () if validation is None else validation.peaks
            )
        ),
        dataset_samples=dataset_samples,
        samples=_samples(cell, process, extent),
        steps_per_epoch=extent.steps_per_epoch,
        checkpoints=None if checkpoints is None else checkpoints.report(),
        compilation=None if compiled is None else compiled.until_now(compiled_graphs()),
        scores=measured.scores,
        clock_offset_s=offsets[process.rank].offset_s,
        traffic=None if traffic is None else traffic.report(),
        plan_details=executor.details(),
        partition_spans=tuple(_partition_spans(executor, last)),
        provenance=provenance,
        probe_s=before_s,
        energy_missing=tuple(energy.missing),
        measured_at=tuple(times.stretches),
        measured_from_s=times.from_s,
        **initial.report(),
        **_times(measured),
    )
    # The measurement is complete: a failure below costs a picture, but not the result.
    write_rank_report(report_file(job.run_dir, process.rank), report)
    wait_for_all("written")
    report = _with_spans(report, executor, last, offsets)
    wait_for_all("reported")
    executor.close()
    report = _with_speeds(report, cell, process, devices, wait_for_all)
    leave(store, process.rank, plan.world_size)
    return replace(report, replayed_loss=_replayed(job, process, extent, reporter, devices[0]))


def _replayed(
    job: Job, process: Process, extent: Extent, reporter: Reporter, device: torch.device
) -> tuple[float | None, ...]:
    """First losses of rank 0's replay; none of a run that may have resumed from a checkpoint."""
    if process.rank != 0 or job.checkpoints is not None:
        return ()
    build = partial(_network, job.plan.cell, job.device_kind)
    return tuple(as_written(replayed_losses(job, extent, build, device, reporter.alive)))


def _cpu_peak(job: Job, executor: Executor, mini_batch: int) -> int | None:
    """Peak of live tensors on a CPU; None on CUDA, and where compiled kernels hide theirs."""
    if job.device_kind != "cpu" or job.plan.cell.compile:
        return None
    return cpu_peak_bytes(executor, mini_batch)


def _store(job: Job, process: Process) -> dist.Store | None:
    """The store of all ranks; None for a single one."""
    host, port, size = job.rendezvous_host, job.rendezvous_port, job.plan.world_size
    return join_store(host, port, process.rank, size, job.patience_s) if size > 1 else None


def _with_speeds(
    report: RankReport,
    cell: Cell,
    process: Process,
    devices: tuple[torch.device, ...],
    wait_for_all: Callable[[str], None],
) -> RankReport:
    """The report with the machine's speed after training, and the peak of the rank's devices."""
    after_s = _probe(process, devices[0], "after", wait_for_all)
    found = measured_by_rank(cell, process, devices)
    return replace(report, probe_s=report.probe_s + after_s, **found)


def _probe(
    process: Process, device: torch.device, when: str, wait_for_all: Callable[[str], None]
) -> tuple[float, ...]:
    """Probe the speed of a node while other ranks wait; empty for all but one rank of a node."""
    wait_for_all(f"probe {when}")
    seconds = (probe_s(device),) if process.local_rank == 0 else ()
    wait_for_all(f"probed {when}")
    return seconds


def _network(cell: Cell, device_kind: str) -> nn.Sequential:
    """The whole network on the CPU, with its initial weights."""
    network = build(cell.network, DATASETS[cell.dataset], cell.seed)
    return with_precision(network, cell.precision, device_kind)


def _validation(
    job: Job,
    process: Process,
    store: dist.Store | None,
    devices: tuple[torch.device, ...],
    alive: Callable[[], None],
) -> Validator | None:
    cell = job.plan.cell
    if not cell.validate:
        return None
    return Validator(
        partial(_network, cell, job.device_kind),
        open_split(hold(job.data, scratch_dir(job.scratch)), job.data, "val"),
        rank=process.rank,
        world_size=job.plan.world_size,
        store=store,
        devices=devices,
        batch=max(1, cell.batch_size // cell.devices),
        alive=alive,
    )


def _data(
    job: Job, process: Process, device: torch.device
) -> tuple[EpochStream | None, Extent, int]:
    cell = job.plan.cell
    folder = hold(job.data, scratch_dir(job.scratch))
    dataset = open_split(folder, job.data, "train")
    whole = steps = len(dataset) // cell.batch_size
    if cell.max_steps is not None:
        steps = min(steps, cell.max_steps)
    validate_every = steps if steps == whole else cell.epochs * steps
    extent = Extent(
        cell.warmup_steps,
        cell.epochs,
        steps,
        cell.checkpoint_every_steps,
        validate_every if cell.validate else 0,
    )
    if steps == 0:
        raise ValueError(
            f"{len(dataset)} training images are fewer than one mini-batch of {cell.batch_size}"
        )
    if (reason := too_few_steps(cell, job.plan.strategy, steps)) is not None:
        raise Unsupported(reason)
    if process.shard < 0 or not process.needs:
        return None, extent, len(dataset)
    loader = BatchLoader(
        dataset,
        global_batch=cell.batch_size,
        shard=process.shard,
        num_shards=process.num_shards,
        seed=cell.seed,
        loader_workers=cell.loader_workers,
        device=device,
        labels_only="inputs" not in process.needs,
        normalised=Accelerator.of_this_process() is None,
    )
    loader.start()
    stream = EpochStream(loader, cell.warmup_steps, steps, _first_turn(process), process.turns)
    return stream, extent, len(dataset)


def _first_turn(process: Process) -> int:
    """Index of the process's first mini-batch; it consumes one in ``process.turns``."""
    return process.replica % process.turns


def _samples(cell: Cell, process: Process, extent: Extent) -> int:
    """Samples that this process loads; a pipeline's later stages get them from the first."""
    if process.shard < 0 or "inputs" not in process.needs:
        return 0
    first = _first_turn(process)
    own = sum(len(range(first, len(part), process.turns)) for part in extent.segments())
    return own * (cell.batch_size // process.num_shards)


def _with_spans(
    report: RankReport, executor: Executor, mini_batch: int, offsets: list[ClockOffset]
) -> RankReport:
    """The report with spans and clock offsets; trains one more, untimed step if it has no spans."""
    if report.rank == 0:
        Reporter.phase("recorded")  # a sign of life for the watchdog
    if not report.spans:
        report = replace(report, spans=tuple(executor.record_step(mini_batch)))
    if not report.spans:
        return report
    clock = {"reference_rank": 0, "ranks": [asdict(offset) for offset in offsets]}
    return replace(report, plan_details={**report.plan_details, "clock": clock})


def _parameter_bytes(network: nn.Module) -> int:
    """Bytes of whole weights; DeepSpeed empties those that it shares, and notes their numbers."""
    return sum(
        int(getattr(p, "ds_numel", p.numel())) * p.element_size() for p in network.parameters()
    )


def _traffic(executor: Executor, job: Job) -> TcpTraffic | None:
    """Counter of a rank's bytes; None for a single rank, or if ranks do not talk over TCP."""
    if job.plan.world_size == 1 or executor.transport != "tcp":
        return None
    return TcpTraffic(job.rendezvous_port)


def _partition_spans(executor: Executor, mini_batch: int) -> list[Any]:
    """Spans of the partitions of one process; a failure costs a picture, but not the result."""
    try:
        return list(executor.partition_spans(mini_batch))
    except RuntimeError:
        traceback.print_exc()
        return []


def _executor(job: Job) -> Executor:
    cell = job.plan.cell
    if cell.compile:
        ready_to_compile(job.device_kind, job.run_dir)
    executor: Executor = executor_of(cell)
    return executor


def _times(measurement: Measurement) -> dict[str, Any]:
    warmup, measured = measurement.warmup, measurement.measured
    return {
        "warmup_step_s": tuple(warmup.step_s),
        "warmup_load_s": tuple(warmup.load_s),
        "warmup_loss": tuple(as_written(warmup.loss)),
        "step_s": tuple(measured.step_s),
        "load_s": tuple(measured.load_s),
        "loss": tuple(as_written(measured.loss)),
        "spans": tuple(measured.spans),
        "communication_wait_s": measured.communication_wait_s,
        "cpu_utilisation": measurement.utilisation.cpu,
        "gpu_utilisation": measurement.utilisation.gpu,
        "cpu_s": measurement.utilisation.cpu_s,
        "measured_s": measurement.utilisation.wall_s,
        "energy_j": measurement.utilisation.energy_j,
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
