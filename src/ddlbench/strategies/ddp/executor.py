"""Executor of DistributedDataParallel, over gloo (CPU) or NCCL (CUDA), and its hooks.

In the recorded step a communication hook starts the all-reduces of DDP's buckets, as only a hook
sees when they begin and end::

    process    | forward | backward              | wait | update |
    buckets                  |-- 0 --|-- 1 --|-- 2 -----|

A bucket's span begins when its last gradient is ready. A sharded optimiser's broadcasts are the
span ``gather``.

DDP calls a communication hook when a bucket of gradients is full, to average it::

    none    | gradients / W |------- all-reduce -------|
    fp16    | fp16 | / W |--- all-reduce ---| fp32 |           half the bytes
    powersgd  factors of low rank, see the descriptor

Source: ``torch/distributed/algorithms/ddp_comm_hooks/``, torch 2.13.
"""

# Without deferred annotations: DDP compares the types in a hook's signature with its own.

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from ddlbench.experiment.site import Accelerator
from ddlbench.planning.step import DDP_FIRST_BUCKET_BYTES
from ddlbench.planning.workload import DEFAULT_BUCKET_BYTES
from ddlbench.strategies.accumulation import AccumulatingExecutor
from ddlbench.strategies.ddp.descriptor import EXACT_STEPS, MIN_COMPRESSION_RATE, DdpOptions
from ddlbench.strategies.executor import Unsupported
from ddlbench.strategies.process_group import join_all
from ddlbench.strategies.timing import SpanRecorder
from ddlbench.strategies.training import state_tensors

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

    return hook.reduce(bucket).then(done)


def average(bucket: dist.GradBucket) -> Averaged:
    """As DDP does itself."""
    gradients = bucket.buffer().div_(dist.get_world_size())
    work = dist.all_reduce(gradients, async_op=True)
    assert work is not None
    return work.get_future().then(lambda future: future.value()[0])


def halved(bucket: dist.GradBucket) -> Averaged:
    """Sum gradients as fp16; values beyond 65504 become infinite."""
    assert dist.group.WORLD is not None
    return fp16_compress_hook(dist.group.WORLD, bucket)


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

    def load_state_dict(self, state: Mapping[str, Any], device: torch.device) -> None:
        """Restore a :meth:`state_dict`; buckets, which are on ``device``, must be the same."""
        self.state.iter = int(state["steps"])
        self.state.rng = np.random.RandomState(_SEED)
        for name, by_bucket in self._kept.items():
            by_bucket.clear()
            kept = state[name].items()
            by_bucket.update((int(index), value.to(device, copy=True)) for index, value in kept)


