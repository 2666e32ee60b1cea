"""Training batches in an order that every strategy shares.

Epoch ``e`` visits all samples in one order, decided by (seed, e). Step ``k`` of it takes the
next ``global_batch`` of them, and a consumer, such as a data-parallel rank, a contiguous part::

    order(e):   |<--------- step 0 --------->|<--------- step 1 --------->| ... | left over |
    4 shards:   |  0   |  1   |  2   |  3   |  0   |  1   |  2   |  3   |

Samples that do not fill a global batch are left over; another epoch's order leaves others.

A run counts its mini-batches through warm-up and epochs::

    id      0 .. warm-up-1 | warm-up .. +S-1 | .. +2S-1 | ...
    epoch   0 (its start)  | 1               | 2        |      S = steps of an epoch

Warm-up reads epoch 0's order; measured epochs begin with 1. If S is all steps of the dataset, the
loader continues from one epoch to the next without a pause. The replicas of a pipeline's stage
alternate: of the ids of a run, replica 1 of 3 reads the second, the fifth, and so on.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from ddlbench.common.quantities import counted
from ddlbench.datasets.files import DataError
from ddlbench.datasets.synthetic import CounterRng


class ImageDataset(Protocol):
    """What :class:`BatchLoader` needs of a dataset; of tokens, a sample is int64 (T,) for both."""

    shape: tuple[int, ...]
    num_classes: int
    dtype: torch.dtype  # of a sample: uint8 of images, int64 of tokens

    def __len__(self) -> int: ...

    def __getitem__(self, sample_id: int, /) -> tuple[torch.Tensor, int | torch.Tensor]:
        """One image, uint8 (C, H, W), and its label."""

    def gather(
        self, sample_ids: np.ndarray, *, pin_memory: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Images, uint8 (n, C, H, W), and labels, int64 (n,), of ``sample_ids``, int64 (n,)."""

    def labels(self, sample_ids: np.ndarray, /) -> torch.Tensor:
        """Labels alone, int64 (n,); reads no image."""


class Batch(NamedTuple):
    """One consumer's part of a global batch.

    Args:
        inputs: normalised images, floating point, (n, C, H, W), or tokens, int64, (n, T), on the
            loader's device; (0, ...) if it reads labels only.
        labels: int64, (n,) or (n, T), on the loader's device.
        sample_ids: global sample ids, int64, (n,), on the CPU.
    """

    inputs: torch.Tensor
    labels: torch.Tensor
    sample_ids: torch.Tensor


def epoch_order(num_samples: int, seed: int, epoch: int) -> np.ndarray:
    """The order in which ``epoch`` visits all samples; int64 (num_samples,)."""
    return CounterRng("order", seed, epoch).permutations(0, 1, num_samples)[0]


