"""Operations, parameters and activations against published formulas and numbers."""

import numpy as np
import pytest
from transformer_factory import asked

from ddlbench.planning.schedules import replicate
from ddlbench.predict.transformer import configurations
from ddlbench.predict.transformer.configurations import load_shape, published_shapes
from ddlbench.predict.transformer.step import (
    in_flight,
    memory_bytes,
    schedule_of,
    stage_parameters,
    state_bytes,
)


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


def test_operations_are_equation_3():
    batch, sequence, layers, hidden, vocabulary = 1536, 2048, 96, 12288, 51200
    equation = 96 * batch * sequence * layers * hidden**2
    equation *= 1 + sequence / (6 * hidden) + vocabulary / (16 * layers * hidden)
    assert configurations.step_operations(
        batch, sequence, layers, hidden, vocabulary
    ) == pytest.approx(equation)


def test_operations_without_recomputation_are_three_quarters():
    """72 B s l h^2 (1 + s / 6h + V / 12 l h): Korthikanti et al. 2022."""
    batch, sequence, layers, hidden, vocabulary = 8, 2048, 24, 4096, 51200
    equation = 72 * batch * sequence * layers * hidden**2
    equation *= 1 + sequence / (6 * hidden) + vocabulary / (12 * layers * hidden)
    none, selective, full = (
        configurations.step_operations(
            batch, sequence, layers, hidden, vocabulary, recomputation=how
        )
        for how in configurations.RECOMPUTATIONS
    )
    assert none == pytest.approx(equation)
    assert none < selective < full
    assert selective - none == pytest.approx(layers * 4 * batch * sequence**2 * hidden)


def test_activations_are_those_of_korthikanti():
    """s b h (34 + 5 a s / h) on one device; 2 s b h where all is recomputed."""
    batch, sequence, hidden, heads = 4, 2048, 6144, 64
    unit = batch * sequence * hidden
    of = lambda tensor, how, divided=False: configurations.activation_bytes(  # noqa: E731
        batch, sequence, hidden, heads, tensor, recomputation=how, sequence_parallel=divided
    )
    scores = 5 * heads * sequence / hidden
    assert of(1, "none") == pytest.approx(unit * (34 + scores))
    assert of(8, "none") == pytest.approx(unit * (10 + 24 / 8 + scores / 8))
    assert of(8, "none", True) == pytest.approx(unit * (34 + scores) / 8)
    assert of(8, "selective", True) == pytest.approx(unit * 34 / 8)
    assert of(8, "full") == pytest.approx(2 * unit)


def test_the_vocabulary_is_padded_on_every_device():
    assert configurations.padded_vocabulary(50257, 1) == 50257
    assert configurations.padded_vocabulary(50257, 8) == 51200
    assert configurations.padded_vocabulary(51200, np.array([1, 2, 8])).tolist() == [51200] * 3


def test_a_stage_holds_its_layers_and_an_embedding():
    one = asked(tensor=1, pipeline=1, data=1, vocabulary=50304)
    parameters = configurations.parameters(32, 4096, 50304, 2048)
    assert stage_parameters(one)[0] == pytest.approx(parameters)
    cut = stage_parameters(asked(tensor=4, pipeline=4))[0]
    layers, words, places = 8 * (12 * 4096**2 + 13 * 4096), 51200 * 4096, 2048 * 4096
    assert cut == pytest.approx((layers + words) / 4 + places)


def test_zero_divides_the_optimizer_then_gradients_then_weights():
    found = state_bytes(asked(*({"zero": zero} for zero in range(4)), data=8))
    each = found / stage_parameters(asked(data=8))[0]
    assert each == pytest.approx([18, 6 + 12 / 8, 2 + 16 / 8, 18 / 8])


def test_recomputation_and_sequence_parallelism_save_memory():
    hows = ({"recomputation": how} for how in ("none", "selective", "full"))
    assert np.all(np.diff(memory_bytes(asked(*hows))) < 0)
    whole, divided = memory_bytes(asked({}, {"sequence_parallel": 1}, recomputation="selective"))
    assert divided < whole


@pytest.mark.parametrize(
    ("name", "chunks"),
    [
        ("gpipe", 1), ("1f1b", 1), ("interleaved-1f1b", 2), ("interleaved-zero-bubble", 1),
        ("interleaved-zero-bubble", 2), ("zero-bubble-v", 2),
    ],
)  # fmt: skip
@pytest.mark.parametrize("micro_batches", [4, 8, 16])
def test_micro_batches_in_flight_are_those_of_the_schedule(name, chunks, micro_batches):
    schedule = schedule_of(name, 4, chunks, micro_batches)
    told = in_flight(name, 4, chunks, micro_batches)
    assert told == max(schedule.in_flight) / chunks
    assert max(replicate(schedule, 2).in_flight) / chunks == told
