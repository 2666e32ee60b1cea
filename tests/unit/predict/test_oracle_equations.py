"""Table III, corrected, against numbers worked by hand."""

from dataclasses import replace

import oracle_factory as make
import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.predict.paradl.authors_code import cut_evenly
from ddlbench.predict.paradl.configuration import OwnSplit, configuration_of
from ddlbench.predict.paradl.oracle import project, refused
from ddlbench.predict.paradl.workload import Layer

UPDATE = 5 * 4 * make.WEIGHTS / 1e9  # read w, g, momentum; write w, momentum


def projection_of(strategy, devices, batch, platform=None, segments=None):
    configuration = make.ask(strategy, devices, batch, segments)
    return project("corrected", make.workload(), platform or make.platform(), configuration)


def ring(ranks, size_bytes, latency_s, rate):
    """One all-gather of ``size_bytes``; an all-reduce is two."""
    return (ranks - 1) * (latency_s + size_bytes / ranks / rate)


def test_serial_computes_and_updates():
    actual = projection_of("serial", 1, 8)
    assert actual.computation == {
        "layers": pytest.approx(8 * 0.06),
        "weight update": pytest.approx(UPDATE),
    }
    assert actual.communication_s == 0


def test_data_reduces_all_weights_over_a_ring_of_half_a_link():
    actual = projection_of("data", 4, 32)
    assert actual.computation["layers"] == pytest.approx(8 * 0.06)
    expected = 2 * ring(4, 4 * make.WEIGHTS, 1e-4, 0.5e9)
    assert actual.communication == {"gradients": pytest.approx(expected)}


def test_filter_gathers_outputs_reduces_input_gradients_and_replicated_weights():
    actual = projection_of("filter", 4, 8, make.platform({"filter": "staged"}))
    assert actual.computation["layers"] == pytest.approx(8 * (0.01 / 4 + 0.02 / 4 + 0.03))
    first = ring(4, 4 * 8 * 256, *make.NET)
    second = ring(4, 4 * 8 * 128, *make.NET) + 2 * ring(4, 4 * 8 * 256, *make.NET)
    assert actual.communication["activations"] == pytest.approx(first + second)
    assert actual.communication["gradients"] == pytest.approx(2 * ring(4, 4 * 1290, 1e-4, 1e8))


def test_channel_leaves_the_image_whole():
    actual = projection_of("channel", 4, 8)
    assert actual.computation["layers"] == pytest.approx(8 * (0.01 + 0.02 / 4 + 0.03))
    second = 2 * ring(4, 4 * 8 * 128, *make.NET) + ring(4, 4 * 8 * 256, *make.NET)
    assert actual.communication["activations"] == pytest.approx(second)


def test_data_filter_shares_the_nodes_link():
    actual = projection_of("data+filter", 4, 16)
    inside = ring(2, 4 * 8 * 256, *make.NODE)
    inside += ring(2, 4 * 8 * 128, *make.NODE) + 2 * ring(2, 4 * 8 * 256, *make.NODE)
    assert actual.communication["activations"] == pytest.approx(inside)
    weights = (112 + 296) / 2 + 1290
    # Two rings on one link: each byte takes twice as long, at half the link's rate.
    assert actual.communication["gradients"] == pytest.approx(
        2 * ring(2, 4 * weights, 1e-4, 0.25e9)
    )


def test_data_spatial_exchanges_halos_gathers_and_reduces_twice():
    actual = projection_of("data+spatial", 4, 16, make.platform({"data+spatial": "staged"}))
    assert actual.computation["layers"] == pytest.approx(8 * (0.03 / 2 + 0.03))
    # c1: kernel 3, stride 1: two rows of 3 x 8; c2: kernel 3, stride 2: one row of 4 x 8.
    halo = sum(4 * 2e-5 + 2 * 4 * 8 * items / 5e9 for items in (2 * 24, 32))
    assert actual.communication["halo"] == pytest.approx(halo)
    assert actual.communication["gather"] == pytest.approx(2 * ring(2, 4 * 8 * 128, 2e-5, 5e9))
    size = 4 * make.WEIGHTS
    gradients = 2 * ring(2, size, *make.NODE) + 2 * ring(2, size, 1e-4, 1e8)
    assert actual.communication["gradients"] == pytest.approx(gradients)


