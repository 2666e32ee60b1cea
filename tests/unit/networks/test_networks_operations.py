"""Operations of a training step, against published counts and formulas by hand."""

from __future__ import annotations

import csv
import io
import os
import sys
from collections import OrderedDict
from contextlib import redirect_stderr
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from ddlbench.experiment.dataset_spec import DATASETS, DatasetSpec
from ddlbench.experiment.registry import NETWORKS
from ddlbench.networks.factory import skeleton, training_flops
from ddlbench.networks.flops import step_flops
from ddlbench.networks.inputs import input_dtype, made_up_inputs
from ddlbench.networks.operations import layer_rows, main
from ddlbench.planning import layer_table
from ddlbench.planning.layer_table import REFUSED
from ddlbench.profiling.blocks import blocks_of
from ddlbench.profiling.layers import network_bytes

GIGA = 1e9


@pytest.mark.parametrize(
    ("network", "multiply_adds", "first_layer"),
    [
        # Forward passes as published: He et al. 2016, table 1; torchvision's model cards.
        ("resnet18", 1.81e9, 112 * 112 * 64 * 3 * 49),
        ("resnet50", 4.09e9, 112 * 112 * 64 * 3 * 49),
        ("vgg16", 15.47e9, 224 * 224 * 64 * 3 * 9),
        ("mobilenetv2", 0.30e9, 112 * 112 * 32 * 3 * 9),
        ("vit-tiny", 1.25e9, 196 * 192 * 3 * 256),
    ],
)
def test_a_step_is_three_forward_passes_less_the_gradient_of_the_images(
    network: str, multiply_adds: float, first_layer: int
) -> None:
    expected = 2 * (3 * multiply_adds - first_layer)
    assert training_flops(network, DATASETS["imagenet"]) == pytest.approx(expected, rel=0.01)


def test_a_transformer_counts_by_the_formula_of_its_layers() -> None:
    """Of PaLM, appendix B, for each layer; the patches need no gradient of the image."""
    tokens, width, layers = 197, 192, 12
    products = 12 * width**2 * tokens + 2 * tokens**2 * width  # weights, then scores and mixing
    patches = 196 * 768 * width
    head = width * 1000
    expected = 2 * (3 * (layers * products + head) + 2 * patches)
    assert training_flops("vit-tiny", DATASETS["imagenet"]) == expected


def autograd_bytes(network: nn.Module, spec: DatasetSpec, samples: int) -> int:
    """Bytes that a forward pass of the whole network keeps beside its weights."""
    fixed = {tensor.data_ptr() for tensor in (*network.parameters(), *network.buffers())}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in fixed:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        network(torch.zeros(samples, *spec.shape, dtype=input_dtype(spec)))
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@pytest.mark.parametrize(
    ("network", "dataset"),
    [("resnet18", "mnist"), ("alexnet", "cifar10"), ("gpt-tiny", "tokens")],
)
def test_blocks_together_keep_what_the_network_does(network: str, dataset: str) -> None:
    """What one block gives and the next one reads counts once, though both keep it.

    Attention keeps no scores.
    """
    spec = DATASETS[dataset]
    blocks = layer_table.built_in_layers(network, dataset)
    assert blocks is not None
    built = NETWORKS[network](spec)
    few, many = (autograd_bytes(built, spec, samples) for samples in (2, 4))
    assert sum(block.saved_bytes for block in blocks) == pytest.approx((many - few) / 2, rel=0.01)


@pytest.mark.parametrize(
    ("network", "dataset"),
    [("resnet18", "mnist"), ("vgg11", "cifar10"), ("vit-tiny", "cifar10"), ("gpt-tiny", "tokens")],
)
def test_blocks_keep_in_half_precision_what_a_profile_finds(network: str, dataset: str) -> None:
    spec = DATASETS[dataset]
    built = blocks_of(NETWORKS[network](spec), "bf16", torch.device("cpu"), resident=True)
    measured = network_bytes(built, partial(made_up_inputs, spec)).blocks
    blocks = layer_table.built_in_layers(network, dataset)
    assert blocks is not None
    assert [block.half_output_bytes for block in blocks] == [output for _, output, _ in measured]
    saved = sum(saved for *_, saved in measured)
    assert sum(block.half_saved_bytes for block in blocks) == pytest.approx(saved, rel=0.01)


