"""Training on a copy, before the first message is expected: later nothing is done a first time.

Over NCCL a posted receive is a kernel that spins on the GPU until its message comes. What waits for
the whole device meanwhile waits for another rank, and hangs if that one waits for this one::

    rank 0   | receive g0 posted: spins ................................. for ever
             | F0: cuDNN tries its plans, and waits for the device ...... for ever
    rank 1   |                                   waits for F0's output .. for ever

CUDA waits so where something happens for the first time: cuDNN's search for the fastest plan
(``cudnn_benchmark``), the loading of a kernel's code (lazy by default), new memory from the driver.
A dry run lets all of it happen while no receive is posted, and leaves no trace: it trains a copy,
and random generators go back to where they were.
"""

from __future__ import annotations

import copy
import gc
import random
from collections.abc import Callable, Sequence

import torch
from torch import nn

__all__ = ["dry_run"]


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
