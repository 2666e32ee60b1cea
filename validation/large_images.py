"""DDLBench's largest images on CPUs: does Highres scale best, and who trains where memory ends?

::

    datasets    MobileNetV2 and ResNet-18 on all four datasets, Horovod on two devices
    memory      ResNet-152 on Highres, four images a step, two devices of 3 GB: Horovod (two images
                a rank) and GPipe (four micro-batches of one, activations computed again)

On the test bed one device is one core, and a job that needs more memory than its devices have is
killed by SLURM, which is a result. Writes docs/validation/large_images/<part>/.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bed_study import ROOT, Study, chosen_parts
from testbed import Options

OUT = ROOT / "docs" / "validation" / "large_images"
DEVICE_MB = 3000
DEVICES = 2


def experiment(name: str, matrix: dict[str, Any], **settings: Any) -> dict[str, Any]:
    """One part of the study, on one node."""
    return {
        "experiment": name,
        "site": name,
        "matrix": {**matrix, "geometry": [f"1x{DEVICES}"]},
        "settings": {"epochs": 1, "warmup_steps": 1, **settings},
    }


PARTS = {
    "datasets": (
        experiment(
            "datasets",
            {
                "dataset": ["mnist", "cifar10", "imagenet", "highres"],
                "network": ["mobilenetv2", "resnet18"],
                "strategy": ["sequential", "horovod"],
            },
            batch_size=8,
            data_scale=0.002,
            max_steps=5,
        ),
        None,
    ),
    "memory": (
        {
            **experiment(
                "memory",
                {
                    "dataset": ["highres"],
                    "network": ["resnet152"],
                    "strategy": ["horovod", "gpipe"],
                },
                batch_size=4,
                data_scale=0.002,
                max_steps=2,
            ),
            "strategies": {"gpipe": {"chunks": 4}},
        },
        DEVICES * DEVICE_MB,
    ),
}


def main() -> None:
    """Measure, keep."""
    chosen = chosen_parts(__doc__, PARTS)
    for part in chosen.parts:
        content, memory_mb = PARTS[part]
        study = Study("large_images", content, {"cell_timeout_s": 1200})
        bed = Options(nodes=1, devices=DEVICES, cpu_share=1.0, memory_mb=memory_mb)
        if chosen.report:
            study.describe_site(part, bed)
        else:
            study.run(part, bed, "cells")
        study.ddlbench("report", "--configfile", "experiment.yaml")
        made = Path("results") / part / part
        study.keep(made / "tables" / "summary.csv", OUT / part / "summary.csv")


if __name__ == "__main__":
    main()
