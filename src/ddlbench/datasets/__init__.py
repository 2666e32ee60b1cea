"""Datasets: made or found, put on a node's own disk, and read for training.

What stands here needs no torch; reading for training is :mod:`ddlbench.datasets.loading`.
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
