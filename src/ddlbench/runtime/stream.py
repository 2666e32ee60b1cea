"""Global mini-batch ids to samples.

::

    id      0 .. warm-up-1 | warm-up .. +S-1 | .. +2S-1 | ...
    epoch   0 (its start)  | 1               | 2        |      S = steps of an epoch

Warm-up reads epoch 0's order; measured epochs begin with 1. Where S is all steps of the dataset,
the feed runs through the ends of epochs without a pause.

The replicas of a pipeline's stage take turns: of the ids that a run asks for, replica 1 of 3 reads
the second, the fifth, and so on.
"""

from __future__ import annotations

from collections.abc import Iterator

from ddlbench.datasets.loader import Batch, BatchLoader

__all__ = ["EpochStream", "feed_ranges"]


def feed_ranges(
    first: int,
    count: int,
    warmup_steps: int,
    steps_per_epoch: int,
    feed_steps_per_epoch: int,
    *,
    every: int = 1,
) -> Iterator[tuple[int, int]]:
    """The feed's steps for ids ``first`` on, as (first step, number of steps), merged.

    Args:
        first: first global mini-batch id.
        count: number of ids.
        warmup_steps: ids below this are warm-up.
        steps_per_epoch: steps of a measured epoch.
        feed_steps_per_epoch: steps of a whole epoch of the feed.
        every: distance from one id to the next, and within a range from step to step.
    """
    begin = length = 0
    for mini_batch in range(first, first + count * every, every):
        if mini_batch < warmup_steps:
            step = mini_batch % steps_per_epoch
        else:
            epoch, within = divmod(mini_batch - warmup_steps, steps_per_epoch)
            step = (epoch + 1) * feed_steps_per_epoch + within
        if length and step == begin + length * every:
            length += 1
            continue
        if length:
            yield begin, length
        begin, length = step, 1
    if length:
        yield begin, length


class EpochStream:
    """A feed read by global mini-batch id.

    Args:
        feed: this process's shard of the dataset.
        warmup_steps: ids below this are warm-up.
        steps_per_epoch: at most the feed's own.
        turn, turns: it is read by one of so many that take turns, from 0.
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
        """Those of the mini-batches ``first`` to ``first + count - 1`` whose turn it is."""
        own = range(first + self._turn, first + count, self._turns)
        ranges = feed_ranges(
            own.start,
            len(own),
            self._warmup_steps,
            self._steps_per_epoch,
            self._feed.steps_per_epoch,
            every=self._turns,
        )
        for begin, length in list(ranges):
            yield from self._feed.steps(begin, length, self._turns)
