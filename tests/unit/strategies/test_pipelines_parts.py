"""What crosses a cut is known before anything is computed; what runs is what was planned."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from small_networks import tiny
from torch import nn

from ddlbench.networks.block_forms import TensorForm, block_facts
from ddlbench.planning.schedules import Action, one_f_one_b
from ddlbench.strategies.pipelining.executor import PipelineExecutor
from ddlbench.strategies.training import with_precision


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_forms_are_those_of_a_real_pass(precision):
    network = with_precision(tiny(), precision, "cpu")
    form = TensorForm((3, 1, 28, 28), torch.float32)
    facts = block_facts(network, form, torch.device("cpu"))
    passing = torch.randn(form.shape)
    for block, fact in zip(network, facts, strict=True):
        passing = block(passing)
        assert fact.output == TensorForm.of(passing)
        assert fact.output.bytes == passing.nbytes
        assert fact.parameter_bytes == sum(p.nbytes for p in block.parameters())


def test_work_counts_operations_of_the_forward_pass():
    network = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten())
    network.append(nn.Linear(8 * 16, 5))
    facts = block_facts(network, TensorForm((2, 3, 4, 4), torch.float32), torch.device("cpu"))
    assert [fact.work for fact in facts] == [2 * (2 * 8 * 16) * (3 * 9), 0, 0, 2 * 2 * 128 * 5]


def test_the_network_stays_as_it_is():
    class Counting(nn.Module):
        calls = 0

        def forward(self, inputs):
            self.calls += 1
            return inputs

    network = nn.Sequential(Counting(), nn.BatchNorm2d(1))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    random = torch.get_rng_state()
    block_facts(network, TensorForm((2, 1, 4, 4), torch.float32), torch.device("cpu"))
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
    for order, said in ((passes, None), (sorted(passes), "F0 F1 F2"), (passes[:-1], "ran")):
        executor.passes = [Action(*one) for one in order]
        if said is None:
            executor._check_order()
        else:
            with pytest.raises(RuntimeError, match=f"another order than planned.*{said}|{said}"):
                executor._check_order()
