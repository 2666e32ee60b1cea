"""Communication hooks: what DDP calls when a bucket of gradients is full, to average it.

::

    none    | gradients / W |------- all-reduce -------|
    fp16    | fp16 | / W |--- all-reduce ---| fp32 |           half the bytes
    powersgd  :mod:`ddlbench.strategies.ddp.low_rank`

Source: ``torch/distributed/algorithms/ddp_comm_hooks/``, torch 2.13.
"""

# Without deferred annotations: DDP compares the types in a hook's signature with its own.

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook

from ddlbench.strategies.ddp.low_rank import EXACT_STEPS, MIN_COMPRESSION_RATE
from ddlbench.strategies.timing import SpanRecorder

Averaged = torch.futures.Future[torch.Tensor]


@dataclass
class Hook:
    """A hook that records its spans; ``reduce`` averages a bucket over all ranks in place."""

    spans: SpanRecorder
    reduce: Callable[[dist.GradBucket], Averaged]


def called(hook: Hook, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average a bucket; a span lasts from its last gradient to the end of its all-reduce."""
    spans = hook.spans
    if not spans.enabled:
        return hook.reduce(bucket)
    begin = spans.now()
    if bucket.is_last():
        spans.phase("all_reduce_wait")
    kind = f"all_reduce_bucket {bucket.index()}.0"

    def done(future: Averaged) -> torch.Tensor:
        spans.beside(kind, begin, spans.now())
        return future.value()

    averaged: Averaged = hook.reduce(bucket).then(done)
    return averaged


def average(bucket: dist.GradBucket) -> Averaged:
    """As DDP does itself."""
    gradients = bucket.buffer().div_(dist.get_world_size())
    work = dist.all_reduce(gradients, async_op=True)
    assert work is not None
    averaged: Averaged = work.get_future().then(lambda future: future.value()[0])
    return averaged


def halved(bucket: dist.GradBucket) -> Averaged:
    """Sum gradients as fp16; values beyond 65504 become infinite."""
    assert dist.group.WORLD is not None
    averaged: Averaged = fp16_compress_hook(dist.group.WORLD, bucket)
    return averaged


_SEED = 0  # of the first factors, the same on all ranks


class LowRank:
    """PowerSGD with error feedback and warm start, and the state that it keeps of each bucket.

    A factor has ``rank`` columns.
    """

    def __init__(self, rank: int) -> None:
        self.state = PowerSGDState(
            process_group=None,
            matrix_approximation_rank=rank,
            start_powerSGD_iter=EXACT_STEPS,
            min_compression_rate=MIN_COMPRESSION_RATE,
            orthogonalization_epsilon=1e-8,  # a gradient may be zero
            random_seed=_SEED,
        )

    def __call__(self, bucket: dist.GradBucket) -> Averaged:
        averaged: Averaged = powerSGD_hook(self.state, bucket)
        if bucket.buffer().device.type == "cpu":
            # Its callbacks wait for further all-reduces on gloo's threads. Those of several buckets
            # at once leave no thread to carry these out, and all ranks hang.
            averaged.wait()
        return averaged

    @property
    def _kept(self) -> dict[str, dict[int, torch.Tensor]]:
        """By bucket: what was not sent, and the factors."""
        state = self.state
        return {
            "errors": state.error_dict,
            "left": state.p_memory_dict,
            "right": state.q_memory_dict,
        }

    def tensors(self) -> Iterator[torch.Tensor]:
        """All that lives from step to step."""
        for by_bucket in self._kept.values():
            yield from by_bucket.values()

    def state_dict(self) -> dict[str, Any]:
        """The state that the next step depends on."""
        kept = {name: dict(sorted(values.items())) for name, values in self._kept.items()}
        return {"steps": self.state.iter, **kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a :meth:`state_dict`; buckets must be the same."""
        self.state.iter = int(state["steps"])
        self.state.rng = np.random.RandomState(_SEED)
        for name, by_bucket in self._kept.items():
            by_bucket.clear()
            by_bucket.update((int(index), value.clone()) for index, value in state[name].items())
