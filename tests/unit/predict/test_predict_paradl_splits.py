"""What the oracle projects of this project's splits, against what they send, worked by hand."""

from __future__ import annotations

from typing import Any

import predict_factory as make
import pytest

from ddlbench.predict.prediction import Prediction, ask, predictor_of

ALPHA, BETA = 1e-4, 1e-9
WEIGHTS = 100  # of every layer that has any
BATCH = 32
STEP_S = 0.1 + 0.01 * BATCH
WHOLE_S = 0.9 * STEP_S  # passes of all layers
UPDATE_S, LOAD_S = 0.05 * STEP_S, 0.05 * STEP_S
IMAGE, PLANE = [3, 8, 4], [16, 8, 4]
PLANE_ITEMS = 16 * 8 * 4


def layer(index: int, kind: str, given: list[int], taken: list[int], kernel: int = 1) -> Any:
    """3 ms a sample."""
    return {
        "name": f"block{index}",
        "block": index,
        "block_name": f"block{index}",
        "kind": kind,
        "parameter_bytes": 4 * WEIGHTS if kind in ("Conv2d", "Linear", "BatchNorm2d") else 0,
        "output_bytes_per_sample": 1000,
        "saved_bytes_per_sample": 1000,
        "shape": {"input": given, "output": taken, "kernel": kernel, "stride": 1},
        "forward": make.timings(0.0, 0.001),
        "backward": make.timings(0.0, 0.002),
    }


FIRST, SECOND = layer(0, "Conv2d", IMAGE, PLANE, 3), layer(1, "Conv2d", PLANE, PLANE, 3)
HEAD = layer(2, "Linear", [16], [10])


def prediction_of(strategy: str, geometry: str = "1x4", *layers: Any, **options: Any) -> Prediction:
    """The projection for two convolutions of kernel 3 and a linear layer, unless others are said.

    Of two nodes as of one: every hop has the same latency and bandwidth.
    """
    chosen = list(layers) or [FIRST, SECOND, HEAD]
    nodes = [0, 0, 1, 1] if geometry.startswith("2") else [0, 0, 0, 0]
    links = make.table(*(make.pair(ends) for ends in ([0, 0, 0, 0], nodes)))
    plan = make.plan(strategy, geometry, BATCH, options=options)
    workload = make.workload(parameters=(4 * WEIGHTS,) * len(chosen), layers=chosen)
    return ask(predictor_of("paradl-corrected"), workload, links, plan)


def gather(ranks: int, items: float) -> float:
    """All-gather of so many items in all; an all-reduce of as many is two."""
    return (ranks - 1) * (ALPHA + 4 * items / ranks * BETA)


def halo(rows: float, row_items: int, messages: int, samples: int = BATCH) -> float:
    """Rows of the neighbours, one way."""
    return messages * ALPHA + 4 * samples * rows * row_items * BETA


def test_filters_deal_out_linear_layers_and_send_no_gradients() -> None:
    actual = prediction_of("filter")
    shared = WHOLE_S / 3 * (1 / 4 + 1 / 4 + 3 / 10)  # of ten classes the fullest device has three
    update_s = UPDATE_S * (1 / 4 + 1 / 4 + 3 / 10) / 3
    assert actual.compute_s == pytest.approx(shared + update_s + LOAD_S)
    outputs = 2 * gather(4, BATCH * PLANE_ITEMS) + gather(4, BATCH * 12)  # padded to four threes
    inputs = 2 * gather(4, BATCH * PLANE_ITEMS) + 2 * gather(4, BATCH * 16)  # the image has none
    assert actual.communication_s == pytest.approx(outputs + inputs)


def test_channels_deal_out_all_layers_but_the_first() -> None:
    actual = prediction_of("channel")
    parts = 1 + 1 / 4 + 1 / 4
    assert actual.compute_s == pytest.approx((WHOLE_S + UPDATE_S) * parts / 3 + LOAD_S)
    outputs = 2 * gather(4, BATCH * PLANE_ITEMS) + 2 * gather(4, BATCH * 10)
    inputs = gather(4, BATCH * PLANE_ITEMS) + gather(4, BATCH * 16)
    assert actual.communication_s == pytest.approx(outputs + inputs)


def test_channels_leave_the_first_layer_whole_where_it_has_enough_of_them() -> None:
    """An image has three channels, enough for two devices: our strategy leaves it whole still."""
    parts = 1 + 1 / 2 + 1 / 2
    actual = prediction_of("channel", "1x2")
    assert actual.compute_s == pytest.approx((WHOLE_S + UPDATE_S) * parts / 3 + LOAD_S)


def test_groups_of_filters_reduce_what_a_device_has_between_groups() -> None:
    actual = prediction_of("data-filter", "2x2")
    samples, step_s = 16, 0.1 + 0.01 * 16
    assert actual.compute_s == pytest.approx(
        0.9 * step_s / 2 + UPDATE_S / 2 + 0.05 * step_s  # a group's samples, on every device
    )
    outputs = 2 * gather(2, samples * PLANE_ITEMS) + gather(2, samples * 10)
    inputs = 2 * gather(2, samples * PLANE_ITEMS) + 2 * gather(2, samples * 16)
    # Two rings between the nodes share one link.
    gradients = 2 * (ALPHA + 2 * 4 * (3 * WEIGHTS / 2) / 2 * BETA)
    assert actual.communication_s == pytest.approx(outputs + inputs + gradients)


