"""What can be wrong with data on a disk; each message is one sentence for the user."""

__all__ = ["DataError", "StagingError"]


class DataError(RuntimeError):
    """Files of a dataset are missing, damaged, or not what was asked for."""


class StagingError(DataError):
    """The data could not be put on the scratch folder (no room, no right to write, ...)."""
