"""Datasets: generated or the user's own, staged on a node's disk, and read for training.

This package imports no torch; :mod:`ddlbench.datasets.loading` reads for training.
"""

from ddlbench.datasets.files import DataError, StagingError
from ddlbench.datasets.staging import Staged, remove, stage
from ddlbench.datasets.synthetic import CONTENT_VERSION, Content
from ddlbench.experiment.dataset_spec import DataRequest, estimate_bytes

__all__ = [
    "CONTENT_VERSION",
    "Content",
    "DataError",
    "DataRequest",
    "Staged",
    "StagingError",
    "estimate_bytes",
    "remove",
    "stage",
]
