"""GPT-2: published counts of weights and operations, causality, equal layers."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.dataset_spec import DATASETS, DatasetSpec
from ddlbench.experiment.registry import load, mismatch
from ddlbench.networks import build, num_parameters
from ddlbench.networks.factory import try_out
from ddlbench.networks.inputs import made_up_inputs
from ddlbench.strategies.training import MeanCrossEntropy

GPT2 = DATASETS["tokens-gpt2"]
SMALL = DatasetSpec("small-tokens", "Small", 32, 0, 0, 0, 64, 16, "tokens", sequence_length=12)
# Weights of the networks that OpenAI published, whose head is the token embedding; layers, width.
PUBLISHED = {"gpt-small": (124_439_808, 12, 768), "gpt-medium": (354_823_168, 24, 1024)}
OURS = {"gpt-small": 163_037_184, "gpt-medium": 406_286_336}


def _on_meta(network: str, spec: DatasetSpec) -> nn.Sequential:
    with torch.device("meta"):
        made = load("ddlbench.networks", network)(spec)
    assert isinstance(made, nn.Sequential)
    return made


@pytest.mark.parametrize("network", PUBLISHED)
def test_weights_are_the_published_ones_and_those_of_the_head(network: str) -> None:
    tied, _, width = PUBLISHED[network]
    made = _on_meta(network, GPT2)
    assert num_parameters(made) == OURS[network]
    assert num_parameters(made.get_submodule("head")) == GPT2.num_classes * width
    assert OURS[network] - GPT2.num_classes * width == tied


def _step_flops(network: nn.Sequential, spec: DatasetSpec, batch: int) -> int:
    inputs = torch.zeros(batch, *spec.shape, dtype=torch.int64, device="meta")
    with FlopCounterMode(display=False) as counter:
        outputs = network(inputs)
        outputs.backward(torch.empty_like(outputs))
    return counter.get_total_flops()


@pytest.mark.parametrize("network", PUBLISHED)
def test_operations_are_those_of_megatrons_formula(network: str) -> None:
    """Narayanan et al. 2021, section 5.1, without the recomputed forward pass: 72 instead of 96."""
    _, layers, width = PUBLISHED[network]
    length, vocabulary = GPT2.shape[0], GPT2.num_classes
    formula = (
        72
        * length
        * layers
        * width**2
        * (1 + length / (6 * width) + vocabulary / (12 * layers * width))
    )
    counted = _step_flops(_on_meta(network, GPT2), GPT2, batch=1)
    assert counted == round(formula)
    # The forward pass is a third of it, and scales with the batch.
    assert 3 * try_out(network, GPT2) == counted


def test_six_operations_a_weight_and_token_and_those_of_the_attention() -> None:
    """Chowdhery et al. 2022 (PaLM), appendix B: 6 N + 12 L H Q T a token; N of matrix products."""
    _, layers, width = PUBLISHED["gpt-small"]
    made = _on_meta("gpt-small", GPT2)
    matrices = sum(m.weight.numel() for m in made.modules() if isinstance(m, nn.Linear))
    a_token = 6 * matrices + 12 * layers * width * GPT2.shape[0]
    assert _step_flops(made, GPT2, batch=1) == a_token * GPT2.shape[0]


def test_it_computes_what_the_paper_says() -> None:
    """Each position from earlier ones only, in float64, by a loop over positions."""
    network = build("gpt-tiny", SMALL, seed=1).double()
    tokens = made_up_inputs(SMALL, 2)
    embedding = network.get_submodule("embedding")
    passing = embedding.token.weight[tokens] + embedding.position
    for number in range(4):
        layer = network.get_submodule(f"layer_{number}")
        normed = F.layer_norm(passing, (128,), layer.norm1.weight, layer.norm1.bias, 1e-5)
        query, key, value = (
            getattr(layer.attention, name)(normed).view(2, 12, 4, 32)
            for name in ("query", "key", "value")
        )
        heads = torch.empty_like(query)
        for place in range(12):
            scores = torch.einsum("nhw,nthw->nht", query[:, place], key[:, : place + 1])
            shares = (scores / math.sqrt(32)).softmax(-1)
            heads[:, place] = torch.einsum("nht,nthw->nhw", shares, value[:, : place + 1])
        passing = passing + layer.attention.output(heads.flatten(2))
        normed = F.layer_norm(passing, (128,), layer.norm2.weight, layer.norm2.bias, 1e-5)
        hidden = layer.fc1(normed)
        cubic = math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)
        passing = passing + layer.fc2(0.5 * hidden * (1 + cubic.tanh()))
    final = network.get_submodule("norm")
    normed = F.layer_norm(passing, (128,), final.weight, final.bias, 1e-5)
    expected = normed @ network.get_submodule("head").weight.T
    torch.testing.assert_close(network(tokens), expected)


def test_a_later_token_changes_no_earlier_output() -> None:
    network = build("gpt-tiny", SMALL, seed=1)
    tokens = made_up_inputs(SMALL, 1)
    changed = tokens.clone()
    changed[0, 7] = (changed[0, 7] + 1) % SMALL.num_classes
    before, after = network(tokens), network(changed)
    torch.testing.assert_close(before[:, :7], after[:, :7])
    assert not torch.allclose(before[:, 7:], after[:, 7:])


def test_the_loss_is_the_mean_over_all_positions() -> None:
    loss = MeanCrossEntropy()
    outputs, labels = torch.randn(4, 3, 5), torch.randint(5, (4, 3))
    whole = loss(outputs, labels)
    each = [-outputs[n, t].log_softmax(0)[labels[n, t]] for n in range(4) for t in range(3)]
    torch.testing.assert_close(whole, torch.stack(each).mean())
    halves = [loss(*half) for half in zip(outputs.chunk(2), labels.chunk(2), strict=True)]
    torch.testing.assert_close(torch.stack(halves).mean(), whole)


def test_an_untrained_network_knows_nothing() -> None:
    spec = DATASETS["tokens"]
    loss = MeanCrossEntropy()
    network = build("gpt-tiny", spec, seed=1)
    with torch.no_grad():
        start = loss(network(made_up_inputs(spec, 4)), made_up_inputs(spec, 4))
    assert float(start) == pytest.approx(math.log(spec.num_classes), rel=0.02)


def test_its_layers_are_equal_blocks() -> None:
    network = _on_meta("gpt-small", GPT2)
    layers = [f"layer_{number}" for number in range(12)]
    assert list(network._modules) == ["embedding", *layers, "norm", "head"]
    counts = {num_parameters(network.get_submodule(name)) for name in layers}
    assert counts == {12 * 768**2 + 13 * 768}


def test_what_does_not_fit_is_said_in_a_sentence() -> None:
    assert mismatch("gpt-tiny", "tokens") is None
    assert mismatch("gpt-tiny", "cifar10") == (
        "network gpt-tiny reads tokens, but dataset cifar10 has images"
    )
    assert mismatch("resnet18", "tokens") == (
        "network resnet18 reads images, but dataset tokens has tokens"
    )
    with pytest.raises(ConfigError, match=r"'cifar10' has images; write dataset: tokens"):
        build("gpt-tiny", DATASETS["cifar10"], seed=1)
