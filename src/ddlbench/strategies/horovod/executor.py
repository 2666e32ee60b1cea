"""Executor of real Horovod, without ssh, mpirun or horovodrun.

::

    rank 0   RendezvousServer(port) -- port --> store
    all      HOROVOD_* variables  ->  hvd.init()  ->  gloo connects through the server

If srun starts the processes with MPI (site key ``slurm.mpi``) and Horovod was built with MPI, they
join by MPI instead.

A plan may leave Horovod's buffer and cycle to its autotuner::

    steps    |-- first samples, dropped --|-- sample --|-- sample --| ... |  best settings kept
    log                                        a row        a row            a row

The autotuner scores settings by bytes a second of all-reduces, and searches by Bayesian methods
(``horovod/common/parameter_manager.cc``). A sample takes dozens of steps, and a search dozens of
samples, so short cells end before it.

Over gloo, ranks meet without Horovod's launcher::

    every rank   its own address -> store
    rank 0       addresses of all ranks -> server -> its address -> store
    every rank   address of the server <- store

The server listens at the one address at which ranks reach it (the loopback of a run on one
machine), and answers only requests that name the secret of the run. Horovod's client knows no
secrets, but it asks for ``http://<address>:<port>/<scope>/<key>`` with an address that is any text.
So ranks give it ``<address>:<port>/<secret>``, and it asks for ``/<secret>:<port>/<scope>/<key>``.
"""

from __future__ import annotations

import importlib
import math
import os
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed import Store

from ddlbench.experiment.site import Accelerator
from ddlbench.planning.plan import Plan
from ddlbench.strategies.accumulation import AccumulatingExecutor
from ddlbench.strategies.executor import Context, RunRecord, Unsupported
from ddlbench.strategies.horovod.descriptor import HorovodOptions
from ddlbench.strategies.timing import SpanRecorder


class HorovodExecutor(AccumulatingExecutor):
    """One replica for each process, and ``hvd.DistributedOptimizer``."""

    rendezvous: Rendezvous | None = None  # keeps rank 0's server alive
    tuning_log: TuningLog | None = None  # of rank 0, if Horovod tunes itself

    def place(self, network: nn.Sequential) -> nn.Module:
        """Initialise Horovod and broadcast rank 0's weights."""
        try:
            self.hvd = importlib.import_module("horovod.torch")
        except ImportError as error:
            raise Unsupported(
                f"Horovod is not installed here: {error}", code="package_missing"
            ) from error
        device = self.context.devices[0]
        reason = why_not_on(device, self.hvd)
        if reason is not None:
            again = "`ddlbench status forget --state unsupported` then lets this cell run again"
            raise Unsupported(f"{reason}; {again}", code="device_unsupported")
        if not (_started_by_mpi() and self.hvd.mpi_built()):
            self.rendezvous = _set_environment(self.plan, self.process.rank, self.context)
        set_tuning(self.plan)
        if HorovodOptions.of(self.plan).autotune:
            os.environ["HOROVOD_AUTOTUNE"] = "1"
            if self.process.rank == 0 and self.context.folder is not None:
                self.tuning_log = TuningLog(self.context.folder)
        if self.context.interface is None:  # else gloo takes the interface, not the name
            check_host_name()
        self.hvd.init()
        if device.type == "cuda":
            torch.cuda.set_device(device)
        replica = network.to(device)
        self.hvd.broadcast_parameters(_sendable(replica.state_dict()), root_rank=0)
        return replica

    def make_optimizer(self) -> torch.optim.Optimizer:
        optimizer: torch.optim.Optimizer = self.hvd.DistributedOptimizer(
            super().make_optimizer(),
            named_parameters=self.module.named_parameters(),
            sparse_as_dense=bool(self.context.traits.sparse),
            # Horovod 0.28 adds up the gradients of so many passes, and averages over ranks only.
            backward_passes_per_step=HorovodOptions.of(self.plan).accumulate,
        )
        return optimizer

    def update(self) -> None:
        """Wait for the averages and step; a recorded step has a span for each."""
        if not self.spans.enabled and self.scaler is None:
            self.optimizer.step()
            return
        self.spans.phase("all_reduce_wait")
        if self.spans.enabled:
            self.messages.wait()
        optimizer: Any = self.optimizer
        optimizer.synchronize()
        self.spans.phase("update")
        with optimizer.skip_synchronize():
            self.step_optimizer()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the all-reduces of the step."""
        self.messages = MessageWatcher(self.hvd, self.optimizer, self.spans)
        with self.messages:
            yield

    def details(self) -> dict[str, Any]:
        built = {
            name: bool(getattr(self.hvd, f"{name}_built")()) for name in ("gloo", "mpi", "nccl")
        }
        tuned = {} if self.tuning_log is None else self.tuning_log.details()
        return {**super().details(), "horovod_built_with": built, **tuned}

    def run(self, first: int, count: int) -> RunRecord:
        record = super().run(first, count)
        if self.tuning_log is not None and first < self.plan.cell.warmup_steps:
            self.tuning_log.end_warmup()
        return record

    def buffer_bytes(self) -> int:
        """The fusion buffer, which is no larger than all gradients."""
        gradients = sum(p.numel() * p.element_size() for p in self.module.parameters())
        return min(HorovodOptions.of(self.plan).fusion_cap(Accelerator.shrunk), gradients)

    @property
    def transport(self) -> str | None:
        """None with MPI, which chooses the transport."""
        return None if _started_by_mpi() and self.hvd.mpi_built() else super().transport

    def close(self) -> None:
        self.hvd.shutdown()


_SENDABLE = (torch.float16, torch.float32, torch.float64, torch.uint8, torch.int8, torch.int32)


def _sendable(state: Mapping[str, Any]) -> dict[str, Any]:
    """What Horovod can send; all ranks have built the same state, so that nothing is missing."""
    return {
        name: value
        for name, value in state.items()
        if isinstance(value, torch.Tensor)
        and value.is_contiguous()
        and value.dtype in (*_SENDABLE, torch.int64)
    }


def why_not_on(device: torch.device, hvd: Any) -> str | None:
    """Why this build of Horovod is not measured on ``device``; None if it is.

    On GPUs, Horovod without NCCL copies gradients to the host and all-reduces them there with gloo.
    Its times would not be those of Horovod on GPUs as users know it.
    """
    if device.type != "cuda" or hvd.nccl_built():
        return None
    return (
        "Horovod was built without NCCL; where nvcc is in reach (module load CUDA) "
        "run make setup again"
    )


def _set_environment(plan: Plan, rank: int, context: Context) -> Rendezvous | None:
    """Set Horovod's variables; return the rendezvous unless the process is alone."""
    # A name for each node of the plan: on one machine, several nodes have the same host name.
    hosts = [f"node{process.node}" for process in plan.processes]
    rendezvous = None
    if plan.world_size > 1:
        assert context.store is not None
        rendezvous = join_rendezvous(
            context.store, rank, hosts, context.local_address, context.secret
        )
    set_place(rank, hosts, rendezvous, context.interface)
    # An all-reduce over a bad link may take longer than Horovod's default of 30 s.
    os.environ["HOROVOD_GLOO_TIMEOUT_SECONDS"] = str(math.ceil(context.patience_s))
    return rendezvous


