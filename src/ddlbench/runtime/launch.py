"""Starting a cell's processes: on this machine, or with srun on the nodes of a job.

Both launchers give the same handle: one stream of text from all ranks, and an end for all. A cell
of one device is started directly on SLURM too: its job runs inside a step already, and a step
inside a step would wait for that step's own cores. So is one whose nodes are emulated on a single
real one (``emulated_fabric.py``).
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ddlbench.experiment.site import Site
from ddlbench.planning.strategy import Process
from ddlbench.runtime.children import Pipes, end, send_signal
from ddlbench.runtime.placement import identity_variables
from ddlbench.runtime.rendezvous_port import LISTEN_FD
from ddlbench.runtime.srun import srun_command

__all__ = ["Launch", "LocalLaunch", "Place", "SrunLaunch", "Step", "launch", "worker_environment"]


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
        self._pipes = Pipes()
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
        send_signal(self._children, signal.SIGUSR1)

    def stop(self) -> None:
        """End what still runs."""
        end(self._children)


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
        self._pipes = Pipes()
        self._pipes.add(self._step, "")

    def lines(self, deadline: float) -> Iterator[str | None]:
        """What the ranks print; srun labels the lines."""
        return self._pipes.lines(deadline)

    def has_failed(self) -> bool:
        """Whether the step has ended badly."""
        return bool(self._step.poll())

    def dump_stacks(self) -> None:
        """Have srun signal every task; the guards pass it on to their ranks."""
        send_signal([self._step], signal.SIGUSR1)

    def stop(self) -> None:
        """End the step; srun passes the signal to every task."""
        end([self._step])
