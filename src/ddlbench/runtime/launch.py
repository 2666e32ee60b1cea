"""Starts the processes of a cell, and tells each its place: rank, devices, cores and address.

They start on this machine, or with srun on the nodes of a job::

    plain              python -m module ...
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
import os
import queue
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import psutil

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.paths import expanded
from ddlbench.experiment.site import Site
from ddlbench.planning.plan import Process
from ddlbench.planning.strategy import DeviceKind

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


def address_of(interface: str | None) -> str:
    """IPv4 address of ``interface``; if None, the address that the host's own name resolves to.

    The name may resolve to nothing, or to loopback as in many clusters' /etc/hosts, which no other
    node can reach. Then this is the address of the first interface that is up.

    Raises:
        ConfigError: there is no such interface, or it has no address.
    """
    if interface is None:
        address = _resolved()
        return address if address is not None else _first_up()[1]
    addresses = psutil.net_if_addrs()
    if interface not in addresses:
        raise ConfigError(
            f"{socket.gethostname()} has no network interface {interface!r}; "
            f"it has {', '.join(sorted(addresses))}: set 'interface' in the site file"
        )
    for entry in addresses[interface]:
        if entry.family == socket.AF_INET:
            return entry.address
    raise ConfigError(
        f"interface {interface!r} of {socket.gethostname()} has no IPv4 address, which ranks "
        "need to meet; set 'interface' in the site file to one that has"
    )


def interface_to_use(interface: str | None) -> str | None:
    """The interface to name to communication libraries; None if they need none.

    Without a name they look up the host's name themselves. If that name does not resolve to an
    address that others reach, this is the first interface that is up.
    """
    if interface is not None or _resolved() is not None:
        return interface
    return _first_up()[0]


def use_interface(wanted: str | None) -> str | None:
    """Set :func:`interface_to_use` for gloo and NCCL of this process, and return it."""
    interface = interface_to_use(wanted)
    if interface is not None:
        os.environ.update(GLOO_SOCKET_IFNAME=interface, NCCL_SOCKET_IFNAME=interface)
    return interface


def _resolved() -> str | None:
    try:
        address = socket.gethostbyname(socket.gethostname())
    except OSError:
        return None
    return None if address.startswith("127.") else address


def _first_up() -> tuple[str, str]:
    """Name and address of the first interface that is up; loopback only if there is no other."""
    states = psutil.net_if_stats()
    for name, entries in psutil.net_if_addrs().items():
        for entry in entries:
            up = states[name].isup if name in states else False
            if entry.family == socket.AF_INET and up and not entry.address.startswith("127."):
                return name, entry.address
    return "lo", "127.0.0.1"


def rendezvous_address(site: Site, nodes: int) -> tuple[str, str | None]:
    """Address at which all processes of a job reach this node, and the interface they use.

    Raises:
        ConfigError: the job has several nodes, and others cannot reach this one.
    """
    if site.launcher == "local":
        return "127.0.0.1", "lo"
    address = address_of(site.interface)
    if nodes > 1 and address.startswith("127."):
        raise ConfigError(
            f"{socket.gethostname()} has no IPv4 address that other nodes could reach; set "
            "'interface' in the site file to a network interface that has one"
        )
    return address, site.interface


# Environment variable with the file number of the rendezvous socket that rank 0 inherits.
LISTEN_FD = "DDLBENCH_LISTEN_FD"
# Environment variable, which only this user's processes can read, with a text that is made anew for
# every launch. Whoever does not know it is none of its ranks.
SECRET = "DDLBENCH_SECRET"


def listen(address: str, port: int = 0) -> socket.socket:
    """An inheritable socket that listens on a port, by default a free one, of ``address``."""
    # Without it a port that ``keep_port`` keeps could not be taken over.
    reuse_port = hasattr(socket, "SO_REUSEPORT")
    listener = socket.create_server((address, port), backlog=128, reuse_port=reuse_port)
    listener.set_inheritable(True)
    return listener


def free_port(address: str) -> int:
    """A port of ``address`` that nobody listens on now."""
    with socket.create_server((address, 0)) as server:
        return int(server.getsockname()[1])


def keep_port(listener: socket.socket) -> socket.socket | None:
    """A socket that keeps the port of ``listener``, which is closed, until it is closed itself.

    It does not listen. Only a process of the same user can ``listen`` on the port meanwhile, so
    neither a stranger nor an outgoing connection takes it before rank 0 does. None where the system
    cannot share a port.
    """
    kept = None
    if hasattr(socket, "SO_REUSEPORT"):
        kept = socket.socket()
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(listener.getsockname())
    listener.close()
    return kept


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
    """Running processes of one cell; each child leads a session of its own.

    ``port`` keeps the port of the rendezvous until the launch is stopped.
    """

    def __init__(self, port: socket.socket | None = None) -> None:
        self._port = port
        self._children: list[subprocess.Popen[str]] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._open = 0

    def start(
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

    def wait(self) -> int:
        """Exit status of the last child, once it has ended."""
        return self._children[-1].wait()

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
        """End every child and its process group: first SIGTERM, then SIGKILL; free the port."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            running = [child for child in self._children if child.poll() is None]
            for child in running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, number)
            limit = time.monotonic() + _GRACE_S
            while any(child.poll() is None for child in running) and time.monotonic() < limit:
                time.sleep(0.05)
        if self._port is not None:
            self._port.close()


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
            files = map(str, handed_over)  # which a guard hands on
            self.start([*command, *files], environment, f"[{process.rank}] ", handed_over)
        self._ranks = [process.rank for process in step.processes]

    def killed(self) -> dict[int, int]:
        codes = zip(self._ranks, (child.poll() for child in self._children), strict=True)
        return {rank: -code for rank, code in codes if code is not None and code < 0}


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
        self.start([*srun, *options, *step.command], worker_environment(step))


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
