"""The optimiser of DDP's replicas that share out its state: torch's ZeroRedundancyOptimizer."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from ddlbench.strategies.timing import SpanRecorder
from ddlbench.strategies.training import SGD


class RecordedSharded(ZeroRedundancyOptimizer):
    """SGD of this rank's share of the weights; its broadcasts are a span of the recorded step.

    Each rank's tensors lie in one piece of memory, so each rank sends one message.
    """

    def __init__(
        self, spans: SpanRecorder, parameters: list[nn.Parameter], **settings: Any
    ) -> None:
        self._spans = spans
        super().__init__(parameters, SGD, parameters_as_bucket_view=True, **settings)

    def _sync_params(self) -> None:
        with self._spans.span("gather"):
            super()._sync_params()  # type: ignore[misc]
