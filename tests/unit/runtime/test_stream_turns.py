"""Replicas of a stage take turns in reading: together they read every mini-batch once."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from ddlbench.datasets.loader import BatchLoader, EpochStream


class Numbers:
    """Images that show their number."""

    shape = (1, 1, 1)
    dtype = torch.uint8
    num_classes = 10

    def __len__(self):
        return 35

    def gather(self, sample_ids, *, pin_memory=False):
        images = torch.zeros(len(sample_ids), 1, 1, 1, dtype=torch.uint8)
        return images, torch.from_numpy(np.asarray(sample_ids))

    def labels(self, sample_ids):
        return torch.from_numpy(np.asarray(sample_ids))


def read(first, count, steps, turn=0, turns=1, **feed):
    stream = EpochStream(BatchLoader(Numbers(), global_batch=4, **feed), 3, steps, turn, turns)
    return [batch.labels.tolist() for batch in stream.batches(first, count)]


@given(
    first=st.integers(0, 12),
    count=st.integers(0, 25),
    steps=st.integers(1, 8),
    turns=st.integers(1, 5),
    labels_only=st.booleans(),
)
def test_turns_make_up_the_whole(first, count, steps, turns, labels_only):
    whole = read(first, count, steps)
    for turn in range(turns):
        part = read(first, count, steps, turn, turns, labels_only=labels_only)
        assert part == whole[turn::turns]
