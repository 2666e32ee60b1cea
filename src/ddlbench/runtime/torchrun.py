"""Starts the processes of a cell by PyTorch's own launcher, ``torchrun``, once on each node.

A site with ``starter: torchrun`` wants it::

    launcher local    python -m ddlbench.runtime.torchrun ...         one torchrun on this machine
    launcher slurm    srun --ntasks-per-node=1 python -m ... ...      one on each node of the job
                        '-> torchrun --rdzv-backend c10d --rdzv-endpoint first-node:port
                            --nnodes N --nproc-per-node M -m ddlbench.runtime.rank_guard job.json

In a container, torchrun runs inside. A rank is its node and ``LOCAL_RANK``: c10d orders nodes by
their names, so ``RANK`` may count them otherwise than the plan, whose rank 0 is on the first node.
Labels of lines in the log are torchrun's ranks.

The program of this file is torchrun with three additions: it ends with its parent, it passes
SIGUSR1 (dump the stacks) on to the ranks, and it takes its number of processes from a list, as
nodes of one cell may have different numbers of them.

Source: https://docs.pytorch.org/docs/stable/elastic/run.html
"""

from __future__ import annotations

import contextlib
import secrets
import signal
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from typing import Any

import psutil

from ddlbench.experiment.site import Site
from ddlbench.runtime.addresses import free_port, keep_port
from ddlbench.runtime.launch import (
    Launch,
    Step,
    for_srun,
    own_node,
    python_command,
    srun_command,
    worker_environment,
)
from ddlbench.runtime.rank_guard import end_with_parent

_LABELS = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"


class TorchrunLaunch(Launch):
    """One torchrun on each node; ``listener`` is the bound socket of the ranks' rendezvous.

    Rank 0 binds the port of the listener again: torchrun hands no sockets on.
    """

    def __init__(self, step: Step, site: Site, listener: socket.socket) -> None:
        host = listener.getsockname()[0]
        super().__init__(keep_port(listener))
        counts = Counter(process.node for process in step.processes)
        listed = ",".join(str(counts[node]) for node in range(step.nodes))
        endpoint = f"{host}:{free_port(host)}"
        prefix = python_command(site)
        arguments = step.command[len(prefix) :]
        program = ("-m", __name__, listed, endpoint, secrets.token_hex(8), *arguments)
        command, environment = python_command(site, *program), worker_environment(step)
        if site.launcher == "slurm" and step.nodes * step.devices_per_node > 1:
            srun = srun_command(
                site, nodes=step.nodes, tasks=step.nodes, per_node=1, devices=step.devices_per_node
            )
            command = [*srun, "--kill-on-bad-exit=1", "--unbuffered", *command]
            environment = for_srun(environment)
        self.start(command, {**environment, _LABELS: "[${rank}] "})


def torchrun_options(node: int, counts: Sequence[int], endpoint: str, run: str) -> list[str]:
    """Options of torchrun on a node.

    Args:
        node: its index; node 0 serves the rendezvous of torchrun.
        counts: processes of each node.
        endpoint: ``host:port`` of node 0.
        run: name of this launch, the same on all nodes.
    """
    return [
        f"--nnodes={len(counts)}",
        f"--nproc-per-node={counts[node]}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={endpoint}",
        f"--rdzv-id={run}",
        # A host's names and addresses need not tell it that the endpoint is its own.
        f"--rdzv-conf=is_host={'true' if node == 0 else 'false'}",
        "--max-restarts=0",
        "--tee=3",
    ]


def main(arguments: Sequence[str]) -> int:
    """Run torchrun on this node and return its exit status."""
    end_with_parent()
    signal.signal(signal.SIGUSR1, _pass_on)
    from torch.distributed import run  # noqa: PLC0415 - slow, and it must end with its parent, too
    from torch.distributed.elastic.multiprocessing.api import SignalException  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415

    listed, endpoint, name, *program = arguments
    counts = [int(count) for count in listed.split(",")]
    # One torchrun on SLURM may be started without srun, in a task of another step.
    node = own_node() if len(counts) > 1 else 0
    with tempfile.TemporaryDirectory(prefix="ddlbench-torchrun-") as logs:
        options = torchrun_options(node, counts, endpoint, name)
        try:
            run.main([*options, f"--log-dir={logs}", *program])
        except ChildFailedError as error:  # the ranks give the reason
            return max(1, *(failure.exitcode for failure in error.failures.values()))
        except SignalException as error:
            return 128 + error.sigval
    return 0


def _pass_on(number: int, _frame: Any) -> None:
    """Pass a signal on to the ranks, which lead sessions of their own."""
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            child.send_signal(number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
