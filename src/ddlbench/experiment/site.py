"""A site: the machine or cluster that cells run on."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.fabric import LinkCondition
from ddlbench.experiment.paths import CONFIG, project_root
from ddlbench.experiment.schema import check_against, fill_defaults, nearest, read_yaml
from ddlbench.experiment.status import Reason


@dataclass(frozen=True)
class Site:
    """The content of a site file; see ``config/schemas/site.schema.yaml`` for every key."""

    name: str
    description: str
    device: Literal["cpu", "cuda"]
    launcher: Literal["local", "slurm"]
    nodes: int
    devices_per_node: int
    cpus_per_device: int
    memory_per_device_mb: int | None
    scratch: str
    keep_data: bool
    interface: str | None
    cell_timeout_s: float
    hang_timeout_s: float
    real_data: dict[str, str] = field(default_factory=dict)
    setup: tuple[str, ...] = ()
    container: dict[str, Any] | None = None
    interconnect: dict[str, Any] = field(default_factory=dict)
    fabrics: dict[str, LinkCondition] = field(default_factory=dict)
    slurm: dict[str, Any] = field(default_factory=dict)
    checkpoints: str | None = None
    stage_timeout_s: float = 1800
    devices_share_gpu: bool = False

    def emulates(self, fabric: str) -> bool:
        """Whether the links of this fabric are emulated within one node of the site."""
        return fabric in self.fabrics

    def held_geometry(self, cell: Cell) -> tuple[int, int]:
        """Real nodes of a cell, and devices of each; see :meth:`real_geometry`."""
        return self.real_geometry(cell.nodes, cell.devices_per_node, cell.fabric)

    def real_geometry(self, nodes: int, devices_per_node: int, fabric: str) -> tuple[int, int]:
        """Real nodes for a geometry over a fabric, and devices of each.

        On a cluster, the nodes of an emulated fabric are namespaces of one real node. On a local
        site, ``nodes`` is the number of nodes that the one machine may represent.
        """
        if self.launcher == "slurm" and self.emulates(fabric):
            return 1, nodes * devices_per_node
        return nodes, devices_per_node

    def supports(self, cell: Cell) -> str | None:
        """The reason why this site cannot run the cell; None if it can."""
        nodes, devices_per_node = self.held_geometry(cell)
        if nodes > self.nodes or devices_per_node > self.devices_per_node:
            emulated = "" if nodes == cell.nodes else f" on one node, as {cell.fabric} is emulated"
            return Reason(
                "site_too_small",
                f"site {self.name} has {self.nodes} node(s) of {self.devices_per_node} device(s), "
                f"the cell asks for {cell.geometry}{emulated}",
            )
        if self.emulates(cell.fabric) and cell.nodes == 1:
            return Reason(
                "no_link_to_emulate",
                f"the cell has one node, so there is no link that {cell.fabric} could shape; "
                "take two nodes or more, or fabric default",
            )
        if cell.data_source == "real" and cell.dataset not in self.real_data:
            return Reason(
                "no_real_data",
                f"site {self.name} names no real data for {cell.dataset}; add it to real_data",
            )
        if self.launcher == "slurm" and cell.threads_per_device > self.cpus_per_device:
            return Reason(
                "site_too_small",
                f"site {self.name} gives a device {self.cpus_per_device} core(s), "
                f"the cell computes with {cell.threads_per_device} threads",
            )
        if self.device == "cpu" and cell.precision == "tf32":
            return Reason("precision_unavailable", "tf32 exists on GPUs only")
        return None


def load_site(name: str, *, as_example: bool = False) -> Site:
    """Read ``config/sites/<name>.yaml``, or the file itself when ``name`` is a path.

    Args:
        name: of the site.
        as_example: accept a site file in which REPLACE_ME still stands.

    Raises:
        ConfigError: there is no such site, a key of it is wrong, or REPLACE_ME stands in it.
    """
    sites = project_root() / "config" / "sites"
    path = Path(name) if name.endswith((".yaml", ".yml")) else sites / f"{name}.yaml"
    if not path.is_file():
        remark = nearest(name, [file.stem for file in sites.glob("*.yaml")])
        raise ConfigError(f"site {name!r} has no file {path}; {remark}")
    values = read_yaml(path)
    unfilled = [] if as_example else _unfilled(values)
    if unfilled:
        raise ConfigError(f"{path}: replace REPLACE_ME in {', '.join(unfilled)}")
    check_against("site", values, where=str(path))
    values = fill_defaults("site", values)
    for dataset in values["real_data"]:
        DATASETS.check(dataset, f"{path}: real_data")
    if values["devices_share_gpu"] and values["device"] != "cuda":
        raise ConfigError(
            f"{path}: devices_share_gpu is for device: cuda; CPU devices share their node anyway, "
            "so leave it out"
        )
    values["fabrics"] = _conditions(values["fabrics"], f"{path}: fabrics")
    if values["devices_per_node"] == "auto":
        if values["launcher"] != "local" or values["device"] != "cpu":
            raise ConfigError(
                f"{path}: devices_per_node: auto counts this machine's cores; write the number of "
                "devices that one node has"
            )
        values["devices_per_node"] = len(os.sched_getaffinity(0))
    return Site(name=path.stem, **values)


def _unfilled(values: Any, key: str = "") -> list[str]:
    """Keys whose value is still REPLACE_ME."""
    if isinstance(values, dict):
        values = {f"{key}.{name}" if key else str(name): each for name, each in values.items()}
        return [found for name, each in values.items() for found in _unfilled(each, name)]
    if isinstance(values, list):
        return list(dict.fromkeys(found for each in values for found in _unfilled(each, key)))
    return [key] if isinstance(values, str) and "REPLACE_ME" in values else []


def _conditions(fabrics: dict[str, Any], where: str) -> dict[str, LinkCondition]:
    if "default" in fabrics:
        raise ConfigError(
            f"{where}: 'default' is the site's own network; give the emulated one a name of its own"
        )
    return {
        str(name): LinkCondition.from_mapping(values, f"{where}.{name}")
        for name, values in fabrics.items()
    }


def making_command(site: str, files: Iterable[Path]) -> str:
    """The command with which the workflow makes files of a site.

    Args:
        site: its name.
        files: below ``results/<site>/``.
    """
    launcher, planned = "<slurm or local>", site
    with suppress(ConfigError):
        launcher = load_site(site).launcher
    with suppress(ConfigError):
        planned = read_yaml(project_root() / CONFIG).get("site", site)
    words = ["snakemake", "--profile", f"profiles/{launcher}", *map(str, files)]
    return " ".join([*words, *(["--config", f"site={site}"] if planned != site else [])])
