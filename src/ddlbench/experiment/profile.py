"""profile.json: times and bytes of one network's layers on one device of a site.

Written by ``ddlbench.profiling``; read by the partitioner and by predictors.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.document import Document
from ddlbench.experiment.errors import ConfigError

__all__ = ["PROFILE_VERSION", "InvalidProfile", "ProfileKey", "read_profile", "write_profile"]

PROFILE_VERSION = 1


class InvalidProfile(ConfigError):  # noqa: N818 - a state of a file, shown as such
    """A profile that is missing, truncated, of another version, or wrong in itself."""


_DOCUMENT = Document("profile", "profile", InvalidProfile)


@dataclass(frozen=True, order=True)
class ProfileKey:
    """Everything of a cell that a profile depends on; equal keys share one profile."""

    dataset: str
    network: str
    precision: str = "fp32"
    threads_per_device: int = 1

    @classmethod
    def of(cls, cell: Cell) -> ProfileKey:
        """The profile that serves a cell."""
        return cls(cell.dataset, cell.network, cell.precision, cell.threads_per_device)

    @property
    def id(self) -> str:
        """``<dataset>/<network>/<precision>-<threads>t``, the profile's path."""
        network = self.network.replace(":", "@")
        return f"{self.dataset}/{network}/{self.precision}-{self.threads_per_device}t"

    @classmethod
    def from_id(cls, profile_id: str) -> ProfileKey:
        """Read a key back from its path.

        Raises:
            ConfigError: the path is not one that :attr:`id` writes.
        """
        try:
            dataset, network, last = profile_id.strip("/").split("/")
            precision, threads = last.removesuffix("t").split("-")
            key = cls(dataset, network.replace("@", ":"), precision, int(threads))
        except ValueError:
            key = None
        if key is None or key.id != profile_id.strip("/"):
            raise ConfigError(
                f"{profile_id!r} is not a profile: write dataset/network/fp32-1t "
                "(precision, threads of a device)"
            )
        return key


def write_profile(path: Path, profile: dict[str, Any]) -> None:
    """Check and write a profile atomically.

    Raises:
        InvalidProfile: it does not fit the schema.
    """
    _DOCUMENT.write(path, profile)


def read_profile(path: Path) -> dict[str, Any]:
    """Read and check a profile.

    Raises:
        InvalidProfile: there is none, or it is not what the schema says.
    """
    if not path.is_file():
        raise InvalidProfile(
            f"{path}: no such profile; make it with `snakemake --profile ... {path}`"
        )
    return _DOCUMENT.read(path)
