"""A stage of PipeDream trains what its blocks train, with the weights of a version."""

from __future__ import annotations

import pytest
import torch
from cases import strangers_networks
from torch import nn

from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.networks import build
from ddlbench.strategies.pipedream.runner import Stage, WeightVersions

SPEC = DATASETS["mnist"]
NETWORKS = (
    "plain",
    "frozen",
    "whole_number_parameter",
    "detached",
    "hooked_input",
    "recomputed",
    "recomputed_reentrant",
    "unused",
    "weight_norm",
    "strided",
    "channels_last",
    "scalar",
    "complex_weights",
    "tied",
)


def network_of(name: str) -> nn.Sequential:
    return build(f"cases.strangers_networks:{name}", SPEC, 1).train()


def sgd(network: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(network.parameters(), lr=0.5, momentum=0.9)


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    inputs = torch.randn(4, *SPEC.shape, generator=generator)
    return inputs, torch.randint(10, (4,), generator=generator)


def losses_of_versions(name: str, late: int) -> tuple[list[float], nn.Sequential]:
    """Train five mini-batches, each with the weights of ``late`` updates before."""
    network = network_of(name)
    stage = Stage(network, True, nn.functional.cross_entropy)
    versions = WeightVersions(network, sgd(network))
    losses = []
    for number in range(5 + late):
        if number < 5:
            versions.expect(max(0, number - late))
            weights = versions.acquire(max(0, number - late))
            inputs, labels = batch(number)
            losses.append(float(stage.forward(number, inputs, weights, labels)))
        if number >= late:
            _, gradients = stage.backward(number - late, None)
            versions.release(max(0, number - 2 * late))
            with torch.no_grad():
                versions.update(gradients)
    return losses, network


def delayed_by_hand(name: str, late: int) -> tuple[list[float], nn.Sequential]:
    """The same with a copy of the network for each mini-batch in flight."""
    newest = network_of(name)
    optimizer, states, losses = sgd(newest), [], []
    states.append({key: value.clone() for key, value in newest.state_dict().items()})
    gradients = []
    for number in range(5):
        double = network_of(name)
        double.load_state_dict(states[max(0, number - late)])
        inputs, labels = batch(number)
        loss = nn.functional.cross_entropy(double(inputs), labels)
        losses.append(float(loss))
        loss.backward()
        gradients.append([weight.grad for weight in double.parameters()])
        if number >= late:
            _update(newest, optimizer, gradients[number - late])
            states.append({key: value.clone() for key, value in newest.state_dict().items()})
    for late_one in gradients[5 - late :]:
        _update(newest, optimizer, late_one)
    return losses, newest


def _update(network, optimizer, gradients) -> None:
    for weight, gradient in zip(network.parameters(), gradients, strict=True):
        weight.grad = gradient
    optimizer.step()


@pytest.mark.parametrize("late", [0, 1])
@pytest.mark.parametrize("name", NETWORKS)
def test_versions_train_as_copies_do(name, late):
    losses, network = losses_of_versions(name, late)
    expected, reference = delayed_by_hand(name, late)
    assert losses == pytest.approx(expected, rel=1e-5)
    for (key, weight), other in zip(
        network.named_parameters(), reference.parameters(), strict=True
    ):
        assert weight.requires_grad == other.requires_grad, key
        assert weight.stride() == other.stride(), key
        torch.testing.assert_close(weight, other, msg=key)


def test_the_versions_of_a_weight_that_is_not_trained_share_its_memory():
    network = network_of("frozen")
    versions = WeightVersions(network, sgd(network))
    first = versions.acquire(0)
    versions.update([None if not p.requires_grad else torch.ones_like(p)
                     for p in network.parameters()])  # fmt: skip
    second = versions.acquire(1)
    assert first["4.weight"].data_ptr() == second["4.weight"].data_ptr()
    assert first["2.weight"].data_ptr() != second["2.weight"].data_ptr()
    assert not second["4.weight"].requires_grad


def test_gradients_for_a_sum_are_those_of_trained_weights():
    network = network_of("frozen")
    versions = WeightVersions(network, sgd(network))
    trained = [weight for weight in network.parameters() if weight.requires_grad]
    zeros = versions.complete(None)
    assert [z.shape for z in zeros] == [weight.shape for weight in trained]
    placed = versions.in_their_places(zeros)
    assert [g is None for g in placed] == [not w.requires_grad for w in network.parameters()]


def test_every_network_of_the_list_exists():
    assert set(NETWORKS) <= set(strangers_networks.ALL)
