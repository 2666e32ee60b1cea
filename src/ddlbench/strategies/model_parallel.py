"""Model parallelism: torchgpipe with one micro-batch and no recomputation."""

from __future__ import annotations

from ddlbench.strategies.gpipe import GPipeExecutor

__all__ = ["ModelParallelExecutor"]


class ModelParallelExecutor(GPipeExecutor):
    """The plan carries neither micro-batches nor recomputation, so GPipe uses one and none."""
