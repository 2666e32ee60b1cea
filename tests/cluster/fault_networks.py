"""Networks that misbehave on purpose, as ``cluster_network``; their notes lie in the project."""

import os
import time
from pathlib import Path

import torch
from torch import nn

HERE = Path.cwd()
STEPS = 36  # 3 epochs of 12


JOB = os.environ.get("SLURM_JOB_ID")  # None where the plan tries the network: all is well there


def note(name):
    with (HERE / name).open("a") as file:
        file.write(f"{JOB}\n")


class Slow(nn.Module):
    """Takes its time, until a file ``hurry.txt`` is there; notes when rank 0 has done all steps."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds
        self.steps = 0

    def forward(self, inputs):
        if JOB and not (HERE / "hurry.txt").exists():
            time.sleep(self.seconds)
        self.steps += 1
        if self.steps == STEPS and os.environ.get("SLURM_PROCID") == "0":
            note("complete.txt")
        return inputs


class Greedy(nn.Module):
    def forward(self, inputs):
        if JOB:
            self.kept = [torch.ones(250_000_000) for _ in range(8)]  # 8 GB
        return inputs


class Stuck(nn.Module):
    def forward(self, inputs):
        if os.environ.get("SLURM_PROCID") == "1":
            time.sleep(3600)
        return inputs


class Wrong(nn.Module):
    def forward(self, inputs):
        if JOB:
            raise ZeroDivisionError("a bug")
        return inputs


def _network(spec, first):
    if JOB:
        note("runs.txt")
    return nn.Sequential(first, nn.Flatten(), nn.Linear(spec.image_bytes, 10))


def plain(spec):
    return _network(spec, nn.Identity())


plain2 = plain3 = plain


def slow(spec):
    return _network(spec, Slow(0.25))


def slower(spec):
    return _network(spec, Slow(0.5))


def greedy(spec):
    return _network(spec, Greedy())


def stuck(spec):
    return _network(spec, Stuck())


def wrong(spec):
    return _network(spec, Wrong())
