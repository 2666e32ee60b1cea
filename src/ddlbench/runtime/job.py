"""job.json: what the supervisor tells every process of a cell."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ddlbench.experiment.dataset_spec import DataRequest
from ddlbench.experiment.document import write_json
from ddlbench.planning.plan import Plan
from ddlbench.planning.strategy import DeviceKind
from ddlbench.runtime.checkpoint.store import Order


@dataclass(frozen=True)
class Job:
    """One run of one cell.

    Args:
        plan: who runs where.
        device_kind: what every process computes on.
        scratch: the site's scratch template, filled in on the node.
        data: the dataset.
        interface: network interface; None lets libraries choose.
        rendezvous_host, rendezvous_port: where rank 0 keeps the store.
        run_dir: shared folder for the reports of the ranks.
        patience_s: how long ranks wait for each other; the supervisor ends the run before that.
        checkpoints: what to write and where to begin; None where the cell writes none.
    """

    plan: Plan
    device_kind: DeviceKind
    scratch: str
    data: DataRequest
    interface: str | None
    rendezvous_host: str
    rendezvous_port: int
    run_dir: Path
    patience_s: float = 1800.0
    checkpoints: Order | None = None

    def save(self) -> Path:
        """Write job.json into the run folder and return its path."""
        path = self.run_dir / "job.json"
        changed = {
            "plan": self.plan.to_dict(),
            "data": asdict(self.data),
            "run_dir": str(self.run_dir),
            "checkpoints": None if self.checkpoints is None else asdict(self.checkpoints),
        }
        write_json(path, {**vars(self), **changed})
        return path

    @classmethod
    def load(cls, path: Path) -> Job:
        """Read what :meth:`save` wrote."""
        values: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        order = values["checkpoints"]
        changed = {
            "plan": Plan.from_dict(values["plan"]),
            "data": DataRequest(**values["data"]),
            "run_dir": Path(values["run_dir"]),
            "checkpoints": Order(**order) if order is not None else None,
        }
        return cls(**{**values, **changed})


def report_file(run_dir: Path, rank: int) -> Path:
    """Where rank ``rank`` says how it went."""
    return run_dir / f"rank{rank}.json"


def log_file(run_dir: Path) -> Path:
    """Where everything that the ranks print is gathered."""
    return run_dir / "log.txt"


def stacks_file(run_dir: Path, rank: int) -> Path:
    """Where rank ``rank`` dumps its stacks when it is asked to."""
    return run_dir / f"stacks{rank}.txt"