class DdpExecutor(AccumulatingExecutor):
    """One replica for each process.

    Each replica keeps its own batch-norm statistics (``broadcast_buffers=False``), as with Horovod.
    Otherwise DDP would send them at every step, which Horovod does not.
    """

    def place(self, network: nn.Sequential) -> nn.Module:
        device = self.context.devices[0]
        join_all(self.context, self.process, self.plan.world_size)
        details = DdpOptions.of(self.plan)
        replica = DistributedDataParallel(
            network.to(device),
            device_ids=[device] if device.type == "cuda" else None,
            **_bucket_sizes(*details.caps(Accelerator.shrunk)),
            broadcast_buffers=False,
            # DDP would wait for ever for the gradient of a weight that a step does not use.
            find_unused_parameters=bool(self.context.traits.unused),
            gradient_as_bucket_view=details.bucket_view,
        )
        self.low_rank: LowRank | None = None
        if details.hook == "powersgd":
            self.low_rank = LowRank(details.hook_rank)
            replica.register_comm_hook(Hook(self.spans, self.low_rank), called)
        elif details.hook == "fp16":
            replica.register_comm_hook(Hook(self.spans, halved), called)
        return replica

    def compiled_modules(self) -> list[nn.Module]:
        """The network in its wrapper; torch cuts it where buckets end, so that they leave early."""
        assert isinstance(self.module, DistributedDataParallel)
        return [self.module.module]

    def zero_grad(self) -> None:
        # A dropped view would be made anew outside of its bucket.
        self.optimizer.zero_grad(set_to_none=not DdpOptions.of(self.plan).bucket_view)

    def before_the_last(self) -> AbstractContextManager[None]:
        """Gradients leave in the last micro-batch's backward pass."""
        assert isinstance(self.module, DistributedDataParallel)
        no_sync: AbstractContextManager[None] = self.module.no_sync()
        return no_sync

    def state_dict(self) -> dict[str, Any]:
        replica = self.module.module
        assert isinstance(replica, nn.Module)
        return {"network": replica.state_dict(), "optimizer": self.own_optimizer.state_dict()}

    def make_optimizer(self) -> torch.optim.Optimizer:
        if DdpOptions.of(self.plan).shard == "none":
            return super().make_optimizer()
        parameters = list(self.module.parameters())
        kinds = {parameter.dtype for parameter in parameters}
        if len(kinds) > 1:
            names = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in kinds))
            raise Unsupported(
                f"a sharded optimiser needs weights of one type, and this network has {names}; "
                "write shard: none"
            )
        # Only ranks that shard wait for its import, which takes a second.
        from ddlbench.strategies.ddp.sharded_optimizer import RecordedSharded  # noqa: PLC0415

        return RecordedSharded(self.spans, self.plan.cell, parameters)

    @property
    def own_optimizer(self) -> torch.optim.Optimizer:
        """The optimiser that holds this rank's states."""
        inner: torch.optim.Optimizer = getattr(self.optimizer, "optim", self.optimizer)
        return inner

    def checkpoint_state(self) -> dict[str, Any]:
        """Weights, the optimiser's states that this rank keeps, and PowerSGD's state."""
        module, optimizer = self.module.state_dict(), self.own_optimizer.state_dict()
        state = {"module": module, "optimizer": optimizer, **self.scale_state()}
        return state if self.low_rank is None else {**state, "hook": self.low_rank.state_dict()}

    def load_checkpoint_state(self, state: Mapping[str, Any]) -> None:
        self.module.load_state_dict(state["module"])
        self.own_optimizer.load_state_dict(state["optimizer"])
        self.load_scale_state(state)
        if self.low_rank is not None:
            self.low_rank.load_state_dict(state["hook"], self.context.devices[0])

    def persistent_tensors(self) -> Iterator[Tensor]:
        yield from super().persistent_tensors()
        if self.low_rank is not None:
            yield from self.low_rank.tensors()
        if self.own_optimizer is not self.optimizer:
            yield from state_tensors(self.own_optimizer)

    def details(self) -> dict[str, Any]:
        first_bytes, _ = DdpOptions.of(self.plan).caps(Accelerator.shrunk)
        return {**super().details(), "first_bucket_bytes": first_bytes}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Register the hook, which cannot be removed: no step may be measured afterwards."""
        assert isinstance(self.module, DistributedDataParallel)
        if DdpOptions.of(self.plan).hook == "none":
            self.module.register_comm_hook(Hook(self.spans, average), called)
        yield


_OWN_SIZES = "bucket_cap_mb_list"


def _bucket_sizes(first_bytes: int, cap_bytes: int) -> dict[str, Any]:
    """Arguments that give DDP's first bucket and the later ones these sizes."""
    if first_bytes == cap_bytes:  # a number is also the size of the first bucket
        return {"bucket_cap_mb": cap_bytes / 2**20}
    if (first_bytes, cap_bytes) == (DDP_FIRST_BUCKET_BYTES, DEFAULT_BUCKET_BYTES):
        return {}
    if _OWN_SIZES not in inspect.signature(DistributedDataParallel).parameters:
        raise Unsupported(
            f"torch {torch.__version__} cannot divide DDP's first bucket as accelerator.shrink "
            f"wants; take a release with {_OWN_SIZES}, or write a bucket_cap_bytes for all buckets",
            code="package_missing",
        )
    return {_OWN_SIZES: [first_bytes / 2**20, cap_bytes / 2**20]}
