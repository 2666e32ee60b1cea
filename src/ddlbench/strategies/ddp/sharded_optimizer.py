"""The optimiser of DDP's replicas that share out its state: torch's ZeroRedundancyOptimizer."""

from __future__ import annotations

from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer

from ddlbench.experiment.cell import Cell
from ddlbench.strategies.timing import SpanRecorder
from ddlbench.strategies.training import optimizer_of


class RecordedSharded(ZeroRedundancyOptimizer):
    """Updates this rank's share of the weights; its broadcasts are a span of the recorded step.

    Each rank's tensors lie in one piece of memory, so each rank sends one message.
    """

    def __init__(self, spans: SpanRecorder, cell: Cell, parameters: list[nn.Parameter]) -> None:
        self._spans = spans
        kind, settings = optimizer_of(cell)
        super().__init__(parameters, kind, parameters_as_bucket_view=True, **settings)

    def _sync_params(self) -> None:
        with self._spans.span("gather"):
            super()._sync_params()  # type: ignore[misc]
