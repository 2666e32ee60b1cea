"""How many predictions a second: every predictor, over a grid of cells, from two files.

    python benchmarks/predict/run.py [--json]

The profile and the links are made up (VGG-16's forty blocks and thirty-two tensors, sixteen
devices on four nodes): their size decides the time, not their numbers. Reading and checking the
files is timed apart, as it happens once.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from ddlbench.common.fits import given_hockney
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.links import Links, write_links
from ddlbench.experiment.profile import Profile, write_profile
from ddlbench.experiment.registry import PREDICTORS
from ddlbench.planning.planner import make_plan
from ddlbench.predict.inputs import open_links, open_workload
from ddlbench.predict.prediction import Measured, NotPredictable, ask, predictor_of

BLOCKS = 40
TENSORS = 32
GEOMETRIES = {
    "sequential": ["1x1"],
    "horovod": ["1x2", "1x4", "2x4", "4x4"],
    "ddp": ["1x2", "1x4", "2x4", "4x4"],
    "gpipe": ["1x2", "1x4"],
    "model-parallel": ["1x2", "1x4"],
    "model-parallel-p2p": ["1x2", "1x4", "2x2"],
    "pipedream": ["1x2", "1x4", "2x2", "2x4"],
    "pipe-gpipe": ["1x2", "1x4", "2x2"],
    "pipe-1f1b": ["1x2", "1x4", "2x2"],
    "pipe-interleaved": ["1x2", "1x4", "2x2"],
    "pipe-zb": ["1x2", "1x4", "2x2"],
    "pipe-zbv": ["1x2", "1x4", "2x2"],
}
BATCHES = [64, 128, 256, 512]
# 1,024 devices: each pipeline has four of them.
LARGE: dict[str, dict[str, Any]] = {
    "ddp": {}, "horovod": {}, "pipe-1f1b": {"replicas": 256}, "pipe-zb": {"replicas": 256},
}  # fmt: skip


def main() -> None:
    """Print the seconds of a thousand predictions, and of each predictor."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder))
    if arguments.json:
        print(json.dumps(figures, indent=1))
        return
    print(f"reading both files   {figures['read_s'] * 1e3:9.1f} ms, once")
    print(f"1,000 predictions    {figures['thousand_s'] * 1e3:9.1f} ms, plans and memory included")
    for name, each_s in figures["each_s"].items():
        print(f"  {name:<24} {each_s * 1e6:9.1f} us")
    print("ddlbench on 128x8, the first time and again")
    for name, (first_s, again_s) in figures["large_s"].items():
        print(f"  {name:<24} {first_s * 1e3:9.1f} ms {again_s * 1e3:9.1f} ms")


def measure(folder: Path) -> dict[str, Any]:
    """Time a thousand predictions in one go, and each predictor by itself."""
    write_profile(folder / "profile.json", Profile.from_dict(profile()))
    write_links(folder / "links.json", Links.from_dict(links()))
    start = time.perf_counter()
    workload, table = open_workload(folder / "profile.json"), open_links(folder / "links.json")
    read_s = time.perf_counter() - start
    past = (Measured(cell("ddp", "1x2", 64), 0.3), Measured(cell("horovod", "1x2", 64), 0.3))
    questions = [
        (predictor_of(name), cell(strategy, geometry, batch))
        for name, (strategy, geometries), batch in itertools.product(
            PREDICTORS, GEOMETRIES.items(), BATCHES
        )
        for geometry in geometries
        if strategy in (predictor_of(name).strategies or GEOMETRIES)
    ]
    count = 0
    spent: dict[str, list[float]] = {}
    begin = time.perf_counter()
    for predictor, wanted in itertools.cycle(questions):
        if count == 1000:
            break
        before = time.perf_counter()
        try:
            ask(predictor, workload, table, make_plan(wanted), past)
        except NotPredictable:  # no history for this strategy: no prediction, so not counted
            continue
        spent.setdefault(predictor.name, []).append(time.perf_counter() - before)
        count += 1
    thousand_s = time.perf_counter() - begin
    each_s = {name: sum(times) / len(times) for name, times in spent.items()}
    ours = predictor_of("ddlbench")
    large_s = {}
    for strategy, options in LARGE.items():
        plan = make_plan(cell(strategy, "128x8", 8192).with_(options=tuple(options.items())))
        moments = [time.perf_counter()]
        for _ in range(2):
            ask(ours, workload, table, plan)
            moments.append(time.perf_counter())
        large_s[strategy] = [end - begin for begin, end in itertools.pairwise(moments)]
    return {"read_s": read_s, "thousand_s": thousand_s, "each_s": each_s, "large_s": large_s}


