"""Made-up results, valid by the schema: what the tests of the report read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.config import Experiment, parse_experiment
from ddlbench.experiment.paths import RESULTS, result_file
from ddlbench.experiment.result import Result, write_result
from ddlbench.experiment.site import Site
from ddlbench.planning.matrix import MatrixRow, expand
from ddlbench.planning.planner import make_plan
from ddlbench.planning.strategy import strategy_of
from ddlbench.report.measurements import records_of
from ddlbench.report.tables import MEASUREMENTS, frame_of

DATASETS = ["mnist", "cifar10", "imagenet", "highres"]
NETWORKS = ["resnet18", "resnet50", "resnet152", "vgg11", "vgg16", "mobilenetv2"]
STRATEGIES = ["sequential", "horovod", "ddp", "gpipe", "model-parallel"]
MEMORY = {"resnet18": 0.6, "resnet50": 1.6, "resnet152": 4.1, "vgg11": 1.4, "vgg16": 1.9}
SITE_NAME = "local"


def site(**changes: Any) -> Site:
    values: dict[str, Any] = {
        "name": SITE_NAME,
        "description": "this machine, CPU",
        "device": "cpu",
        "launcher": "local",
        "nodes": 4,
        "devices_per_node": 4,
        "cpus_per_device": 1,
        "memory_per_device_mb": None,
        "scratch": "/tmp",
        "keep_data": False,
        "interface": None,
        "cell_timeout_s": 600.0,
        "hang_timeout_s": 600.0,
    }
    return Site(**{**values, **changes})


def experiment(
    datasets: list[str] | None = None,
    networks: list[str] | None = None,
    strategies: list[str] | None = None,
    geometry: list[str] | None = None,
    repeats: int = 1,
    **further: Any,
) -> Experiment:
    return parse_experiment(
        {
            "experiment": "demo",
            "repeats": repeats,
            "matrix": {
                "dataset": datasets or ["mnist", "cifar10"],
                "network": networks or ["resnet18", "vgg11", "mobilenetv2"],
                "strategy": strategies or STRATEGIES,
                "geometry": geometry or ["1x2"],
            },
            "settings": {"batch_size": 16, "data_scale": 0.01},
            **further,
        }
    )


def matrix(monkeypatch: Any = None, **axes: Any) -> list[MatrixRow]:
    """Rows as an environment with every package would have them."""
    if monkeypatch is not None:
        monkeypatch.setattr("ddlbench.planning.matrix._missing_package", lambda *_: None)
    return expand(experiment(**axes), site())


def result(cell: Cell, epoch_s: float | None = None, **changes: Any) -> dict[str, Any]:
    """A result of ``cell``; ``changes`` replace top-level fields."""
    strategy = strategy_of(cell.strategy)
    random = np.random.default_rng(abs(hash_of(cell.id)))
    note = strategy.note("cpu")
    seconds = epoch_s if epoch_s is not None else example_seconds(cell)
    step = seconds / 8
    peak = int(MEMORY.get(cell.network, 0.4) * 2**30 * (0.7 + 0.3 * random.random()))
    if strategy.family in ("pipeline", "model"):
        peak = int(peak / cell.devices * 1.3)
    plan = make_plan(cell)
    values: dict[str, Any] = {
        "schema_version": 1,
        "status": "ok",
        "reason": None,
        "site": SITE_NAME,
        "cell_id": cell.id,
        "cell": cell.to_dict(),
        "inputs": {
            "plan_digest": plan.digest,
            "dataset_digest": None,
            "links_digest": None,
            "profile_digest": None,
        },
        "processes": plan.world_size,
        "devices": cell.devices,
        "workers": cell.devices,
        "device_kind": "cpu",
        "update_semantics": "synchronous",
        "notes": [note] if note else [],
        "plan_details": {},
        "ranks": [rank(place, peak + place) for place in range(cell.devices)],
        "timing": timing(seconds, step, 0.03 + 0.04 * random.random()),
        "staging": None,
        "loss": {"first": 2.4, "last": 2.1, "mean_last_epoch": 2.2},
        "communication": traffic(plan.world_size, peak // 10),
        "efficiency": {
            "flops_per_step": 10**9,
            "flops_per_s": 10**9 / step,
            "peak_flops_per_s": 4 * 10**9 / step,
            "peak_rule": "matrix products",
            "devices": cell.devices,
            "mfu": 0.25,
            "missing": None,
        },
        "log_tail": [],
        "elapsed_s": seconds * 3,
        "provenance": {
            "created": "2031-04-05T06:07:08+00:00",
            "git_commit": "0123456789abcdef0123456789abcdef01234567",
            "git_dirty": False,
        },
    }
    return {**values, **changes}


def failed(cell: Cell, status: str, reason: str) -> dict[str, Any]:
    return result(
        cell,
        status=status,
        reason=reason,
        reason_code=status,
        timing=None,
        loss=None,
        ranks=[],
        notes=[],
        communication=None,
        efficiency=None,
    )


def traffic(world_size: int, sent_bytes: int) -> dict[str, Any]:
    """Rank 0 sends most."""
    return {
        "counted_by": "tcp_info",
        "steps": 10,
        "ranks": [
            {
                "rank": rank,
                "sent_bytes": 10 * (sent_bytes - rank),
                "received_bytes": 0,
                "sent_bytes_per_step": float(sent_bytes - rank),
                "received_bytes_per_step": 0.0,
            }
            for rank in range(world_size)
        ],
    }


def rank(place: int, peak: int) -> dict[str, Any]:
    return {
        "rank": place,
        "role": "worker",
        "node": 0,
        "host": "node0",
        "local_rank": place,
        "devices": [f"cpu:{place}"],
        "stage": 0,
        "replica": place,
        "threads": 1,
        "samples": 100,
        "prepare_s": 1.0,
        "load_s": 0.1,
        "communication_wait_s": None,
        "cpu_utilisation": None,
        "gpu_utilisation": None,
        "parameter_bytes": 1000,
        "peak_rss_bytes": 2 * peak,
        "memory": [
            {
                "device": f"cpu:{place}",
                "peak_bytes": peak,
                "reserved_bytes": None,
                "device_used_bytes": None,
                "total_bytes": None,
            }
        ],
    }


def timing(epoch_s: float, step: float, spread: float, samples: int = 600) -> dict[str, Any]:
    return {
        "clock": "perf_counter",
        "device_synchronised": True,
        "barrier": "none",
        "combined": "slowest rank",
        "warmup_rule": "first steps",
        "warmup_steps": 2,
        "epochs": [],
        "steps_per_epoch": 8,
        "samples_per_epoch": samples,
        "dataset_samples": samples,
        "step_s": {
            "median_s": step,
            "low_s": step * (1 - spread),
            "high_s": step * (1 + 1.5 * spread),
            "mean_s": step,
            "p95_s": step * 1.1,
            "p99_s": step * 1.2,
            "count": 24,
        },
        "step_spread": spread,
        "noisy": False,
        "epoch_s": epoch_s,
        "epoch_scaled": False,
        "samples_per_s": samples / epoch_s,
        "load_s": 0.1,
        "prepare_s": 1.0,
    }


def hash_of(text: str) -> int:
    value = 0
    for letter in text:
        value = (value * 131 + ord(letter)) % (2**31)
    return value


def example_seconds(cell: Cell) -> float:
    """A plausible epoch: slower for large images and networks, faster with workers."""
    random = np.random.default_rng(hash_of(cell.id))
    size = 1 + 3 * DATASETS.index(cell.dataset) + NETWORKS.index(cell.network)
    gain = {
        "sequential": 1.0, "horovod": 0.75, "ddp": 0.85, "gpipe": 0.55, "model-parallel": 0.48,
        "pipedream": 0.6, "parameter-server": 0.4,
    }  # fmt: skip
    noise = float(random.normal(1, 0.03))
    return size * noise / max(cell.devices * gain[cell.strategy] ** (cell.devices > 1), 0.1)


def write(root: Path, cell: Cell, values: dict[str, Any] | None = None, steps: int = 24) -> Path:
    """Write a cell's result (and steps when it is ok) where the report looks for it."""
    values = values if values is not None else result(cell)
    path = root / result_file(SITE_NAME, cell.id).relative_to(RESULTS)
    write_result(path, Result.from_dict(values))
    if values["status"] == "ok" and steps:
        random = np.random.default_rng(hash_of(cell.id))
        median = values["timing"]["step_s"]["median_s"]
        lines = ["epoch,step,warmup,step_s,load_s,loss"]
        for step in range(steps + 2):
            duration = median * float(random.lognormal(0, 0.05))
            lines.append(f"{max(0, step - 2) // 8},{step},{int(step < 2)},{duration!r},0.001,2.3")
        (path.parent / "steps.csv").write_text("\n".join(lines) + "\n")
    return path


def write_all(root: Path, rows: list[MatrixRow], troubled: bool = True) -> None:
    """Results of a whole matrix, with a few cells of every other outcome."""
    for row in rows:
        cell = row.cell
        if row.unsupported is not None:
            continue
        where = (cell.dataset, cell.network, cell.strategy)
        if troubled and where == ("cifar10", "mobilenetv2", "gpipe"):
            write(root, cell, failed(cell, "out_of_memory", "device 1 has 80 GiB"))
        elif troubled and where == ("mnist", "vgg11", "ddp"):
            write(root, cell, failed(cell, "timeout", "longer than 600 s"))
        elif troubled and cell.dataset == "highres" and cell.network in ("vgg16", "resnet152"):
            write(root, cell, failed(cell, "out_of_memory", "device 0 has 80 GiB"))
        elif troubled and where == ("cifar10", "resnet18", "model-parallel"):
            continue
        else:
            write(root, cell)


def collect(
    experiment: str, site_name: str, rows: list[MatrixRow], results_root: Path
) -> pd.DataFrame:
    """The measurements of an experiment, in the order of its matrix."""
    return frame_of(records_of(experiment, site_name, rows, results_root), MEASUREMENTS)
