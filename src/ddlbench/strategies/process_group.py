"""The process groups of a cell's ranks, the first messages over them, and sums of gradients.

Groups use gloo (CPU) or NCCL (CUDA)::

    join_all        rank 0 .. n-1         once, before any other group
    every_rank      rank 0 .. n-1         the same ranks, with messages of their own
    side_by_side    | 0 1 | 2 3 | ...     one of several disjoint groups: the one of this rank

Their timeout is ``Context.patience_s``, because the libraries' own limits of some minutes are too
short for a step over a bad link. The supervisor ends a cell that hangs or lasts too long, and
reports which of the two it was.

Two ranks connect when they exchange their first message, and on CUDA both wait for the whole device
meanwhile. :func:`connect` sends these first messages one by one, before any receive is posted.

Executors whose weights are shared out as DTensors have a state that is whole for readers, and local
on disk::

    state_dict         whole weights     a collective: every rank gets all
    checkpoint_state   this rank's part  no message; only the same plan can read it back

A sum of gradients is one all-reduce for each bucket; all of them start at once::

    gradients   | a b | c d e | f |      each bucket is flattened into one row
    buckets     |--0--|---1---|-2-|      waited for in order; each sum is a view of its row
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddlbench.experiment.site import Accelerator
from ddlbench.planning.plan import Process
from ddlbench.planning.step import buckets
from ddlbench.planning.workload import DEFAULT_BUCKET_BYTES
from ddlbench.strategies.alone import backend_without_peers
from ddlbench.strategies.executor import Context, Executor

Channel = tuple[str, int, int]
"""Kind of its messages, the rank that sends, the rank that receives."""


def join_all(context: Context, process: Process, world_size: int) -> None:
    """Join the default group; every process of the cell calls this before its first collective."""
    device = context.devices[0]
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    if context.alone is not None:
        backend = backend_without_peers(context.alone)
    dist.init_process_group(
        backend=backend,
        store=context.store or dist.HashStore(),
        rank=process.rank,
        world_size=world_size,
        timeout=_patience(context),
    )


def every_rank(context: Context) -> dist.ProcessGroup:
    """Make another group of all ranks; every rank calls this."""
    group = dist.new_group(timeout=_patience(context))
    assert isinstance(group, dist.ProcessGroup)
    return group


def side_by_side(rank_groups: Sequence[Sequence[int]], context: Context) -> dist.ProcessGroup:
    """Make disjoint groups and return this rank's; every rank calls this with the same groups."""
    group, _ = dist.new_subgroups_by_enumeration(
        [list(ranks) for ranks in rank_groups], timeout=_patience(context)
    )
    assert isinstance(group, dist.ProcessGroup)
    return group


def _patience(context: Context) -> timedelta:
    return timedelta(seconds=context.patience_s)


def connect(
    channels: Iterable[Channel],
    rank: int,
    groups: Mapping[str, dist.ProcessGroup],
    device: torch.device,
) -> None:
    """Send one element over every channel of this rank.

    All ranks give the channels of all, in the same order, so that none deadlock.
    """
    for kind, source, target in channels:
        greeting = torch.zeros(1, device=device)
        if rank == source:
            dist.send(greeting, target, group=groups[kind])
        elif rank == target:
            dist.recv(greeting, source, group=groups[kind])


def send(tensor: Tensor, peer: int, group: dist.ProcessGroup, tag: int = 0) -> dist.Work:
    """Start to send; the tensor must not change until the send is complete."""
    work = dist.isend(tensor, peer, group=group, tag=tag)
    assert work is not None  # this rank is in the group
    return work


def receive(tensor: Tensor, peer: int, group: dist.ProcessGroup, tag: int = 0) -> dist.Work:
    """Post a receive into a tensor."""
    work = dist.irecv(tensor, peer, group=group, tag=tag)
    assert work is not None
    return work


Ranks = list[list[int]]
"""The ranks of each group; every rank is in exactly one."""


def groups_of(world_size: int, size: int) -> Ranks:
    """Groups of ``size`` neighbouring ranks."""
    return [list(range(start, start + size)) for start in range(0, world_size, size)]


def across(groups: Sequence[Sequence[int]]) -> Ranks:
    """Groups of the ranks that have the same place in each group."""
    return [list(same) for same in zip(*groups, strict=True)]


