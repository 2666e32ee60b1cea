"""The test bed as one object: up, status, down, and what tests ask of it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from . import configuration, daemons, hosts, jobs, network
from .cgroups import Cgroups
from .errors import TestBedError
from .hooks import write_hooks
from .layout import HOME, LOGS, SCRATCH
from .options import Options
from .processes import Identity, alive, end, identify, tail, wait_until
from .requirements import check
from .shell import system
from .site_file import site_text
from .state import State, only_one

_READY_S = 60.0


class TestBed:
    """A SLURM cluster on this machine.

    As a context manager it is raised at the beginning of the block and taken down at its end,
    however that comes. ``TestBed.current()`` is the bed that is up already.

    Args:
        options: what it shall be like.
    """

    __test__ = False  # not for pytest to collect

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()
        self._state = State(self.options)

    @classmethod
    def current(cls) -> TestBed:
        """The bed that is up.

        Raises:
            TestBedError: there is none, or it is broken.
        """
        state = State.load()
        if state is None:
            raise TestBedError("no test bed is up; raise one with `testbed up`")
        bed = cls(state.options)
        bed._state = state
        return bed

    # --- up and down -------------------------------------------------------------------------

    def __enter__(self) -> TestBed:
        self._raise(owner=identify(os.getpid()))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.down()

    def up(self) -> bool:
        """Raise the bed and leave it; False when it was up already.

        Raises:
            TestBedError: something is missing, or a bed with other options is up.
        """
        return self._raise(owner=None)

    def _raise(self, owner: Identity | None) -> bool:
        check(self.options)
        with only_one():
            old = State.load()
            _refuse_anothers(old)
            if old is not None and old.healthy and not old.orphaned:
                if owner is None and old.options == self.options:
                    self._state = old
                    return False
                raise TestBedError("a test bed is up already; end it first with `testbed down`")
            configuration.check_ours()
            _clean(old)
            network.check_free(self.options)
            self._state = State(self.options, owner=owner)
            try:
                self._build()
            except BaseException:
                _clean(self._state)
                raise
        return True

    def _build(self) -> None:
        options = self.options
        LOGS.mkdir(parents=True)
        self._state.save()
        if not SCRATCH.exists():
            self._state.folders.append(str(SCRATCH))
            self._state.save()
            SCRATCH.mkdir()
        groups = Cgroups.find() if options.limited else None
        if groups is not None:
            self._state.cgroups = groups.roots
            self._state.save()
            groups.create()
        write_hooks(options, groups)
        hosts.add(options)
        network.build(options)
        network.ping(options)
        daemons.make_devices(options)
        configuration.write(options)
        self._started(munged=daemons.start_munge())
        controller = daemons.start_controller_holder()
        self._started(**{"holder-controller": controller})
        if options.accounting:
            self._started(**daemons.start_accounting(controller))
        self._started(slurmctld=daemons.start_slurmctld(controller))
        for node in options.node_names:
            holder = daemons.start_holder(node, options)
            self._started(**{f"holder-{node}": holder})
            self._started(**{f"slurmd-{node}": daemons.start_slurmd(node, holder)})
        self.wait_idle()
        self._state.complete = True
        self._state.save()

    def _started(self, **processes: Identity) -> None:
        self._state.processes.update(processes)
        self._state.save()

    def down(self) -> None:
        """End the bed and everything that runs on it; nothing of it stays.

        Raises:
            TestBedError: it belongs to the ``with`` block of another process.
        """
        with only_one():
            old = State.load()
            _refuse_anothers(old)
            _clean(old)

    # --- what it is like ---------------------------------------------------------------------

    @property
    def nodes(self) -> list[str]:
        """Names of the nodes."""
        return self.options.node_names

    def address(self, node: str) -> str:
        """The node's address on eth0."""
        return self.options.address(node)

    @property
    def healthy(self) -> bool:
        """Whether everything that was started runs."""
        return self._state.healthy

    def broken(self) -> list[str]:
        """Names of daemons that ended."""
        return [name for name, process in self._state.processes.items() if not alive(process)]

    def node_states(self) -> dict[str, str]:
        """SLURM's word for the state of each node; empty while the controller does not answer."""
        text = system("sinfo", "--noheader", "--Node", "--format=%N %T", check=False)
        return dict(line.split() for line in text.splitlines() if len(line.split()) == 2)

    def wait_idle(self, seconds: float = _READY_S) -> None:
        """Wait until every node is idle.

        Raises:
            TestBedError: one is not, or a daemon ended.
        """

        def ready() -> bool:
            if self.broken():
                raise TestBedError(f"{self.broken()[0]} ended: {self._words(self.broken()[0])}")
            return self.node_states() == dict.fromkeys(self.nodes, "idle")

        wait_until(
            ready,
            seconds,
            lambda: (
                f"not all nodes are idle after {seconds:.0f} s: {self.node_states()}; "
                f"slurmctld: {self._words('slurmctld')}"
            ),
        )

    @staticmethod
    def _words(daemon: str) -> str:
        log = LOGS / f"{daemon}.log"
        return tail(log if log.exists() and log.stat().st_size else LOGS / f"{daemon}.out")

    def site_text(self) -> str:
        """The site file for ddlbench."""
        return site_text(self.options)

    def shape(self, rate: str | None, nodes: Sequence[str] | None = None) -> None:
        """Change the rate of the nodes' links (of all by default); None takes the limit away."""
        network.shape(list(nodes or self.nodes), rate)

    # --- acting on nodes ---------------------------------------------------------------------

    def _holder(self, node: str) -> Identity:
        holder = self._state.processes.get(f"holder-{node}")
        if holder is None or not alive(holder):
            raise TestBedError(f"there is no node {node} here; the bed has {' '.join(self.nodes)}")
        return holder

    def command_on(self, node: str, *command: str, cwd: Path | None = None) -> list[str]:
        """The command line that runs ``command`` in the node's namespaces."""
        return [
            *daemons.inside(self._holder(node)),
            *("sh", "-c", 'cd "$0" && exec "$@"', str(cwd or Path.cwd()), *command),
        ]

    def run(
        self, node: str, *command: str, cwd: Path | None = None, timeout_s: float = 60, **more: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a node, beside SLURM; ``more`` is for subprocess.run."""
        settings: dict[str, Any] = {"check": True, "capture_output": True, "text": True, **more}
        line = self.command_on(node, *command, cwd=cwd)
        return subprocess.run(line, timeout=timeout_s, **settings)  # noqa: PLW1510

    def kill_slurmd(self, node: str) -> None:
        """Let a node's daemon die; its jobs' processes stay, as on a node that hangs."""
        name = f"slurmd-{node}"
        end([self._state.processes[name]], grace_s=0.0)

    def start_slurmd(self, node: str) -> None:
        """Start a node's daemon again."""
        self._started(**{f"slurmd-{node}": daemons.start_slurmd(node, self._holder(node))})

    def crash(self, node: str) -> None:
        """Let the node's daemon and every process on it die at once, as when its power fails.

        Its namespaces stay: ``start_slurmd`` brings it back, with its scratch.
        """
        holder = self._holder(node)
        namespace = Path(f"/proc/{holder.pid}/ns/net").readlink()
        victims = []
        for process in network.processes_within():
            with contextlib.suppress(OSError):
                if (
                    process != holder
                    and Path(f"/proc/{process.pid}/ns/net").readlink() == namespace
                ):
                    victims.append(process)
        end(victims, grace_s=0.0)

    # --- jobs --------------------------------------------------------------------------------

    def srun(
        self, *arguments: str, timeout_s: float = 120, **more: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run ``srun`` on the login node; ``more`` is for subprocess.run (check, cwd, env)."""
        settings: dict[str, Any] = {
            **{"check": True, "capture_output": True, "text": True},
            **{"env": jobs.clean_environment(), "stdin": subprocess.DEVNULL},
            **more,
        }
        return subprocess.run(["srun", *arguments], timeout=timeout_s, **settings)  # noqa: PLW1510

    def sbatch(self, script: str, *options: str, cwd: Path | None = None) -> int:
        """Submit a shell script; its output is ``slurm-<id>.out`` in ``cwd``. Returns its id."""
        text = script if script.startswith("#!") else f"#!/bin/sh\n{script}\n"
        done = subprocess.run(
            ["sbatch", "--parsable", *options],
            check=False,
            input=text,
            capture_output=True,
            text=True,
            cwd=cwd,
            env=jobs.clean_environment(),
        )
        if done.returncode != 0:
            raise TestBedError(f"sbatch refused the job: {done.stderr.strip()}")
        return int(done.stdout.strip().split(";")[0])

    def wait(self, job: int, timeout_s: float = 120) -> jobs.JobEnd:
        """How the job ended.

        Raises:
            TestBedError: it still runs when time is up.
        """
        limit = time.monotonic() + timeout_s
        while (outcome := jobs.job_end(job)).state not in jobs.ENDED:
            if time.monotonic() > limit:
                raise TestBedError(f"job {job} is {outcome.state} after {timeout_s:.0f} s")
            time.sleep(0.2)
        return outcome

    def job(self, job: int) -> jobs.JobEnd:
        """What the controller says of the job now."""
        return jobs.job_end(job)

    def cancel(self, job: int) -> None:
        """Cancel a job."""
        system("scancel", str(job))

    def processes(self, job: int) -> dict[str, list[jobs.NodeProcess]]:
        """The job's processes on each node."""
        return jobs.processes_of(job, {node: self._holder(node) for node in self.nodes})


def _refuse_anothers(state: State | None) -> None:
    if state is not None and state.owner is not None and state.someone_elses:
        raise TestBedError(
            f"process {state.owner.pid} is using the test bed; wait until it ends, or end it"
        )


def _clean(old: State | None) -> None:
    """Remove everything that a bed, whole or half, has left on this machine."""
    state = old or State(Options())
    running = [
        process for name, process in state.processes.items() if not name.startswith("holder")
    ]
    end(reversed(running), grace_s=1.0)  # nothing that they might still write is kept
    network.remove()
    end(state.processes.values())
    Cgroups.remove(state.cgroups)
    hosts.remove()
    configuration.remove()
    for folder in state.folders:
        with contextlib.suppress(OSError):  # somebody put something there
            Path(folder).rmdir()
    shutil.rmtree(HOME, ignore_errors=True)
