"""Tools for test_runtime_tool: python -m runs them in other processes."""

import os
import time
from pathlib import Path

from ddlbench.runtime.rank_job import rank_job_main


def work(here):
    mode = here.settings["mode"]
    if mode == "report":
        _meet(here)
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


def _meet(here):
    # The other modes need no torch, which takes longer to import than all else here.
    from ddlbench.runtime.rendezvous import barrier, join_store, leave

    store = join_store(here.host, here.port, here.process.rank, here.world_size)
    barrier(store, "met", here.world_size)
    leave(store, here.process.rank, here.world_size)


if __name__ == "__main__":
    rank_job_main(work)
