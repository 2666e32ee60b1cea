"""Steps of groups that split pairs of linear layers, worked by hand."""

from __future__ import annotations

from typing import Any

import predict_factory as make
import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.planning.strategy import strategy_of
from ddlbench.predict.prediction import DEFAULT_PREDICTOR, NotPredictable, predictor_of

KB = 1000
WIDTH, HIDDEN = 250, 1000  # 1 kB and 4 kB a sample


def linear(block: int, given: int, taken: int, name: str = "") -> dict[str, Any]:
    return entry(block, "Linear", given, taken, name, parameter_bytes=4 * given * taken)


def entry(
    block: int, kind: str, given: int, taken: int, name: str = "", **more: Any
) -> dict[str, Any]:
    """A layer that takes 1 ms a sample forward and 2 ms backward."""
    return {
        "name": f"block{block}{name}",
        "block": block,
        "block_name": f"block{block}",
        "kind": kind,
        "parameter_bytes": 0,
        "output_bytes_per_sample": 4 * taken,
        "saved_bytes_per_sample": 4 * given,
        "shape": {"input": [given], "output": [taken]},
        "forward": make.timings(0.0, 0.001),
        "backward": make.timings(0.0, 0.002),
        **more,
    }


def workload(**changes: Any) -> Any:
    """A perceptron, and an attention in a block of its own with a millisecond for its heads."""
    layers = [
        linear(0, WIDTH, HIDDEN),
        entry(1, "GELU", HIDDEN, HIDDEN),
        linear(2, HIDDEN, WIDTH),
        *(linear(3, WIDTH, WIDTH, f".{name}") for name in ("query", "key", "value", "output")),
    ]
    sizes = [(WIDTH, HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, WIDTH), (WIDTH, WIDTH)]
    blocks = []
    for index, (given, taken) in enumerate(sizes):
        block_layers = [layer for layer in layers if layer["block"] == index]
        blocks.append(
            make.block(
                index,
                sum(layer["parameter_bytes"] for layer in block_layers),
                input_bytes_per_sample=4 * given,
                output_bytes_per_sample=4 * taken,
                saved_bytes_per_sample=sum(
                    layer["saved_bytes_per_sample"] for layer in block_layers
                ),
                forward=make.timings(0.0, 0.005 if len(block_layers) > 1 else 0.001),
                backward=make.timings(0.0, 0.01 if len(block_layers) > 1 else 0.002),
            )
        )
    tensors = [
        {
            "name": f"{layer['name']}.weight",
            "block": layer["block"],
            "bytes": layer["parameter_bytes"],
            "ready_fraction": 1.0,
        }
        for layer in reversed(layers)
        if layer["parameter_bytes"]
    ]
    values = {"layers": layers, "blocks": blocks, "tensors": tensors, **changes}
    return make.workload(**values)


# An all-reduce over two ranks takes 1 ms + 1 s a GB, over two nodes 3 ms + 4 s a GB.
SWEEPS = (
    make.sweep(1e-3, 1e9, 2),
    make.sweep(3e-3, 0.25e9, 2, level="network", nodes=2, devices_per_node=1),
)


def step_of(strategy: str, geometry: str, batch_size: int, **options: int) -> Any:
    plan = make.plan(strategy, geometry, batch_size, options=options, network="mine:net")
    return strategy_of(strategy).step(workload(), plan)


def sent(step: Any, nodes: int) -> list[float]:
    """Bytes of the messages among ranks on so many nodes."""
    return [message.bytes for message in step.messages if message.group.nodes == nodes]


def share(step: Any, phase: str) -> float:
    return sum(task.share for task in step.tasks if getattr(task, "phase", "") == phase)


def prediction_of(
    predictor: str, strategy: str, geometry: str, batch_size: int, delays: Any = (), **options: int
) -> Any:
    values = make.links(make.pair([0, 0, 1, 1], method="gloo"), sweeps=SWEEPS)
    plan = make.plan(strategy, geometry, batch_size, options=options, network="mine:net")
    links = make.LinkTable(make.Links.from_dict({**values, "delays": list(delays)}))
    return predictor_of(predictor).predict(workload(), links, plan, plan.cell, [])


