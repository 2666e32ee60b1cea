"""On GPUs the states of DeepSpeed's optimiser come back to their GPU, on fakes of GPUs."""

from __future__ import annotations

import pytest
import torch
from cases.fake_gpus import gpus
from torch import nn

from ddlbench.runtime.checkpoint.rank import read_state, write_state
from ddlbench_deepspeed.executor import DeepSpeedExecutor


class _Stage0(DeepSpeedExecutor):
    """Without an engine, which needs DeepSpeed."""

    _stage = 0
    network = nn.Module()


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_states_are_loaded_where_the_weights_are(kind, tmp_path):
    with gpus(1):
        weight = nn.Parameter(torch.ones(3, device="cuda"))
        executor = _Stage0()
        executor.network = nn.ParameterDict({"weight": weight})
        settings = {"momentum": 0.9} if kind is torch.optim.SGD else {}
        executor.inner = kind([weight], lr=0.1, **settings)
        for _ in range(2):
            weight.grad = torch.ones(3, device="cuda")
            executor.inner.step()
            write_state(tmp_path / "state", executor.checkpoint_state())
            executor.load_checkpoint_state(read_state(tmp_path / "state"))
        executor.inner.step()  # on a GPU it refuses states of the CPU
