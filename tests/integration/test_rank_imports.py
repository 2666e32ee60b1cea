"""What a rank imports: torch's compiler takes as long as torch itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

# A user's network, an executor's module, and a step with its optimiser and meter. What a library
# imports when its wrapper is made, as DDP's, is not in it.
_RANK = """
import importlib
import sys
import torch
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.networks.factory import build_with_traits
from ddlbench.runtime import worker
from ddlbench.runtime.meters import LiveTensors
from ddlbench.strategies.training import SGD

network, traits = build_with_traits("cases.strangers_networks:batch_norm", DATASETS["mnist"], 1)
assert traits.needs_two_samples
weight = torch.nn.Parameter(torch.ones(2))
optimizer = SGD([weight], lr=0.1, momentum=0.9)
with LiveTensors().watching():
    weight.square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    optimizer.load_state_dict(optimizer.state_dict())
heavy = {"torch._dynamo", "sympy", "torch.distributed.tensor", "torchvision"}
assert torch.allclose(weight.detach(), torch.full((2,), 0.8)), weight
imported = {"before": heavy & sys.modules.keys()}
for family in sys.argv[1:]:
    importlib.import_module(f"ddlbench.strategies.{family}.executor")
    imported[family] = heavy & sys.modules.keys()
print({family: sorted(modules) for family, modules in imported.items() if modules})
"""
_FAMILIES = ("ddp", "horovod", "local_sgd", "parameter_server", "pipedream", "splits", "torchgpipe")


def test_network_executor_optimiser_and_meter_import_no_compiler() -> None:
    command = [sys.executable, "-c", _RANK, *_FAMILIES]
    tests = str(Path(__file__).parents[1])
    modules = os.pathsep.join(filter(None, (tests, os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": modules}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout.strip()) == (0, "{}"), run.stderr


_FORKS = """
import os, pathlib
import numpy, random, torch
from ddlbench.runtime import node_starter, worker

def show(job_path):
    assert pathlib.Path("/proc/self/oom_score_adj").read_text() == "1000\\n"
    print(random.random(), numpy.random.random(), flush=True)
    os._exit(0)

worker.main = show
for _ in range(2):
    node_starter.Fork(lambda: node_starter._be_rank("")).wait()
"""


def test_forked_ranks_draw_random_numbers_of_their_own_and_lack_memory_first() -> None:
    run = subprocess.run([sys.executable, "-c", _FORKS], capture_output=True, text=True, check=True)
    numbers = run.stdout.split()
    assert len(set(numbers)) == len(numbers) == 4


def test_a_guard_starts_its_rank_before_it_imports_much() -> None:
    code = "import sys, ddlbench.runtime.rank_guard; print(len({*sys.modules}))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 200
