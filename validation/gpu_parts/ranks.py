"""Part 3: every strategy with two and four ranks on the one GPU.

::

    rank 0  NCCL_HOSTID=rank0  --.
    rank 1  NCCL_HOSTID=rank1  --+--  sockets of this machine  --  cuda:0
    ...                        --'

What trains, trains right: losses are those of sequential training, or, where weights are stale, of
the same cell on CPU ranks. Several cells run at the same time; no time of this part is a claim.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.fabric import LinkCondition
from ddlbench.experiment.registry import BASE, known
from ddlbench.experiment.result import Result
from ddlbench.experiment.site import Interconnect, Site
from ddlbench.experiment.status import Status
from ddlbench.interconnect.measure import measure_links
from ddlbench.planning.recomputation import RecomputingOptions
from ddlbench.planning.strategy import strategy_of
from ddlbench.runtime.checkpoint.store import journal_file, read_journal
from ddlbench.runtime.launch import SHARED_GPU_NOTE
from ddlbench.runtime.staging import stage_cell
from ddlbench.runtime.supervise import CellFailed
from gpu_parts.clock import furthest, losses_of
from gpu_parts.study import NotHere, Study, Verdict, median_step_s

__all__ = ["run"]

_LOSS_LIMIT = 1e-3  # relative
_GONE_LIMIT_S = 10.0
_EVERY = 8  # steps between checkpoints
_SMALL = ("ddp", "pipe-1f1b")
_RESUMED = ("ddp", "pipe-1f1b", "gpipe")


@dataclass(frozen=True)
class Outcome:
    """What became of a cell."""

    result: Result | None
    error: str


def run(study: Study) -> None:
    """All checks of this part."""
    cells = _cells(study)
    bases = [_cell(BASE, 1, network=name) for name in dict.fromkeys(c.network for c in cells)]
    stage_cell(bases[0], study.site(), study.work)
    outcomes = _measure(study, [*bases, *cells])
    for cell in cells:
        study.check(_name(cell), partial(_as_sequential, study, cell, outcomes))
    for strategy in _RESUMED[:1] if study.small else _RESUMED:
        study.check(f"kill and resume {strategy}", partial(_resume, study, strategy), needs_s=45)
    study.check("sweeps of two ranks", lambda: _sweeps(study), needs_s=60)
    if not study.small:
        study.check("emulated link", lambda: _emulated(study), needs_s=40)


def _cell(strategy: str, devices: int, **changes: Any) -> Cell:
    """Ten steps without batch norm, so that parts of a mini-batch change nothing.

    Of the stack; of a perceptron where a strategy splits pairs of linear layers only.
    """
    cell = Cell(
        "cifar10", "stack", strategy, 24, devices_per_node=devices, epochs=1, warmup_steps=1,
        max_steps=10, data_scale=0.05, cudnn_benchmark=False,
    )  # fmt: skip
    if strategy_of(strategy).supports(cell) is not None:
        cell = cell.with_(network="mlp")
    return cell.with_(**changes) if changes else cell


def _cells(study: Study) -> list[Cell]:
    every = [name for name in known("ddlbench.strategies") if name != BASE]
    strategies = _SMALL if study.small else every
    counts = (2,) if study.small else (2, 4)
    cells = [_cell(strategy, count) for strategy in strategies for count in counts]
    again = [
        name for name in strategies if issubclass(strategy_of(name).options, RecomputingOptions)
    ]
    return [*cells, *(_cell(name, 2, options=(("recompute", True),)) for name in again)]


def _name(cell: Cell) -> str:
    recomputes = " that recompute" if cell.options else ""
    return f"{cell.strategy} {cell.devices} ranks{recomputes}"


def _measure(study: Study, cells: Sequence[Cell]) -> dict[str, Outcome]:
    """Every cell that can run here, some at the same time; by the cell's path."""
    outcomes: dict[str, Outcome] = {}

    def measure(cell: Cell) -> None:
        if study.left_s < 60:
            outcomes[cell.id] = Outcome(None, "no time was left")
            return
        try:
            outcomes[cell.id] = Outcome(study.run(cell, study.site(cell.devices)), "")
        except CellFailed as error:
            outcomes[cell.id] = Outcome(None, str(error))

    able = [cell for cell in cells if strategy_of(cell.strategy).supports(cell) is None]
    at_once = 5 if study.device == "cuda" else 1
    with ThreadPoolExecutor(at_once) as pool:
        list(pool.map(measure, able))
    return outcomes


