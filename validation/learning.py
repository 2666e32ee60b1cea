"""What old and rarely averaged weights cost in learning: losses and accuracies, not only steps.

::

    stale       PipeDream on four stages against sequential training: momentum 0, 0.5, 0.9 at one
                effective rate, which rises over the first epoch or is there at once; a network
                without and one with batch norm
    local-sgd   DDP against weights that are averaged every 1, 4, 16 steps, over links with a delay
                of 10 and of 100 ms

A rate of r with momentum m moves weights as far as r / (1 - m) does without, so the three momenta
share that quotient. Computation is real and shares this machine's cores: losses and accuracies are
the result; seconds only of local-sgd, whose delays are long beside computation. One seed, one
repeat. Writes docs/validation/learning/<part>/.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
from bed_study import ROOT, Study, chosen_parts

OUT = ROOT / "docs" / "validation" / "learning"
RATE = 0.05  # over 1 - momentum
MOMENTA = (0.0, 0.5, 0.9)
COLUMNS = (
    "dataset", "network", "strategy", "options", "geometry", "fabric", "settings", "status",
    "step_median_s", "epoch_s", "sent_bytes", "loss_last", "accuracy",
)  # fmt: skip

STALE: dict[str, Any] = {
    "experiment": "stale",
    "site": "four-stages",
    "matrix": {
        "dataset": ["cifar10"],
        "network": ["stack", "mobilenetv2"],
        "strategy": ["sequential", "pipedream"],
        "geometry": ["1x4"],
        "momentum": list(MOMENTA),
        "learning_rate_warmup_steps": [0, 50],
    },
    "settings": {
        "batch_size": 16,
        "data_scale": 0.016,  # 50 steps an epoch
        "epochs": 4,
        "validate": True,
    },
    "overrides": [
        {
            "when": {"momentum": [momentum]},
            "set": {"learning_rate": round(RATE * (1 - momentum), 6)},
        }
        for momentum in MOMENTA
    ],
}
LOCAL_SGD: dict[str, Any] = {
    "experiment": "local-sgd",
    "site": "emulated",
    "matrix": {
        "dataset": ["mnist"],
        "network": ["mlp"],
        "strategy": ["ddp", "local-sgd"],
        "geometry": ["2x1"],
        "fabric": ["lat10", "lat100"],
    },
    "strategies": {"local-sgd": {"average_every_steps": [1, 4, 16]}},
    "settings": {
        "batch_size": 32,
        "data_scale": 0.0171,  # 32 steps an epoch
        "epochs": 6,
        "learning_rate": 0.05,
        "validate": True,
    },
}
PARTS = {"stale": STALE, "local-sgd": LOCAL_SGD}
KEPT = ("loss.png", "loss.csv", "time_to_accuracy.png")


def main() -> None:
    """Measure, draw, keep."""
    chosen = chosen_parts(__doc__, PARTS)
    for part in chosen.parts:
        content, out = PARTS[part], OUT / part
        study = Study("learning", content, {"devices_per_node": 4})
        study.describe_own_site("four-stages", "local")
        if not chosen.report:
            study.run_here("cells")
        study.ddlbench("report", "--configfile", "experiment.yaml")
        made = Path("results") / content["site"] / content["experiment"]
        for name in KEPT:
            study.keep(made / "figures" / name, out / name)
        measured = pd.read_csv(study.folder / made / "tables" / "measurements.csv")
        measured = measured.reindex(columns=list(COLUMNS))
        measured.to_csv(out / "measured.csv", index=False, float_format="%.6g")


if __name__ == "__main__":
    main()
