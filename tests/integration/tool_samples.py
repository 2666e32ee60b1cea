"""Tools for test_runtime_tool: python -m runs them in other processes."""

import os
import time
from pathlib import Path

from ddlbench.runtime.rank_job import rank_job_main
from ddlbench.runtime.rendezvous import barrier, join_store, leave


def work(here):
    mode = here.settings["mode"]
    store = join_store(here.host, here.port, here.process.rank, here.world_size)
    barrier(store, "met", here.world_size)
    leave(store, here.process.rank, here.world_size)
    if mode == "crash" and here.process.rank == 1:
        raise ValueError("rank 1 had enough")
    if mode == "vanish" and here.process.rank == 1:
        os._exit(0)
    if mode == "unwritable":
        return {"bandwidth": float("nan")}
    if mode == "hang":
        if "ODD_HANGING" in os.environ:
            Path(os.environ["ODD_HANGING"], str(here.process.rank)).touch()
        time.sleep(600)
    return {"world_size": here.world_size, "threads": os.environ["OMP_NUM_THREADS"]}


if __name__ == "__main__":
    rank_job_main(work)
