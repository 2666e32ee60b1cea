"""All-reduces of gloo between two emulated nodes; netem.py runs this in its guest.

    python validation/netem_all_reduce.py LATENCY_MS BANDWIDTH_MBIT_PER_S TABLE.csv

Nothing else happens between them, so that their times are those of the links and of TCP.
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import time
from pathlib import Path

SIZES_BYTES = (4096, 437_544, 1_048_576)  # the second is the gradients of the cells
REPEATS, WARM_UP = 30, 3


def measure(rank: int, address: str, table: Path) -> None:
    """Be one rank; rank 0 writes a row per all-reduce."""
    import torch  # noqa: PLC0415 - the process that starts the ranks needs none
    from torch import distributed as dist  # noqa: PLC0415

    dist.init_process_group("gloo", init_method=f"tcp://{address}:29500", rank=rank, world_size=2)
    rows = []
    for size in SIZES_BYTES:
        tensor = torch.zeros(size // 4)
        for repeat in range(-WARM_UP, REPEATS):
            began_s = time.perf_counter()
            dist.all_reduce(tensor)
            if repeat >= 0:
                rows.append((size, repeat, f"{time.perf_counter() - began_s:.6f}"))
    if rank == 0:
        with table.open("w", newline="") as file:
            csv.writer(file).writerows([("message_bytes", "repeat", "time_s"), *rows])


def main(latency_ms: float, bandwidth_mbit_per_s: float, table: Path) -> None:
    """Make the links, and start a rank at each end."""
    from ddlbench.emulation import EmulatedNodes  # noqa: PLC0415 - ranks need none
    from ddlbench.experiment.fabric import LinkCondition  # noqa: PLC0415

    rate = bandwidth_mbit_per_s * 1e6
    condition = LinkCondition(latency_ms / 1e3, rate, 0.0, backend="netem")
    with EmulatedNodes(condition, 2) as nodes:
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": nodes.interface}
        ranks = []
        for rank in (0, 1):
            words = [sys.executable, __file__, "rank", str(rank), nodes.address(0), str(table)]
            ranks.append(subprocess.Popen(nodes.command(rank, words), env=environment))
        failures = [process.wait() for process in ranks]
    if any(failures):
        sys.exit("a rank failed")


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        measure(int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
    else:
        main(float(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3]))
