"""Each leaf operation of a block alone, forward and backward, on the input it had in the block.

Only blocks of several operations are taken apart; a block that is one operation was timed as a
block. A module that is called twice is two operations. What a block does without a module (the sum
of a residual block, a function of torch.nn.functional) is in the block's time and in no leaf's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from ddlbench.profiling.clock import Marks
from ddlbench.profiling.pieces import Block, leaf_modules, next_input
from ddlbench.profiling.samples import Samples, Span

__all__ = ["Call", "recorded", "time_leaves"]


@dataclass(frozen=True)
class Call:
    """One call of a leaf module, with copies of what it was given."""

    name: str
    module: nn.Module
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


def time_leaves(
    blocks: Sequence[Block],
    inputs: Tensor,
    new_marks: Callable[[], Marks],
    count: Callable[[float, int], int],
    samples: Samples,
) -> None:
    """Go through the blocks; warm their leaves up, then time them.

    Args:
        blocks: of the network.
        inputs: (N, C, H, W); N is the batch size that is entered.
        new_marks: makes marks.
        count: seconds of one pass over a block's leaves, and the block's index, to passes.
        samples: gets the seconds, by the leaf's name.
    """
    batch_size = len(inputs)
    for block in blocks:
        with block.on_device() as device:
            inputs = inputs.detach().to(device).requires_grad_(inputs.requires_grad)
            with recorded(block) as calls:
                outputs = block.forward(inputs)
            following = next_input(outputs)
            del outputs
            if not block.is_leaf:
                number = 1
                for warm in (True, False):
                    marks = new_marks()
                    spans = [[_run(c, block, marks) for c in calls] for _ in range(number)]
                    marks.finish()
                    if warm:
                        number = count(_wall_s(spans, marks), block.index)
                        continue
                    for one_pass in spans:
                        for call, (forward, backward) in zip(calls, one_pass, strict=True):
                            samples.add(call.name, "forward", batch_size, marks, forward)
                            samples.add(call.name, "backward", batch_size, marks, backward)
            inputs = following


@contextmanager
def recorded(block: Block) -> Iterator[list[Call]]:
    """The calls of a block's leaves while it runs, in order."""
    calls: list[Call] = []

    def hook_of(name: str) -> Callable[..., None]:
        times = 0

        def hook(module: nn.Module, arguments: Any, keywords: Any) -> None:
            nonlocal times
            times += 1
            own = name if times == 1 else f"{name}#{times}"
            calls.append(Call(own, module, _copied(arguments), _copied(keywords)))

        return hook

    handles = [
        module.register_forward_pre_hook(hook_of(name), with_kwargs=True)
        for name, module in leaf_modules(block)
    ]
    try:
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def _run(call: Call, block: Block, marks: Marks) -> tuple[Span, Span | None]:
    """One pass; copies are made outside the spans, as an operation may overwrite its input."""
    given = [t for t in tree_leaves((call.arguments, call.keywords)) if isinstance(t, Tensor)]
    arguments, keywords = tree_map(_fresh, (call.arguments, call.keywords))
    fresh = [t for t in tree_leaves((arguments, keywords)) if isinstance(t, Tensor)]
    wanted = [new for old, new in zip(given, fresh, strict=True) if old.requires_grad]
    wanted += [p for p in call.module.parameters() if p.requires_grad]
    begin = marks.mark()
    with _arithmetic(block):
        outputs = call.module(*arguments, **keywords)
    forward = (begin, marks.mark())
    results = [t for t in tree_leaves(outputs) if isinstance(t, Tensor) and t.requires_grad]
    if not results or not wanted:
        return forward, None
    gradients = [torch.randn_like(result) for result in results]
    begin = marks.mark()
    torch.autograd.grad(results, wanted, gradients, allow_unused=True)
    return forward, (begin, marks.mark())


def _fresh(value: Any) -> Any:
    """A copy that autograd sees as made by an earlier operation."""
    return value.clone() if isinstance(value, Tensor) else value


def _copied(values: Any) -> Any:
    def copy(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return value.detach().clone().requires_grad_(value.requires_grad)

    return tree_map(copy, values)


def _arithmetic(block: Block) -> AbstractContextManager[Any]:
    if block.autocast:
        return torch.autocast(block.device.type, dtype=torch.bfloat16)
    return nullcontext()


def _wall_s(spans: list[list[tuple[Span, Span | None]]], marks: Marks) -> float:
    pairs = [span for one in spans for pair in one for span in pair if span is not None]
    return sum(marks.wall_s(*span) for span in pairs)
