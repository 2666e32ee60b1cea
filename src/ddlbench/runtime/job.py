"""job.json, the supervisor's input to every process of a cell, and the files of a run folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ddlbench.common.document import read_json, write_json
from ddlbench.experiment.dataset_spec import DataRequest
from ddlbench.experiment.status import Reason
from ddlbench.planning.plan import Plan
from ddlbench.planning.planner import StrategyPlan, read_plan
from ddlbench.planning.strategy import DeviceKind
from ddlbench.runtime.checkpoint.store import Order


@dataclass(frozen=True)
class Job:
    """One run of one cell."""

    plan: StrategyPlan
    device_kind: DeviceKind
    scratch: str  # the site's template, which each node expands
    data: DataRequest
    interface: str | None  # None lets libraries choose
    rendezvous_host: str  # of the store that rank 0 serves
    rendezvous_port: int
    run_dir: Path  # shared folder for the reports of the ranks
    patience_s: float = 1800.0  # how long ranks wait for each other
    checkpoints: Order | None = None  # None if the cell writes none

    def save(self) -> Path:
        """Write job.json into the run folder and return its path."""
        path = self.run_dir / "job.json"
        encoded = {
            "plan": self.plan.to_dict(),
            "data": asdict(self.data),
            "run_dir": str(self.run_dir),
            "checkpoints": None if self.checkpoints is None else asdict(self.checkpoints),
        }
        write_json(path, {**vars(self), **encoded})
        return path

    @classmethod
    def load(cls, path: Path) -> Job:
        values: Mapping[str, Any] = read_json(path)
        order = values["checkpoints"]
        decoded = {
            "plan": read_plan(values["plan"]),
            "data": DataRequest(**values["data"]),
            "run_dir": Path(values["run_dir"]),
            "checkpoints": Order(**order) if order is not None else None,
        }
        return cls(**{**values, **decoded})


def report_file(run_dir: Path, rank: int) -> Path:
    """Report of rank ``rank``."""
    return run_dir / f"rank{rank}.json"


def log_file(run_dir: Path) -> Path:
    """Output of all ranks."""
    return run_dir / "log.txt"


def kept_folder(run_dir: Path) -> Path:
    """Files of the strategy that the supervisor moves beside the result."""
    return run_dir / "kept"


def stacks_file(run_dir: Path, rank: int) -> Path:
    """File into which rank ``rank`` dumps its stacks on SIGUSR1."""
    return run_dir / f"stacks{rank}.txt"


def why_not_started(plan: Plan, environment: Mapping[str, str] = os.environ) -> Reason | None:
    """Why the ranks of a plan would crash, or would measure something else; None if they start.

    With the debug level DETAIL, torch 2.13 ends in a segmentation fault in DDP's constructor, and
    every collective is checked by another one.
    """
    level = environment.get("TORCH_DISTRIBUTED_DEBUG", "")
    if plan.world_size > 1 and level.upper() == "DETAIL":
        return Reason(
            "wrong_environment",
            f"the environment has TORCH_DISTRIBUTED_DEBUG={level}, which crashes DDP and slows "
            "every collective; unset it, or write INFO, and run again",
        )
    return None
