"""Memory of split layers, against hand-worked numbers."""

from __future__ import annotations

from typing import Any

import predict_factory as make
import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.planning.memory import memory_bytes
from ddlbench.planning.strategy import strategy_of
from ddlbench.strategies.splits import shares as split_memory

ITEM = 4
IMAGE = 3 * 8 * 8 * ITEM  # bytes a sample of the input
PLANE = 16 * 8 * 8 * ITEM  # and of what the first convolution puts out
BATCH = 8


def layer(index: int, kind: str, given: list[int], taken: list[int], **more: Any) -> dict[str, Any]:
    return {
        "name": f"block{index}",
        "block": index,
        "block_name": f"block{index}",
        "kind": kind,
        "parameter_bytes": 0,
        "output_bytes_per_sample": 0,
        "saved_bytes_per_sample": 0,
        "shape": {"input": given, "output": taken, "kernel": 1, "stride": 1},
        "forward": make.timings(0.0, 0.001),
        "backward": make.timings(0.0, 0.002),
        **more,
    }


def network() -> Any:
    """A convolution that saves its image, a ReLU that saves its output, a linear head."""
    wide, flat = [16, 8, 8], [16 * 64]
    layers = [
        layer(0, "Conv2d", [3, 8, 8], wide, parameter_bytes=1600, saved_bytes_per_sample=IMAGE),
        layer(1, "ReLU", wide, wide, saved_bytes_per_sample=PLANE),
        layer(2, "Flatten", wide, flat),
        layer(3, "Linear", flat, [10], parameter_bytes=4000),
    ]
    layers[0]["shape"] = {**layers[0]["shape"], "kernel": 3}
    sizes = [(IMAGE, PLANE), (PLANE, PLANE), (PLANE, PLANE), (PLANE, 40)]
    blocks = [
        make.block(
            index,
            layers[index]["parameter_bytes"],
            input_bytes_per_sample=given,
            output_bytes_per_sample=taken,
            saved_bytes_per_sample=layers[index]["saved_bytes_per_sample"],
        )
        for index, (given, taken) in enumerate(sizes)
    ]
    return make.workload(layers=layers, blocks=blocks)


def bytes_of(strategy: str, geometry: str = "1x4", **options: Any) -> int:
    plan = make.plan(strategy, geometry, BATCH, options=options)
    actual = memory_bytes(network(), plan)
    assert len(set(actual)) == 1
    return actual[0]


def test_filters_divide_weights_and_leave_activations_whole() -> None:
    weights = 1600 / 4 + 4000 * 3 / 10  # 16 filters deal evenly, of 10 the fullest has 3
    saved = BATCH * (IMAGE + PLANE)
    # The worst block is the head: everything saved, its input's gradient twice, its output's.
    peak = saved + BATCH * (2 * PLANE + 40) + 4000 * 3 / 10
    assert bytes_of("filter") == round(2 * weights + peak)


def test_channels_are_copied_and_the_first_layer_is_whole() -> None:
    weights = 1600 + 4000 / 4
    saved = BATCH * (IMAGE + PLANE + PLANE / 4)  # the head's own channels of what the ReLU saved
    peak = saved + BATCH * (2 * PLANE + 40) + 4000 / 4
    assert bytes_of("channel") == round(2 * weights + peak)


def test_rows_divide_activations_and_gradients_are_flattened() -> None:
    image = IMAGE * 4 / 8  # two rows of each device, and one above and below
    saved = BATCH * (image + PLANE / 4)
    flatten = saved + BATCH * 2 * PLANE + 4000  # whole again
    head = saved + BATCH * (PLANE + 40) + 4000
    assert bytes_of("spatial") == round(2 * 5600 + max(flatten, head, 2 * 5600))


def test_groups_share_the_samples() -> None:
    whole, grouped = bytes_of("filter", "1x2"), bytes_of("data-filter", "2x2")
    assert grouped < whole


def rows_end(workload, plan):
    return strategy_of(plan.cell.strategy).layer_split(workload, plan).end


def test_where_rows_end() -> None:
    plan = make.plan("spatial", "1x4", BATCH, options={"until": "block1"})
    assert rows_end(network(), plan) == 1
    assert rows_end(network(), make.plan("spatial", "1x4", BATCH)) == 2
    thin = make.plan("spatial", "4x4", 16, options={"until": "auto"})
    assert rows_end(network(), thin) == 0  # eight rows for sixteen devices
    with pytest.raises(ConfigError, match="until: nowhere names no block"):
        rows_end(network(), make.plan("spatial", "1x4", 8, options={"until": "nowhere"}))


def test_only_gradients_of_split_blocks_are_flattened() -> None:
    weights = 1600 + 4000
    early = bytes_of("spatial", until="block1") - 2 * weights
    image = IMAGE * 4 / 8
    relu = BATCH * (image + PLANE)  # whole behind block 0, as the ReLU saves its output
    assert early == round(max(relu + BATCH * 2 * PLANE + 4000, weights + 1600))


def test_a_shortcut_that_skips_rows_is_copied() -> None:
    shapes = {"input": [16, 8, 8], "output": [16, 4, 4], "kernel": 1, "stride": 2}
    entry = layer(0, "Conv2d", [16, 8, 8], [16, 4, 4], shape=shapes)
    read = split_memory._saved_rows(entry, {-2: 2}, "made up")
    assert 0 < read < PLANE / 2  # the rows that it reads, not the rows that it has
