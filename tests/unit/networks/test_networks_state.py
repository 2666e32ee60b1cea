"""Digests of weights, torch's settings, and copies of modules."""

from __future__ import annotations

import copy

import pytest
import torch
from cases.strangers_networks import WIDTH
from torch import nn

from ddlbench.networks.inputs import change_between, settings_kept, settings_now
from ddlbench.networks.inspection import copy_of, state_digest


def network(size: int = 300) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(size, size), nn.BatchNorm1d(size))


def test_a_digest_is_of_every_byte_and_its_place():
    known = state_digest(network())
    assert state_digest(network()) == known
    for place in ((0, 0), (150, 7), (299, 299)):
        changed = network()
        with torch.no_grad():
            changed[0].weight[place] += 1e-6
        assert state_digest(changed) != known, place
    buffers = network()
    buffers[1].running_mean[5] = 1e-9
    assert state_digest(buffers) != known


def test_a_digest_tells_rows_that_changed_places():
    first = nn.Linear(1, 8 * 2 * 4096)  # several whole rows of the digest
    second = copy.deepcopy(first)
    with torch.no_grad():
        second.weight[:8192], second.weight[8192:16384] = (
            first.weight[8192:16384].clone(),
            first.weight[:8192].clone(),
        )
    assert state_digest(first) != state_digest(second)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(2.0),
        torch.ones(3, dtype=torch.complex64),
        torch.arange(4),
        torch.zeros(0),
        torch.ones(2, dtype=torch.bool),
        torch.ones(4, 3).t(),
        torch.ones(2, dtype=torch.bfloat16),
    ],
)
def test_a_digest_is_of_any_type(tensor):
    module = nn.Module()
    module.register_buffer("kept", tensor)
    assert state_digest(module) == state_digest(module)


CHANGES = {
    "threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "default_dtype": lambda: torch.set_default_dtype(torch.float64),
    "default_device": lambda: torch.set_default_device("meta"),
    "gradients": lambda: torch.set_grad_enabled(False),
    "anomaly_detection": lambda: torch.autograd.set_detect_anomaly(True),
    "deterministic": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "fp32_precision": lambda: setattr(torch.backends, "fp32_precision", "tf32"),
    "matmul_precision": lambda: torch.set_float32_matmul_precision("medium"),
    "cudnn": lambda: setattr(torch.backends.cudnn, "enabled", False),
    "cudnn_benchmark": lambda: setattr(torch.backends.cudnn, "benchmark", True),
    "cudnn_deterministic": lambda: setattr(torch.backends.cudnn, "deterministic", True),
    "mkldnn": lambda: torch._C._set_mkldnn_enabled(False),
    "bf16_sums": lambda: setattr(
        torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_setting_is_named_and_set_back(name):
    before = settings_now()
    with settings_kept():
        CHANGES[name]()
        changed = change_between(before, settings_now())
        assert changed is not None
        assert f"{name} is" in changed
    assert settings_now() == before
    assert change_between(before, settings_now()) is None


def test_older_and_newer_settings_that_contradict_are_set_back():
    before = settings_now()
    with settings_kept():
        torch.set_float32_matmul_precision("medium")
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.fp32_precision = "tf32"
        assert settings_now()["matmul_precision"] == "mixed"
    assert settings_now() == before


def test_a_module_with_a_computed_weight_can_be_copied():
    layer = torch.nn.utils.weight_norm(nn.Linear(WIDTH, WIDTH))
    layer(torch.ones(1, WIDTH)).sum().backward()
    with pytest.raises(RuntimeError):
        copy.deepcopy(layer)
    inputs = torch.randn(2, WIDTH)
    double = copy_of(layer)
    assert torch.equal(double(inputs), layer(inputs))
    assert double.weight_v is not layer.weight_v
    shared = copy_of(layer, {weight: weight for weight in layer.parameters()})
    assert shared.weight_v is layer.weight_v
