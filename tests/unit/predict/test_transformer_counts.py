"""Parameters against published formulas and numbers."""

import numpy as np
import pytest
from transformer_factory import decoders

from ddlbench.predict.transformer import configurations
from ddlbench.predict.transformer.configurations import load_shape, published_shapes
from ddlbench.predict.transformer.step import stage_parameters


@pytest.mark.parametrize("name", [name for name in published_shapes() if "megatron" in name])
def test_parameters_are_those_that_megatron_prints(name):
    printed = float(name.removeprefix("megatron-").removesuffix("b"))
    assert load_shape(name).parameters / 1e9 == pytest.approx(printed, rel=0.01, abs=0.06)


def test_parameters_are_equation_2():
    layers, hidden, vocabulary, sequence = 96, 12288, 51200, 2048
    equation = 12 * layers * hidden**2
    equation *= 1 + 13 / (12 * hidden) + (vocabulary + sequence) / (12 * layers * hidden)
    assert configurations.parameters(layers, hidden, vocabulary, sequence) == pytest.approx(
        equation
    )


def test_the_vocabulary_is_padded_on_every_device():
    assert configurations.padded_vocabulary(50257, 1) == 50257
    assert configurations.padded_vocabulary(50257, 8) == 51200
    assert configurations.padded_vocabulary(51200, np.array([1, 2, 8])).tolist() == [51200] * 3


def test_a_stage_holds_its_layers_and_an_embedding():
    decoder = decoders(tensor=1, pipeline=1, data=1, vocabulary=50304)
    parameters = configurations.parameters(32, 4096, 50304, 2048)
    assert stage_parameters(decoder)[0] == pytest.approx(parameters)
    cut = stage_parameters(decoders(tensor=4, pipeline=4))[0]
    layers, words, places = 8 * (12 * 4096**2 + 13 * 4096), 51200 * 4096, 2048 * 4096
    assert cut == pytest.approx((layers + words) / 4 + places)


def test_a_single_stage_holds_an_untied_embedding_twice():
    rows = ({"pipeline": p, "tied_embedding": word} for p in (1, 4) for word in ("yes", "no"))
    held = stage_parameters(decoders(*rows, tensor=1, vocabulary=50304))
    assert held[1] - held[0] == pytest.approx(50304 * 4096)
    assert held[3] == held[2]
