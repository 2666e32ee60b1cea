"""What one GPU can prove of ddlbench, in five parts of at most nine minutes each.

::

    1  clock     CUDA events against the wall, harness overhead, losses, noise, NVML, out of memory
    2  predict   profiles of seven networks, and what the predictor says of sizes not profiled
    3  ranks     every strategy with 2 and 4 ranks on the one GPU; kill, resume, NCCL sweeps
    4  options   contention, p2pBandwidthLatencyTest, Horovod with NCCL, FSDP, bf16, fp16, compile
    5  device    times of kernels, and profiles of many networks for config/accelerators

It needs this checkout, Python with torch, and the wheels that ``--prepare`` collects on a machine
with internet; neither Snakemake nor root. A part that is started again goes on where it was::

    python validation/gpu.py --prepare carried
    python validation/gpu.py --part 1 --out gpu-results --carried carried
    python validation/gpu.py --show --out gpu-results

``--device cpu`` runs the same checks on a machine without a GPU, as far as they make sense there.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
for folder in (ROOT / "src", ROOT / "validation"):
    sys.path.insert(0, str(folder))

PARTS = {1: "clock", 2: "predict", 3: "ranks", 4: "options", 5: "device"}


def main() -> int:
    """Run a part, show what was found, or collect what a machine without internet needs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", type=int, choices=PARTS, action="append", help="run this part")
    parser.add_argument("--out", type=Path, default=Path("gpu-results"), help="folder of results")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="show that it works, and no more")
    parser.add_argument("--limit-s", type=float, default=480.0, help="of each part")
    parser.add_argument("--carried", type=Path, help="folder that --prepare made")
    parser.add_argument("--prepare", type=Path, metavar="DIR", help="collect wheels and sources")
    parser.add_argument("--show", action="store_true", help="print the tables of --out as Markdown")
    chosen = parser.parse_args()
    carry = importlib.import_module("gpu_parts.carry")
    if chosen.prepare is not None:
        carry.prepare(chosen.prepare)
        return 0
    if chosen.carried is not None:
        carry.install(chosen.carried, chosen.out)
    carry.on_path((chosen.out / "site").resolve())
    lacking = carry.missing()
    if lacking is not None:
        print(lacking, file=sys.stderr)
        return 2
    tables = importlib.import_module("gpu_parts.table")
    if chosen.show or not chosen.part:
        print(tables.markdown(chosen.out))
        return 0
    failed = 0
    for part in chosen.part:
        study = importlib.import_module("gpu_parts.study").Study(
            part,
            chosen.out.resolve(),
            device=chosen.device,
            small=chosen.small,
            limit_s=chosen.limit_s,
            carried=None if chosen.carried is None else chosen.carried.resolve(),
        )
        importlib.import_module(f"gpu_parts.{PARTS[part]}").run(study)
        print(tables.terminal(study))
        failed += sum(row.status == "failed" for row in study.rows)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
