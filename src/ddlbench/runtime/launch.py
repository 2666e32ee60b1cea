"""Starts the processes of a cell, and tells each its place: rank, devices, cores and address.

They start on this machine, or with srun on the nodes of a job::

    plain              python -m module ...
    several on a node  python -m ddlbench.runtime.node_starter ... forks them (CPUs of this machine)
    setup commands     bash -c 'module load CUDA/12.4 && exec "$@"' ddlbench python -m module ...
    container          ... apptainer exec --nv image.sif python3 -m module ...

A :class:`Launch` merges the output of all ranks into one stream and ends all ranks together. A cell
of one device is started directly on SLURM too: its job runs inside a step already, and a nested
step would wait for the cores of the outer one. So is a cell whose nodes are emulated on a single
real node (``fabric.py``).

A process learns its rank and devices from its environment::

    launch   DDLBENCH_NODE, DDLBENCH_LOCAL_RANK     processes that this machine starts itself
    srun     SLURM_NODEID, SLURM_LOCALID            one task a process
    torchrun SLURM_NODEID, LOCAL_RANK               one torchrun a node, see torchrun.py
      '-> own_process -> own_devices                a GPU's index on the node, or among its own

Several ranks may share one GPU (site key ``devices_share_gpu``)::

    launch     DDLBENCH_SHARED_GPU=1                every process of the job
    process    own_devices -> cuda:0, cuda:0, ...   NCCL_HOSTID=rank0, rank1, ...

NCCL refuses two ranks on one GPU: it compares a hash of their host and the GPU's address on the
bus. With a host id of its own, every rank counts as a node with one GPU, and NCCL talks over
sockets, as between nodes without a faster network. This cannot test peer access or shared memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from ddlbench.experiment.paths import expanded
from ddlbench.experiment.site import Site
from ddlbench.planning.plan import Process
from ddlbench.planning.strategy import DeviceKind
from ddlbench.runtime.addresses import keep_port

if TYPE_CHECKING:
    import torch

_NODE, _LOCAL_RANK = "DDLBENCH_NODE", "DDLBENCH_LOCAL_RANK"


def identity_variables(process: Process) -> dict[str, str]:
    """Variables by which :func:`own_process` works in a process that srun did not start."""
    return {_NODE: str(process.node), _LOCAL_RANK: str(process.local_rank)}


def own_process(processes: Sequence[Process]) -> Process:
    """The entry of ``processes`` that describes this process.

    Raises:
        RuntimeError: torchrun started another number of processes.
    """
    node = own_node()
    local = int(os.environ.get(_LOCAL_RANK, os.environ.get("SLURM_LOCALID", "0")))
    if "TORCHELASTIC_RUN_ID" in os.environ and _LOCAL_RANK not in os.environ:
        local, count = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
        if count != len(processes):
            raise RuntimeError(f"torchrun started {count} processes, the plan has {len(processes)}")
        if count == sum(process.node == 0 for process in processes):
            node = 0  # this task of SLURM may be a node of another step
    return next(p for p in processes if (p.node, p.local_rank) == (node, local))


def own_node() -> int:
    """Index of this process's node in its job."""
    return int(os.environ.get(_NODE, os.environ.get("SLURM_NODEID", "0")))


def own_devices(device_kind: DeviceKind, process: Process) -> tuple[torch.device, ...]:
    """This process's devices; its first GPU becomes the current one.

    If ranks share a GPU, each of its devices is the node's first GPU.

    Raises:
        RuntimeError: the plan asks for a GPU that is not here.
    """
    import torch  # noqa: PLC0415 - a rank's guard, which is light, needs only own_process

    if device_kind == "cpu":
        return tuple(torch.device("cpu") for _ in process.devices)
    visible = torch.cuda.device_count()
    if visible == 0:
        raise RuntimeError(NO_GPU)
    indices = process.devices
    if is_shared():
        as_own_host(process.rank)
        indices = (0,) * len(indices)
    elif visible == len(indices):  # SLURM shows the process its own GPUs only
        indices = tuple(range(visible))
    if max(indices) >= visible:
        raise RuntimeError(
            f"rank {process.rank} needs GPU {max(indices)}, but torch finds {visible} here"
        )
    devices = tuple(torch.device("cuda", index) for index in indices)
    # Else code that names no device, such as the thread that pins batches, would open a context
    # of every process on GPU 0.
    torch.cuda.set_device(devices[0])
    return devices


def gpu_models(devices: Sequence[torch.device]) -> list[str]:
    """Model of each GPU, in the order of ``devices``; empty for CPU devices."""
    from ddlbench.runtime.gpus import model_of  # noqa: PLC0415 - it needs torch, see own_devices

    return [model_of(device) for device in devices if device.type == "cuda"]


# HIP looks at its variable first, and at CUDA's where it is not set. What ROCR_VISIBLE_DEVICES
# hides, neither of them counts.
NO_GPU = "the site says device: cuda, but torch finds no GPU on this node"
_VISIBLE = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