def test_a_layer_of_a_vit_keeps_five_quarters_of_half_as_much_in_half_precision() -> None:
    """Bytes of an item of width h; norms read float32, and each product copies what it reads."""
    items = 197 * 768
    heads = (3 * 2 + 3 * 2 + 2) * items  # copies for query, key and value; these; the mixture
    wide = (2 + 4 * 2 + 4 * 2) * items  # a copy for the first product, what GELU reads and gives
    blocks = layer_table.built_in_layers("vit-base", "imagenet")
    assert blocks is not None
    layer = next(block for block in blocks if block.name == "layer_3")
    expected = 2 * 4 * items + heads + wide
    assert layer.half_saved_bytes == pytest.approx(expected, rel=0.01)
    assert layer.half_saved_bytes == pytest.approx(1.25 * layer.saved_bytes / 2, rel=0.01)


def test_a_norm_of_half_precision_keeps_what_it_reads_in_float32() -> None:
    """As on GPUs; a processor's autocast would leave it as it is."""
    with torch.device("meta"):
        network = nn.Sequential(
            OrderedDict(flat=nn.Flatten(), product=nn.Linear(784, 100), norm=nn.LayerNorm(100))
        )
    *_, norm = layer_rows(network, DATASETS["mnist"])
    assert norm[-2] == 4 * 100
    assert norm[-1] == pytest.approx(4 * 100, abs=2 * 4)  # and the mean and the deviation


class _Constant(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shift = torch.zeros(28, device="meta")

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(images + self.shift)


def test_half_of_the_bytes_count_where_a_network_has_values_beside_its_weights() -> None:
    (row,) = {row[-4:] for row in layer_rows(nn.Sequential(_Constant()), DATASETS["mnist"])} - {
        (0, 0, 0, 0)
    }
    assert [2 * half for half in row[2:]] == [*row[:2]]


class _Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.MultiheadAttention(28, 2, batch_first=True)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        tokens = images.flatten(1, 2)
        outputs: torch.Tensor = self.heads(tokens, tokens, tokens, need_weights=False)[0]
        return outputs


def test_attention_of_torch_is_one_operation_too() -> None:
    with torch.device("meta"):
        network = nn.Sequential(OrderedDict(attending=_Attending()))
    rows = [row for row in layer_rows(network, DATASETS["mnist"]) if row[1] == "attention"]
    assert [(operations, read) for _, _, operations, read, *_ in rows] == [(4 * 28**3, 3 * 28**2)]


def test_grouped_and_transposed_convolutions_count_what_they_multiply() -> None:
    depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False)
    up = nn.ConvTranspose2d(8, 4, 2, stride=2, bias=False)
    layers = OrderedDict(first=nn.Conv2d(1, 8, 1), depthwise=depthwise, up=up)
    expected = 2 * 28 * 28 * (2 * 8 + 3 * 8 * 9 + 3 * 8 * 4 * 4)
    assert step_flops(nn.Sequential(layers), DATASETS["mnist"]) == expected


