"""The folder of a device: its description, and a table for each of its networks.

::

    config/accelerators/<device>/device.yaml               :class:`Device`
                                /<dataset>/<network>.csv    :mod:`ddlbench.planning.device_table`

A site file names it as ``accelerator.profiles``. ``ddlbench site accelerator`` makes one from
profiles that were measured on the device, or from ``graph.txt`` files of PipeDream.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from ddlbench.common.document import csv_text, write_text
from ddlbench.common.errors import ConfigError, shown
from ddlbench.common.form import Form, Name
from ddlbench.common.schema import read_checked, read_yaml
from ddlbench.experiment.cell import Precision, from_path
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.paths import RESULTS, check_folder_name, profile_file, project_file
from ddlbench.experiment.profile import Profile, ProfileKey, read_profile
from ddlbench.experiment.registry import mismatch
from ddlbench.experiment.site import Accelerator
from ddlbench.planning.device_table import (
    HOST_PARTS,
    DeviceTable,
    read_table,
    table_of_profile,
    write_table,
)
from ddlbench.planning.matrix import check_name

DESCRIPTION = "device.yaml"
_HEADER = "# yaml-language-server: $schema=../../schemas/accelerator.json\n"  # for editors


@dataclass(frozen=True)
class Device(Form):
    """The content of a ``device.yaml``."""

    description: Name
    """The device in words."""
    precision: Precision
    """Of the numbers that it computed when it was timed."""
    source: Name
    """Who measured it, and how: a paper, an address, a command."""
    licence: Name = ""
    """Under which the numbers are given."""
    date: Name = ""
    """When it was measured, as 2026-11-23."""
    commit: Name = ""
    """Of the code that measured it."""
    lacks: tuple[Name, ...] = ()
    """What the numbers do not say, a sentence each."""


def device_folder(name: str) -> Path:
    """``config/accelerators/<name>``; it may not exist.

    Raises:
        ConfigError: it cannot be the name of a folder.
    """
    check_folder_name(name, f"device {shown(name)}: its name is a folder")
    return project_file(f"config/accelerators/{name}")


def read_device(folder: Path) -> Device:
    """The description of a device.

    Raises:
        ConfigError: there is none, or a key of it is wrong.
    """
    path = folder / DESCRIPTION
    return read_checked(Device, read_yaml(path), str(path))


def write_device(folder: Path, device: Device) -> Path:
    """Write the description of a device; return its path."""
    values = {key: value for key, value in asdict(device).items() if value}
    values["lacks"] = list(device.lacks)
    path = folder / DESCRIPTION
    read_checked(Device, values, str(path))
    dumped = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=100)
    write_text(path, _HEADER + dumped)
    return path


def write_tables(
    folder: Path, tables: Mapping[tuple[str, str], DeviceTable], *, overwrite: bool = False
) -> list[Path]:
    """Write the table of each pair of dataset and network; return their paths.

    Raises:
        ConfigError: one is there already and must not be overwritten; then none is written.
    """
    accelerator = Accelerator(str(folder))
    paths = {pair: accelerator.table_file(*pair) for pair in tables}
    present = [path for path in paths.values() if path.exists()]
    if present and not overwrite:
        raise ConfigError(f"{present[0]} is there already; --overwrite replaces it")
    for pair, path in paths.items():
        write_table(path, tables[pair])
    return list(paths.values())


def check_network(dataset: str, network: str, where: str) -> None:
    """Raises ConfigError unless there are such a dataset and a network that reads it."""
    DATASETS.check(dataset, where)
    check_name("ddlbench.networks", network, where)
    if (reason := mismatch(network, dataset)) is not None:
        raise ConfigError(f"{where}: {reason}")


def measured_profiles(
    site: str, precision: str = "fp32", results_root: Path = RESULTS
) -> dict[tuple[str, str], tuple[Path, Profile]]:
    """The profiles of a site, with one thread per device, by dataset and network.

    Raises:
        ConfigError: one is wrong.
    """
    folder = results_root / profile_file(site, "").parent.relative_to(RESULTS)
    profiles: dict[tuple[str, str], tuple[Path, Profile]] = {}
    for path in sorted(folder.glob(f"*/*/{precision}-1t/profile.json")):
        key = ProfileKey.from_id(path.parent.relative_to(folder).as_posix())
        profiles[key.dataset, key.network] = path, read_profile(path)
    return profiles


def tables_of_profiles(
    profiles: Mapping[tuple[str, str], tuple[Path, Profile]],
) -> dict[tuple[str, str], DeviceTable]:
    """The table of each profile.

    Raises:
        ConfigError: the blocks of one were not timed.
    """
    return {
        pair: table_of_profile(profile, str(path)) for pair, (path, profile) in profiles.items()
    }


def device_of_profiles(profiles: Sequence[Profile]) -> Device:
    """What measured profiles say of their device; at least one."""
    provenance = [profile.provenance for profile in profiles]
    models = [*_values(provenance, "gpu_models"), *_values(provenance, "cpu_model")]
    dates = sorted(_values(provenance, "created"))
    return Device(
        description=" and ".join(models) or f"a {profiles[0].device_kind} device",
        precision=profiles[0].precision,
        source=f"profiled by ddlbench at site {profiles[0].site}",
        date=dates[-1][:10] if dates else "",
        commit=", ".join(_values(provenance, "git_commit")),
        lacks=(HOST_PARTS,),
    )


def made_faster(device: Device, factor: float) -> Device:
    """What a device says of itself once all its times are divided by a factor."""
    return replace(
        device,
        description=f"{device.description}, {factor:g} times as fast",
        lacks=(f"A real device: every time was divided by {factor:g}.", *device.lacks),
    )


def _values(provenance: Sequence[Mapping[str, Any]], key: str) -> list[str]:
    """Texts under a key, each once; of a list each entry."""
    texts: dict[str, None] = {}
    for values in provenance:
        value = values.get(key)
        for text in value if isinstance(value, list | tuple) else [value]:
            if isinstance(text, str) and text:
                texts[text] = None
    return list(texts)


def tables_of(folder: Path) -> Iterator[tuple[str, str, DeviceTable]]:
    """Dataset, network and table of each table in a device's folder.

    Raises:
        ConfigError: one is wrong, or of an unknown dataset.
    """
    for path in sorted(folder.glob("*/*.csv")):
        dataset, network = path.parent.name, from_path(path.stem)
        DATASETS.check(dataset, str(path))
        yield dataset, network, read_table(path, dataset)


def device_tables() -> str:
    """One row per network of each shipped device, as CSV; passes are those of the largest batch."""
    rows: list[tuple[object, ...]] = [
        (
            "device", "dataset", "network", "blocks", "parameter_tensors", "parameter_bytes",
            "batch_sizes", "largest_batch", "forward_s", "backward_s",
        )
    ]  # fmt: skip
    root = project_file("config/accelerators")
    for folder in sorted(path.parent for path in root.glob(f"*/{DESCRIPTION}")):
        for dataset, network, table in tables_of(folder):
            largest = table.batch_sizes[-1]
            sizes = " ".join(map(str, table.batch_sizes))
            passes = [f"{time_s:.4g}" for time_s in table.pass_s(largest)]
            weights = (len(table.blocks), table.tensors, table.parameter_bytes)
            rows.append((folder.name, dataset, network, *weights, sizes, largest, *passes))
    return csv_text(rows)