def visible_devices(environment: Mapping[str, str] = os.environ) -> tuple[str, list[str] | None]:
    """The variable that chooses GPUs here, and its list; None for a list that is not set."""
    for name in _VISIBLE:
        if listed := environment.get(name, "").strip():
            return name, listed.split(",")
    return _VISIBLE[-1], None


def own_cores() -> str:
    """This process's CPU affinity, for example ``0-3,8``.

    Call it before numerical libraries compute: OpenMP may bind its first thread to one core.
    """
    return compact(os.sched_getaffinity(0))


def compact(cores: Iterable[int]) -> str:
    """Numbers in Linux's list format: {0, 1, 2, 3, 8} is ``0-3,8``."""
    ranges: list[list[int]] = []
    for core in sorted(set(cores)):
        if ranges and core == ranges[-1][1] + 1:
            ranges[-1][1] = core
        else:
            ranges.append([core, core])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


SHARED_GPU_NOTE = "ranks share a GPU: no timing claim between devices"

_SHARED_GPU = "DDLBENCH_SHARED_GPU"


def device_variables(site: Site) -> dict[str, str]:
    """Variables that tell every process of a job what its devices are, if they are not plain."""
    shared = {_SHARED_GPU: "1"} if site.devices_share_gpu else {}
    return shared | ({} if site.accelerator is None else site.accelerator.variables())


def is_shared() -> bool:
    """Whether this process shares its GPU with the other ranks of its node."""
    return os.environ.get(_SHARED_GPU) == "1"


def as_own_host(rank: int) -> None:
    """Make NCCL take this process for a node of its own; call it before NCCL is initialised."""
    os.environ.update(NCCL_HOSTID=f"rank{rank}", NCCL_NET="Socket", NCCL_IB_DISABLE="1")


# Environment variable with the file number of the rendezvous socket that rank 0 inherits.
LISTEN_FD = "DDLBENCH_LISTEN_FD"
# Environment variable, which only this user's processes can read, with a text that is made anew for
# every launch. Whoever does not know it is none of its ranks.
SECRET = "DDLBENCH_SECRET"


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
    starter: tuple[str, ...] = ()  # forks the processes of a node, see node_starter.py

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


_OF_SLURM = ("SLURM_", "SRUN_", "SBATCH_")
_OF_THE_JOB = frozenset(
    f"SLURM_{name}"
    for name in (
        *("CONF", "CLUSTER_NAME", "JOB_ID", "JOBID", "ARRAY_JOB_ID", "ARRAY_TASK_ID"),
        *("SUBMIT_DIR", "SUBMIT_HOST", "TMPDIR"),  # the last is of some sites, not of SLURM
    )
)


