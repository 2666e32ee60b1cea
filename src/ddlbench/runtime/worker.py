"""Entry of every process of a cell, which its guard starts or forks.

It reports success or failure in rank<k>.json. SIGUSR1 makes it dump its stacks.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import signal
import socket
import time
import traceback
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import psutil
from torch import nn

from ddlbench.common.quantities import counted
from ddlbench.datasets.loader import BatchLoader, EpochStream
from ddlbench.datasets.loading import open_held
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.result import DeviceMemory
from ddlbench.experiment.site import Accelerator
from ddlbench.networks import build
from ddlbench.planning.plan import Process
from ddlbench.planning.strategy import too_few_steps
from ddlbench.runtime.addresses import address_of, use_interface
from ddlbench.runtime.checkpoint.rank import Checkpointer, RefusedCheckpoint, open_checkpoints
from ddlbench.runtime.compilation import compile_ahead, compiled_graphs, ready_to_compile
from ddlbench.runtime.energy import EnergyMeter, measured_by_rank
from ddlbench.runtime.environment import (
    end_process,
    rank_provenance,
    use_short_socket_folder,
)
from ddlbench.runtime.initial_state import (
    InitialState,
    check_settings,
    initial_state,
    replayed_losses,
)
from ddlbench.runtime.job import Job, kept_folder, report_file, stacks_file
from ddlbench.runtime.launch import SECRET, gpu_models, own_cores, own_devices, own_process
from ddlbench.runtime.loop import Extent, Measurement, measure
from ddlbench.runtime.meters import (
    cpu_peak_bytes,
    device_memory,
    peak_rss_bytes,
    probe_s,
    restart_peaks,
)
from ddlbench.runtime.pauses import MeasuredTimes
from ddlbench.runtime.rank_guard import name_process
from ddlbench.runtime.rank_report import (
    CompileCost,
    RankFailure,
    RankReport,
    as_written,
    classify,
    write_rank_report,
)
from ddlbench.runtime.rendezvous import (
    ClockOffset,
    TcpTraffic,
    barrier,
    clock_offsets,
    join_store,
    leave,
)
from ddlbench.runtime.validation import Validator
from ddlbench.runtime.watchdog import Reporter
from ddlbench.strategies.executor import Context, Executor, Unsupported, executor_of
from ddlbench.strategies.training import apply_torch_settings, with_precision

_BEGAN_S = psutil.Process().create_time()  # of the process that imported this for its forks


def main(job_path: str) -> NoReturn:
    """Run this process's part of a cell, and exit with 0 or 1."""
    faulthandler.enable()
    job = Job.load(Path(job_path))
    process = own_process(job.plan.processes)
    report_path = report_file(job.run_dir, process.rank)
    name_process(f"rank-{process.rank}")
    stacks = stacks_file(job.run_dir, process.rank).open("w", encoding="utf-8")
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=True)
    use_short_socket_folder()
    try:
        write_rank_report(report_path, _Rank(job, process).run())
        atexit._run_exitfuncs()  # free what the processes of a loader share
        end_process(0)
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
        _end_children()
        end_process(1)


def _end_children() -> None:
    """End the loader's processes, which would outlive a process that ends at once."""
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            child.kill()


_OF_PROCESS = ("rank", "role", "node", "local_rank", "stage", "replica", "shard")


@dataclass(frozen=True)
class _Prepared:
    """What a rank trains.

    Args:
        initial: weights and settings as they were before.
        network: with the precision of the cell.
        executor: has prepared.
        context: of the executor.
        reporter: tells the watchdog how far the rank is.
        extent: the cell's steps.
        dataset_samples: of the training split.
        checkpoints: None if none are written.
        validation: None if there is none.
        offsets: of all ranks' clocks.
        before_s: speed of the node before.
        prepare_s: since the process began.
        compiled: None if nothing is.
    """

    initial: InitialState
    network: nn.Module
    executor: Executor
    context: Context
    reporter: Reporter
    extent: Extent
    dataset_samples: int
    checkpoints: Checkpointer | None
    validation: Validator | None
    offsets: list[ClockOffset]
    before_s: tuple[float, ...]
    prepare_s: float
    compiled: CompileCost | None

    @property
    def last(self) -> int:
        """Index of the last mini-batch."""
        return self.extent.total_steps - 1


