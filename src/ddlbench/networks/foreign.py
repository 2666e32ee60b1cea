"""How a user's code runs: with seeds of every kind, and without a trace in this process.

Initial weights are often drawn by numpy or by Python's ``random``. So both are seeded as torch is,
before the user's module is imported, and again before it builds the network::

    seeds, settings kept | import the module | same seeds | build | all states as before

A module may also name another GPU, go to another folder, or turn warnings into errors. The process
has its rank's own environment, so that is undone, too.
"""

from __future__ import annotations

import os
import random
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from ddlbench.networks.torch_settings import settings_kept

_LARGEST_SEED = 2**32  # of numpy


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed Python, numpy and torch on the CPU; their states are as before afterwards."""
    python, numbers = random.getstate(), np.random.get_state()
    # Only the CPU's generator is forked and seeded: torch.manual_seed would seed GPUs as well.
    with torch.random.fork_rng(devices=[]):
        seed_host(seed)
        torch.default_generator.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numbers)


@contextmanager
def unchanged() -> Iterator[None]:
    """Undo what foreign code does to torch's settings and to the process."""
    with settings_kept(), _host_kept():
        yield


@contextmanager
def _host_kept() -> Iterator[None]:
    """Undo changes of the folder, of warnings, and of variables that libraries read."""
    folder, variables, depth = Path.cwd(), _variables(), sys.getrecursionlimit()
    with warnings.catch_warnings():
        try:
            yield
        finally:
            os.chdir(folder)
            sys.setrecursionlimit(depth)
            for name in _variables().keys() - variables.keys():
                del os.environ[name]
            os.environ.update(variables)


_READ_BY_LIBRARIES = re.compile(
    r"(CUDA|CUBLAS|NVIDIA|OMP|MKL|OPENBLAS|NCCL|GLOO|HOROVOD|TORCH|PYTORCH|MASTER|SLURM|DDLBENCH)_|"
    r"(LOCAL_)?RANK$|(LOCAL_)?WORLD_SIZE$"
)


def _variables() -> dict[str, str]:
    return {name: text for name, text in os.environ.items() if _READ_BY_LIBRARIES.match(name)}


def seed_host(seed: int) -> None:
    """Seed what draws random numbers on the host beside torch."""
    random.seed(seed)
    np.random.seed(seed % _LARGEST_SEED)
