"""A project in a folder of its own, in which every drawn question has an answer.

::

    FOLDER/Snakefile, config/     those of the project; its sites are larger, see SITES
          /ownnets/models.py      networks of a user
          /results/SITE/          profiles, links, and a few measured cells

What lies in ``results`` is made up, but for the times of blocks and layers: those are the profiles
in ``config/accelerators``, which one core took. Nothing is measured here.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ddlbench.common.fits import fit_hockney
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.links import Links, LinkSweep, SweepPoint, write_links
from ddlbench.experiment.paths import RESULTS, cell_dir, links_file, profile_file
from ddlbench.experiment.profile import PROFILE_VERSION, Profile, ProfileKey, write_profile
from ddlbench.experiment.site import Site, load_site
from ddlbench.interconnect.measure import measure_links
from ddlbench.planning.device_table import read_table
from ddlbench.predict.hardware import DeviceSheet
from ddlbench.predict.planned_cluster import table_profile

RESULT = Path(__file__).parents[1] / "scale" / "result.json"
MEASURED_NETWORK = "vgg11"  # at the site local
MEASURED = {  # step in s of 32 samples
    "1x2": {"sequential": 1.30, "ddp": 0.74, "horovod": 0.79, "pipe-1f1b": 0.88},
    "1x4": {"sequential": 1.30, "ddp": 0.43, "gpipe": 0.71},
}
MEASURED_BATCH = 32

_CHECKED_IN = (("one-core", "cifar10"), ("one-core", "tokens"), ("pipedream", "imagenet"))
# The user's network, and the built-in one whose blocks it has.
_USER_NETWORKS = {"ownnets.models:tower": "stack", "ownnets.models:patches": "vit-tiny"}
_USER_MODULE = '''"""Networks of a user, each cut into a Sequential of blocks."""

from torch import nn

from ddlbench.networks.flat import stack
from ddlbench.networks.transformers import vit_tiny


def tower(spec):
    """Equal residual blocks between a stem and a head."""
    return nn.Sequential(*stack(spec))


def patches(spec):
    """A small vision transformer."""
    return nn.Sequential(*vit_tiny(spec))
'''
# What is replaced in a shipped file: the benchmark asks of up to 16 nodes of 8 devices.
_MORE_DEVICES = {"devices_per_node: 4": "devices_per_node: 8"}
SITES = {
    "local": (
        "local",
        {
            "nodes: 1": "nodes: 16",
            # So that no answer depends on the memory of this machine.
            "devices_per_node: auto": "devices_per_node: 8\nmemory_per_device_mb: 4000",
        },
    ),
    "accelerators": ("accelerators", {"nodes: 2 ": "nodes: 16 ", **_MORE_DEVICES}),
    "my-cluster": (
        "slurm-example",
        {"REPLACE_ME": "example", "nodes: 4 ": "nodes: 16 ", **_MORE_DEVICES},
    ),
    "as-shipped": ("accelerators", {}),
}
# Times of a profile over those of one core; the GPU is made up.
_TIMES = {"local": 1.0, "accelerators": 4.0, "my-cluster": 0.02, "as-shipped": 4.0}
_GPU_BYTES = 16_000_000_000
# Links of a site whose file gives none: latency in s, bytes a second.
_LINKS = {"node": (4e-5, 4e9), "network": (1.5e-4, 1.1e9)}
_SWEPT = {
    "all_reduce": {"gloo": 1.0, "ddp": 1.15, "horovod": 1.3},
    "all_gather": {"gloo": 1.0, "fsdp": 1.2},
    "reduce_scatter": {"gloo": 1.0, "fsdp": 1.2},
    "broadcast": {"gloo": 1.0},
}
_SIZES = [2**power for power in range(10, 27, 2)]
_GIVEN = """\
interconnect:
  links:
    default:
      node:    {latency_s: 0.000005, bandwidth_bytes_per_s: 12000000000}
      network: {latency_s: 0.00003, bandwidth_bytes_per_s: 12500000000}
