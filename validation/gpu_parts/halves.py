"""Of part 2: the halves of a zero-bubble backward pass, timed for each block.

::

    whole   | ------------ backward ------------ |
    halves  | -- of the inputs -- | -- of the weights -- |
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.profile import read_profile
from ddlbench.networks import build
from ddlbench.planning.workload import Workload, backward_shares
from ddlbench.profiling.blocks import Block, blocks_of, clear_gradients, next_input
from ddlbench.profiling.timers import Marks, marks_on
from ddlbench.strategies.pipelining.stage import StageModule
from ddlbench.strategies.training import apply_torch_settings
from gpu_parts.study import Study, Verdict, in_process

__all__ = ["halves"]

_PASSES = 10


def halves(study: Study, cell: Cell, path: Path) -> Verdict:
    """The two halves of a zero-bubble backward, timed by block, beside the rule for them.

    Args:
        study: of the part.
        cell: whose network and batch size are timed.
        path: of the network's profile, which the rule needs.
    """
    workload = Workload(read_profile(path).to_dict(), str(path))
    batch = cell.batch_size
    passes = 3 if study.small else _PASSES
    rows = in_process(_timed_halves, cell.to_dict(), study.device, batch, passes)
    layers = workload.layers_by_block
    # Not the blocks' own shares: of these the profile has timed what it could.
    by_rule = {
        block.name: backward_shares(layers.get(index, []))
        for index, block in enumerate(workload.blocks)
    }
    for row in rows:
        row |= {f"{half}_by_rule": share for half, share in by_rule[row["block"]].items()}
    whole_s = sum(row["backward_s"] for row in rows)
    figures = {
        "batch": batch,
        "blocks": len(rows),
        "backward_s": whole_s,
        "input_share": sum(row["input_s"] for row in rows) / whole_s,
        "weight_share": sum(row["weight_s"] for row in rows) / whole_s,
        "input_share_by_rule": _weighted(rows, "input_share_by_rule") / whole_s,
        "weight_share_by_rule": _weighted(rows, "weight_share_by_rule") / whole_s,
    }
    passed = figures["input_share"] > 0 and figures["weight_share"] > 0
    return Verdict(passed, figures, "" if passed else "a half took no time", rows=tuple(rows))


def _weighted(rows: Iterable[Mapping[str, Any]], share: str) -> float:
    return sum(row[share] * row["backward_s"] for row in rows)


def _timed_halves(
    cell: dict[str, Any], device_kind: str, batch: int, passes: int
) -> list[dict[str, Any]]:
    """Median seconds of each block's backward, whole and in halves; in a process of its own."""
    wanted = Cell.from_dict(cell)
    apply_torch_settings(wanted)
    device = torch.device(device_kind, 0) if device_kind == "cuda" else torch.device("cpu")
    spec = DATASETS[wanted.dataset]
    network = build(wanted.network, spec, wanted.seed).to(device).train()
    inputs = torch.randn(batch, *spec.shape, device=device)
    halves = []
    for block in blocks_of(network, wanted.precision, device, resident=True):
        # A stage's input wants a gradient, and so has a half of its own: the first block's not.
        if inputs.requires_grad:
            halves.append(_halves_of(block, inputs, passes))
        inputs = next_input(block.forward(inputs))
    return [entry for entry in halves if entry is not None]


def _halves_of(block: Block, inputs: torch.Tensor, passes: int) -> dict[str, Any] | None:
    module = StageModule(torch.nn.Sequential(block.module))
    if not any(p.requires_grad for p in module.parameters()):
        return None
    samples: dict[str, list[float]] = {"backward_s": [], "input_s": [], "weight_s": []}
    for number in range(passes + 2):  # the first two warm up
        marks = marks_on(inputs.device, 2)
        spans = _one_pass(module, inputs, marks)
        if number >= 2:
            for name, span in spans.items():
                samples[name].append(marks.busy_s(*span))
    return {"block": block.name, **{k: statistics.median(v) for k, v in samples.items()}}


def _one_pass(
    module: StageModule, inputs: torch.Tensor, marks: Marks
) -> dict[str, tuple[int, int]]:
    """A whole backward, then one in halves as torch's zero-bubble schedules have them."""
    from torch.distributed.pipelining import _backward  # noqa: PLC0415 - torch may rename it

    leaf = inputs.detach().requires_grad_()
    clear_gradients(module)
    outputs = module(leaf)
    gradient = torch.randn_like(outputs)
    begin = marks.mark()
    torch.autograd.backward(outputs, gradient)
    whole = begin, marks.mark()
    leaf = inputs.detach().requires_grad_()
    clear_gradients(module)
    outputs = module(leaf)
    begin = marks.mark()
    _, groups = _backward.stage_backward_input([outputs], [gradient], [leaf], module.parameters())
    between = marks.mark()
    _backward.stage_backward_weight(module.parameters(), groups)
    end = marks.mark()
    marks.finish()
    return {"backward_s": whole, "input_s": (begin, between), "weight_s": (between, end)}
