"""Measure, predict and choose how to parallelise DNN training on a cluster."""

__all__ = ["__version__"]

__version__ = "1.0.0"
