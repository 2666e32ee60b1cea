"""Part 1: is the clock true, is the arithmetic right, is what the machine says of itself there.

::

    wall     |<------------------ time.perf_counter ------------------>|   must agree within 1 %
    events     | step | step | step | ...                        | step |
"""

from __future__ import annotations

import csv
import json
import statistics
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ddlbench.datasets.loading import open_split
from ddlbench.datasets.staging import stage
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DataRequest
from ddlbench.experiment.paths import scratch_dir
from ddlbench.experiment.site import Site
from ddlbench.experiment.status import Status
from ddlbench.planning.planner import request_of
from ddlbench.profiling.steps import StepRunner
from gpu_parts.study import (
    NotHere,
    Study,
    Verdict,
    in_process,
    median_step_s,
    own_environment,
)

__all__ = ["run"]

ROOT = Path(__file__).resolve().parents[2]
_CLOCK_LIMIT = 0.01  # of the wall
_CLOCK_LIMIT_CPU = 0.2  # a few short steps of an mlp say little
_LOSS_LIMIT = 1e-3  # relative
_FIRST_STEPS = 5
_OVERHEAD_LIMIT_S = 100e-6
_NOISE_PROCESSES = 5
_OPEN_BYTES = 1_500_000_000  # left free on the GPU where a cell shall run out of memory


def run(study: Study) -> None:
    """All checks of this part."""
    for network in _networks(study):
        study.check(f"clock {network}", partial(_clock, study, network), needs_s=60)
    study.check("losses as on CPU", lambda: _losses(study), needs_s=40)
    if not study.small:
        study.check("losses with batch norm", lambda: _losses_with_norm(study), needs_s=40)
    study.check("same losses twice", lambda: _determinism(study), needs_s=30)
    study.check("noise floor", lambda: _noise(study), needs_s=90)
    study.check("meters", lambda: _meters(study), needs_s=20)
    if study.device == "cuda":
        study.check("out of memory is a result", lambda: _out_of_memory(study), needs_s=40)
    study.check("harness overhead", lambda: _overhead(study), needs_s=60)


def _networks(study: Study) -> tuple[str, ...]:
    if study.device == "cpu":
        return ("mlp",)
    return ("resnet50",) if study.small else ("resnet50", "vgg16")


def _clock_cell(study: Study, network: str) -> Cell:
    """Of a size that keeps the device busy."""
    if study.device == "cpu":
        return Cell("cifar10", network, "sequential", 32, data_scale=0.01)
    return Cell(
        *("imagenet", network, "sequential", 64),
        data_scale=0.001,
        data_format="raw",
        loader_workers=6,
    )


def _clock(study: Study, network: str) -> Verdict:
    """Sums of step times by events against the wall, over runs of 50 steps, in each precision."""
    site, cell = study.site(), _clock_cell(study, network)
    runs, steps = (3, 5) if study.small else (4, 50)
    precisions = ("fp32",) if study.device == "cpu" else ("fp32", "tf32", "bf16")
    request = request_of(cell, site)
    stage(request, scratch_dir(site.scratch))
    cells = [cell.with_(precision=name).to_dict() for name in precisions]
    runs_timed = in_process(
        *(_timed_runs, cells, vars(request), site.scratch, study.device, (runs, steps)),
        limit_s=180,
    )
    apart: dict[str, list[float]] = {name: [] for name in precisions}
    for run in runs_timed:
        apart[run["precision"]].append(abs(sum(run["step_s"]) / run["wall_s"] - 1))
    worst = max(map(max, apart.values()))
    # A wrong clock is wrong in every run; beside other tests a run of milliseconds is disturbed.
    judged = max(map(min, apart.values())) if study.small else worst
    limit = _CLOCK_LIMIT if study.device == "cuda" else _CLOCK_LIMIT_CPU
    figures: dict[str, Any] = {"worst_deviation": worst, "steps": runs * steps}
    for name in precisions:
        of_precision = [run for run in runs_timed if run["precision"] == name]
        step_s = [seconds for run in of_precision for seconds in run["step_s"]]
        load_s = [seconds for run in of_precision for seconds in run["load_s"]]
        figures |= {
            f"{name}_events_over_wall": statistics.median(
                sum(run["step_s"]) / run["wall_s"] for run in of_precision
            ),
            f"{name}_step_s": statistics.median(step_s),
            f"{name}_load_share": sum(load_s) / sum(step_s),
        }
    return Verdict(
        judged <= limit,
        figures,
        "" if judged <= limit else f"{judged:.1%} apart, the limit is {limit:.0%}",
        rows=tuple(runs_timed),
    )