def check_host_name() -> None:
    """Check that this node's name has an address, without which gloo crashes in Horovod.

    Raises:
        HostUnknown: it has none.
    """
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError as error:
        raise HostUnknown(
            f"this node's name {name!r} has no address ({error}), and Horovod would crash; add it "
            "to /etc/hosts"
        ) from error


class HostUnknown(Exception):  # noqa: N818 - what is wrong
    """The name of a node cannot be resolved."""


def _started_by_mpi() -> bool:
    """Whether srun gave this process its rank by PMI (site key ``slurm.mpi``)."""
    return any(name in os.environ for name in ("PMIX_RANK", "PMI_RANK"))


_POLL_S = 1e-4


class MessageWatcher:
    """Watches when the all-reduces of one recorded step begin and end, between enter and exit.

    ::

        gradients   | g3 submitted | g2 | g1 |      | g0 |         hooks of hvd.DistributedOptimizer
        messages    |------- 0: g3 g2 g1 -----|     |-- 1: g0 --|  fused by Horovod's own thread

    Horovod does not report which gradients it fuses, but those of one message complete together. So
    a thread polls every tenth of a millisecond, and all-reduces that complete between two polls
    count as one message. It begins when its first gradient was submitted.
    """

    def __init__(self, hvd: Any, optimizer: Any, spans: SpanRecorder) -> None:
        self._hvd, self._optimizer, self._spans = hvd, optimizer, spans
        self._under_way: dict[int, float] = {}
        self._messages = 0
        self._lock = threading.Lock()
        self._idle = threading.Event()
        self._idle.set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)

    def __enter__(self) -> MessageWatcher:
        """Wrap the function by which hooks submit all-reduces."""
        submit = self._optimizer._allreduce_grad_async

        def submit_and_note(parameter: Any) -> tuple[int, Any]:
            begin_s = time.perf_counter()
            handle, context = submit(parameter)
            with self._lock:
                self._under_way[handle] = begin_s
                self._idle.clear()
            return handle, context

        self._optimizer._allreduce_grad_async = submit_and_note
        self._thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        """Stop the thread and unwrap the function."""
        self._stop.set()
        self._thread.join()
        del self._optimizer._allreduce_grad_async

    def wait(self) -> None:
        """Wait until all submitted all-reduces are done, and so no longer polled."""
        self._idle.wait()

    def _poll(self) -> None:
        while not self._stop.wait(_POLL_S):
            with self._lock:
                done = [handle for handle in self._under_way if self._hvd.poll(handle)]
                if not done:
                    continue
                begin_s = min(self._under_way.pop(handle) for handle in done)
                kind = f"all_reduce_bucket {self._messages}.0"
                self._spans.beside(kind, begin_s, time.perf_counter())
                self._messages += 1
                if not self._under_way:
                    self._idle.set()


