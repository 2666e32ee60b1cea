"""Profiles as planning reads them: each file once, as a matrix has many cells of one network."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from ddlbench.experiment.profile import Profile, read_profile

__all__ = ["profile_at"]


def profile_at(path: Path) -> Profile:
    """Read and check a profile, once while the file stays as it is.

    Raises:
        InvalidProfile: there is none, or it is not what the schema says.
    """
    if not path.is_file():
        return read_profile(path)  # says what makes it
    status = path.stat()
    return _read(path.resolve(), status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=64)
def _read(path: Path, _mtime_ns: int, _size: int) -> Profile:
    return read_profile(path)