def _timed_runs(
    cells: list[dict[str, Any]],
    request: dict[str, Any],
    scratch: str,
    device: str,
    extent: tuple[int, int],
) -> list[dict[str, Any]]:
    """Step and load seconds of each run, and its wall seconds; in a process of its own.

    Args:
        cells: sequential ones on the same data.
        request: of that data.
        scratch: where it is.
        device: to compute on.
        extent: runs, and steps of each.
    """
    torch.backends.cudnn.benchmark = True
    wanted = DataRequest(**request)
    dataset = open_split(stage(wanted, scratch_dir(scratch)).path, wanted, "train")
    runs, steps = extent
    collected = []
    for values in cells:
        cell = Cell.from_dict(values)
        runner = StepRunner(cell, dataset, torch.device(device))
        try:
            runner.run(10 if device == "cuda" else 2)
            for _ in range(runs):
                began = time.perf_counter()
                step_s, load_s = runner.run(steps)
                if device == "cuda":
                    torch.cuda.synchronize()
                wall_s = time.perf_counter() - began
                collected.append(
                    {
                        "precision": cell.precision,
                        "step_s": step_s,
                        "load_s": load_s,
                        "wall_s": wall_s,
                    }
                )
        finally:
            runner.close()
    return collected


def _overhead(study: Study) -> Verdict:
    """benchmarks/overhead on this device."""
    source = ROOT / "benchmarks" / "overhead" / "run.py"
    if study.small and study.device == "cpu":
        raise NotHere("left out of a small run; benchmarks/overhead measures it")
    done = subprocess.run(
        [sys.executable, str(source), "--json", "--device", study.device],
        capture_output=True, text=True, check=False, timeout=150, env=own_environment(),
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr else "no output")
    overheads = json.loads(done.stdout)
    overhead_s, ratio = overheads["null"]["overhead_s"], overheads["resnet18"]["ratio"]
    return Verdict(
        overhead_s <= _OVERHEAD_LIMIT_S and ratio <= 1 + _CLOCK_LIMIT,
        {
            "overhead_s": overhead_s,
            "overhead_without_feed_s": overheads["null"]["loop_overhead_s"],
            "resnet18_ratio": ratio,
            "resnet18_ratio_p25": overheads["resnet18"]["ratio_p25"],
            "resnet18_ratio_p75": overheads["resnet18"]["ratio_p75"],
            "resnet18_ratio_without_feed": overheads["resnet18"]["loop_ratio"],
        },
        f"limits: {_OVERHEAD_LIMIT_S * 1e6:.0f} us a step, {_CLOCK_LIMIT:.0%} of ResNet-18's",
        rows=tuple({"network": name, **row} for name, row in overheads.items()),
    )


def _training_cell(network: str, steps: int) -> Cell:
    """Steps on CIFAR-10 that both devices can do."""
    return Cell(
        *("cifar10", network, "sequential", 16 if network == "mlp" else 32),
        epochs=1,
        warmup_steps=1,
        data_scale=0.02,
        max_steps=steps,
        cudnn_benchmark=False,
        threads_per_device=4,
    )


def losses_of(folder: Path) -> list[float]:
    """Loss of every step, warm-up included, from steps.csv."""
    with (folder / "steps.csv").open(encoding="utf-8", newline="") as opened:
        return [float(row["loss"]) for row in csv.DictReader(opened)]


def furthest(losses: list[float], wanted: list[float]) -> float:
    """The largest relative deviation between two series of losses."""
    pairs = zip(losses, wanted, strict=True)
    return max(abs(loss - other) / max(abs(other), 1e-12) for loss, other in pairs)


def _losses(study: Study) -> Verdict:
    """The same cell on this device and on a CPU; a network that amplifies no rounding."""
    network, steps = ("mlp", 4) if study.small else ("stack", 20)
    on_device, on_cpu = _on_both(study, _training_cell(network, steps))
    apart = furthest(on_device, on_cpu)
    return Verdict(
        apart <= _LOSS_LIMIT,
        {"largest_relative_deviation": apart, "steps": len(on_device), "network": network},
        f"the limit is {_LOSS_LIMIT:g}",
        rows=({"device": on_device, "cpu": on_cpu},),
    )


def _losses_with_norm(study: Study) -> Verdict:
    """ResNet-18: batch norm over small batches amplifies rounding from step to step.

    Its first steps must agree; how far the last are apart is a figure.
    """
    on_device, on_cpu = _on_both(study, _training_cell("resnet18", 20))
    first = furthest(on_device[:_FIRST_STEPS], on_cpu[:_FIRST_STEPS])
    return Verdict(
        first <= _LOSS_LIMIT,
        {
            f"deviation_in_{_FIRST_STEPS}_steps": first,
            f"deviation_in_{len(on_device)}_steps": furthest(on_device, on_cpu),
        },
        f"the limit is {_LOSS_LIMIT:g}",
        rows=({"device": on_device, "cpu": on_cpu},),
    )


