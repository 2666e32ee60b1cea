"""Tables from PipeDream's graph.txt: cut where one tensor passes; tensors by the layers' texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.site import Accelerator
from ddlbench.planning.device_table import table_for
from ddlbench.planning.graph_table import table_of_graph

ROOT = Path(__file__).resolve().parents[3]
VGG16 = Path(__file__).with_name("pipedream_vgg16_graph.txt")
CIFAR = DATASETS["cifar10"]
SAMPLES = 2
BN = "BatchNorm2d(4, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True)"

# number: (layer, forward ms, backward ms, bytes of a sample, bytes of weights, what it reads)
RESIDUAL = {
    1: ("Input", 99.0, 0.0, 12288, 0, ()),
    2: ("Conv2d(3, 4, kernel_size=(3, 3), stride=(1, 1))", 1.0, 2.0, 4096, 448, (1,)),
    3: ("ReLU(inplace)", 0.5, 0.5, 4096, 0, (2,)),
    4: ("Conv2d(4, 4, kernel_size=(1, 1), stride=(1, 1), bias=False)", 1.0, 2.0, 4096, 64, (3,)),
    5: (BN, 0.25, 0.25, 4096, 32, (4,)),
    6: ("Add(inplace)", 0.0, 0.0, 4096, 0, (3, 5)),
    7: ("ReLU(inplace)", 0.5, 0.5, 4096, 0, (6,)),
    8: ("Size(0)", 0.0, 0.0, 4, 0, (7,)),
    9: ("View(-1)", 0.0, 0.0, 4096, 0, (7, 8)),
    10: ("Linear(in_features=1024, out_features=10, bias=True)", 1.0, 2.0, 40, 41000, (9,)),
}


def _graph(folder: Path, nodes: dict[int, tuple], changes: dict[int, tuple] | None = None) -> Path:
    nodes = {**nodes, **(changes or {})}
    lines = [
        f"node{number} -- {layer} -- forward_compute_time={forward:.3f}, "
        f"backward_compute_time={backward:.3f}, activation_size={SAMPLES * size}, "
        f"parameter_size={weights:.3f}"
        for number, (layer, forward, backward, size, weights, _) in reversed(nodes.items())
    ]
    lines += [f"\tnode{a} -- node{b}" for b, (*_, reads) in nodes.items() for a in reads]
    path = folder / "graph.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_branching_network_is_cut_where_one_tensor_passes(tmp_path: Path) -> None:
    table = table_of_graph(_graph(tmp_path, RESIDUAL), "my.models:net", CIFAR)
    names = ["node2", "node3", "node4_to_node7", "node8_to_node9", "node10"]
    assert [block.name for block in table.blocks] == names
    assert table.batch_sizes == (SAMPLES,)
    assert list(table.parameters) == [
        {"weight": 432, "bias": 16},
        {},
        {"node4_weight": 64, "node5_weight": 16, "node5_bias": 16},
        {},
        {"weight": 40960, "bias": 40},
    ]
    residual = table.blocks[2]
    assert (residual.forward.at(2), residual.backward.at(2)) == pytest.approx((1.75e-3, 2.75e-3))
    assert residual.saved_bytes == 3 * 4096  # the sum saves nothing
    assert [block.output_bytes for block in table.blocks] == [4096, 4096, 4096, 4096, 40]
    # Half of the convolution's time for either gradient; batch norm computes both at once.
    assert residual.input_share == pytest.approx((1.0 + 0.25 + 0.5) / 2.75)
    assert residual.weight_share == pytest.approx((1.0 + 0.25) / 2.75)


def test_a_sum_that_nothing_overwrites_ends_a_block(tmp_path: Path) -> None:
    sigmoid = {7: ("Sigmoid()", *RESIDUAL[7][1:])}
    table = table_of_graph(_graph(tmp_path, RESIDUAL, sigmoid), "my.models:net", CIFAR)
    assert [block.name for block in table.blocks][2:4] == ["node4_to_node6", "node7"]


def test_several_outputs_are_no_tensor_to_cut_at(tmp_path: Path) -> None:
    changes = {
        2: ("LSTM(3, 4)", *RESIDUAL[2][1:]),
        3: ("__getitem__(0)", *RESIDUAL[3][1:]),
    }
    table = table_of_graph(_graph(tmp_path, RESIDUAL, changes), "my.models:net", CIFAR)
    assert [block.name for block in table.blocks][:2] == ["node2_to_node3", "node4_to_node7"]
    assert table.parameters[0] == {"weight": 448}  # its text does not tell its bias


def test_the_shipped_table_is_what_the_release_makes() -> None:
    made = table_of_graph(VGG16, "vgg16", DATASETS["imagenet"])
    shipped = Accelerator(str(ROOT / "config" / "accelerators" / "pipedream"))
    kept = table_for(shipped, "imagenet", "vgg16")
    assert [block.name for block in kept.blocks] == [block.name for block in made.blocks]
    assert kept.parameters == made.parameters
    for ours, theirs in zip(kept.blocks, made.blocks, strict=True):
        assert ours.saved_bytes == theirs.saved_bytes
        assert ours.backward.at(32) == pytest.approx(theirs.backward.at(32))


@pytest.mark.parametrize(
    ("changes", "dataset", "sentence"),
    [
        ({}, "imagenet", "no whole number of samples of imagenet"),
        ({1: ("Identity()", *RESIDUAL[1][1:])}, "cifar10", "has 0 inputs"),
        ({10: ("Linear(...)", 1.0, 2.0, 400, 41000, (9,))}, "cifar10", "gives 400 bytes a sample"),
        ({5: (BN, 0.25, 0.25, 4096, 33, (4,))}, "cifar10", "no number of float32 values"),
    ],
)
def test_a_graph_of_something_else_is_a_sentence(
    tmp_path: Path, changes: dict[int, tuple], dataset: str, sentence: str
) -> None:
    path = _graph(tmp_path, RESIDUAL, changes)
    with pytest.raises(ConfigError) as caught:
        table_of_graph(path, "my.models:net", DATASETS[dataset])
    assert sentence in str(caught.value)
    assert str(path) in str(caught.value)
