"""How fast data is written, against plain writing of as many bytes; and what the feed costs.

    python benchmarks/datasets/run.py [--size-bytes N] [--repeats N] [--workers N] [--json FILE]

Both writers end with fdatasync. They take turns, each pair in the other order than the one
before, and only ratios within a pair are summarised.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ddlbench.datasets import stage
from ddlbench.datasets.files import available_cpus
from ddlbench.datasets.formats import write_dataset
from ddlbench.datasets.loading import make_feed
from ddlbench.experiment.dataset_spec import DataRequest, estimate_bytes

CHUNK_BYTES = 8 << 20
TARGET = 0.7


def write_plainly(buffer: np.ndarray, path: Path) -> None:
    """Write ``buffer`` to the new file ``path``, one large piece after the other."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        view = memoryview(buffer.data)
        while view:
            view = view[os.write(fd, view[:CHUNK_BYTES]) :]
        os.fdatasync(fd)
    finally:
        os.close(fd)


def seconds(action: Callable[[], Any]) -> float:
    """How long ``action`` takes, begun with nothing left to be written back."""
    os.sync()
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def compare_writing(folder: Path, size_bytes: int, repeats: int, workers: int) -> dict[str, Any]:
    """Write both ways, in turns."""
    full = estimate_bytes(DataRequest("imagenet", "raw"))
    request = DataRequest("imagenet", "raw", size_bytes / full)
    ours, plain = folder / "ours", folder / "plain"
    total = write_dataset(request, ours, workers=workers).total_bytes  # also warms up
    shutil.rmtree(ours)
    buffer = np.frombuffer(np.random.default_rng(0).bytes(total), np.uint8)
    write_plainly(buffer, plain)
    plain.unlink()

    def time_ours() -> float:
        elapsed_s = seconds(lambda: write_dataset(request, ours, workers=workers))
        shutil.rmtree(ours)
        return elapsed_s

    def time_plain() -> float:
        elapsed_s = seconds(lambda: write_plainly(buffer, plain))
        plain.unlink()
        return elapsed_s

    ours_s, plain_s = [], []
    for turn in range(repeats):
        if turn % 2:
            ours_s.append(time_ours())
            plain_s.append(time_plain())
        else:
            plain_s.append(time_plain())
            ours_s.append(time_ours())
    ratios = [p / o for p, o in zip(plain_s, ours_s, strict=True)]
    quartiles = statistics.quantiles(ratios, n=4)
    return {
        "size_bytes": total,
        "workers": workers,
        "ours_s": ours_s,
        "plain_s": plain_s,
        "ours_bytes_per_s": total / statistics.median(ours_s),
        "plain_bytes_per_s": total / statistics.median(plain_s),
        "ratios": ratios,
        "ratio_median": statistics.median(ratios),
        "ratio_quartiles": [quartiles[0], quartiles[2]],
        "ratio_range": [min(ratios), max(ratios)],
        "target": TARGET,
        "reached": statistics.median(ratios) >= TARGET,
    }


def measure_feed(folder: Path, repeats: int) -> list[dict[str, Any]]:
    """Seconds a batch: all of it, and the copy and conversion that no loader can avoid."""
    rows = []
    for request in (
        DataRequest("mnist"),
        DataRequest("cifar10"),
        DataRequest("cifar10", "raw"),
    ):
        path = stage(request, folder).path
        for batch in (8, 64):
            feed = make_feed(path, request, global_batch=batch)
            count = min(500, feed.steps_per_epoch)
            all_s, copy_s = [], []
            images, _ = feed.dataset.gather(np.arange(batch))
            for _ in range(repeats):
                steps = feed.batches(0, 0, count)
                begin = time.perf_counter()
                for _ in steps:
                    pass
                middle = time.perf_counter()
                for _ in range(count):
                    images.clone().float().mul_(4 / 255).sub_(2)
                end = time.perf_counter()
                all_s.append((middle - begin) / count)
                copy_s.append((end - middle) / count)
            rows.append(
                {
                    "dataset": request.dataset,
                    "format": request.format,
                    "batch": batch,
                    "batch_s": statistics.median(all_s),
                    "copy_s": statistics.median(copy_s),
                    "overhead_s": statistics.median(
                        a - c for a, c in zip(all_s, copy_s, strict=True)
                    ),
                }
            )
    return rows


def main() -> None:
    """Run, print, and write JSON if asked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--size-bytes", type=int, default=800_000_000)
    parser.add_argument("--repeats", type=int, default=11)
    parser.add_argument("--workers", type=int, default=available_cpus())
    parser.add_argument("--folder", type=Path, help="on the disk to be measured")
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        writing = compare_writing(
            Path(name), options.size_bytes, options.repeats, max(1, options.workers)
        )
        feed = measure_feed(Path(name), options.repeats)
    low, high = writing["ratio_quartiles"]
    least, most = writing["ratio_range"]
    print(
        f"{writing['size_bytes'] / 1e9:.2f} GB, {writing['workers']} workers, "
        f"{options.repeats} pairs\n"
        f"plain writing   {writing['plain_bytes_per_s'] / 1e9:.2f} GB/s\n"
        f"raw shards      {writing['ours_bytes_per_s'] / 1e9:.2f} GB/s\n"
        f"ratio           {writing['ratio_median']:.2f} (quartiles {low:.2f} to {high:.2f}, "
        f"all {least:.2f} to {most:.2f}); target {TARGET}"
    )
    for row in feed:
        print(
            f"feed {row['dataset']:8} {row['format']:6} batch {row['batch']:3}: "
            f"{row['batch_s'] * 1e6:4.0f} us, of which copying {row['copy_s'] * 1e6:4.0f} us"
        )
    if options.json:
        facts = {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "machine": platform.machine(),
            "cpus": available_cpus(),
        }
        report = {"writing": writing, "feed": feed, "environment": facts}
        options.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