class _Recomputed(nn.Module):
    """Two layers whose activations are computed again in the backward pass."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.layers, self.reentrant = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), reentrant

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = checkpoint(self.layers, inputs, use_reentrant=self.reentrant)
        return outputs


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_a_network_recomputes_does_not_count(reentrant: bool) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(784, 8), _Recomputed(reentrant))
    assert step_flops(network, DATASETS["mnist"]) == 2 * (2 * 784 * 8 + 3 * 2 * 8 * 8)


def test_frozen_weights_need_no_gradient() -> None:
    features = 28 * 28
    network = nn.Sequential(nn.Flatten(), nn.Linear(features, 5), nn.Linear(5, 3))
    network[1].requires_grad_(False)
    assert step_flops(network, DATASETS["mnist"]) == 2 * (features * 5 + 2 * 15)
    assert step_flops(network.requires_grad_(False), DATASETS["mnist"]) == 2 * (features * 5 + 15)


@pytest.mark.parametrize(
    ("network", "dataset"),
    [
        ("mobilenetv2", "mnist"),
        ("cosmoflow", "cosmoflow"),
        ("gpt-tiny", "tokens"),
        ("mlp", "mnist"),
    ],
)
def test_the_table_has_what_a_step_counts(network: str, dataset: str) -> None:
    spec = DATASETS[dataset]
    assert training_flops(network, spec) == step_flops(skeleton(network, spec), spec)


class OnlyOnCpu(nn.Module):
    """A layer that the device "meta" cannot compute."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs * float(inputs.sum() == 0)


def only_on_cpu(_spec: object) -> nn.Sequential:
    return nn.Sequential(OnlyOnCpu(), nn.Flatten(), nn.Linear(784, 10))


def test_what_meta_cannot_run_is_counted_on_the_cpu() -> None:
    before = torch.get_rng_state()
    assert training_flops(f"{__name__}:only_on_cpu", DATASETS["mnist"]) == 2 * 2 * 784 * 10
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("def make(): return nn.Linear(1, 1)", "it is called with one DatasetSpec"),
        ("make = nn.Flatten()", "is a network itself; name a function"),
        ("def make(spec): return nn.Sequential(nn.Flatten(), nn.Linear(3072, 7))", "not (N, 7)"),
    ],
)
def test_a_users_network_that_does_not_fit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, sentence: str
) -> None:
    (tmp_path / "unfit.py").write_text(f"from torch import nn\n{source}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "unfit", raising=False)
    with pytest.raises(SystemExit) as ended, redirect_stderr(io.StringIO()) as errors:
        main("unfit:make", "cifar10")
    assert ended.value.code == REFUSED
    assert sentence in errors.getvalue()


class Recurrent(nn.Module):
    """The last state of an LSTM that reads an image row by row."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(28, 10, batch_first=True)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.lstm(inputs.squeeze(1))[0][:, -1]


def recurrent(_spec: object) -> nn.Sequential:
    return nn.Sequential(Recurrent())


def partly_frozen(_spec: object) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 9).requires_grad_(False), nn.Linear(9, 10))


@pytest.mark.parametrize(
    ("network", "why"), [(recurrent, "layer 0.lstm"), (partly_frozen, "layer 1 ")]
)
def test_what_operations_do_not_tell_the_time_of_is_refused(network, why, capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main(f"{__name__}:{network.__name__}", "mnist")
    assert ended.value.code == REFUSED
    errors = capsys.readouterr().err
    assert "do not tell how long" in errors
    assert why in errors


class FixedPlaces(nn.Module):
    """Adds a table that is not trained, as sinusoids of places are."""

    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.zeros(784), requires_grad=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + self.places


def with_fixed_places(_spec: object) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), FixedPlaces(), nn.Linear(784, 10))


def test_a_frozen_table_is_kept_and_not_sent(capsys) -> None:
    main(f"{__name__}:with_fixed_places", "mnist")
    rows = {row["block"]: row for row in csv.DictReader(io.StringIO(capsys.readouterr().out))}
    assert (rows["1"]["tensor_bytes"], rows["1"]["buffer_bytes"]) == ("", str(784 * 4))


TALKING = """
import os
from torch import nn
print("this module talks")
def make(spec):
    os.write(1, b"caf\\xe9\\n")
    print("building,a,network")
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
"""


@pytest.mark.slow
def test_what_a_users_module_prints_is_no_row(tmp_path, monkeypatch) -> None:
    (tmp_path / "talking.py").write_text(TALKING)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setattr(layer_table, "COUNTED", tmp_path / "kept")
    assert [block.name for block in layer_table.layers_of("talking:make", "mnist")] == ["0", "1"]
