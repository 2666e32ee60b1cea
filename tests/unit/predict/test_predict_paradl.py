"""ParaDL's table on a made-up profile and made-up links, against hand-worked numbers."""

from __future__ import annotations

from typing import Any

import predict_factory as make
import pytest

from ddlbench.predict.prediction import NotPredictable, ask, predictor_of

LINKS = make.pair([0, 0, 0, 0], bandwidth=1e9, latency_s=1e-4)


def _layers(kind: str, *shapes: tuple[list[int], list[int], int]) -> list[dict[str, Any]]:
    """Layers of 3 ms a sample and 100 weights each."""
    return [
        {
            "name": f"block{number}",
            "block": number,
            "block_name": f"block{number}",
            "kind": kind if len(given) == 3 else "Linear",
            "parameter_bytes": 400,
            "output_bytes_per_sample": 1000,
            "saved_bytes_per_sample": 1000,
            "shape": {"input": given, "output": taken, "kernel": kernel, "stride": 1},
            "forward": make.timings(0.0, 0.001),
            "backward": make.timings(0.0, 0.002),
        }
        for number, (given, taken, kernel) in enumerate(shapes)
    ]


CONVOLUTIONS = _layers(
    "Conv2d", ([3, 8, 8], [16, 8, 8], 3), ([16, 8, 8], [16, 8, 8], 3), ([16], [10], 1)
)
SIZES = (400, 400, 400)
WEIGHTS = 300


def prediction_of(name: str, strategy: str, geometry: str = "1x4", **options: Any) -> Any:
    plan = make.plan(strategy, geometry, 32, options=options)
    workload = make.workload(parameters=SIZES, layers=CONVOLUTIONS)
    return ask(predictor_of(name), workload, make.table(LINKS), plan)


def test_data_parallel_by_hand() -> None:
    actual = prediction_of("paradl-corrected", "ddp")
    of_worker = 0.1 + 0.01 * 8  # a step of 8 samples; 90 % of it passes, 5 % load
    update_s = 0.05 * (0.1 + 0.01 * 32)
    assert actual.compute_s == pytest.approx((0.9 + 0.05) * of_worker + update_s)
    assert actual.communication_s == pytest.approx(6 * (1e-4 + 4 * WEIGHTS / 4 / 1e9))
    assert actual.step_s == pytest.approx(actual.compute_s + actual.communication_s)


def test_a_pipeline_loads_the_whole_batch_in_one_process() -> None:
    actual = prediction_of("paradl-corrected", "gpipe", "1x2", chunks=4, balance="size")
    stage_s = 0.9 * (0.1 + 0.01 * 8) * 2 / 3  # two of three layers, of a micro-batch
    update_s = 0.05 * 0.42 * 200 / WEIGHTS
    load_s = 0.05 * 0.42
    assert actual.compute_s == pytest.approx((2 + 4 - 1) * stage_s + update_s + load_s)


def test_the_authors_code_differs_where_the_faults_are() -> None:
    theirs, corrected = (prediction_of(f"paradl-{v}", "filter") for v in ("authors", "corrected"))
    assert theirs.communication_s != pytest.approx(corrected.communication_s)
    assert all(value > 0 for value in theirs.memory_bytes)


@pytest.mark.parametrize(
    ("strategy", "says"),
    [
        ("ddp", "no weight update"),
        ("filter", "linear layers are whole on every device"),
        ("spatial", "gradients of all weights are all-reduced"),
    ],
)
def test_published_says_what_it_takes_for_granted(strategy: str, says: str) -> None:
    assert any(says in limit for limit in prediction_of("paradl-authors", strategy).limits)
    assert not any(says in limit for limit in prediction_of("paradl-corrected", strategy).limits)


def test_a_profile_without_shapes_says_what_to_do() -> None:
    plan = make.plan("ddp")
    old = [{k: v for k, v in layer.items() if k != "shape"} for layer in CONVOLUTIONS]
    with pytest.raises(NotPredictable, match="no shapes of layers; make it again"):
        ask(predictor_of("paradl-corrected"), make.workload(layers=old), make.table(LINKS), plan)


def test_other_strategies_are_refused() -> None:
    with pytest.raises(NotPredictable, match="is of .*, not of model-parallel"):
        prediction_of("paradl-corrected", "model-parallel")
