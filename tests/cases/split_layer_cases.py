"""Split layers beside the same layers unsplit, in real gloo processes; float64 throughout."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ddlbench.networks.block_forms import TensorForm
from ddlbench.strategies.executor import Context
from ddlbench.strategies.process_group import groups_of
from ddlbench.strategies.splits.convert import Grid, split_rows, split_weights
from ddlbench.strategies.splits.descriptor import grid_of
from ddlbench.strategies.splits.layout import trace
from ddlbench.strategies.splits.shard_group import GridAxis, ShardGroup, axes_of, join_shard_group
from ddlbench.strategies.splits.weights import WeightSplit
from ddlbench.strategies.timing import SpanRecorder

CPU = torch.device("cpu")
MAKERS = {
    "conv1": nn.Conv1d,
    "conv2": nn.Conv2d,
    "conv3": nn.Conv3d,
    "max2": nn.MaxPool2d,
    "max3": nn.MaxPool3d,
    "mean2": nn.AvgPool2d,
    "mean3": nn.AvgPool3d,
    "norm2": nn.BatchNorm2d,
    "norm3": nn.BatchNorm3d,
    "relu": nn.ReLU,
    "linear": nn.Linear,
}


@dataclass(frozen=True)
class Case:
    """Layers one after the other.

    Args:
        split: a dimension, "both", "filter" or "channel".
        shape: (N, C, ...).
        layers: (key of MAKERS, arguments).
    """

    split: str
    shape: tuple[int, ...]
    layers: tuple[tuple[str, dict[str, Any]], ...]

    def network(self) -> nn.Sequential:
        torch.manual_seed(7)
        layers = [MAKERS[kind](**arguments) for kind, arguments in self.layers]
        return nn.Sequential(*layers).double()


@dataclass(frozen=True)
class Cases:
    """What one world of ranks does with one process group."""

    id: str
    world_size: int
    cases: tuple[Case, ...]


def fake_group(size: int, rank: int = 0) -> ShardGroup:
    """A group that plans and never speaks."""
    return ShardGroup(rank, size, None, SpanRecorder(CPU))


def fake_grid(split: str, devices: int) -> Grid:
    sizes = grid_of(split, devices).items()
    return Grid(fake_group(devices), tuple(GridAxis(dim, fake_group(size)) for dim, size in sizes))


def traced(network: nn.Sequential, shape: tuple[int, ...]) -> Any:
    dtype = next((p.dtype for p in network.parameters()), torch.float64)
    return trace(network, TensorForm(shape, dtype), CPU)


def compare_all(work: Cases, rank: int, store: dist.Store | None) -> dict:
    """Every case on this rank; raises at the first that differs."""
    store = store or dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=rank, world_size=work.world_size)
    groups = groups_of(work.world_size, work.world_size)
    spans = SpanRecorder(torch.device("cpu"))
    context = Context((CPU,))
    group = join_shard_group(groups, rank, spans, context)
    grids: dict[str, Grid] = {}
    for case in work.cases:
        try:
            if case.split in ("filter", "channel"):
                _compare_weights(case, group)
                continue
            if case.split not in grids:
                sizes = grid_of(case.split, work.world_size)
                axes = axes_of(groups, sizes).items()
                made = tuple(
                    GridAxis(dim, join_shard_group(r, rank, spans, context)) for dim, r in axes
                )
                grids[case.split] = Grid(group, made)
            _compare_rows(case, grids[case.split])
        except BaseException as error:
            raise AssertionError(f"{case}: {error}") from error
    dist.barrier()
    dist.destroy_process_group()
    return {"wait_s": spans.wait_s}


def _inputs(case: Case, turn: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(turn)
    return torch.randn(case.shape, generator=generator, dtype=torch.float64)


def _pass(network: nn.Module, inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Output, and gradient of the input for a gradient of the output that is always the same."""
    inputs = inputs.clone().requires_grad_()
    network.zero_grad()
    outputs = network(inputs)
    generator = torch.Generator().manual_seed(99)
    given = torch.randn(outputs.shape, generator=generator, dtype=torch.float64)
    outputs.backward(given)
    assert inputs.grad is not None
    return outputs.detach(), inputs.grad


def _close(actual: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9, msg=lambda m: f"{what}: {m}")


def _compare_rows(case: Case, grid: Grid) -> None:
    plain, network = case.network(), case.network()
    rows = split_rows(network, traced(network, case.shape), grid)
    for turn in range(2):  # running statistics follow
        whole = _inputs(case, turn)
        expected, input_gradient = _pass(plain, whole)
        actual, own_gradient = _pass(network, grid.shard(whole))
        _close(actual, expected, "output")
        _close(own_gradient, grid.shard(input_gradient), "gradient of the input")
        for parameter in rows.parameters:
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
        actual_parameters = dict(network.named_parameters())
        for name, parameter in plain.named_parameters():
            _close(actual_parameters[name].grad, parameter.grad, f"gradient of {name}")
    actual_buffers = network.state_dict()
    for name, value in plain.state_dict().items():
        _close(actual_buffers[name], value, name)
    plain.eval()
    network.eval()
    whole = _inputs(case, 5)
    _close(network(grid.shard(whole)), plain(whole), "evaluation")