class _Rank:
    """A rank of a cell, from its first message to its last."""

    def __init__(self, job: Job, process: Process) -> None:
        self.job, self.process, self.cell = job, process, job.plan.cell
        self.cores = own_cores()
        self.interface = use_interface(job.interface)
        apply_torch_settings(self.cell)
        self.devices = own_devices(job.device_kind, process)
        self.rank, self.world_size = process.rank, job.plan.world_size
        host, port, patience_s = job.rendezvous_host, job.rendezvous_port, job.patience_s
        self.store = None  # of a single rank
        if self.world_size > 1:
            self.store = join_store(host, port, self.rank, self.world_size, patience_s)

    def run(self) -> RankReport:
        """Train, and measure it.

        ::

            probe | prepare | compile | warm-up || measured || count || a step more || probe | leave

            ||  all ranks wait for each other: one that goes on would disturb what is measured
        """
        prepared = self._prepared()
        report = self._measured(prepared)
        # The measurement is complete: a failure below costs a picture, but not the result.
        write_rank_report(report_file(self.job.run_dir, self.rank), report)
        self._wait_for_all("written")
        report = self._with_spans(report, prepared)
        self._wait_for_all("reported")
        prepared.executor.close()
        after_s = self._probe("after")
        report = replace(
            report,
            probe_s=report.probe_s + after_s,
            **measured_by_rank(self.cell, self.process, self.devices),
        )
        leave(self.store, self.rank, self.world_size)
        return replace(report, replayed_loss=self._replayed(prepared))

    def _prepared(self) -> _Prepared:
        """Build what trains, and compile it."""
        job, cell, devices = self.job, self.cell, self.devices
        initial = initial_state(job.plan, self.store, self.rank, job.device_kind)
        network = with_precision(initial.network, cell.precision, job.device_kind)
        stream, extent, dataset_samples = self._data()
        reporter = Reporter(extent.total_steps, cell.batch_size)
        if cell.compile:
            ready_to_compile(job.device_kind, job.run_dir)
        executor: Executor = executor_of(cell)
        checkpoints = open_checkpoints(
            job.checkpoints, executor, self.rank, self.world_size, store=self.store, devices=devices
        )
        validation = self._validation(reporter)
        context = Context(
            devices=devices,
            store=self.store,
            interface=self.interface,
            local_address=address_of(self.interface),
            secret=os.environ.get(SECRET),
            patience_s=job.patience_s,
            folder=kept_folder(job.run_dir),
            progress=reporter if self.rank == 0 else (lambda _done: None),
            fixed={} if checkpoints is None else checkpoints.fixed(),
            traits=initial.traits,
        )
        before_s = self._probe("before")
        executor.prepare(job.plan, self.process, network, stream, context)
        offsets = clock_offsets(self.store, self.rank, self.world_size)
        prepare_s = time.time() - _BEGAN_S
        return _Prepared(
            initial,
            network,
            executor,
            context,
            reporter,
            extent,
            dataset_samples,
            checkpoints,
            validation,
            offsets,
            before_s,
            prepare_s,
            compile_ahead(executor, context, cell, sign=self.rank == 0),
        )

    def _measured(self, prepared: _Prepared) -> RankReport:
        """Train the warm-up and the measured steps, and count what they took."""
        job, devices, executor = self.job, self.devices, prepared.executor
        extent, reporter, checkpoints = prepared.extent, prepared.reporter, prepared.checkpoints
        peaks_before: list[int] = []

        def end_warmup() -> None:
            reporter.phase_done(extent.warmup_steps)
            check_settings(prepared.initial.settings)
            peaks_before.extend(restart_peaks(devices))
            if checkpoints is not None and self.rank == 0:
                checkpoints.follow(reporter, extent)
            self._wait_for_all("measured")
            if self.rank == 0:
                reporter.phase("measured")

        traffic = None
        if self.world_size > 1 and executor.transport == "tcp":
            traffic = TcpTraffic(job.rendezvous_port)
        energy = EnergyMeter(devices, of_host=self.process.local_rank == 0)
        times = MeasuredTimes()
        measured = measure(
            executor,
            extent,
            devices,
            self.cell.threads_per_device,
            end_warmup,
            checkpoints=checkpoints,
            validation=prepared.validation,
            traffic=traffic,
            energy=energy,
            times=times,
            segment_done=reporter.phase_done,
        )
        check_settings(prepared.initial.settings)
        self._wait_for_all("counted")  # before that, no rank sends bytes that do not count
        if self.rank == 0:
            reporter.phase("done")
        prepared.context.progress = lambda _done: None
        memory = self._memory(prepared, peaks_before)
        return RankReport(
            **self._place(),
            **self._of_training(prepared),
            **_times(measured),
            memory=memory,
            scores=measured.scores,
            traffic=None if traffic is None else traffic.report(),
            energy_missing=tuple(energy.missing),
            measured_at=tuple(times.stretches),
            measured_from_s=times.from_s,
        )

    def _of_training(self, prepared: _Prepared) -> dict[str, Any]:
        """Fields of the report: what was trained, and what preparing it took."""
        checkpoints, compiled = prepared.checkpoints, prepared.compiled
        executor, extent = prepared.executor, prepared.extent
        return {
            **prepared.initial.report(),
            "prepare_s": prepared.prepare_s,
            "parameter_bytes": _parameter_bytes(prepared.network),
            "peak_rss_bytes": peak_rss_bytes(),
            "dataset_samples": prepared.dataset_samples,
            "samples": self._samples(extent),
            "steps_per_epoch": extent.steps_per_epoch,
            "checkpoints": None if checkpoints is None else checkpoints.report(),
            "compilation": None if compiled is None else compiled.until_now(compiled_graphs()),
            "clock_offset_s": prepared.offsets[self.rank].offset_s,
            "plan_details": executor.details(),
            "partition_spans": _partition_spans(executor, prepared.last),
            "probe_s": prepared.before_s,
        }

    def _wait_for_all(self, moment: str) -> None:
        barrier(self.store, moment, self.world_size)

    def _place(self) -> dict[str, Any]:
        """Fields of the report: which rank this is, and what it runs on."""
        provenance = rank_provenance()
        return {
            **{name: getattr(self.process, name) for name in _OF_PROCESS},
            "host": socket.gethostname(),
            "devices": tuple(map(str, self.devices)),
            "cpu_model": provenance["cpu_model"],
            "gpu_models": tuple(gpu_models(self.devices)),
            "threads": self.cell.threads_per_device,
            "cpus": self.cores,
            "provenance": provenance,
        }

    def _memory(self, prepared: _Prepared, before: list[int]) -> tuple[DeviceMemory, ...]:
        """Peaks of the devices; on CPUs none where compiled kernels hide theirs."""
        peak = None
        if self.job.device_kind == "cpu" and not self.cell.compile:
            peak = cpu_peak_bytes(prepared.executor, prepared.last)
        measured = () if prepared.validation is None else prepared.validation.peaks
        entries = device_memory(self.devices, peak, before, measured)
        return tuple(map(DeviceMemory.from_dict, entries))

    def _probe(self, when: str) -> tuple[float, ...]:
        """Probe the speed of a node while other ranks wait; empty for all but one rank of it."""
        self._wait_for_all(f"probe {when}")
        seconds = (probe_s(self.devices[0]),) if self.process.local_rank == 0 else ()
        self._wait_for_all(f"probed {when}")
        return seconds

    def _network(self) -> nn.Module:
        """The whole network on the CPU, with its initial weights."""
        cell = self.cell
        network = build(cell.network, DATASETS[cell.dataset], cell.seed)
        return with_precision(network, cell.precision, self.job.device_kind)

    def _validation(self, reporter: Reporter) -> Validator | None:
        job, cell = self.job, self.cell
        if not cell.validate:
            return None
        return Validator(
            self._network,
            open_held(job.data, job.scratch, "val"),
            rank=self.rank,
            world_size=self.world_size,
            store=self.store,
            devices=self.devices,
            batch=max(1, cell.batch_size // cell.devices),
            alive=reporter.alive,
        )

    def _data(self) -> tuple[EpochStream | None, Extent, int]:
        """This rank's data, the cell's steps, and the samples of the training split."""
        job, cell, process = self.job, self.cell, self.process
        dataset = open_held(job.data, job.scratch, "train")
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
            images = counted(len(dataset), "training image")
            raise ValueError(f"a mini-batch of {cell.batch_size} is more than {images}")
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
            device=self.devices[0],
            labels_only="inputs" not in process.needs,
            normalised=Accelerator.of_this_process() is None,
        )
        loader.start()
        stream = EpochStream(loader, cell.warmup_steps, steps, self._first_turn, process.turns)
        return stream, extent, len(dataset)

    @property
    def _first_turn(self) -> int:
        """Index of the process's first mini-batch; it consumes one in ``process.turns``."""
        return self.process.replica % self.process.turns

    def _samples(self, extent: Extent) -> int:
        """Samples that this process loads; a pipeline's later stages get them from the first."""
        process = self.process
        if process.shard < 0 or "inputs" not in process.needs:
            return 0
        parts = extent.segments()
        loaded = sum(len(range(self._first_turn, len(part), process.turns)) for part in parts)
        return loaded * (self.cell.batch_size // process.num_shards)

    def _with_spans(self, report: RankReport, prepared: _Prepared) -> RankReport:
        """The report with spans and clock offsets; one more, untimed step if it has no spans."""
        if self.rank == 0:
            Reporter.phase("recorded")  # a sign of life for the watchdog
        if not report.spans:
            report = replace(report, spans=tuple(prepared.executor.record_step(prepared.last)))
        if not report.spans:
            return report
        clock = {"reference_rank": 0, "ranks": [asdict(offset) for offset in prepared.offsets]}
        return replace(report, plan_details={**report.plan_details, "clock": clock})

    def _replayed(self, prepared: _Prepared) -> tuple[float | None, ...]:
        """First losses of rank 0's replay; none of a run that may have resumed."""
        if self.rank != 0 or self.job.checkpoints is not None:
            return ()
        extent, alive = prepared.extent, prepared.reporter.alive
        losses = replayed_losses(self.job, extent, self._network, self.devices[0], alive)
        return tuple(as_written(losses))


def _parameter_bytes(network: nn.Module) -> int:
    """Bytes of whole weights; DeepSpeed empties those that it shares, and notes their numbers."""
    return sum(
        int(getattr(p, "ds_numel", p.numel())) * p.element_size() for p in network.parameters()
    )


def _partition_spans(executor: Executor, mini_batch: int) -> tuple[Any, ...]:
    """Spans of the partitions of one process; a failure costs a picture, but not the result."""
    try:
        return tuple(executor.partition_spans(mini_batch))
    except RuntimeError:
        traceback.print_exc()
        return ()


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
