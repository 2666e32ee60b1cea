"""One cell over links of the kernel's netem, in a guest of QEMU; its link against its setting.

DDP on two nodes, without an emulated link and over two conditions of netem; and all-reduces over
netem alone. The guest computes slowly, and its times of computation say nothing. Those of its links
do: they are compared with the least time that delay and rate leave an all-reduce. Needs what
netem_guest.sh needs, and an hour. Writes docs/validation/netem/; with ``--report``, from what was
kept.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pandas as pd
from bed_study import ROOT, Study

from ddlbench.common.document import read_json

OUT = ROOT / "docs" / "validation" / "netem"
SITE = "netem-guest"
BASE = "default"  # the loopback device of the guest
# A guest cannot keep shorter delays and higher rates within the 10 % that are allowed.
CONDITION: dict[str, Any] = {"latency_ms": 20, "bandwidth_mbit_per_s": 20, "backend": "netem"}
SITE_KEYS: dict[str, Any] = {
    "description": "a guest of QEMU that has netem",
    "nodes": 2,
    "devices_per_node": 1,
    # QEMU may need minutes to import torch.
    "cell_timeout_s": 3600,
    "hang_timeout_s": 1800,
    "fabrics": {"netem": CONDITION, "netem-loss1": {**CONDITION, "loss_percent": 1}},
}
EXPERIMENT: dict[str, Any] = {
    "experiment": "netem",
    "site": SITE,
    "matrix": {
        "dataset": ["mnist"],
        "network": ["mlp"],
        "strategy": ["ddp"],
        "geometry": ["2x1"],
        "fabric": [BASE, *SITE_KEYS["fabrics"]],
    },
    "settings": {
        "batch_size": 16,
        "data_scale": 0.012,  # 720 images: 45 steps
        "epochs": 1,
        "warmup_steps": 5,
        "max_steps": 40,
    },
}


def least_all_reduce_s(message_bytes: float) -> float:
    """Least time of an all-reduce between two nodes under :data:`CONDITION`, headers left out.

    Each node sends half of the message, then half of the sums (Thakur et al. 2005, ring), so all
    of it once; and each half takes one delay.
    """
    delay_s: float = CONDITION["latency_ms"] / 1e3
    rate_bits_per_s: float = CONDITION["bandwidth_mbit_per_s"] * 1e6
    return 2 * delay_s + message_bytes * 8 / rate_bits_per_s


def cell_row(result_file: Path) -> dict[str, Any]:
    """Steps of a cell, and what the probe of its link measured before them."""
    result = read_json(result_file)
    row = {
        "fabric": result["cell"]["fabric"],
        "repeat": result["cell"]["repeat"],
        "status": result["status"],
    }
    if result["status"] == "ok":
        steps = pd.read_csv(result_file.with_name("steps.csv")).query("warmup == 0")["step_s"]
        row |= {"steps": len(steps), "step_min_s": steps.min()}
        for percent in (25, 50, 75):
            row[f"step_p{percent}_s"] = steps.quantile(percent / 100)
        rank = result["communication"]["ranks"][0]
        row["sent_bytes_per_step"] = rank["sent_bytes_per_step"]
        # Gradients have as many bytes as weights, and are one bucket of DDP.
        row["message_bytes"] = result["ranks"][0]["parameter_bytes"]
    link = result["link"]
    if link is not None:
        measured = link["probe"]["measured"]
        row |= {
            "backend": measured["links"]["backend"],
            "failed_probes_before": len(link["probe"]["earlier_misses"]),
            "probed_delay_s": measured["one_way_delay_s"],
            "probed_rate_bits_per_s": measured["rate_bits_per_s"],
            "packets_sent": measured["loss"]["sent"],
            "packets_lost": measured["loss"]["lost"],
            "tcp_goodput_bits_per_s": measured["tcp"][0]["goodput_bits_per_s"],
        }
    return row


def cells(results: Path) -> pd.DataFrame:
    """A row per cell, with the least time that its link leaves the all-reduce of a step."""
    rows = pd.DataFrame([cell_row(file) for file in sorted(results.rglob("result.json"))])
    least_s = rows["message_bytes"].map(least_all_reduce_s)
    rows["least_all_reduce_s"] = least_s.where(rows["fabric"] != BASE)
    return rows.sort_values(["fabric", "repeat"])


def main() -> None:
    """Measure in the guest, compare, keep."""
    study = Study("netem", EXPERIMENT, SITE_KEYS)
    study.describe_own_site(SITE, like="local")
    kept = OUT / "measured.tar.xz"
    if "--report" in sys.argv[1:]:
        study.unpack(kept)
    else:
        os.environ.setdefault("NETEM_GUEST_MB", "4000")
        study.run_in_guest("cells")
        setting = [str(CONDITION[key]) for key in ("latency_ms", "bandwidth_mbit_per_s")]
        program = ROOT / "validation" / "netem_all_reduce.py"
        study.call_in_guest(str(program), *setting, "all_reduce.csv")
        study.keep(Path("all_reduce.csv"), OUT / "all_reduce.csv")
        study.archive(kept)
    results = study.folder / "results" / SITE
    OUT.mkdir(parents=True, exist_ok=True)
    cells(results / "cells").to_csv(OUT / "cells.csv", index=False, float_format="%.5g")


if __name__ == "__main__":
    main()