def for_srun(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without what a batch script's step has: srun reads options there.

    For example SLURM_TRES_PER_TASK contradicts --cpus-per-task. srun sets the job's names again.
    """
    return {
        name: value
        for name, value in environment.items()
        if not name.startswith(_OF_SLURM) or name in _OF_THE_JOB
    }


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


_FORK_MARK = "\x1eddlbench-fork "


def fork_line(rank: int, pid: int, code: int | None = None) -> str:
    """What a starter prints of the guard of ``rank``: that it began, or how it ended."""
    return _FORK_MARK + json.dumps([rank, pid, code])


class _Child(Protocol):
    """A process that leads a session of its own."""

    @property
    def pid(self) -> int:
        """Its number; 0 if it does not run yet."""

    def poll(self) -> int | None:
        """Its exit status, or the negative number of the signal that ended it."""


@dataclass
class _Fork:
    """The guard of a rank, which a starter forks."""

    pid: int = 0
    code: int | None = None

    def poll(self) -> int | None:
        return self.code


def _without_forks(starter: subprocess.Popen[str], forks: Mapping[int, _Fork]) -> Iterator[str]:
    """Lines of a starter but those about its forks, which get what these say."""
    assert starter.stdout is not None
    for line in starter.stdout:
        before, mark, state = line.partition(_FORK_MARK)  # after what ends without a newline
        if mark:
            rank, pid, code = json.loads(state)
            forks[rank].pid, forks[rank].code = pid, code
        if before:
            yield before
    for fork in forks.values():
        if fork.code is None:  # guards end with their starter, if they began
            fork.code = -signal.SIGKILL if fork.pid else starter.wait() or 1


_GRACE_S = 5.0


class Launch:
    """Running processes of one cell; each child leads a session of its own.

    ``port`` keeps the port of the rendezvous until the launch is stopped.
    """

    def __init__(self, port: socket.socket | None = None) -> None:
        self._port = port
        self._children: list[_Child] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._open = 0

    def start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        prefix: str = "",
        handed_over: Sequence[int] = (),
        forks: Mapping[int, _Fork] = MappingProxyType({}),
    ) -> subprocess.Popen[str]:
        """Start a child that inherits the files ``handed_over``; ``prefix`` begins its lines.

        ``forks`` are the guards that it starts, by their ranks. A child that ends before them
        ends them too; if a signal ended it, that counts as theirs.
        """
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
        assert child.stdout is not None
        self._read_lines(_without_forks(child, forks) if forks else child.stdout, prefix)
        return child

    def _read_lines(self, lines: Iterable[str], prefix: str) -> None:
        self._open += 1
        threading.Thread(target=self._read, args=(lines, prefix), daemon=True).start()

    def _read(self, lines: Iterable[str], prefix: str) -> None:
        for line in lines:
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

    def ended(self) -> dict[int, int]:
        """How children ended so far, by their rank; of srun's children none.

        It is the exit status, or the negative number of a signal.
        """
        return {}

    def dump_stacks(self) -> None:
        """Have every rank print its stacks; the guards, and srun, pass the signal on."""
        for child in self._running():
            _send(os.kill, child, signal.SIGUSR1)

    def stop(self) -> None:
        """End every child and its process group: first SIGTERM, then SIGKILL; free the port."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for child in self._running():
                _send(os.killpg, child, number)
            limit = time.monotonic() + _GRACE_S
            while self._running() and time.monotonic() < limit:
                time.sleep(0.05)
        if self._port is not None:
            self._port.close()

    def _running(self) -> list[_Child]:
        return [child for child in self._children if child.poll() is None]


def _send(kill: Callable[[int, int], None], child: _Child, number: int) -> None:
    if child.pid:
        with contextlib.suppress(ProcessLookupError):
            kill(child.pid, number)


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
    """Each rank as a child of this process, or of the starter of its node.

    Args:
        step: what to start.
        listener: bound socket of the rendezvous for rank 0; without one, rank 0 binds its port.
        place: where on this machine each process runs; None for no special place.
    """

    def __init__(
        self, step: Step, listener: socket.socket | None = None, place: Place | None = None
    ) -> None:
        super().__init__()
        self._guards: dict[int, _Child] = {}
        shared = worker_environment(step)
        together: dict[Any, list[Process]] = {}
        for process in step.processes:
            together.setdefault(_where(process, place), []).append(process)
        for (prefix, variables), processes in together.items():
            environment = {**shared, **dict(variables)}
            if step.starter and len(processes) > 1:
                ranks = [process.rank for process in processes]
                self._fork([*prefix, *step.starter], environment, ranks, listener)
                continue
            for process in processes:
                self._start([*prefix, *step.command], environment, process, listener)

    def _start(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        process: Process,
        listener: socket.socket | None,
    ) -> None:
        environment = {**environment, **identity_variables(process)}
        handed_over: tuple[int, ...] = ()
        if process.rank == 0 and listener is not None:
            handed_over = (listener.fileno(),)
            environment[LISTEN_FD] = str(listener.fileno())
        files = map(str, handed_over)  # which a guard hands on
        guard = self.start([*command, *files], environment, f"[{process.rank}] ", handed_over)
        self._guards[process.rank] = guard

    def _fork(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        ranks: Sequence[int],
        listener: socket.socket | None,
    ) -> None:
        pipes = {rank: os.pipe() for rank in ranks}
        forks = {rank: _Fork() for rank in ranks}
        listens = "-" if listener is None else str(listener.fileno())
        words = [f"{rank}:{write}" for rank, (_, write) in pipes.items()]
        files = [write for _, write in pipes.values()]
        handed_over = files if listener is None else [*files, listener.fileno()]
        label = f"[{ranks[0]}] "  # where a failure looks for the last words of its rank
        self.start([*command, listens, *words], environment, label, handed_over, forks)
        for rank, (read, write) in pipes.items():
            os.close(write)
            self._read_lines(os.fdopen(read, errors="replace"), f"[{rank}] ")
        self._children += forks.values()
        self._guards.update(forks)

    def ended(self) -> dict[int, int]:
        codes = ((rank, child.poll()) for rank, child in self._guards.items())
        return {rank: code for rank, code in codes if code is not None}


def _where(
    process: Process, place: Place | None
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """The beginning of a process's command, and its environment, in a place."""
    if place is None:
        return (), ()
    return tuple(place.command(process, ())), tuple(sorted(place.environment(process).items()))


class SrunLaunch(Launch):
    """One srun step over the nodes of the job that this process runs in; srun labels the lines."""

    def __init__(self, step: Step, site: Site, port: socket.socket | None = None) -> None:
        super().__init__(port)
        srun = srun_command(
            site,
            nodes=step.nodes,
            tasks=len(step.processes),
            per_node=step.per_node,
            devices=step.devices_per_node // step.per_node,
        )
        options = ["--kill-on-bad-exit=1", "--label", "--unbuffered"]
        self.start([*srun, *options, *step.command], for_srun(worker_environment(step)))


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