def test_rows_send_gradients_of_split_layers_alone() -> None:
    actual = prediction_of("spatial")
    parts = 1 / 4 + 1 / 4 + 1
    assert actual.compute_s == pytest.approx(WHOLE_S * parts / 3 + UPDATE_S + LOAD_S)
    row = 3 * 4, 16 * 4
    halos = halo(2, row[0], 2) + 2 * halo(2, row[1], 2)  # the image gets no gradient
    whole = gather(4, BATCH * PLANE_ITEMS)  # forward alone
    gradients = 2 * gather(4, 2 * WEIGHTS)
    assert actual.communication_s == pytest.approx(halos + whole + gradients)


def test_rows_of_two_devices_have_one_neighbour_each() -> None:
    halos = halo(1, 3 * 4, 1) + 2 * halo(1, 16 * 4, 1)
    rest = gather(2, BATCH * PLANE_ITEMS) + 2 * gather(2, 2 * WEIGHTS)
    assert prediction_of("spatial", "1x2").communication_s == pytest.approx(halos + rest)


def test_columns_have_halos_of_the_height() -> None:
    halos = halo(2, 3 * 8, 2) + 2 * halo(2, 16 * 8, 2)
    rest = gather(4, BATCH * PLANE_ITEMS) + 2 * gather(4, 2 * WEIGHTS)
    assert prediction_of("spatial", split="width").communication_s == pytest.approx(halos + rest)


def test_a_grid_exchanges_along_both_dimensions_and_gathers_line_by_line() -> None:
    actual = prediction_of("spatial", split="both")  # 2 x 2
    halos = halo(1, 3 * 4 // 2, 1) + halo(1, 3 * 8 // 2, 1)
    halos += 2 * (halo(1, 16 * 4 // 2, 1) + halo(1, 16 * 8 // 2, 1))
    whole = gather(2, BATCH * PLANE_ITEMS / 2) + gather(2, BATCH * PLANE_ITEMS)
    assert actual.communication_s == pytest.approx(halos + whole + 2 * gather(4, 2 * WEIGHTS))


def test_rows_end_where_the_plan_ends_them() -> None:
    actual = prediction_of("spatial", until="block1")
    halos = halo(2, 3 * 4, 2)
    rest = gather(4, BATCH * PLANE_ITEMS) + 2 * gather(4, WEIGHTS)
    assert actual.communication_s == pytest.approx(halos + rest)
    assert actual.compute_s > prediction_of("spatial").compute_s


def test_batch_normalisation_and_a_mean_over_positions() -> None:
    norm = layer(1, "BatchNorm2d", PLANE, PLANE)
    mean = layer(2, "AdaptiveAvgPool2d", PLANE, [16, 1, 1])
    actual = prediction_of("spatial", "1x4", FIRST, norm, mean, layer(3, "Linear", [16], [10]))
    statistics = gather(4, 4 * 2 * 16) + 2 * gather(4, 2 * 16)
    ended = 2 * gather(4, BATCH * 16)
    gradients = 2 * gather(4, 2 * WEIGHTS)
    expected = halo(2, 3 * 4, 2) + statistics + ended + gradients
    assert actual.communication_s == pytest.approx(expected)


def test_groups_of_rows_reduce_split_layers_over_all_and_the_head_between_groups() -> None:
    actual = prediction_of("data-spatial", "2x2")
    halos = halo(1, 3 * 4, 1, 16) + 2 * halo(1, 16 * 4, 1, 16)
    whole = gather(2, 16 * PLANE_ITEMS)
    split = 2 * gather(4, 2 * WEIGHTS)
    head = 2 * (ALPHA + 2 * 4 * WEIGHTS / 2 * BETA)  # two rings share the link between nodes
    assert actual.communication_s == pytest.approx(halos + whole + split + head)


def test_a_group_of_one_is_data_parallel() -> None:
    for strategy in ("data-spatial", "data-filter"):
        alone = prediction_of(strategy, "1x4", group=1)
        assert alone.communication_s == pytest.approx(2 * gather(4, 3 * WEIGHTS))
        assert alone.compute_s == pytest.approx(prediction_of("ddp").compute_s)


def test_uneven_rows_are_those_of_the_fullest_device() -> None:
    seven = [16, 7, 4]
    layers = (layer(0, "Conv2d", [3, 7, 4], seven), layer(1, "Linear", [448], [10]))
    actual = prediction_of("spatial", "1x4", *layers)
    assert actual.compute_s == pytest.approx(WHOLE_S / 2 * (2 / 7 + 1) + UPDATE_S + LOAD_S)
    padded = gather(4, BATCH * 16 * 8 * 4)
    assert actual.communication_s == pytest.approx(padded + 2 * gather(4, WEIGHTS))