def _compare_weights(case: Case, group: ShardGroup) -> None:
    plain, network = case.network(), case.network()
    split_weights(network, traced(network, case.shape), group, case.split)
    whole = _inputs(case, 0)
    expected, input_gradient = _pass(plain, whole)
    actual, own_gradient = _pass(network, whole)
    _close(actual, expected, "output")
    _close(own_gradient, input_gradient, "gradient of the input")
    for name, layer in network.named_modules():
        if not isinstance(layer, WeightSplit):
            continue
        original = plain.get_submodule(name)
        for part_name, (of, place) in layer._places.items():
            gradient = getattr(original, of).grad[place]
            _close(getattr(layer, part_name).grad, gradient, f"gradient of {name}.{of}")
        for key, value in layer.whole_state().items():
            assert torch.equal(value, getattr(original, key)), f"whole {name}.{key}"
    others = {n: p for n, p in network.named_parameters() if "_" not in n.rpartition(".")[2]}
    for name, parameter in others.items():
        _close(parameter.grad, plain.get_parameter(name).grad, f"gradient of {name}")


# Cases at random ---------------------------------------------------------------------------------


def random_rows(number: int, world_size: int, seed: int) -> list[Case]:
    """Single layers over rows: kernels, strides, dilations, groups, paddings, odd extents."""
    draw = random.Random(seed)
    cases: list[Case] = []
    while len(cases) < number:
        dims = draw.choice([2, 2, 3])
        kinds = ["conv", "conv", "depthwise", "max", "mean", "norm"]
        split = draw.choice(["height", "width", "both", *(["depth"] if dims == 3 else [])])
        sizes = grid_of(split, world_size)
        extents = [
            draw.randint(sizes.get(place, 1) + 1, sizes.get(place, 1) + 9)
            for place in range(-dims, 0)
        ]
        channels = draw.choice([2, 4, 6])
        shape = (2, channels, *extents)
        case = Case(split, shape, (_random_layer(draw, draw.choice(kinds), dims, channels),))
        if _fits(case, sizes):
            cases.append(case)
    return cases


def _random_layer(
    draw: random.Random, kind: str, dims: int, channels: int
) -> tuple[str, dict[str, Any]]:
    def each(first: int, last: int) -> tuple[int, ...]:
        return tuple(draw.randint(first, last) for _ in range(dims))

    if kind == "norm":
        return f"norm{dims}", {
            "num_features": channels,
            "momentum": draw.choice([0.1, 0.7, None]),
            "affine": draw.random() < 0.8,
            "track_running_stats": draw.random() < 0.8,
        }
    kernel, stride = each(1, 5 if dims == 2 else 3), each(1, 3)
    halves = tuple(draw.randint(0, size // 2) for size in kernel)
    if kind in ("max", "mean"):
        values = {"kernel_size": kernel, "stride": stride, "padding": halves}
        values["ceil_mode"] = draw.random() < 0.5
        if kind == "max":
            values["dilation"] = each(1, 2)
        else:
            values["count_include_pad"] = draw.random() < 0.5
            values["divisor_override"] = draw.choice([None, None, 3])
        return f"{kind}{dims}", values
    groups = channels if kind == "depthwise" else draw.choice([1, 2, channels])
    values = {
        "in_channels": channels,
        "out_channels": groups * draw.choice([1, 2, 3]),
        "kernel_size": kernel,
        "stride": stride,
        "padding": draw.choice([halves, each(0, 3)]),
        "dilation": each(1, 2),
        "groups": groups,
        "bias": draw.random() < 0.5,
    }
    if draw.random() < 0.2:
        values.update(stride=1, padding="same")
    return f"conv{dims}", values


def _fits(case: Case, sizes: dict[int, int]) -> bool:
    """Whether torch takes it, and every rank has an output."""
    try:
        (layer,) = traced(case.network(), case.shape)
    except (RuntimeError, ValueError):
        return False
    outputs = layer.shapes[1]
    return min(outputs) > 0 and all(outputs[dim] >= size for dim, size in sizes.items())


def random_weights(number: int, world_size: int, seed: int) -> list[Case]:
    """Two layers by filters or channels: parts that begin and end within groups, odd numbers."""
    draw = random.Random(seed)
    cases = []
    for _ in range(number):
        by = draw.choice(["filter", "channel"])
        if draw.random() < 0.25:
            sizes = [draw.randint(world_size, 11) for _ in range(3)]
            pairs = ((sizes[0], sizes[1]), (sizes[1], sizes[2]))
            layers = tuple(
                ("linear", {"in_features": a, "out_features": b, "bias": draw.random() < 0.5})
                for a, b in pairs
            )
            cases.append(Case(by, draw.choice([(3, sizes[0]), (2, 3, sizes[0])]), layers))
            continue
        groups = draw.choice([1, 2, 3, 5])
        inner = groups * draw.randint(-(-world_size // groups), 4 + world_size // groups)
        outer = groups * draw.randint(-(-world_size // groups), 4 + world_size // groups)
        first = ("conv2", {"in_channels": 3, "out_channels": inner, "kernel_size": 3})
        second = {
            "in_channels": inner,
            "out_channels": outer,
            "kernel_size": draw.choice([1, 2, 3]),
            "stride": draw.choice([1, 2]),
            "dilation": draw.choice([1, 2]),
            "padding": draw.choice([0, 1, "same"]),
            "padding_mode": draw.choice(["zeros", "zeros", "circular"]),
            "groups": groups,
            "bias": draw.random() < 0.5,
        }
        if second["padding"] == "same":
            second["stride"] = 1
        layers = (first, ("norm2", {"num_features": inner}), ("relu", {}), ("conv2", second))
        cases.append(Case(by, (2, 3, 9, 8), layers))
    return cases
