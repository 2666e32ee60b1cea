"""Find and open the files that predictors read: a profile per network, links per fabric."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.fabric import LinkCondition
from ddlbench.experiment.links import read_links
from ddlbench.experiment.paths import RESULTS, links_file, profile_file
from ddlbench.experiment.profile import InvalidProfile, ProfileKey, read_profile
from ddlbench.experiment.site import load_site
from ddlbench.planning.workload import Workload
from ddlbench.predict.links import ConditionLinks, LinkTable


def open_workload(path: Path) -> Workload:
    """Read a profile.

    Raises:
        InvalidProfile: the file is missing, or does not fit the schema.
    """
    return Workload(read_profile(path).to_dict(), str(path))


def open_links(path: Path) -> LinkTable:
    """Read a links file.

    Raises:
        InvalidLinks: the file is missing or does not fit the schema, a matrix has a hole, or a
            bandwidth is not above zero.
    """
    return LinkTable(read_links(path), str(path))


class Inputs:
    """The profiles and links of one site, each read once.

    Args:
        site: its name.
        results_root: the folder that holds ``<site>/``.
    """

    def __init__(self, site: str, results_root: Path = RESULTS) -> None:
        self.site, self._root = site, results_root
        self.workload_of = cache(self._workload)
        self.links_of = cache(self._links)

    def workload(self, cell: Cell) -> Workload:
        """The profile of a cell's network and dataset.

        Raises:
            InvalidProfile: it is missing or wrong; the message gives the command that makes it.
        """
        return self.workload_of(ProfileKey.of(cell))

    def links(self, cell: Cell) -> LinkTable | None:
        """The links of a cell's fabric, or None.

        Links that were not measured are computed from the fabric's condition in the site file; None
        if it has no condition either.

        Raises:
            InvalidLinks: the links file is wrong.
        """
        return self.links_of(cell.fabric)

    def _workload(self, key: ProfileKey) -> Workload:
        path = self._root / profile_file(self.site, key.id).relative_to(RESULTS)
        if not path.is_file():
            raise InvalidProfile(
                f"there is no profile of {key.network} on {key.dataset} at site {self.site}; make "
                f"it with: snakemake --profile profiles/{self._launcher()} {path}"
            )
        return open_workload(path)

    def _links(self, fabric: str) -> LinkTable | None:
        path = self._root / links_file(self.site, fabric).relative_to(RESULTS)
        condition = self._conditions().get(fabric)
        if condition is None:
            return open_links(path) if path.is_file() else None
        if path.is_file():
            return replace(open_links(path), within_node=self.links_of("default"))
        return ConditionLinks(condition, self.links_of("default"), fabric)

    def _launcher(self) -> str:
        try:
            return load_site(self.site).launcher
        except ConfigError:  # as below
            return "<slurm or local>"

    def _conditions(self) -> Mapping[str, LinkCondition]:
        try:
            return load_site(self.site).fabrics
        except ConfigError:  # results of a site whose file is elsewhere
            return {}
