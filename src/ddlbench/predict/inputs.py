"""Find and open the files that predictors read: a profile per network, links per fabric."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.fabric import LinkCondition
from ddlbench.experiment.links import read_links
from ddlbench.experiment.paths import RESULTS, links_file, profile_file
from ddlbench.experiment.profile import InvalidProfile, ProfileKey, read_profile
from ddlbench.experiment.site import load_site, making_command
from ddlbench.planning.workload import Workload
from ddlbench.predict.calibration import read_calibration
from ddlbench.predict.links import LinkTable
from ddlbench.predict.tcp import ConditionLinks


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
        calibrated: predictions take the constants of the site's calibration, if it has one.
    """

    def __init__(self, site: str, results_root: Path = RESULTS, *, calibrated: bool = True) -> None:
        self.site, self._root = site, results_root
        self.workload_of = cache(self._workload)
        self.links_of = cache(self._links)
        self.calibration = read_calibration(site, results_root) if calibrated else None

    def workload(self, cell: Cell) -> Workload:
        """The profile of a cell's network and dataset.

        Raises:
            InvalidProfile: it is missing or wrong; the message gives the command that makes it.
        """
        if cell.compile:
            raise InvalidProfile("profiles are of layers that are not compiled; this cell's are")
        missing = self.missing(cell)
        if profile_file(self.site, ProfileKey.of(cell).id) in missing:
            raise InvalidProfile(
                f"there is no profile of {cell.network} on {cell.dataset} at site {self.site}; "
                f"make {'it' if len(missing) == 1 else 'what is missing'} with: "
                f"{making_command(self.site, missing)}"
            )
        return self.workload_of(ProfileKey.of(cell))

    def check(self, cells: Sequence[Cell]) -> None:
        """Raise InvalidProfile, which names all that is missing, unless the cells have a profile.

        Args:
            cells: of one network; the largest needs all files that the others need.
        """
        self.workload(max(cells, key=lambda cell: cell.devices))

    def missing(self, cell: Cell) -> list[Path]:
        """Files that predictions of a cell need and that the workflow can make."""
        wanted = [profile_file(self.site, ProfileKey.of(cell).id)]
        # Links of a condition that was not measured are computed from the condition.
        if cell.devices > 1 and cell.fabric not in self._conditions:
            wanted.append(links_file(self.site, cell.fabric))
        return [path for path in wanted if not self._at(path).is_file()]

    def links(self, cell: Cell) -> LinkTable | None:
        """The links of a cell's fabric, or None.

        Links that were not measured are computed from the fabric's condition in the site file; None
        if it has no condition either.

        Raises:
            InvalidLinks: the links file is wrong.
        """
        return self.links_of(cell.fabric)

    def _at(self, path: Path) -> Path:
        return self._root / path.relative_to(RESULTS)

    def _workload(self, key: ProfileKey) -> Workload:
        path = self._at(profile_file(self.site, key.id))
        if not path.is_file():
            raise InvalidProfile(
                f"there is no profile of {key.network} on {key.dataset} at site {self.site}"
            )
        return open_workload(path)

    def _links(self, fabric: str) -> LinkTable | None:
        path = self._at(links_file(self.site, fabric))
        condition = self._conditions.get(fabric)
        if condition is None:
            return open_links(path) if path.is_file() else None
        computed = ConditionLinks(condition, self.links_of("default"), fabric)
        if not path.is_file():
            return computed
        # Of a fabric that says nothing of links within a node, those are the machine's.
        own = self.links_of("default") if condition.inside is None else computed
        return replace(open_links(path), within_node=own)

    @cached_property
    def _conditions(self) -> Mapping[str, LinkCondition]:
        try:
            return load_site(self.site).fabrics
        except ConfigError:  # results of a site whose file is elsewhere
            return {}