def cell(strategy: str, geometry: str, batch_size: int) -> Cell:
    """A cell of the made-up network."""
    nodes, devices = (int(part) for part in geometry.split("x"))
    return Cell("imagenet", "vgg16", strategy, batch_size, nodes, devices)


def timings(scale: float) -> list[dict[str, Any]]:
    """Three batch sizes."""
    return [
        {"batch_size": b, "time_s": scale * (1e-3 + 1e-3 * b), "interval_s": None}
        for b in (8, 16, 32)
    ]


def profile() -> dict[str, Any]:
    """As many blocks and tensors as VGG-16 has."""
    blocks = [
        {
            "block": index,
            "name": f"block{index}",
            "parameter_bytes": 1_000_000 * (index + 1),
            "buffer_bytes": 0,
            "input_bytes_per_sample": 400_000,
            "output_bytes_per_sample": 400_000,
            "saved_bytes_per_sample": 1_200_000,
            "forward": timings(1.0),
            "backward": timings(2.0),
        }
        for index in range(BLOCKS)
    ]
    layer = ("parameter_bytes", "output_bytes_per_sample", "saved_bytes_per_sample")
    layers = [
        {
            "name": block["name"],
            "block": block["block"],
            "block_name": block["name"],
            "kind": "Conv2d",
            **{key: block[key] for key in (*layer, "forward", "backward")},
        }
        for block in blocks
    ]
    step = {"count": 10, "interval_s": None, "load_s": 0.001, "peak_bytes": None}
    steps = [
        {
            "batch_size": b,
            "step_s": 0.1 + 0.05 * b,
            "forward_s": 0.016 * b,
            "backward_s": 0.03 * b,
            "optimizer_s": 0.1,
            **step,
        }
        for b in (8, 16, 32)
    ]
    return {
        "schema_version": 1,
        "site": "made-up",
        "profile_id": "imagenet/vgg16/fp32-1t",
        "dataset": "imagenet",
        "network": "vgg16",
        "precision": "fp32",
        "threads_per_device": 1,
        "device_kind": "cuda",
        "batch_sizes": [8, 16, 32],
        "steps": steps,
        "layers": layers,
        "blocks": blocks,
        "tensors": [
            {
                "name": f"w{index}",
                "block": (TENSORS - 1 - index) * BLOCKS // TENSORS,
                "bytes": 500_000 * (TENSORS - index),
                "ready_fraction": (index + 1) / TENSORS,
            }
            for index in range(TENSORS)
        ],
        "node_slowdown": [{"replicas": 1, "slowdown": 1.0, "interval": None}],
        "fixed_memory_bytes": 500_000_000,
        "notes": [],
        "provenance": {},
    }


def links() -> dict[str, Any]:
    """Sixteen devices on four nodes, and the all-reduce of four."""
    size = 16
    pair = {
        "scope": "world",
        "method": "given",
        "endpoints": [f"device{index}" for index in range(size)],
        "nodes": [index // 4 for index in range(size)],
        "bandwidth_bytes_per_s": [
            [None if r == c else 10e9 if r // 4 == c // 4 else 5e9 for c in range(size)]
            for r in range(size)
        ],
        "latency_s": [[None if r == c else 1e-5 for c in range(size)] for r in range(size)],
        "repeats": 1,
        "slow_pairs": [],
    }
    sweep = {
        "operation": "all_reduce",
        "transport": "given",
        "devices_per_node": 4,
        "points": [],
        "fit": given_hockney(1e-4, 5e9).to_dict(),
    }
    return {
        "schema_version": 1,
        "site": "made-up",
        "fabric": "default",
        "device_kind": "cuda",
        "pairs": [pair],
        "sweeps": [
            {**sweep, "level": "node", "nodes": 1, "ranks": 4},
            {**sweep, "level": "network", "nodes": 2, "ranks": 8},
        ],
        "notes": [],
        "provenance": {},
    }


if __name__ == "__main__":
    main()