def test_a_pair_sends_its_output_and_the_gradient_of_its_input() -> None:
    step = step_of("tensor-parallel", "1x2", 8)
    # Forward of both pairs, backward of the attention; before the perceptron nothing is trained.
    assert sent(step, 1) == [8 * KB, 8 * KB, 8 * KB]
    assert share(step, "update") == pytest.approx(1 / 2)
    # 7 layers of 3 ms, and 3 ms of heads in block 3; all of it is shared out.
    assert share(step, "forward") == share(step, "backward") == pytest.approx(1 / 2)


def test_groups_send_gradients_of_what_they_have() -> None:
    step = step_of("data-tensor", "2x2", 16)
    whole = 4 * (2 * WIDTH * HIDDEN + 4 * WIDTH * WIDTH)
    assert sent(step, 1) == [8 * KB, 8 * KB, 8 * KB]
    assert sum(sent(step, 2)) == whole / 2


def test_one_device_sends_nothing() -> None:
    step = step_of("tensor-parallel", "1x1", 8)
    assert step.messages == []
    assert share(step, "forward") == pytest.approx(1)
    assert share(step, "update") == 1


@pytest.mark.parametrize("predictor", ["linear-pairs", DEFAULT_PREDICTOR])
def test_every_message_delays_the_step(predictor: str) -> None:
    actual = prediction_of(predictor, "tensor-parallel", "1x2", 8)
    sent_s = 3 * (1e-3 + 8 * KB / 1e9)
    assert actual.communication_s == pytest.approx(sent_s)
    assert actual.exposed_communication_s == pytest.approx(sent_s)
    # A step of 8 takes 0.18 s: 5 % of it loads, 90 % are passes, 5 % update; 1.2 for two replicas.
    assert actual.compute_s == pytest.approx(1.2 * 0.18 * (0.05 + 0.45 + 0.025))
    assert actual.predictor == predictor


def test_every_message_follows_a_computation() -> None:
    delay = {
        "operation": "all_reduce", "nodes": 1, "devices_per_node": 2, "ranks": 2,
        "message_bytes": 1, "after_s": 0.003, "transport": "gloo",
    }  # fmt: skip
    late, early = (
        prediction_of("linear-pairs", "tensor-parallel", "1x2", 8, each) for each in ([delay], ())
    )
    assert late.communication_s - early.communication_s == pytest.approx(3 * 0.002)


def test_groups_share_the_link_between_nodes() -> None:
    actual = prediction_of("linear-pairs", "data-tensor", "2x2", 16)
    gradient_bytes = 4 * (2 * WIDTH * HIDDEN + 4 * WIDTH * WIDTH) / 2
    within_s = 3 * (1e-3 + 8 * KB / 1e9)
    # Two ranks of each node send over its link at once.
    assert actual.communication_s == pytest.approx(within_s + 3e-3 + 2 * gradient_bytes / 0.25e9)


def test_what_splits_no_pair_is_refused() -> None:
    with pytest.raises(NotPredictable, match="linear-pairs is of pairs of linear layers; ddp"):
        prediction_of("linear-pairs", "ddp", "1x2", 8)


def test_a_profile_without_shapes_is_refused() -> None:
    layers = [{**layer, "shape": None} for layer in workload().layer_entries]
    plan = make.plan("tensor-parallel", "1x2", 8, network="mine:net")
    with pytest.raises(ConfigError, match="has no shapes of layers; make it again"):
        strategy_of("tensor-parallel").step(workload(layers=layers), plan)


@pytest.mark.parametrize(
    ("layers", "sentence"),
    [([], "only the blocks of .* are known here"), ([linear(0, 1, 1)], "no two linear layers")],
)
def test_without_a_known_pair_nothing_is_predicted(layers: Any, sentence: str) -> None:
    plan = make.plan("tensor-parallel", "1x2", 8, network="mine:net")
    with pytest.raises(ConfigError, match=sentence):
        strategy_of("tensor-parallel").step(workload(layers=layers), plan)
