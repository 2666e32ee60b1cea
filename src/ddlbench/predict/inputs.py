"""Find and open what predictors read: one profile a network, one links file a fabric."""

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
        InvalidProfile: there is none, or it is not what the schema says.
    """
    return Workload(read_profile(path).to_dict(), str(path))


def open_links(path: Path) -> LinkTable:
    """Read a links file.

    Raises:
        InvalidLinks: there is none, it is not what the schema says, a matrix has a hole, or a
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
        """The profile that serves a cell.

        Raises:
            InvalidProfile: it is missing or wrong; the message says what makes it.
        """
        return self.workload_of(ProfileKey.of(cell))

    def links(self, cell: Cell) -> LinkTable | None:
        """The links of a cell's fabric; None where nobody measured, gave or described them.

        A fabric that the site emulates and nobody measured is computed from its condition.

        Raises:
            InvalidLinks: the file is there, and wrong.
        """
        return self.links_of(cell.fabric)

    def _workload(self, key: ProfileKey) -> Workload:
        path = self._root / profile_file(self.site, key.id).relative_to(RESULTS)
        if not path.is_file():
            raise InvalidProfile(
                f"there is no profile of {key.network} on {key.dataset} at site {self.site}; make "
                f"it with: snakemake --profile profiles/<slurm or local> {path}"
            )
        return open_workload(path)

    def _links(self, fabric: str) -> LinkTable | None:
        path = self._root / links_file(self.site, fabric).relative_to(RESULTS)
        condition = self._conditions().get(fabric)
        if path.is_file():
            found = open_links(path)
            return found if condition is None else replace(found, within_node=self._own_links())
        if condition is None:
            return None
        return ConditionLinks(condition, self._own_links(), fabric)

    def _own_links(self) -> LinkTable | None:
        return self.links_of("default")

    def _conditions(self) -> Mapping[str, LinkCondition]:
        try:
            return load_site(self.site).fabrics
        except ConfigError:  # results of a site whose file is elsewhere
            return {}