def _on_both(study: Study, cell: Cell) -> tuple[list[float], list[float]]:
    """Losses on the device, and on a CPU."""
    cpu = study.site(name="one-cpu", device="cpu", devices_share_gpu=False)
    return _run_ok(study, cell, study.site(), "own"), _run_ok(study, cell, cpu, "reference")


def _determinism(study: Study) -> Verdict:
    """Two runs of one deterministic cell, in two processes."""
    network, steps = ("mlp", 4) if study.small else ("resnet18", 20)
    cell = _training_cell(network, steps).with_(deterministic=True)
    first = _run_ok(study, cell, study.site(), "own")
    again = _run_ok(study, cell, study.site(), "again")
    return Verdict(
        first == again,
        {"equal_to_six_digits": first == again, "steps": len(first), "network": network},
        "" if first == again else f"they differ by up to {furthest(again, first):.2g}",
    )


def _run_ok(study: Study, cell: Cell, site: Site, name: str) -> list[float]:
    result = study.run(cell, site, name)
    if result.status != Status.OK:
        raise RuntimeError(f"{cell.id} ended with {result.status}: {result.reason}")
    return losses_of(study.folder_of(cell, name))


def _noise(study: Study) -> Verdict:
    """Medians of the same cell in five processes, one after the other."""
    processes = 2 if study.small else _NOISE_PROCESSES
    cell = _clock_cell(study, _networks(study)[0]).with_(
        epochs=1, warmup_steps=2 if study.small else 10, max_steps=5 if study.small else 60,
        data_scale=0.01 if study.device == "cpu" else 0.004,
    )  # fmt: skip
    medians = []
    for repeat in range(processes):
        result = study.run(cell.with_(repeat=repeat), study.site(), "noise")
        medians.append(median_step_s(result))
    middle = statistics.median(medians)
    return Verdict(
        True,
        {
            "median_step_s": middle,
            "spread": (max(medians) - min(medians)) / middle,
            "deviation": statistics.stdev(medians) / middle,
            "processes": processes,
        },
        rows=tuple({"repeat": k, "median_step_s": value} for k, value in enumerate(medians)),
    )


def _meters(study: Study) -> Verdict:
    """What the result says of utilisation and memory; needs the noise floor's first cell."""
    files = list((study.work / "noise").rglob("result.json"))
    if not files:
        return Verdict(False, {}, "no cell was measured before")
    result = json.loads(sorted(files)[0].read_text(encoding="utf-8"))
    rank = result["ranks"][0]
    memory = rank["memory"][0]
    figures = {
        "cpu_utilisation": rank["cpu_utilisation"],
        "gpu_utilisation": rank["gpu_utilisation"],
        "gpu_model": (rank["gpu_models"] or [None])[0],
        **{key: memory[key] for key in ("peak_bytes", "reserved_bytes", "device_used_bytes")},
    }
    lacking = [name for name, value in figures.items() if value is None]
    expected = [] if study.device == "cuda" else [
        "gpu_utilisation", "gpu_model", "reserved_bytes", "device_used_bytes"
    ]  # fmt: skip
    return Verdict(lacking == expected, figures, f"without a value: {', '.join(lacking) or 'none'}")


def _out_of_memory(study: Study) -> Verdict:
    """A cell on a GPU that another process has filled."""
    cell = Cell(
        "imagenet", "vgg16", "sequential", 64, epochs=1, warmup_steps=1, max_steps=2,
        data_scale=0.001, data_format="raw",
    )  # fmt: skip
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(_OPEN_BYTES)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert holder.stdout is not None
        held = holder.stdout.readline().strip()
        result = study.run(cell, study.site(), "out-of-memory")
    finally:
        holder.kill()
        holder.wait()
    passed = result.status == Status.OUT_OF_MEMORY and result.reason_code == "out_of_memory_cuda"
    return Verdict(
        passed,
        {"status": str(result.status), "reason_code": result.reason_code, "held_bytes": int(held)},
        str(result.reason),
    )


_HOLDER = """
import sys, torch
free, _ = torch.cuda.mem_get_info()
held = torch.empty(free - int(sys.argv[1]), dtype=torch.uint8, device="cuda")
torch.cuda.synchronize()
print(held.numel(), flush=True)
sys.stdin.read()
"""
