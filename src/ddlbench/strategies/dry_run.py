"""A dry run: training a copy first, so that nothing happens for the first time later.

Over NCCL a posted receive is a kernel that spins on the GPU until its message arrives. An operation
that waits for the whole device then waits for the other rank, too. It hangs if that rank waits for
this one::

    rank 0   | receive g0 posted: spins ................................. for ever
             | F0: cuDNN tries its plans, and waits for the device ...... for ever
    rank 1   |                                   waits for F0's output .. for ever

CUDA waits for the device when something happens for the first time: cuDNN searches for the fastest
plan (``cudnn_benchmark``), a kernel's code is loaded (lazily, by default), or the driver gives new
memory. :func:`dry_run` makes all of this happen before a receive is posted.
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Sequence

import torch
from torch import nn

from ddlbench.networks.copying import copy_of


def dry_run(
    module: nn.Module, devices: Sequence[torch.device], train: Callable[[nn.Module], object]
) -> None:
    """Train a copy of a module; the module and all random generators keep their exact state.

    Args:
        module: on one device, without gradients. It is in the host's memory meanwhile, so that a
            dry run needs no more device memory than training. No views of its weights may exist.
        devices: of the process; the module is on the first.
        train: trains the copy. Its backward passes must run in the threads of later ones: each
            thread has its own cuDNN plans, and autograd has a thread for each device.
    """
    gpus = [device for device in dict.fromkeys(devices) if device.type == "cuda"]
    double = copy_of(module)
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
