"""What crosses a cut is known before anything is computed; what runs is what was planned."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from small_networks import tiny
from torch import nn

from ddlbench.networks.block_forms import TensorForm, block_forms
from ddlbench.planning.schedules import Action, one_f_one_b
from ddlbench.strategies.pipelining.executor import PipelineExecutor
from ddlbench.strategies.training import with_precision


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_forms_are_those_of_a_real_pass(precision):
    network = with_precision(tiny(), precision, "cpu")
    form = TensorForm((3, 1, 28, 28), torch.float32)
    given, *outputs = block_forms(network, form, torch.device("cpu"))
    assert given == form
    passing = torch.randn(form.shape)
    for block, output in zip(network, outputs, strict=True):
        passing = block(passing)
        assert output == TensorForm.of(passing)
        assert output.bytes == passing.nbytes


def test_the_network_stays_as_it_is():
    class Counting(nn.Module):
        calls = 0

        def forward(self, inputs):
            self.calls += 1
            return inputs

    network = nn.Sequential(Counting(), nn.BatchNorm2d(1))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    random = torch.get_rng_state()
    block_forms(network, TensorForm((2, 1, 4, 4), torch.float32), torch.device("cpu"))
    assert network[0].calls == 0
    assert torch.equal(torch.get_rng_state(), random)
    for name, value in network.state_dict().items():
        assert type(value) is torch.Tensor
        assert torch.equal(value, before[name])


def test_another_order_than_planned_is_an_error():
    executor = PipelineExecutor()
    executor.planned = one_f_one_b(2, 3)
    executor.process = SimpleNamespace(stage=0)
    passes = [(action.kind, 0, action.micro_batch) for action in executor.planned.computations(0)]
    for order, sentence in ((passes, None), (sorted(passes), "F0 F1 F2"), (passes[:-1], "ran")):
        executor.passes = [Action(*fields) for fields in order]
        if sentence is None:
            executor._check_order()
        else:
            with pytest.raises(
                RuntimeError, match=f"another order than planned.*{sentence}|{sentence}"
            ):
                executor._check_order()
