"""Starting processes: on this machine, or with srun on the nodes of a job.

::

    plain              python -m module ...
    setup commands     bash -c 'module load CUDA/12.4 && exec "$@"' ddlbench python -m module ...
    container          ... apptainer exec --nv image.sif python3 -m module ...

Both launchers of a cell give the same handle: one stream of text from all ranks, and an end for
all. A cell of one device is started directly on SLURM too: its job runs inside a step already, and
a step inside a step would wait for that step's own cores. So is one whose nodes are emulated on a
single real one (``emulated_fabric.py``).
"""

from __future__ import annotations

import contextlib
import os
import queue
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
from ddlbench.planning.strategy import Process
from ddlbench.runtime.network_address import LISTEN_FD
from ddlbench.runtime.placement import identity_variables


@dataclass(frozen=True)
class Step:
    """What is started, and how often.

    Args:
        command: of every process.
        processes: one entry a process.
        nodes, devices_per_node: of the job.
        threads: CPU threads of one device.
        interface: network interface, or None.
        variables: that every process finds in its environment.
    """

    command: tuple[str, ...]
    processes: Sequence[Process]
    nodes: int
    devices_per_node: int
    threads: int
    interface: str | None
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def per_node(self) -> int:
        """Processes of one node."""
        return sum(process.node == 0 for process in self.processes)


class Launch(Protocol):
    """Running processes of one cell."""

    def lines(self, deadline: float) -> Iterator[str | None]:
        """What the ranks print, prefixed with the rank; None now and then, until all ended."""
        ...

    def has_failed(self) -> bool:
        """Whether a process has ended badly."""
        ...

    def dump_stacks(self) -> None:
        """Have every rank print where it is."""
        ...

    def stop(self) -> None:
        """End every process, politely, then for certain."""
        ...


class Place(Protocol):
    """Where on this machine the processes of a node run, if not plainly here."""

    def command(self, node: int, command: Sequence[str]) -> list[str]:
        """The command that runs ``command`` there, in its place: no process between."""
        ...

    def environment(self, node: int) -> dict[str, str]:
        """Variables that differ there."""
        ...


def launch(step: Step, site: Site, listener: socket.socket) -> Launch:
    """Start ``step`` on this machine or over the nodes of this job.

    Args:
        step: what to start.
        site: where.
        listener: bound socket of the rendezvous; closed here, as a child inherits it or opens it.
    """
    try:
        if site.launcher == "local" or step.nodes * step.devices_per_node == 1:
            return LocalLaunch(step, listener)
    finally:
        listener.close()
    return SrunLaunch(step, site)


def worker_environment(step: Step) -> dict[str, str]:
    """What every worker finds in its environment beside the supervisor's own.

    Thread counts must stand before numerical libraries load.
    """
    threads = str(step.threads)
    values = {
        **os.environ,
        **step.variables,
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "OPENBLAS_NUM_THREADS": threads,
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
    }
    if step.interface is not None:
        values["GLOO_SOCKET_IFNAME"] = step.interface
        values["NCCL_SOCKET_IFNAME"] = step.interface
    return values


class LocalLaunch:
    """Each process as a child of this one, in a session of its own.

    Args:
        step: what to start.
        listener: bound socket of the rendezvous, for rank 0; without one rank 0 binds its port.
        place: where on this machine each node's processes run; without one, plainly here.
    """

    def __init__(
        self, step: Step, listener: socket.socket | None = None, place: Place | None = None
    ) -> None:
        self._pipes = _Pipes()
        self._children: list[subprocess.Popen[str]] = []
        environment = worker_environment(step)
        for process in step.processes:
            node, command, own = process.node, list(step.command), dict(environment)
            if place is not None:
                command = place.command(node, command)
                own.update(place.environment(node))
            self._children.append(self._start(process, command, own, listener))
            self._pipes.add(self._children[-1], f"[{process.rank}] ")

    @staticmethod
    def _start(
        process: Process,
        command: list[str],
        environment: dict[str, str],
        listener: socket.socket | None,
    ) -> subprocess.Popen[str]:
        own = identity_variables(process)
        handed_over: tuple[int, ...] = ()
        if process.rank == 0 and listener is not None:
            handed_over = (listener.fileno(),)
            own[LISTEN_FD] = str(listener.fileno())
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env={**environment, **own},
            pass_fds=handed_over,
            start_new_session=True,
        )

    def lines(self, deadline: float) -> Iterator[str | None]:
        """What the ranks print."""
        return self._pipes.lines(deadline)

    def has_failed(self) -> bool:
        """Whether a rank has ended badly."""
        return any(child.poll() for child in self._children)

    def dump_stacks(self) -> None:
        """The guards pass the signal on."""
        _send_signal(self._children, signal.SIGUSR1)

    def stop(self) -> None:
        """End what still runs."""
        _end(self._children)