def normalise(images: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """``(x / 255 - 0.5) / 0.25`` of uint8 ``images``, on their device, in ``dtype``.

    Tokens, which are int64, stay as they are.
    """
    if images.dtype == torch.int64:
        return images
    return images.to(torch.float32).mul_(4 / 255).sub_(2).to(dtype)


class BatchLoader:
    """Reads the batches of one consumer.

    Without loader workers the caller's thread gathers the samples of each batch; with them,
    processes read ahead. The batches are the same, and torch's random numbers are not used.

    Args:
        dataset: where samples come from.
        global_batch: samples a step, over all consumers.
        shard: which equal part of each global batch this consumer gets, from 0.
        num_shards: number of parts; divides ``global_batch``.
        seed: of the order.
        loader_workers: processes that read ahead. They are started with "forkserver", so the
            program's main module must be importable without side effects.
        device: where batches end up; for CUDA they pass through pinned memory.
        dtype: floating-point type of the inputs.
        labels_only: read no images, for a pipeline's last stage; the caller's thread then reads,
            whatever ``loader_workers`` is.
        normalised: whether the device normalises images. An emulated device computes nothing: its
            inputs are zeros of the right shape, which take no time to write.

    Raises:
        ValueError: the arguments do not fit together.
        DataError: the dataset is smaller than a global batch.
    """

    def __init__(
        self,
        dataset: ImageDataset,
        *,
        global_batch: int,
        shard: int = 0,
        num_shards: int = 1,
        seed: int = 0,
        loader_workers: int = 0,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        labels_only: bool = False,
        normalised: bool = True,
    ) -> None:
        if global_batch < 1 or num_shards < 1 or global_batch % num_shards:
            raise ValueError(
                f"a global batch of {global_batch} cannot be cut into {num_shards} equal parts; "
                "make the batch a multiple of the number of workers"
            )
        if not 0 <= shard < num_shards:
            raise ValueError(f"shard {shard} is not in 0..{num_shards - 1}")
        if len(dataset) < global_batch:
            raise DataError(
                f"the dataset has {counted(len(dataset), 'sample')}, fewer than one global batch "
                f"of {global_batch}; use a larger data scale or a smaller batch"
            )
        self.dataset = dataset
        self.global_batch = global_batch
        self.batch = global_batch // num_shards
        self._offset = shard * self.batch
        self._seed = seed
        self._device = torch.device(device)
        self._dtype = dtype
        self._orders: dict[int, np.ndarray] = {}
        self._iteration = 0  # only the latest iterator is valid
        self._labels_only, self._normalised = labels_only, normalised
        self._loader_workers = 0 if labels_only else loader_workers
        self._plan = _Plan()
        self._loader: DataLoader[tuple[torch.Tensor, torch.Tensor]] | None = None

    @property
    def steps_per_epoch(self) -> int:
        return len(self.dataset) // self.global_batch

    def start(self) -> None:
        """Starts the workers once, and waits until each has read a sample."""
        if self._loader_workers == 0 or self._loader is not None:
            return
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, "ddlbench.datasets.loading"])
        self._loader = DataLoader(
            _WholeBatches(self.dataset),  # type: ignore[arg-type]
            batch_size=None,
            sampler=self._plan,
            num_workers=self._loader_workers,
            persistent_workers=True,
            pin_memory=self._device.type == "cuda",
            multiprocessing_context=context,
            generator=torch.Generator(),
        )
        self._plan.ids = iter([np.zeros(1, np.int64)] * self._loader_workers)
        for read in self._loader:
            _checked(read)

    def close(self) -> None:
        self._iteration += 1
        self._loader = None

    def batches(self, epoch: int, first_step: int = 0, count: int | None = None) -> Iterator[Batch]:
        """Iterates over ``count`` steps of ``epoch`` from ``first_step``; by default all the rest.

        Raises:
            ValueError: the epoch has no such steps.
        """
        steps = self.steps_per_epoch
        count = steps - first_step if count is None else count
        if epoch < 0 or first_step < 0 or count < 0 or first_step + count > steps:
            raise ValueError(
                f"epoch {epoch} has steps 0..{steps - 1}, "
                f"not {first_step}..{first_step + count - 1}"
            )
        return self.steps(epoch * steps + first_step, count)

    def steps(self, first: int, count: int, every: int = 1) -> Iterator[Batch]:
        """Iterates over ``count`` global steps ``first``, ``first + every``, ..., across epochs.

        Step ``s`` is step ``s % steps_per_epoch`` of epoch ``s // steps_per_epoch``. A new call
        ends the previous iterator.
        """
        self._iteration += 1
        self._order_of(first // self.steps_per_epoch)  # now, not when the first batch is timed
        steps = range(first, first + count * every, every)
        if self._loader_workers:
            self.start()
            return self._loaded(self._iteration, steps)
        return self._gathered(self._iteration, steps)

    def _gathered(self, iteration: int, steps: range) -> Iterator[Batch]:
        pin = self._device.type == "cuda"
        for ids in self._ids(steps):
            self._check_latest(iteration)
            if self._labels_only:
                none = torch.empty((0, *self.dataset.shape), dtype=self.dataset.dtype)
                yield self._batch(ids, none, self.dataset.labels(ids))
            else:
                yield self._batch(ids, *self.dataset.gather(ids, pin_memory=pin))

    def _loaded(self, iteration: int, steps: range) -> Iterator[Batch]:
        self._check_latest(iteration)
        assert self._loader is not None
        self._plan.ids = self._ids(steps)
        read = iter(self._loader)
        for ids in self._ids(steps):
            self._check_latest(iteration)
            images, labels = _checked(next(read))
            yield self._batch(ids, images, labels)

    def _check_latest(self, iteration: int) -> None:
        if iteration != self._iteration:
            raise RuntimeError("this iterator ended when its loader began another one")

    def _batch(self, ids: np.ndarray, images: torch.Tensor, labels: torch.Tensor) -> Batch:
        images = images.to(self._device, non_blocking=True)
        labels = labels.to(self._device, non_blocking=True)
        if self._normalised or images.dtype != torch.uint8:
            inputs = normalise(images, self._dtype)
        else:
            inputs = torch.zeros((), dtype=self._dtype, device=self._device).expand(images.shape)
        return Batch(inputs, labels, torch.from_numpy(ids))

    def _ids(self, steps: range) -> Iterator[np.ndarray]:
        for step in steps:
            epoch, within = divmod(step, self.steps_per_epoch)
            begin = within * self.global_batch + self._offset
            yield self._order_of(epoch)[begin : begin + self.batch]

    def _order_of(self, epoch: int) -> np.ndarray:
        if epoch not in self._orders:
            # The last one is kept too: workers read ahead into the next epoch.
            self._orders = dict(list(self._orders.items())[-1:])
            self._orders[epoch] = epoch_order(len(self.dataset), self._seed, epoch)
        return self._orders[epoch]


class _Plan:
    """The sampler of a loader that outlives many orders; ``ids`` is set for each iteration."""

    def __init__(self) -> None:
        self.ids: Iterator[np.ndarray] = iter(())

    def __iter__(self) -> Iterator[np.ndarray]:
        return self.ids


class _WholeBatches(Dataset[tuple[torch.Tensor, torch.Tensor] | str]):
    def __init__(self, dataset: ImageDataset) -> None:
        self._dataset = dataset

    def __getitem__(self, sample_ids: np.ndarray) -> tuple[torch.Tensor, torch.Tensor] | str:
        try:
            return self._dataset.gather(sample_ids)
        except DataError as error:  # torch would hand on its traceback as the message
            return str(error)


def _checked(
    read: tuple[torch.Tensor, torch.Tensor] | str,
) -> tuple[torch.Tensor, torch.Tensor]:
    if isinstance(read, str):
        raise DataError(read)
    return read


class EpochStream:
    """Reads a loader by global mini-batch id.

    Args:
        feed: this process's shard of the dataset.
        warmup_steps: ids below this are warm-up.
        steps_per_epoch: at most the loader's own.
        turn, turns: this reader's number, from 0, among ``turns`` that alternate.
    """

    def __init__(
        self,
        feed: BatchLoader,
        warmup_steps: int,
        steps_per_epoch: int,
        turn: int = 0,
        turns: int = 1,
    ) -> None:
        self._feed = feed
        self._warmup_steps = warmup_steps
        self._steps_per_epoch = steps_per_epoch
        self._turn, self._turns = turn, turns

    def batches(self, first: int, count: int) -> Iterator[Batch]:
        """This reader's mini-batches among ``first`` to ``first + count - 1``."""
        for begin, length in self.ranges(first, count):
            yield from self._feed.steps(begin, length, self._turns)

    def ranges(self, first: int, count: int) -> list[tuple[int, int]]:
        """The loader's steps for them, as (first step, number) of steps ``turns`` apart."""
        mine = range(first + self._turn, first + count, self._turns)
        steps = [self._step_of(mini_batch) for mini_batch in mine]
        runs = groupby(enumerate(steps), key=lambda at: at[1] - at[0] * self._turns)
        return [(run[0][1], len(run)) for run in ([*same] for _, same in runs)]

    def _step_of(self, mini_batch: int) -> int:
        if mini_batch < self._warmup_steps:
            return mini_batch % self._steps_per_epoch
        epoch, within = divmod(mini_batch - self._warmup_steps, self._steps_per_epoch)
        return (epoch + 1) * self._feed.steps_per_epoch + within