def _as_sequential(study: Study, cell: Cell, outcomes: dict[str, Outcome]) -> Verdict:
    """Losses of a cell beside those of its reference."""
    refusal = strategy_of(cell.strategy).supports(cell)
    if refusal is not None:
        raise NotHere(refusal)
    result = _ok(outcomes[cell.id])
    folder = study.folder_of(cell)
    reference = losses_of(study.folder_of(_cell(BASE, 1, network=cell.network)))
    if result.update_semantics == "stale":
        reference = _on_cpus(study, cell)
    apart = furthest(losses_of(folder), reference)
    kinds = _span_kinds(folder)
    figures = {
        "largest_relative_deviation": apart,
        "semantics": result.update_semantics,
        "processes": result.processes,
        "kinds_of_spans": " ".join(kinds),
    }
    lacking = []
    if apart > _LOSS_LIMIT:
        lacking.append(f"losses are {apart:.2g} apart, the limit is {_LOSS_LIMIT:g}")
    if not kinds:
        lacking.append("it left no spans")
    if study.device == "cuda" and SHARED_GPU_NOTE not in result.notes:
        lacking.append("its result does not say that ranks share a GPU")
    return Verdict(not lacking, figures, "; ".join(lacking))


def _ok(outcome: Outcome) -> Result:
    if outcome.result is None:
        raise RuntimeError(outcome.error)
    if outcome.result.status == Status.UNSUPPORTED:
        raise NotHere(str(outcome.result.reason))
    if outcome.result.status != Status.OK:
        raise RuntimeError(f"{outcome.result.status}: {outcome.result.reason}")
    return outcome.result


def _on_cpus(study: Study, cell: Cell) -> list[float]:
    """Losses of the same cell on CPU ranks."""
    site = study.site(cell.devices, name="one-cpu", device="cpu", devices_share_gpu=False)
    _ok(Outcome(study.run(cell, site, "on-cpus"), ""))
    return losses_of(study.folder_of(cell, "on-cpus"))


def _span_kinds(folder: Path) -> list[str]:
    """Kinds of the boxes in a cell's timeline."""
    if (folder / "partitions.csv").is_file():
        return ["partitions"]
    path = folder / "trace.json"
    if not path.is_file():
        return []
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return sorted({str(event["name"]).split()[0] for event in events if event.get("ph") == "X"})


def _resume(study: Study, strategy: str) -> Verdict:
    """A cell whose rank is killed, beside one that is not."""
    devices = 2
    steps = 16 if study.small else 48
    cell = _cell(
        strategy, devices, max_steps=steps, checkpoint_every_steps=_EVERY, deterministic=True
    )
    site = study.site(devices)
    saved = study.run(cell, site, "saved")
    killing = _Killer(study.folder_of(cell, "killed"), at=_EVERY + _EVERY // 2)
    killing.start()
    crashed = False
    try:
        study.run(cell, site, "killed")
    except CellFailed:
        crashed = True
    killing.join()
    resumed = study.run(cell, site, "killed")
    if resumed.checkpointing is None or saved.timing is None:
        raise RuntimeError(f"{resumed.status}: {resumed.reason}")
    killed = losses_of(study.folder_of(cell, "killed"))[cell.warmup_steps :]
    other = losses_of(study.folder_of(cell, "saved"))[cell.warmup_steps :]
    equal = killed == other and resumed.loss == saved.loss
    gone_s = killing.gone_s
    lacking = []
    if not crashed or gone_s is None:
        lacking.append("no rank could be killed before the cell was done")
    elif gone_s > _GONE_LIMIT_S:
        lacking.append(f"ranks were there {gone_s:.1f} s after the kill")
    if not equal:
        lacking.append(f"losses differ by up to {furthest(killed, other):.2g}")
    return Verdict(
        not lacking,
        {
            "gone_s": gone_s,
            "bit_equal": equal,
            "lost_steps": resumed.checkpointing.lost_steps,
            "restore_s": resumed.checkpointing.restore_s,
        },
        "; ".join(lacking),
    )


class _Killer(threading.Thread):
    """Kills the last worker of a cell once so many steps are done, and waits until all are gone.

    Args:
        folder: of the cell.
        at: measured steps.

    Attributes:
        gone_s: from the kill until no worker of the cell was left; None where none was killed.
    """

    def __init__(self, folder: Path, at: int) -> None:
        super().__init__(daemon=True)
        self._folder, self._at = folder, at
        self.gone_s: float | None = None

    def run(self) -> None:
        """Wait, kill, wait."""
        limit_s = time.monotonic() + 120
        while time.monotonic() < limit_s:
            reached = read_journal(journal_file(self._folder / ".checkpoint"))
            if reached is not None and reached.steps >= self._at:
                break
            if (self._folder / "result.json").is_file():
                return
            time.sleep(0.001)
        workers = _workers()
        if not workers:
            return
        with suppress(ProcessLookupError):
            os.kill(workers[max(workers)], signal.SIGKILL)
        killed = time.monotonic()
        while _workers() and time.monotonic() < killed + 60:
            time.sleep(0.05)
        self.gone_s = time.monotonic() - killed


def _workers() -> dict[int, int]:
    """Processes of ranks below this one, by local rank."""
    processes = {}
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error, KeyError):
            name, _, rank = child.name().partition("-")
            if name == "rank" and child.status() != "zombie":
                processes[int(rank)] = child.pid
    return processes


