"""Start the processes of a cell: on this machine, or with srun on the nodes of a job.

::

    plain              python -m module ...
    setup commands     bash -c 'module load CUDA/12.4 && exec "$@"' ddlbench python -m module ...
    container          ... apptainer exec --nv image.sif python3 -m module ...

A :class:`Launch` merges the output of all ranks into one stream and ends all ranks together. A cell
of one device is started directly on SLURM too: its job runs inside a step already, and a nested
step would wait for the cores of the outer one. So is a cell whose nodes are emulated on a single
real node (``emulated_fabric.py``).
"""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ddlbench.experiment.paths import expanded
from ddlbench.experiment.site import Site
from ddlbench.planning.plan import Process
from ddlbench.runtime.network_address import LISTEN_FD, SECRET, keep_port
from ddlbench.runtime.placement import identity_variables


@dataclass(frozen=True)
class Step:
    """Processes to start."""

    command: tuple[str, ...]  # of every process
    processes: Sequence[Process]
    nodes: int  # of the job
    devices_per_node: int
    threads: int  # CPU threads of one device
    interface: str | None  # network interface
    variables: Mapping[str, str] = field(default_factory=dict)  # environment of every process

    @property
    def per_node(self) -> int:
        return sum(process.node == 0 for process in self.processes)


class Place(Protocol):
    """Where on this machine processes run, for example inside namespaces of their nodes."""

    def command(self, process: Process, command: Sequence[str]) -> list[str]:
        """The command that becomes ``command`` there, in the same process."""

    def environment(self, process: Process) -> dict[str, str]:
        """Environment variables that differ there."""


def launch(step: Step, site: Site, listener: socket.socket) -> Launch:
    """Start ``step`` on this machine or over the nodes of this job.

    ``listener``, the bound socket of the rendezvous, is closed here: a local rank 0 inherits it,
    and srun's rank 0 binds the port again, which is kept for it.
    """
    if site.launcher != "local" and step.nodes * step.devices_per_node > 1:
        return SrunLaunch(step, site, keep_port(listener))
    with listener:
        return LocalLaunch(step, listener)


def worker_environment(step: Step) -> dict[str, str]:
    """The environment of every worker, without its rank's own variables."""
    threads = str(step.threads)
    values = {
        **os.environ,
        **step.variables,
        # Numerical libraries read the thread counts when they are loaded.
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        SECRET: secrets.token_hex(16),
    }
    if step.interface is not None:
        values["GLOO_SOCKET_IFNAME"] = step.interface
        values["NCCL_SOCKET_IFNAME"] = step.interface
    return values


_GRACE_S = 5.0