LOG_NAME = "autotune.csv"


def set_tuning(plan: Plan) -> None:
    """Set Horovod's variables; an autotuner may change only what has no variable."""
    details, written = HorovodOptions.of(plan), dict(plan.cell.options)
    cycle_s = Accelerator.slowed(float(details.cycle_time_s))
    threshold = str(details.fusion_cap(Accelerator.shrunk))
    variables = {
        "fusion_threshold_bytes": ("HOROVOD_FUSION_THRESHOLD", threshold),
        "cycle_time_s": ("HOROVOD_CYCLE_TIME", str(cycle_s * 1e3)),
    }
    for option, (variable, value) in variables.items():
        os.environ.pop(variable, None)
        if option in written or not details.autotune:
            os.environ[variable] = value


class TuningLog:
    """The file in which Horovod's rank 0 writes, from ``hvd.init()`` on, a row a setting tried."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / LOG_NAME
        self._before = 0
        os.environ["HOROVOD_AUTOTUNE_LOG"] = str(self._file)

    def end_warmup(self) -> None:
        """Measured steps follow."""
        self._before = self._rows()

    def details(self) -> dict[str, Any]:
        """The file's name, and how many settings were tried before and in the measured steps."""
        tried = {"before": self._before, "measured": self._rows() - self._before}
        return {"autotune_log": LOG_NAME, "autotune_samples": tried}

    def _rows(self) -> int:
        """Rows below the header."""
        if not self._file.is_file():
            return 0
        return max(0, len(self._file.read_text(encoding="utf-8").splitlines()) - 1)


class Rendezvous(NamedTuple):
    """Horovod's rendezvous server; rank 0 keeps ``server`` itself alive by this reference."""

    address: str  # with the port and the secret, for Horovod's client
    port: int
    server: Any  # None on other ranks


def set_place(
    rank: int, hosts: Sequence[str], rendezvous: Rendezvous | None, interface: str | None
) -> None:
    """Set the variables that Horovod's launcher would set.

    Horovod tells nodes apart by the names in ``hosts``, of each rank: two nodes of one name would
    wait for each other. An interface of None lets gloo choose.
    """
    nodes = list(dict.fromkeys(hosts))
    local = [other for other, host in enumerate(hosts) if host == hosts[rank]]
    values: dict[str, int | str] = {
        "RANK": rank,
        "SIZE": len(hosts),
        "LOCAL_RANK": local.index(rank),
        "LOCAL_SIZE": len(local),
        "CROSS_RANK": nodes.index(hosts[rank]),
        "CROSS_SIZE": len(nodes),
        "HOSTNAME": hosts[rank],
        "CONTROLLER": "gloo",
        "CPU_OPERATIONS": "gloo",
    }
    if interface is not None:
        values["GLOO_IFACE"] = interface
    if rendezvous is not None:
        values["GLOO_RENDEZVOUS_ADDR"] = rendezvous.address
        values["GLOO_RENDEZVOUS_PORT"] = rendezvous.port
    os.environ.update({f"HOROVOD_{name}": str(value) for name, value in values.items()})


def join_rendezvous(
    store: Store, rank: int, hosts: Sequence[str], local_address: str, secret: str | None = None
) -> Rendezvous:
    """Start the server on rank 0, and give every rank its address.

    ``hosts`` are those of all ranks, in their order; other ranks reach this one at
    ``local_address``. Without a secret of the run, rank 0 makes one, which the store tells.
    """
    server = None
    if rank == 0:
        path = secret or secrets.token_hex(16)
        server, port = _serve(hosts, local_address, path)
        # The store has no password, so it gets no secret that ranks have by another way.
        sent = "" if secret else path
        store.set("horovod/rendezvous", f"{local_address} {port} {sent}")
    address, port_text, sent = store.get("horovod/rendezvous").decode().split(" ")
    return Rendezvous(f"{address}:{port_text}/{secret or sent}", int(port_text), server)


def _serve(hosts: Sequence[str], address: str, secret: str) -> tuple[Any, int]:
    """Start Horovod's rendezvous server for ranks on these hosts; return it and its port."""
    assign = importlib.import_module("horovod.runner.common.util.hosts")
    http = importlib.import_module("horovod.runner.http.http_server")

    class Handler(http.RendezvousHandler):  # type: ignore[name-defined]  # untyped
        def parse_request(self) -> bool:
            if not super().parse_request():
                return False
            head, _, rest = str(self.path).removeprefix("/").partition("/")
            if secrets.compare_digest(head.partition(":")[0].encode(), secret.encode()):
                self.path: str = f"/{rest}"
                return True
            self.send_error(403)
            return False

    server = http.RendezvousHTTPServer((address, 0), Handler, 0)
    port: int = server.server_address[1]
    threading.Thread(target=server.serve_forever, name="rendezvous", daemon=True).start()
    infos = [assign.HostInfo(name, count) for name, count in Counter(hosts).items()]
    server.init(assign.get_host_assignments(infos, len(hosts)))
    return server, port
