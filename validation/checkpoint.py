"""What checkpoints cost, and what a kill costs with them, on this machine.

ResNet-18 on CIFAR-10, eight images a device, two CPU devices. Each strategy trains three times:
without checkpoints, with one every four steps, and with a rank that is killed (-9) between two.
Writes docs/validation/checkpoint/. Wants a quiet machine; what is measured already is kept.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import random
import shutil
import signal
import statistics
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.site import Site, load_site
from ddlbench.runtime.checkpoint.store import journal_file, read_journal
from ddlbench.runtime.staging import stage_cell
from ddlbench.runtime.supervise import CellFailed, run_cell

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "docs" / "validation" / "checkpoint"
WORK = ROOT / "validation" / ".work" / "checkpoint"
STEPS, EVERY = 16, 4
STRATEGIES: dict[str, dict[str, Any]] = {
    "sequential": {},
    "ddp": {},
    "horovod": {},
    "gpipe": {"balance": "blocks"},
    "model-parallel-p2p": {},
    "pipedream": {},
    "pipe-1f1b": {},
    "parameter-server": {},
}


def main() -> None:
    """Measure all strategies and write both tables."""
    site = dataclasses.replace(
        load_site("local"), scratch=str(WORK / "scratch"), devices_per_node=2
    )
    rows = [measure(strategy, site) for strategy in STRATEGIES]
    OUT.mkdir(parents=True, exist_ok=True)
    with (OUT / "checkpoint.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(markdown(rows))


def measure(strategy: str, site: Site) -> dict[str, Any]:
    """One row: a strategy's three cells."""
    cell = cell_of(strategy)
    plain = run(cell.with_(checkpoint_every_steps=0), site, "plain")
    saved = run(cell, site, "saved")
    killed = run(cell, site, "killed", kill=True)
    part, lost = saved["checkpointing"], killed["checkpointing"]
    between, with_them = saved["timing"]["samples_per_s"], part["samples_per_s"]
    return {
        "strategy": strategy,
        "ranks": saved["processes"],
        "bytes": part["bytes"],
        "save_s": statistics.median(part["save_s"]),
        "step_s": plain["timing"]["step_s"]["median_s"],
        "every_steps": EVERY,
        "samples_per_s": plain["timing"]["samples_per_s"],
        "samples_per_s_between": between,
        "samples_per_s_with": with_them,
        # Of one run: two runs differ by more than that on a machine that others use too.
        "saving_share": 1 - with_them / between,
        "reached_steps": lost["attempts"][0]["reached_steps"],
        "lost_steps": lost["lost_steps"],
        "lost_s": lost["lost_s"],
        "prepare_s": killed["timing"]["prepare_s"],
        "rehearsal_s": lost["rehearsal_s"],
        "restore_s": lost["restore_s"],
        "same_loss": killed["loss"] == saved["loss"],
    }


def cell_of(strategy: str) -> Cell:
    """Eight images on each device; the base has one device."""
    devices = 1 if strategy == "sequential" else 2
    return Cell(
        dataset="cifar10",
        network="resnet18",
        strategy=strategy,
        batch_size=8 * devices,
        devices_per_node=devices,
        epochs=1,
        warmup_steps=2,
        max_steps=STEPS,
        data_scale=0.01,
        checkpoint_every_steps=EVERY,
        options=tuple(STRATEGIES[strategy].items()),
    )


def run(cell: Cell, site: Site, name: str, kill: bool = False) -> dict[str, Any]:
    """The cell's result; where it is to be killed, that of the attempt after it."""
    folder = WORK / name / cell.id
    with suppress(OSError):
        return dict(json.loads((folder / "result.json").read_text(encoding="utf-8")))
    shutil.rmtree(folder, ignore_errors=True)
    staging = stage_cell(cell, site, WORK)
    if kill:
        chance = random.Random(cell.strategy)
        at = chance.randrange(EVERY + 1, STEPS - 1)
        killer = threading.Thread(target=kill_a_rank, args=(folder, at), daemon=True)
        killer.start()
        with suppress(CellFailed):
            run_cell(cell, site, folder, staging)
        killer.join()
    return run_cell(cell, site, folder, staging).to_dict()


def kill_a_rank(folder: Path, at: int) -> None:
    """Kill the last rank once so many steps are done."""
    while True:
        reached = read_journal(journal_file(folder / ".checkpoint"))
        if reached is not None and reached.steps >= at:
            break
        time.sleep(0.002)
    workers = {}
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            name, _, rank = child.name().partition("-")
            if name == "rank":
                workers[int(rank)] = child.pid
    os.kill(workers[max(workers)], signal.SIGKILL)


def markdown(rows: list[dict[str, Any]]) -> str:
    """Both tables, as Markdown."""
    cost = [
        "| strategy | MB | s a checkpoint | s a step | images/s without | between | with |"
        " time in checkpoints |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lost = [
        "| strategy | killed at step | lost steps | lost s | start s | rehearsal s | load s |"
        " same losses |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        speeds = [row[f"samples_per_s{kind}"] for kind in ("", "_between", "_with")]
        cost.append(
            f"| `{row['strategy']}` | {row['bytes'] / 1e6:.0f} | {row['save_s']:.2f} "
            f"| {row['step_s']:.2f} | {' | '.join(f'{speed:.2f}' for speed in speeds)} "
            f"| {row['saving_share']:.0%} |"
        )
        lost.append(
            f"| `{row['strategy']}` | {row['reached_steps']} | {row['lost_steps']} "
            f"| {row['lost_s']:.1f} | {row['prepare_s']:.1f} | {row['rehearsal_s']:.1f} "
            f"| {row['restore_s']:.2f} | {'yes' if row['same_loss'] else 'NO'} |"
        )
    return "\n".join([*cost, "", *lost])


if __name__ == "__main__":
    main()
