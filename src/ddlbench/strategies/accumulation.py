"""Executors that compute a rank's share of a mini-batch in micro-batches."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from ddlbench.planning.accumulation import AccumulatingOptions
from ddlbench.strategies.executor import Executor


class AccumulatingExecutor(Executor):
    """Base of executors of strategies with :class:`AccumulatingOptions`."""

    def forward_backward(self, inputs: Tensor, labels: Tensor, divisor: int = 1) -> Tensor:
        """One micro-batch after the other; the mean of their losses is that of the share."""
        count = AccumulatingOptions.of(self.plan).accumulate
        if count == 1:
            return super().forward_backward(inputs, labels, divisor)
        *first, last = zip(inputs.chunk(count), labels.chunk(count), strict=True)
        with self.before_the_last():
            losses = [
                super(AccumulatingExecutor, self).forward_backward(*part, divisor * count)
                for part in first
            ]
        losses.append(super().forward_backward(*last, divisor * count))
        return torch.stack(losses).sum()

    def before_the_last(self) -> AbstractContextManager[None]:
        """Context of all micro-batches but the last, which may keep messages back."""
        return nullcontext()