def _sweeps(study: Study) -> Verdict:
    """Collectives between two ranks, their fit, and the pairs of ranks."""
    largest_bytes = 2**20 if study.small else 2**25
    site = study.site(2, interconnect=Interconnect(largest_bytes=largest_bytes, sweep_budget_s=1.0))
    links = measure_links(site, "default", study.work / "links" / "links.json")
    transport = "nccl" if study.device == "cuda" else "gloo"
    by_operation = {
        sweep.operation: sweep for sweep in links.sweeps if sweep.transport == transport
    }
    figures: dict[str, Any] = {"operations": " ".join(sorted(by_operation))}
    if "all_reduce" in by_operation:
        points = by_operation["all_reduce"].points
        largest = points[-1]
        figures |= {
            "all_reduce_smallest_s": points[0].time_s,
            "all_reduce_bytes_per_s": largest.message_bytes / largest.time_s,
            "all_reduce_points": len(points),
            "fit_median_residual": by_operation["all_reduce"].fit.median_relative_residual,
        }
    world = [pair for pair in links.pairs if pair.scope == "world"]
    figures["pairs_of_ranks"] = len(world)
    figures["notes"] = "; ".join(links.notes)
    wanted = {"all_reduce", "broadcast", "all_gather", "reduce_scatter", "p2p"}
    lacking = sorted(wanted - set(by_operation)) + ([] if world else ["pairs of ranks"])
    return Verdict(not lacking, figures, f"not measured: {', '.join(lacking)}" if lacking else "")


def _emulated(study: Study) -> Verdict:
    """Two ranks in two emulated nodes: what NCCL sends goes through the emulated link."""
    condition = {"latency_ms": 5, "bandwidth_mbit_per_s": 200}
    site: Site = study.site(
        1, nodes=2, devices_share_gpu=study.device == "cuda",
        fabrics={"slow": LinkCondition.from_mapping(condition, "fabrics.slow")},
    )  # fmt: skip
    cell = _cell("ddp", 1, nodes=2, fabric="slow")
    result = study.run(cell, site, "emulated")
    if result.status == Status.UNSUPPORTED:
        raise NotHere(str(result.reason))
    _ok(Outcome(result, ""))
    apart = furthest(
        losses_of(study.folder_of(cell, "emulated")), losses_of(study.folder_of(_cell(BASE, 1)))
    )
    step_s = median_step_s(result)
    parameter_bytes = result.ranks[0].parameter_bytes
    # Two ranks: each sends all its gradients once in a ring, and the link carries 25 MB/s.
    least_s = parameter_bytes / (200e6 / 8)
    passed = apart <= _LOSS_LIMIT and step_s >= 0.9 * least_s
    return Verdict(
        passed,
        {"step_s": step_s, "least_s_by_the_link": least_s, "largest_relative_deviation": apart},
        "" if passed else "messages went round the link, or the losses differ",
    )
