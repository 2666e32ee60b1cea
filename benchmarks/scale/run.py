"""How long `status`, tables and figures take where thousands of cells are measured.

    python benchmarks/scale/run.py [--results N] [--steps N] [--json]

Makes N results in a temporary folder, each like result.json but for its cell and its times, and
asks for three things, each in a process of its own:

    status    ddlbench status: what runs, what failed
    tables    measurements.csv, summary.csv and steps.csv
    report    ddlbench report: the tables, all figures, report.html
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ddlbench.common.schema import read_yaml
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.config import parse_experiment
from ddlbench.experiment.site import load_site
from ddlbench.planning.matrix import expand

PROJECT = Path(__file__).resolve().parents[2]
RESULT = Path(__file__).with_name("result.json")
EXPERIMENT = """\
experiment: scale
site: {site}
repeats: {repeats}
matrix:
  dataset: [mnist, cifar10, imagenet, highres]
  network: [resnet18, resnet50, resnet152, vgg11, vgg16, mobilenetv2]
  strategy: [sequential, ddp, horovod, gpipe, pipedream]
  geometry: [1x2, 1x4, 2x4, 4x4]
settings: {{batch_size: 256}}
strategies:
  ddp: {{bucket_cap_bytes: [1048576, 26214400]}}
  gpipe: {{chunks: [2, 4, 8, 16]}}
"""
_TABLES = """
from pathlib import Path
from ddlbench.common.schema import read_yaml
from ddlbench.report.measurements import make_tables
from ddlbench.planning.matrix import matrix_of
experiment, site, rows = matrix_of(read_yaml(Path("experiment.yaml")))
make_tables(experiment.name, site.name, rows, Path("results"), Path("tables"))
"""
_CLI = [sys.executable, "-m", "ddlbench.cli"]
COMMANDS = {
    "status": [*_CLI, "status", "--configfile", "experiment.yaml"],
    "tables": [sys.executable, "-c", _TABLES],
    "report": [*_CLI, "report", "--configfile", "experiment.yaml"],
}


def main() -> None:
    """Make the results, time the commands, and print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--results", type=int, default=5000, help="how many (default 5000)")
    parser.add_argument("--steps", type=int, default=50, help="of each (default 50)")
    parser.add_argument("--only", choices=COMMANDS, action="append", help="these alone")
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ddlbench-scale-") as name:
        folder = Path(name)
        made = prepare(folder, arguments.results, arguments.steps)
        wanted = arguments.only or list(COMMANDS)
        seen = {command: run(COMMANDS[command], folder) for command in wanted}
    report = {"results": made, "steps": arguments.steps, "cpus": os.cpu_count(), "seen": seen}
    print(json.dumps(report, indent=1) if arguments.json else text(report))


def prepare(folder: Path, results: int, steps: int) -> int:
    """Write an experiment and its results; returns how many results there are."""
    for path in ("Snakefile", "config", "profiles"):
        (folder / path).symlink_to(PROJECT / path)
    example = (PROJECT / "config" / "sites" / "slurm-example.yaml").read_text(encoding="utf-8")
    (folder / "cluster.yaml").write_text(example.replace("REPLACE_ME", "example"), "utf-8")
    configfile = folder / "experiment.yaml"
    text_of = {"site": folder / "cluster.yaml"}
    configfile.write_text(EXPERIMENT.format(repeats=1, **text_of), encoding="utf-8")
    a_repeat = len(_cells(folder, configfile))
    repeats = max(1, -(-results // a_repeat))
    configfile.write_text(EXPERIMENT.format(repeats=repeats, **text_of), encoding="utf-8")
    like = json.loads(RESULT.read_text(encoding="utf-8"))
    chance = random.Random(0)
    cells = _cells(folder, configfile)[:results]
    for cell in cells:
        _write(folder / "results" / "cluster" / "cells" / cell.id, cell, like, steps, chance)
    return len(cells)


def _cells(folder: Path, configfile: Path) -> list[Cell]:
    site = load_site(str(folder / "cluster.yaml"))
    rows = expand(parse_experiment(read_yaml(configfile), str(configfile)), site)
    return [row.cell for row in rows if row.unsupported is None]


def _write(
    folder: Path, cell: Cell, like: dict[str, Any], steps: int, chance: random.Random
) -> None:
    """A result of this cell whose steps take 0.1 to 0.2 s."""
    result = copy.deepcopy(like)
    result |= {"site": "cluster", "cell_id": cell.id, "workers": cell.devices}
    step_s = 0.1 + 0.1 * chance.random()
    samples = result["timing"]["dataset_samples"]
    epoch_s = step_s * samples / cell.batch_size
    result["timing"] |= {"epoch_s": epoch_s, "samples_per_s": samples / epoch_s}
    folder.mkdir(parents=True)
    (folder / "result.json").write_text(json.dumps(result), encoding="utf-8")
    lines = [f"1,{step},0,{step_s * (0.9 + 0.2 * chance.random()):.6g},0.001,2.3"
             for step in range(steps)]  # fmt: skip
    header = "epoch,step,warmup,step_s,load_s,loss"
    (folder / "steps.csv").write_text("\n".join([header, *lines, ""]), encoding="utf-8")


def run(command: list[str], folder: Path) -> dict[str, float]:
    """Wall and CPU seconds and peak memory of one process."""
    began = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{' '.join(command)}\nended with {process.returncode}")
    return {
        "wall_s": time.perf_counter() - began,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "peak_rss_bytes": usage.ru_maxrss * 1024.0,
    }


def text(report: dict[str, Any]) -> str:
    """Lay the report out for a person."""
    lines = [
        f"{report['results']:,} results of {report['steps']} steps; {report['cpus']} cores",
        "",
        "          wall s    CPU s     MB",
    ]
    lines += [
        f"{name:8}{seen['wall_s']:>8.1f}{seen['cpu_s']:>9.1f}{seen['peak_rss_bytes'] / 1e6:>7.0f}"
        for name, seen in report["seen"].items()
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
