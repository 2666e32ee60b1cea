"""Datasets: generated or the user's own, staged on a node's disk, and read for training.

This package imports no torch; :mod:`ddlbench.datasets.loading` reads for training.
"""

from ddlbench.datasets.files import DataError, StagingError
from ddlbench.datasets.staging import remove, stage
from ddlbench.experiment.dataset_spec import DataRequest, estimate_bytes

__all__ = ["DataError", "DataRequest", "StagingError", "estimate_bytes", "remove", "stage"]
