"""The roofline: hand-counted layers, planted constants, networks and devices held out."""

import numpy as np
import pandas as pd
import pytest

from ddlbench.planning.layer_table import LayerBlock, Operation, layers_of
from ddlbench.predict import roofline_score as score
from ddlbench.predict.hardware import DeviceSheet
from ddlbench.predict.roofline import Layers, passes_s, shipped, update_s, whole_step_s

V100 = DeviceSheet.load("v100-sxm-16gb")
PLAIN = {
    "spatial_efficiency": 0.5, "linear_efficiency": 0.5, "matrix_efficiency": 0.5,
    "memory_share": 0.5, "launch_s": 1e-5, "fused_share": 0.25,
}  # fmt: skip


@pytest.fixture
def constants():
    return shipped().with_constants(PLAIN)


def layers(*operations):
    return Layers.of([LayerBlock("block", tuple(operations), (), 0, 0, 0, 0, 0)])


def test_a_convolution_takes_its_operations_or_its_bytes(constants):
    heavy = layers(Operation("spatial", 10**9, 10**5, 10**5, 10**4, 1))
    forward, backward = passes_s(heavy, V100, "fp32", 8, constants)
    each = 8e9 / (0.5 * 15.7e12) + 1e-5
    assert forward == pytest.approx([each])
    assert backward == pytest.approx([2 * each])
    light = layers(Operation("spatial", 10, 10**6, 10**6, 10**5, 3))
    forward, _ = passes_s(light, V100, "fp32", 8, constants)
    assert forward == pytest.approx([3 * (4 * (16e6 + 1e5) / (0.5 * 9e11) + 1e-5)])


def test_the_first_convolution_has_no_gradient_of_its_input(constants):
    first = layers(Operation("first", 10**9, 0, 0, 0, 1))
    forward, backward = passes_s(first, V100, "fp32", 1, constants)
    assert backward == pytest.approx(forward)


def test_a_normalisation_reads_twice_and_fusion_leaves_a_share(constants):
    norm = layers(Operation("norm", 0, 10**6, 10**6, 128, 1))
    rate = 0.5 * 9e11
    forward, backward = passes_s(norm, V100, "fp32", 4, constants)
    assert forward == pytest.approx([3 * 4 * 4e6 / rate + 1e-5])
    assert backward == pytest.approx([5 * 4 * 4e6 / rate + 1e-5])
    fused, _ = passes_s(norm, V100, "fp32", 4, constants, fused=True)
    assert fused - 1e-5 == pytest.approx((forward - 1e-5) / 4)


def test_halves_go_through_matrix_units_and_images_are_copied(constants):
    heavy = layers(Operation("spatial", 10**10, 10**5, 10**5, 10**4, 1))
    fused, _ = passes_s(heavy, V100, "fp16", 8, constants, fused=True)
    assert fused == pytest.approx([8e10 / (0.5 * 1.25e14) + 1e-5])
    apart, _ = passes_s(heavy, V100, "fp16", 8, constants)
    assert apart - fused == pytest.approx([2 * 2 * 8 * 2e5 / (0.5 * 9e11)])


def test_the_update_moves_five_items_of_each_weight(constants):
    assert update_s(V100, 4e9, constants) == pytest.approx(20e9 / (0.5 * 9e11) + 3e-5)


def test_planted_constants_are_found():
    planted = {"pointwise_efficiency": 0.5, "spatial_efficiency": 1.1, "memory_share": 0.6}
    truth = shipped().with_constants(planted)
    networks = [
        score.ProfiledNetwork(
            network.name, network.samples, network.layers, score.block_s(network, truth)
        )
        for network in score.profiled_networks()
    ]
    actual = score.fitted(networks, None, None)
    for name, value in planted.items():
        assert actual.constant(name) == pytest.approx(value, rel=0.03)


def test_a_network_held_out_of_pipedreams():
    networks = score.profiled_networks()
    result = score.scored(networks, None, None)
    assert [network["network"] for network in result["networks"]] == [
        network.name for network in networks
    ]
    assert result["networks_mean_absolute_error"] < 0.15
    assert result["devices_mean_absolute_error"] is None


def test_a_device_is_held_out_with_its_generation():
    table = pd.DataFrame(
        {
            "accelerator": ["NVIDIA H100-SXM5-80GB", "V100-SXM2-16GB", "another"],
            "accelerators": [8, 8, 8],
            "accelerators_per_node": [8, 8, 8],
            "nodes": [1, 1, 1],
            "global_batch": [3200, 1664, 100],
            "step_s": [0.057, 0.149, 1.0],
        }
    )
    runs = score.node_runs(table)
    assert runs.samples.tolist() == [400, 208]
    other = table.assign(model=["cosmoflow", "resnet", None])
    assert score.node_runs(other).samples.tolist() == [208]
    result = score.scored(score.profiled_networks(), runs, None)
    assert [device["rows"] for device in result["devices"]] == [1, 1]
    assert result["devices_mean_absolute_error"] < 0.25


def test_steps_of_the_study_on_a_gpu():
    runs = score.eager_runs()
    assert runs.device.description.startswith("NVIDIA H100 SXM5")
    assert {"resnet50", "vgg16"} <= set(runs.network)
    assert {"fp32", "tf32", "bf16"} == set(runs.precision)
    ratio = score.eager_s(runs, shipped()) / runs.step_s
    assert np.median(np.abs(ratio - 1)) < 0.25
    resnet = Layers.of(layers_of("resnet50", "imagenet"))
    assert whole_step_s(resnet, runs.device, "fp32", 64, shipped()) == pytest.approx(
        score.eager_s(runs, shipped())[0]
    )
