"""Made-up profiles and links, valid by their schemas, with numbers one can work with by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ddlbench.common.fits import given_hockney
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.links import Links, write_links
from ddlbench.experiment.paths import RESULTS, links_file, profile_file
from ddlbench.experiment.profile import Profile, ProfileKey, write_profile
from ddlbench.experiment.site import Accelerator, Site
from ddlbench.planning.plan import Plan
from ddlbench.planning.planner import make_plan
from ddlbench.planning.workload import Workload
from ddlbench.predict.candidate import Knowledge
from ddlbench.predict.inputs import Inputs
from ddlbench.predict.links import LinkTable
from ddlbench.predict.question import Question

BATCHES = (8, 16, 32)
MB = 1_000_000


def timings(fixed_s: float, per_sample_s: float) -> list[dict[str, Any]]:
    return [
        {"batch_size": b, "time_s": fixed_s + per_sample_s * b, "interval_s": None} for b in BATCHES
    ]


def block(index: int, parameter_bytes: int, **changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "block": index,
        "name": f"block{index}",
        "parameter_bytes": parameter_bytes,
        "buffer_bytes": 0,
        "input_bytes_per_sample": 1000 if index else 100,
        "output_bytes_per_sample": 1000,
        "saved_bytes_per_sample": 3000,
        "forward": timings(0.0, 0.001),
        "backward": timings(0.0, 0.002),
    }
    return {**values, **changes}


def profile(
    parameters: tuple[int, ...] = (10 * MB, 20 * MB, 30 * MB, 40 * MB), **changes: Any
) -> dict[str, Any]:
    """Blocks of 3 ms a sample; a step takes 0.1 s + 0.01 s a sample, 60 % of it backward."""
    count = len(parameters)
    blocks = [block(index, size) for index, size in enumerate(parameters)]
    values: dict[str, Any] = {
        "schema_version": 1,
        "site": "local",
        "profile_id": "mnist/vgg11/fp32-1t",
        "dataset": "mnist",
        "network": "vgg11",
        "precision": "fp32",
        "threads_per_device": 1,
        "device_kind": "cpu",
        "batch_sizes": list(BATCHES),
        "steps": [step(b, 0.1 + 0.01 * b) for b in BATCHES],
        "layers": [
            {
                "name": entry["name"],
                "block": entry["block"],
                "block_name": entry["name"],
                "kind": "Conv2d",
                "parameter_bytes": entry["parameter_bytes"],
                "output_bytes_per_sample": entry["output_bytes_per_sample"],
                "saved_bytes_per_sample": entry["saved_bytes_per_sample"],
                "shape": {"input": [10, 5, 5], "output": [10, 5, 5], "kernel": 3, "stride": 1},
                "forward": entry["forward"],
                "backward": entry["backward"],
            }
            for entry in blocks
        ],
        "blocks": blocks,
        "tensors": [
            {
                "name": f"w{index}",
                "block": index,
                "bytes": size,
                "ready_fraction": (count - index) / count,
            }
            for index, size in reversed(list(enumerate(parameters)))
        ],
        "node_slowdown": [
            {"replicas": 1, "slowdown": 1.0, "interval": None},
            {"replicas": 4, "slowdown": 1.6, "interval": None},
        ],
        "fixed_memory_bytes": 0,
        "notes": [],
        "provenance": {},
    }
    return {**values, **changes}


def step(batch_size: int, step_s: float) -> dict[str, Any]:
    return {
        "batch_size": batch_size,
        "count": 10,
        "step_s": step_s,
        "interval_s": [0.98 * step_s, 1.02 * step_s],
        "load_s": 0.05 * step_s,
        "forward_s": 0.3 * step_s,
        "backward_s": 0.6 * step_s,
        "optimizer_s": 0.05 * step_s,
        "peak_bytes": None,
    }


def pair(
    nodes: list[int],
    bandwidth: float = 1e9,
    latency_s: float = 1e-4,
    slow: dict[tuple[int, int], float] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """A matrix with one bandwidth everywhere but at ``slow``."""
    size = len(nodes)
    values: dict[str, Any] = {
        "scope": "world" if len(set(nodes)) > 1 else "node",
        "method": "given",
        "endpoints": [f"device{index}" for index in range(size)],
        "nodes": nodes,
        "bandwidth_bytes_per_s": [
            [None if r == c else (slow or {}).get((r, c), bandwidth) for c in range(size)]
            for r in range(size)
        ],
        "latency_s": [[None if r == c else latency_s for c in range(size)] for r in range(size)],
        "repeats": 1,
        "slow_pairs": [],
    }
    return {**values, **changes}


def sweep(alpha_s: float, bandwidth: float, ranks: int, **changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "operation": "all_reduce",
        "transport": "gloo",
        "level": "node",
        "nodes": 1,
        "devices_per_node": ranks,
        "ranks": ranks,
        "points": [],
        "fit": given_hockney(alpha_s, bandwidth).to_dict(),
    }
    return {**values, **changes}


def links(*pairs: dict[str, Any], sweeps: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "site": "local",
        "fabric": "default",
        "device_kind": "cpu",
        "pairs": list(pairs) or [pair([0, 0, 0, 0])],
        "sweeps": list(sweeps),
        "notes": [],
        "provenance": {},
    }


def cell(strategy: str, geometry: str = "1x4", batch_size: int = 32, **changes: Any) -> Cell:
    nodes, devices = (int(part) for part in geometry.split("x"))
    options = tuple(changes.pop("options", {}).items())
    values: dict[str, Any] = {"dataset": "mnist", "network": "vgg11", **changes}
    return Cell(
        strategy=strategy,
        batch_size=batch_size,
        nodes=nodes,
        devices_per_node=devices,
        options=options,
        **values,
    )


def plan(strategy: str, geometry: str = "1x4", batch_size: int = 32, **changes: Any) -> Plan:
    return make_plan(cell(strategy, geometry, batch_size, **changes))


def emulated(**changes: Any) -> dict[str, Any]:
    """The same profile, measured on a site of emulated accelerators."""
    return profile(provenance={"cpu_model": ACCELERATOR.remark}, **changes)


def workload(**changes: Any) -> Workload:
    return Workload(profile(**changes))


def table(*pairs: dict[str, Any], sweeps: tuple[dict[str, Any], ...] = ()) -> LinkTable:
    return LinkTable(Links.from_dict(links(*pairs, sweeps=sweeps)))


ACCELERATOR = Accelerator("config/accelerators/one-core", slow_down=4)


def site(**changes: Any) -> Site:
    """Four nodes of eight CPU devices with 100 GB each, whatever this machine has."""
    values: dict[str, Any] = {
        "name": "local",
        "description": "",
        "device": "cpu",
        "launcher": "local",
        "nodes": 4,
        "devices_per_node": 8,
        "cpus_per_device": 1,
        "memory_per_device_mb": 100_000,
        "scratch": "/tmp",
        "keep_data": False,
        "interface": None,
        "cell_timeout_s": 60.0,
        "hang_timeout_s": 60.0,
    }
    return Site(**{**values, **changes})


def question(geometry: str = "1x4", batch_size: int = 32, **changes: Any) -> Question:
    nodes, devices_per_node = (int(part) for part in geometry.split("x"))
    values: dict[str, Any] = {
        "network": "vgg11",
        "dataset": "mnist",
        "nodes": nodes,
        "devices_per_node": devices_per_node,
        "batch_size": batch_size,
        "settings": {},
        "options": {},
    }
    return Question(**{**values, **changes})


def knowledge(root: Path, **changes: Any) -> Knowledge:
    """What the site ``local`` knows by the files below ``root``."""
    return Knowledge(**{"site": site(), "inputs": Inputs("local", root), **changes})


def write_site(root: Path, values: dict[str, Any], link_values: dict[str, Any] | None) -> None:
    """Lay a profile and a links file where the site ``local`` has them below ``root``."""
    key = ProfileKey(values["dataset"], values["network"])
    path = root / profile_file("local", key.id).relative_to(RESULTS)
    write_profile(path, Profile.from_dict(values))
    if link_values is not None:
        path = root / links_file("local", link_values["fabric"]).relative_to(RESULTS)
        write_links(path, Links.from_dict(link_values))