"""


def make_project(folder: Path, source: Path) -> None:
    """Lay the project down.

    Args:
        folder: an empty folder; it must be the working folder, as results lie below that.
        source: the project whose configuration is taken.
    """
    shutil.copy(source / "Snakefile", folder)
    shutil.copytree(source / "config", folder / "config")
    profiles = folder / "config" / "accelerators"
    (folder / "ownnets").mkdir()
    (folder / "ownnets" / "__init__.py").touch()
    (folder / "ownnets" / "models.py").write_text(_USER_MODULE, encoding="utf-8")
    _write_sites(folder / "config" / "sites")
    for network, like in _USER_NETWORKS.items():  # emulated accelerators read their times here
        tables = profiles / "one-core" / "cifar10"
        shutil.copy(tables / f"{like}.csv", tables / f"{network.replace(':', '@')}.csv")
    for name in SITES:
        site = load_site(name)
        for values in _profiles(profiles):
            key = ProfileKey(values["dataset"], values["network"])
            profile = Profile.from_dict(at_site(values, site))
            write_profile(folder / profile_file(name, key.id), profile)
        path = folder / links_file(name, "default")
        if site.interconnect.links:
            measure_links(site, "default", path)
        else:
            write_links(path, swept_links(site))
    _write_measured(folder)


def _write_sites(folder: Path) -> None:
    shipped = {path.stem: path.read_text(encoding="utf-8") for path in folder.glob("*.yaml")}
    for name, (like, changes) in SITES.items():
        text = shipped[like]
        for old, new in changes.items():
            if old not in text:
                raise SystemExit(f"config/sites/{like}.yaml has no {old!r} any more")
            text = text.replace(old, new)
        if name == "my-cluster":
            text = text.replace("interconnect: {}\n", _GIVEN)
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")


def _profiles(folder: Path) -> Iterator[dict[str, Any]]:
    """Profiles of the checked-in tables of devices, and of those of the user's networks."""
    for accelerator, dataset in _CHECKED_IN:
        for path in sorted((folder / accelerator / dataset).glob("*.csv")):
            key = ProfileKey(dataset, path.stem.replace("@", ":"))
            table = read_table(path, dataset)
            yield {
                **table_profile(DeviceSheet.load("h100-sxm"), key, table),
                "schema_version": PROFILE_VERSION,
                "profile_id": key.id,
                "precision": "fp32",
                "threads_per_device": 1,
                "batch_sizes": list(table.batch_sizes),
                "provenance": {},
            }


def at_site(values: dict[str, Any], site: Site) -> dict[str, Any]:
    """A profile as if it had been measured at a site: longer times, and whole steps."""
    scaled = copy.deepcopy(values)
    for part in (*scaled["layers"], *scaled["blocks"]):
        for timing in (t for key in _PASSES for t in part.get(key, ())):
            timing["time_s"] *= _TIMES[site.name]
    parameters = sum(tensor["bytes"] for tensor in scaled["tensors"])
    saved = sum(block["saved_bytes_per_sample"] for block in scaled["blocks"])
    steps = []
    for batch_size in scaled["batch_sizes"]:
        forward_s, backward_s = (_sum_s(scaled["blocks"], key, batch_size) for key in _PASSES[:2])
        optimizer_s = 5e-10 * parameters * _TIMES[site.name]
        step_s = 1.02 * (forward_s + backward_s + optimizer_s)
        step = {"batch_size": batch_size, "count": 20, "step_s": step_s}
        step["interval_s"] = [0.99 * step_s, 1.01 * step_s]
        step |= {"load_s": 0.01 * step_s, "forward_s": forward_s, "backward_s": backward_s}
        step["optimizer_s"] = optimizer_s
        step["peak_bytes"] = int(3 * parameters + batch_size * saved)
        steps.append(step)
    slowdowns = [(1, 1.0)] if site.device == "cuda" or site.accelerator else [(1, 1.0), (8, 1.4)]
    return scaled | {
        "site": site.name,
        "device_kind": site.device,
        "steps": steps,
        "fixed_memory_bytes": 3 * parameters,
        "device_memory_bytes": _GPU_BYTES if site.device == "cuda" else None,
        "node_slowdown": [
            {"replicas": replicas, "slowdown": k, "interval": None} for replicas, k in slowdowns
        ],
        "notes": ["made up from a profile of one core"],
    }


_PASSES = ("forward", "backward", "input_half", "weight_half")


