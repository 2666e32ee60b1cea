"""How long `snakemake -n` thinks about a large experiment, against a Snakefile that does nothing.

    python benchmarks/dryrun/run.py [--cells N] [--pairs N] [--json]

Two workflows of the same graph, each timed as `snakemake -n --quiet` in a process of its own:

    cell -> one aggregate        ours     this project: matrix, checks, resources
    (one job a cell)             minimal  nothing but names and shell commands

They take turns, each round in the other order than the one before, and only ratios within a
round are summarised. CPU time is shown beside wall time: other work on the machine changes it less.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
PROFILE = PROJECT / "profiles" / "slurm"

# 19 cells of every dataset and network can run on the example cluster: 1 sequential, 4 geometries
# x 2 buckets of ddp, 2 geometries x 4 chunks of gpipe, 2 geometries of model-parallel.
CELLS_A_REPEAT = 4 * 6 * 19
EXPERIMENT = """\
experiment: dryrun
site: {site}
repeats: {repeats}
most_cells: 1000000
matrix:
  dataset: [mnist, cifar10, imagenet, highres]
  network: [resnet18, resnet50, resnet152, vgg11, vgg16, mobilenetv2]
  strategy: [sequential, ddp, gpipe, model-parallel]
  geometry: [1x2, 1x4, 2x4, 4x4]
settings: {{batch_size: 256}}
strategies:
  ddp: {{bucket_cap_bytes: [1048576, 26214400]}}
  gpipe: {{chunks: [2, 4, 8, 16]}}
"""
MINIMAL = """\
CELLS = [f"cell{{number}}" for number in range({cells})]

rule all:
    input: "all.txt"

rule cell:
    output: "cells/{{cell}}/result.json"
    shell: "touch {{output}}"

rule aggregate:
    input: [f"cells/{{cell}}/result.json" for cell in CELLS]
    output: "all.txt"
    shell: "touch {{output}}"
"""


def main() -> None:
    """Time the workflows and print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cells", type=int, default=5000, help="at least so many (default 5000)")
    parser.add_argument("--pairs", type=int, default=5, help="rounds to time (default 5)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ddlbench-dryrun-") as folder:
        commands, cells = prepare(Path(folder), arguments.cells)
        jobs = {name: count_jobs(command) for name, command in commands.items()}
        rounds = measure(commands, arguments.pairs)
    report = {
        "cells": cells,
        "jobs": jobs,
        "rounds": rounds,
        "ratio": ratios(rounds),
        "machine": {
            "processor": processor(),
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
            "snakemake": version("snakemake"),
        },
    }
    print(json.dumps(report, indent=1) if arguments.json else text(report))


def prepare(folder: Path, wanted: int) -> tuple[dict[str, list[str]], int]:
    """Write both workflows; returns their commands, and how many cells each has."""
    repeats = max(1, -(-wanted // CELLS_A_REPEAT))
    cells = repeats * CELLS_A_REPEAT
    for name in ("ours", "minimal"):
        (folder / name).mkdir()
    snakefiles = {"ours": PROJECT / "Snakefile", "minimal": folder / "minimal" / "Snakefile"}
    snakefiles["minimal"].write_text(MINIMAL.format(cells=cells), encoding="utf-8")
    configfile = folder / "experiment.yaml"
    site = folder / "cluster.yaml"
    example = (PROJECT / "config" / "sites" / "slurm-example.yaml").read_text(encoding="utf-8")
    site.write_text(example.replace("REPLACE_ME", "example"), encoding="utf-8")
    configfile.write_text(EXPERIMENT.format(repeats=repeats, site=site), encoding="utf-8")
    commands = {}
    for name, snakefile in snakefiles.items():
        command = [sys.executable, "-m", "snakemake", "-n", "--quiet"]
        command += ["--profile", str(PROFILE), "--snakefile", str(snakefile)]
        command += ["--directory", str(folder / name)]
        if name == "ours":
            command += ["--configfile", str(configfile)]
        commands[name] = command
    return commands, cells


def count_jobs(command: list[str]) -> int:
    """How many jobs Snakemake plans; this first run also warms the file cache."""
    counting = [*command, "--quiet", "rules"]
    done = subprocess.run(counting, capture_output=True, text=True, check=False)
    total = re.search(r"^total\s+(\d+)", done.stdout + done.stderr, re.MULTILINE)
    if done.returncode or total is None:
        sys.exit(f"{' '.join(counting)}\nfailed:\n{done.stderr}")
    return int(total[1])


def measure(commands: dict[str, list[str]], rounds: int) -> list[dict[str, dict[str, float]]]:
    """Time every workflow once a round."""
    measured = []
    for number in range(rounds):
        names = list(commands) if number % 2 == 0 else list(reversed(commands))
        times = {name: run(commands[name]) for name in names}
        measured.append({name: times[name] for name in commands})
    return measured


def run(command: list[str]) -> dict[str, float]:
    """Wall and CPU seconds of one process, and its peak memory."""
    began = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command)}\nended with {process.returncode}")
    return {
        "wall_s": wall_s,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "peak_rss_bytes": usage.ru_maxrss * 1024.0,
    }


def ratios(rounds: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Median, smallest and largest ratio of ours to the minimal one in the same round."""
    ratios_of = {}
    for kind in ("wall_s", "cpu_s"):
        values = [each["ours"][kind] / each["minimal"][kind] for each in rounds]
        ratios_of[kind] = {
            "median": statistics.median(values),
            "low": min(values),
            "high": max(values),
        }
    return ratios_of


def processor() -> str:
    """Name the processor."""
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        match = None
    return match[1] if match else platform.machine()


def text(report: dict[str, Any]) -> str:
    """Lay the report out for a person."""
    machine = report["machine"]
    lines = [
        f"{report['cells']:,} cells; {len(report['rounds'])} rounds; Snakemake "
        f"{machine['snakemake']}, Python {machine['python']}, {machine['cpus']} x "
        f"{machine['processor']}",
        "",
        "            jobs   wall s (range)         CPU s   MB",
    ]
    for name, jobs in report["jobs"].items():
        times = {k: [r[name][k] for r in report["rounds"]] for k in report["rounds"][0][name]}
        wall_s = times["wall_s"]
        lines.append(
            f"{name:8} {jobs:>7,}   {statistics.median(wall_s):6.2f} "
            f"({min(wall_s):.2f}-{max(wall_s):.2f})   {statistics.median(times['cpu_s']):6.2f}"
            f"   {max(times['peak_rss_bytes']) / 1e6:.0f}"
        )
    lines.append("")
    for kind, ratio in report["ratio"].items():
        lines.append(
            f"ours / minimal  {kind.removesuffix('_s'):4}  {ratio['median']:.2f} "
            f"({ratio['low']:.2f}-{ratio['high']:.2f})"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