class Launch:
    """Running processes of one cell; each child leads a session of its own."""

    def __init__(self) -> None:
        self._children: list[subprocess.Popen[str]] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._open = 0

    def _start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        prefix: str = "",
        handed_over: Sequence[int] = (),
    ) -> None:
        """Start a child that inherits the files ``handed_over``; ``prefix`` begins its lines."""
        with _ignored(signal.SIGUSR1):
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=environment,
                pass_fds=handed_over,
                start_new_session=True,
            )
        self._children.append(child)
        self._open += 1
        threading.Thread(target=self._read, args=(child, prefix), daemon=True).start()

    def _read(self, child: subprocess.Popen[str], prefix: str) -> None:
        assert child.stdout is not None
        for line in child.stdout:
            self._lines.put(prefix + line.rstrip("\n"))
        self._lines.put(None)

    def lines(self, deadline: float) -> Iterator[str | None]:
        """Lines of all ranks in order of arrival, prefixed with the rank, until all have ended.

        None comes after half a second without a line, and at ``deadline``, so that the caller can
        look at the clock.
        """
        while self._open:
            left_s = deadline - time.monotonic()
            try:
                line = self._lines.get(timeout=max(0.0, min(0.5, left_s)))
            except queue.Empty:
                yield None
                continue
            if line is None:
                self._open -= 1
            else:
                yield line

    def has_failed(self) -> bool:
        return any(child.poll() for child in self._children)

    def killed(self) -> dict[int, int]:
        """Signals that ended children so far, by the child's rank; of srun's children none."""
        return {}

    def dump_stacks(self) -> None:
        """Have every rank print its stacks; the guards, and srun, pass the signal on."""
        for child in self._children:
            if child.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    child.send_signal(signal.SIGUSR1)

    def stop(self) -> None:
        """End every child and its process group: first SIGTERM, then SIGKILL."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            running = [child for child in self._children if child.poll() is None]
            for child in running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, number)
            limit = time.monotonic() + _GRACE_S
            while any(child.poll() is None for child in running) and time.monotonic() < limit:
                time.sleep(0.05)


@contextlib.contextmanager
def _ignored(number: signal.Signals) -> Iterator[None]:
    """Have children ignore a signal from their first moment until they install their handler.

    A child that gets it while Python starts would end otherwise.
    """
    if threading.current_thread() is not threading.main_thread():  # others may set no handlers
        yield
        return
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        if before is not None:  # else it was not Python that installed it
            signal.signal(number, before)


class LocalLaunch(Launch):
    """Each rank as a child of this process.

    Args:
        step: what to start.
        listener: bound socket of the rendezvous for rank 0; without one, rank 0 binds its port.
        place: where on this machine each process runs; None for no special place.
    """

    def __init__(
        self, step: Step, listener: socket.socket | None = None, place: Place | None = None
    ) -> None:
        super().__init__()
        shared = worker_environment(step)
        for process in step.processes:
            command = list(step.command)
            environment = {**shared, **identity_variables(process)}
            handed_over: tuple[int, ...] = ()
            if place is not None:
                command = place.command(process, command)
                environment.update(place.environment(process))
            if process.rank == 0 and listener is not None:
                handed_over = (listener.fileno(),)
                environment[LISTEN_FD] = str(listener.fileno())
            self._start(command, environment, f"[{process.rank}] ", handed_over)
        self._ranks = [process.rank for process in step.processes]

    def killed(self) -> dict[int, int]:
        codes = zip(self._ranks, (child.poll() for child in self._children), strict=True)
        return {rank: -code for rank, code in codes if code is not None and code < 0}


class SrunLaunch(Launch):
    """One srun step over the nodes of the job that this process runs in; srun labels the lines.

    ``port`` keeps the port of the rendezvous until the launch is stopped.
    """

    def __init__(self, step: Step, site: Site, port: socket.socket | None = None) -> None:
        super().__init__()
        self._port = port
        srun = srun_command(
            site,
            nodes=step.nodes,
            tasks=len(step.processes),
            per_node=step.per_node,
            devices=step.devices_per_node // step.per_node,
        )
        options = ["--kill-on-bad-exit=1", "--label", "--unbuffered"]
        self._start([*srun, *options, *step.command], worker_environment(step))

    def stop(self) -> None:
        super().stop()
        if self._port is not None:
            self._port.close()


def python_command(site: Site, *arguments: str) -> list[str]:
    """The command that runs Python with ``arguments`` as the site wants it.

    Raises:
        ConfigError: the container's image is no path on this node.
    """
    command = [sys.executable, *arguments]
    if (container := site.container) is not None:
        image = str(expanded(container.image, "container.image"))
        program = (container.program, "exec", *container.arguments, image, container.python)
        command = [*program, *arguments]
    if site.setup:
        script = " && ".join([*site.setup, 'exec "$@"'])
        command = ["bash", "-c", script, "ddlbench", *command]
    return command


def srun_command(site: Site, *, nodes: int, tasks: int, per_node: int, devices: int) -> list[str]:
    """The srun command up to the program, for ``tasks`` tasks, ``per_node`` of them on each node.

    A task gets the cores of all its ``devices``, which its data-loading processes use too.
    """
    return [
        "srun",
        # Inside a job srun takes neither geometry nor cores from the allocation
        # (``--cpus-per-task`` not since SLURM 22.05).
        f"--nodes={nodes}",
        f"--ntasks={tasks}",
        f"--ntasks-per-node={per_node}",
        f"--cpus-per-task={site.cpus_per_device * devices}",
        *([f"--mpi={site.slurm.mpi}"] if site.slurm.mpi else []),
        *site.slurm.srun,  # last, so that the site's options win
    ]
