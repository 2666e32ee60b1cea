"""What happens for the first time, done before any message is expected: training, and messages.

Over NCCL a posted receive is a kernel that spins on the GPU until its message comes. What waits for
the whole device meanwhile waits for another rank, and hangs if that one waits for this one::

    rank 0   | receive g0 posted: spins ................................. for ever
             | F0: cuDNN tries its plans, and waits for the device ...... for ever
    rank 1   |                                   waits for F0's output .. for ever

CUDA waits so where something happens for the first time: cuDNN's search for the fastest plan
(``cudnn_benchmark``), the loading of a kernel's code (lazy by default), new memory from the driver.
:func:`dry_run` lets all of it happen while no receive is posted, and leaves no trace: it trains a
copy, and random generators go back to where they were.

Two ranks make their connection with their first message, and both wait for the device while they
do. :func:`connect` sends these first messages one by one.
"""

from __future__ import annotations

import copy
import gc
import random
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import nn


def dry_run(
    module: nn.Module, devices: Sequence[torch.device], train: Callable[[nn.Module], object]
) -> None:
    """Train a copy; afterwards everything is as it was, to the last bit.

    Args:
        module: on one device, without gradients. It waits in the host's memory meanwhile, so that
            a dry run takes no more of the device's than training does; nobody may hold views of
            its weights yet.
        devices: what the process drives; the module's is the first.
        train: gets the copy. It has to make backward passes as they will be made later: cuDNN's
            plans are a thread's own, and autograd has a thread for each device.
    """
    gpus = [device for device in dict.fromkeys(devices) if device.type == "cuda"]
    double = copy.deepcopy(module)
    module.cpu()
    python = random.getstate()
    try:
        with torch.random.fork_rng(gpus, device_type="cuda"):
            train(double)
        for device in gpus:
            torch.cuda.synchronize(device)
    finally:
        random.setstate(python)
        del double
        gc.collect()  # what trained may refer to itself, and so to the copy
        module.to(devices[0])
    for device in gpus:
        torch.cuda.reset_peak_memory_stats(device)


Channel = tuple[str, int, int]  # kind of its messages, the rank that sends, the rank that receives


def connect(
    channels: Iterable[Channel],
    rank: int,
    groups: Mapping[str, dist.ProcessGroup],
    device: torch.device,
) -> None:
    """Send a greeting over every channel of this rank.

    Args:
        channels: of all ranks, in the same order on all, so that no ranks wait in a circle.
        rank: this process's.
        groups: the process group of each kind.
        device: where messages lie.
    """
    for kind, source, target in channels:
        greeting = torch.zeros(1, device=device)
        if rank == source:
            dist.send(greeting, target, group=groups[kind])
        elif rank == target:
            dist.recv(greeting, source, group=groups[kind])
