"""Trains one cell over two emulated nodes whose links netem makes; prints what was measured.

``bash validation/netem_guest.sh python validation/netem_cell.py``
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.fabric import LinkCondition
from ddlbench.experiment.site import load_site
from ddlbench.runtime.staging import stage_cell
from ddlbench.runtime.supervise import run_cell

CONDITION = LinkCondition(latency_s=0.1, bandwidth_bits_per_s=None, loss=0.0, backend="netem")


def main() -> None:
    """Run the cell over the fabrics that the command names; ``slow`` is the one of netem."""
    for fabric in sys.argv[1:] or ("default", "slow"):
        with tempfile.TemporaryDirectory() as scratch:
            site = replace(
                load_site("local"),
                **{"nodes": 2, "devices_per_node": 1, "scratch": scratch, "cell_timeout_s": 7200},
                hang_timeout_s=7200,  # QEMU may need minutes to import torch
                fabrics={"slow": CONDITION},
            )
            cell = Cell(
                **{"dataset": "mnist", "network": "mlp", "strategy": "ddp", "batch_size": 8},
                **{"nodes": 2, "devices_per_node": 1, "epochs": 1, "warmup_steps": 2},
                **{"data_scale": 0.0008, "max_steps": 5, "fabric": fabric},
            )
            folder = Path(scratch) / "cell"
            result = run_cell(cell, site, folder, stage_cell(cell, site, Path(scratch)))
            found = result.to_dict()
            link = (found.get("link") or {}).get("probe")
            steps = found["timing"]["step_s"] if found["status"] == "ok" else None
            print(json.dumps({"fabric": fabric, "status": found["status"], "loss": found["loss"]}))
            print(json.dumps({"reason": found["reason"], "probe": link, "steps": steps}))


if __name__ == "__main__":
    main()