class SrunLaunch:
    """One srun step over the nodes of the job that this process runs in."""

    def __init__(self, step: Step, site: Site) -> None:
        self._step = subprocess.Popen(
            [
                *srun_command(
                    site,
                    nodes=step.nodes,
                    tasks=len(step.processes),
                    per_node=step.per_node,
                    devices=step.devices_per_node // step.per_node,
                ),
                "--kill-on-bad-exit=1",
                "--label",
                "--unbuffered",
                *step.command,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=worker_environment(step),
            start_new_session=True,
        )
        self._pipes = _Pipes()
        self._pipes.add(self._step, "")

    def lines(self, deadline: float) -> Iterator[str | None]:
        """What the ranks print; srun labels the lines."""
        return self._pipes.lines(deadline)

    def has_failed(self) -> bool:
        """Whether the step has ended badly."""
        return bool(self._step.poll())

    def dump_stacks(self) -> None:
        """Have srun signal every task; the guards pass it on to their ranks."""
        _send_signal([self._step], signal.SIGUSR1)

    def stop(self) -> None:
        """End the step; srun passes the signal to every task."""
        _end([self._step])


def python_command(site: Site, *arguments: str) -> list[str]:
    """The command that runs Python with ``arguments`` as the site wants it.

    Raises:
        ConfigError: the container's image is no path on this node.
    """
    command = [sys.executable, *arguments]
    if site.container is not None:
        image = expanded(site.container["image"], "container.image")
        command = [
            *(site.container["program"], "exec", *site.container["arguments"]),
            *(str(image), site.container["python"], *arguments),
        ]
    if site.setup:
        script = " && ".join([*site.setup, 'exec "$@"'])
        command = ["bash", "-c", script, "ddlbench", *command]
    return command


def srun_command(site: Site, *, nodes: int, tasks: int, per_node: int, devices: int) -> list[str]:
    """Words of an srun up to the program.

    Geometry and cores are always given: inside a job srun takes neither from the allocation
    (``--cpus-per-task`` not since SLURM 22.05). What the site adds comes last, so that it wins.

    Args:
        site: gives cores of a device, ``slurm.mpi`` and ``slurm.srun``.
        nodes: of the step.
        tasks: of all nodes.
        per_node: tasks of one node.
        devices: of one task; it gets the cores of all of them, so that data-loading processes have
            theirs too.
    """
    mpi = site.slurm.get("mpi")
    return [
        "srun",
        f"--nodes={nodes}",
        f"--ntasks={tasks}",
        f"--ntasks-per-node={per_node}",
        f"--cpus-per-task={site.cpus_per_device * devices}",
        *([f"--mpi={mpi}"] if mpi else []),
        *site.slurm.get("srun", []),
    ]


_GRACE_S = 5.0


class _Pipes:
    """Lines of several processes in the order of their arrival."""

    def __init__(self) -> None:
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._open = 0

    def add(self, process: subprocess.Popen[str], prefix: str) -> None:
        """Read what ``process`` prints, too; its lines begin with ``prefix``."""
        self._open += 1
        threading.Thread(target=self._read, args=(process, prefix), daemon=True).start()

    def _read(self, process: subprocess.Popen[str], prefix: str) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._lines.put(prefix + line.rstrip("\n"))
        self._lines.put(None)

    def lines(self, deadline: float) -> Iterator[str | None]:
        """Every line until all have closed their output; None now and then."""
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


def _send_signal(children: Sequence[subprocess.Popen[str]], number: signal.Signals) -> None:
    """Send a signal to each child that runs."""
    for child in children:
        if child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(number)


def _end(children: Sequence[subprocess.Popen[str]]) -> None:
    """End every child and the group that it leads, politely, then for certain."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        running = [child for child in children if child.poll() is None]
        for child in running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal_number)
        limit = time.monotonic() + _GRACE_S
        while any(child.poll() is None for child in running) and time.monotonic() < limit:
            time.sleep(0.05)