def _sum_s(blocks: list[dict[str, Any]], key: str, batch_size: int) -> float:
    return sum(
        float(timing["time_s"])
        for block in blocks
        for timing in block[key]
        if timing["batch_size"] == batch_size
    )


def swept_links(site: Site) -> Links:
    """Links of all devices, with sweeps of the collectives, by latency and bandwidth alone."""
    nodes = [node for node in range(site.nodes) for _ in range(site.devices_per_node)]
    level = [["node" if a == b else "network" for b in nodes] for a in nodes]

    def matrix(which: int) -> list[list[float | None]]:
        return [
            [None if row == column else _LINKS[name][which] for column, name in enumerate(names)]
            for row, names in enumerate(level)
        ]

    pair = {
        "scope": "world",
        "method": "gloo",
        "endpoints": [f"rank {rank}" for rank in range(len(nodes))],
        "nodes": nodes,
        "bandwidth_bytes_per_s": matrix(1),
        "latency_s": matrix(0),
        "repeats": 1,
        "slow_pairs": [],
    }
    values = {
        "schema_version": 1,
        "site": site.name,
        "fabric": "default",
        "device_kind": site.device,
        "pairs": [pair],
        "sweeps": [sweep.to_dict() for sweep in _sweeps(site)],
        "notes": ["made up"],
        "provenance": {},
    }
    return Links.from_dict(values)


def _sweeps(site: Site) -> Iterator[LinkSweep]:
    groups = [("node", 1, devices) for devices in (2, 4, site.devices_per_node)]
    groups += [("network", nodes, 1) for nodes in (2, 4, site.nodes)]
    groups.append(("network", site.nodes, site.devices_per_node))
    for level, nodes, devices in groups:
        ranks = nodes * devices
        if ranks == 2:
            yield _sweep("p2p", "gloo", level, (nodes, devices), 1.0)
        for operation, transports in _SWEPT.items():
            for transport, factor in transports.items():
                yield _sweep(operation, transport, level, (nodes, devices), factor)


def _sweep(
    operation: str, transport: str, level: str, shape: tuple[int, int], factor: float
) -> LinkSweep:
    ranks = shape[0] * shape[1]
    latency_s, bandwidth = _LINKS[level]
    rounds = {"p2p": 1.0, "all_reduce": 2.0 * (ranks - 1)}.get(operation, ranks - 1.0)
    sent = 1.0 if operation in ("p2p", "all_gather", "broadcast") else 1 / ranks
    points = []
    for size in _SIZES:
        time_s = factor * rounds * (latency_s + sent * size / bandwidth)
        points.append(SweepPoint(size, time_s, None, 10, 0.6 * time_s))
    return LinkSweep(
        operation=operation,
        transport=transport,
        level=level,
        nodes=shape[0],
        devices_per_node=shape[1],
        ranks=ranks,
        points=tuple(points),
        fit=fit_hockney(points),
    )


def _write_measured(folder: Path) -> None:
    """Results of a few cells at the site local."""
    like = json.loads(RESULT.read_text(encoding="utf-8"))
    for geometry, steps_s in MEASURED.items():
        for strategy, step_s in steps_s.items():
            shape = "1x1" if strategy == "sequential" else geometry
            nodes, devices = (int(part) for part in shape.split("x"))
            cell = Cell(
                "cifar10", MEASURED_NETWORK, strategy, MEASURED_BATCH, nodes, devices, epochs=1
            )
            result = copy.deepcopy(like)
            result |= {"site": "local", "cell_id": cell.id, "workers": cell.devices}
            result["cell"] = cell.to_dict()
            samples = result["timing"]["dataset_samples"]
            epoch_s = step_s * samples / cell.batch_size
            result["timing"] |= {"epoch_s": epoch_s, "samples_per_s": samples / epoch_s}
            path = folder / RESULTS / cell_dir("local", cell.id).relative_to(RESULTS)
            path.mkdir(parents=True, exist_ok=True)
            (path / "result.json").write_text(json.dumps(result), encoding="utf-8")
            rows = [f"1,{step},0,{step_s * (0.99 + 0.002 * step)},0.001,2.3" for step in range(10)]
            header = "epoch,step,warmup,step_s,load_s,loss"
            (path / "steps.csv").write_text("\n".join([header, *rows, ""]), encoding="utf-8")