def test_pipeline_pays_the_slowest_stage_and_the_fill():
    actual = projection_of("pipeline", 2, 8, segments=4)
    assert actual.computation["layers"] == pytest.approx((2 + 4 - 1) * 2 * 0.03)
    hop = 1e-5 + 4 * 2 * 128 / 1e10
    assert actual.communication["stages"] == pytest.approx(2 * (2 + 4 - 2) * hop)


def test_small_kernels_take_their_least_time():
    actual = projection_of("data", 4, 32, make.platform(layer_overhead_s=1.0))
    assert actual.computation["layers"] == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("strategy", "devices", "batch", "limit"),
    [
        ("data", 4, 32, (32, "the batch")),
        ("filter", 4, 8, (4, "c1")),
        ("channel", 4, 8, (4, "c2")),
        ("spatial", 2, 8, (4, "c2")),
        ("data+filter", 4, 16, (16 * 2, "the batch")),  # nodes of two: a sample each, or more
        ("pipeline", 2, 8, (3, "the number of layers")),
    ],
)
def test_limits_name_the_layer(strategy, devices, batch, limit):
    actual = projection_of(strategy, devices, batch)
    assert (actual.max_devices, actual.limiting_layer) == limit


def test_memory_by_hand_and_refusal():
    actual = projection_of("data", 4, 32)
    kept, going = 192 + 256 + 128 + 10, 192 + 256
    assert actual.memory_bytes == 4 * (8 * (kept + going) + 3 * make.WEIGHTS)
    split = projection_of("data+spatial", 4, 16)
    kept, going = (192 + 256 + 128) / 2 + 10, (192 + 256) / 2
    assert split.memory_bytes == 4 * (8 * (kept + going) + 3 * make.WEIGHTS)
    halved = projection_of("data+filter", 4, 16).memory_bytes
    assert actual.memory_bytes - halved == 4 * 3 * (112 + 296) / 2
    assert refused(actual, make.platform()) == ""
    assert "GB a device" in refused(actual, make.platform(memory_bytes=1e3))
    assert "limited by c1" in refused(projection_of("filter", 8, 8), make.platform())


def test_own_splits_are_limited_by_linear_layers_and_by_their_dimension():
    shares = (1 / 4, 1 / 4, 3 / 10)
    narrow = Layer("fc", "linear", (128,), (3,), 387)
    workload = make.workload(layers=(*make.LAYERS[:2], narrow))
    configuration = replace(make.ask("filter", 4, 8), project_split=OwnSplit(shares))
    actual = project("corrected", workload, make.platform(), configuration)
    assert (actual.max_devices, actual.limiting_layer) == (3, "fc")
    assert actual.communication["gradients"] == 0
    grid = OwnSplit((1 / 4, 1 / 4, 1.0), ((-2, 2), (-1, 2)))
    configuration = replace(make.ask("spatial", 4, 8), project_split=grid)
    actual = project("corrected", make.workload(), make.platform(), configuration)
    assert (actual.max_devices, actual.limiting_layer) == (4 * 4, "c2")
    kept, going = (192 + 256 + 128) / 4 + 10, 128 + 10
    assert actual.memory_bytes == 4 * (8 * (kept + going) + 3 * make.WEIGHTS)


@pytest.mark.parametrize("stages", [1, 2, 3, 7, 8, 20])
def test_cutting_is_as_even_as_any_cut(stages):
    from itertools import combinations

    times = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0]
    ends = cut_evenly(times, stages)
    assert len(ends) == min(stages, len(times))
    assert ends[-1] == len(times)

    def slowest(cuts):
        edges = [0, *cuts]
        return max(sum(times[a:b]) for a, b in zip(edges, cuts, strict=False))

    inner = combinations(range(1, len(times)), min(stages, len(times)) - 1)
    assert slowest(ends) == pytest.approx(min(slowest([*cut, len(times)]) for cut in inner))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("dta", 4, 4, 32), "did you mean 'data'"),
        (("data", 0, 4, 32), "write numbers above 0"),
        (("serial", 2, 4, 32), "serial runs on 1 device"),
        (("data+filter", 6, 4, 32), "write a multiple of that"),
    ],
)
def test_questions_that_nobody_can_answer(arguments, says):
    with pytest.raises(ConfigError, match=says):
        configuration_of(*arguments)