class ShardedStateExecutor(Executor):
    """Base of executors some of whose parameters are DTensors; the others are plain tensors."""

    def state_dict(self) -> dict[str, Any]:
        """Whole weights; a collective, which all processes call."""
        network = {
            name: value.full_tensor() if _is_sharded(value) else value
            for name, value in self.module.state_dict().items()
        }
        return {"network": network, "optimizer": self._local_optimizer_state()}

    def checkpoint_state(self) -> dict[str, Any]:
        module = {name: local(value) for name, value in self.module.state_dict().items()}
        state = {"module": module, "optimizer": self._local_optimizer_state()}
        return {**state, **self.scale_state()}

    def load_checkpoint_state(self, state: Mapping[str, Any]) -> None:
        current = self.module.state_dict()
        if current.keys() != state["module"].keys():
            raise ValueError("the checkpoint is of another network")
        with torch.no_grad():
            for name, value in current.items():
                local(value).copy_(state["module"][name])
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        whole = {
            int(number): {
                name: _like(parameters[int(number)], value) if isinstance(value, Tensor) else value
                for name, value in entry.items()
            }
            for number, entry in state["optimizer"]["state"].items()
        }
        self.optimizer.load_state_dict({**state["optimizer"], "state": whole})
        self.load_scale_state(state)

    def _local_optimizer_state(self) -> dict[str, Any]:
        whole = self.optimizer.state_dict()
        held = {
            number: {name: local(value) for name, value in entry.items()}
            for number, entry in whole["state"].items()
        }
        return {**whole, "state": held}

    def persistent_tensors(self) -> Iterator[Tensor]:
        return map(local, super().persistent_tensors())


def local(value: Any) -> Any:
    """This rank's share of a sharded tensor; anything else as it is."""
    return value.to_local() if _is_sharded(value) else value


def _is_sharded(value: Any) -> bool:
    """Whether it is a DTensor, whose import takes every rank 0.7 s: ranks without one do not."""
    return hasattr(value, "to_local")


def _like(parameter: Any, held: Tensor) -> Tensor:
    """A sharded tensor of the parameter's layout from this rank's share; else ``held``.

    An optimiser's count of steps is no share.
    """
    if not _is_sharded(parameter) or held.shape != parameter.to_local().shape:
        return held
    sharded: Tensor = type(parameter).from_local(
        held,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )
    return sharded


class GradientSum:
    """A sum that is under way from construction on.

    Args:
        gradients: of this rank; shapes are the same on all ranks of the group.
        group: the ranks.
        bucket_bytes: size of a bucket; a larger gradient has a bucket of its own. None takes the
            usual one.
        in_place: whether the sum may overwrite a gradient that is alone in its bucket; this saves a
            copy.
    """

    def __init__(
        self,
        gradients: Sequence[Tensor],
        group: dist.ProcessGroup | None,
        bucket_bytes: int | None = None,
        *,
        in_place: bool = False,
    ) -> None:
        if bucket_bytes is None:
            bucket_bytes = Accelerator.shrunk(DEFAULT_BUCKET_BYTES)
        sizes = [gradient.nbytes for gradient in gradients]
        numbers = buckets(sizes, bucket_bytes, [gradient.dtype for gradient in gradients])
        parts = [[gradients[index] for index in bucket] for bucket in numbers]
        self._shapes = [[gradient.shape for gradient in part] for part in parts]
        self._rows = [_flat(part, in_place) for part in parts]
        self._works = [dist.all_reduce(row, group=group, async_op=True) for row in self._rows]

    def wait(self, divisor: int = 1) -> Iterator[Tensor]:
        """Yield each gradient's sum divided by ``divisor``, in order; wait bucket by bucket."""
        for work, row, shapes in zip(self._works, self._rows, self._shapes, strict=True):
            work.wait()
            if divisor != 1:
                row.div_(divisor)
            pieces = row.split([shape.numel() for shape in shapes])
            for piece, shape in zip(pieces, shapes, strict=True):
                yield piece.view(shape)


def sum_gradients(parameters: Sequence[nn.Parameter], group: dist.ProcessGroup | None) -> None:
    """Replace each gradient by its sum over the group, whose ranks have the same parameters.

    Of a sharded weight it is that of the rank's share. A sparse gradient becomes dense: ranks have
    values at different places.
    """
    for parameter in parameters:
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad.to_dense()
    with torch.no_grad():
        gradients = [local(p.grad) for p in parameters if p.grad is not None]
        total = GradientSum(gradients, group, in_place=True)
        for gradient, summed in zip(gradients, total.wait(), strict=True):
            gradient.copy_(summed)


def _flat(gradients: Sequence[Tensor], in_place: bool) -> Tensor:
    if in_place and len(gradients) == 1:
        return gradients[0].contiguous().view(-1)
    return torch.cat([gradient.flatten() for gradient in gradients])
