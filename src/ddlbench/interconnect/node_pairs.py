"""Pairs within each node: ``python -m ddlbench.interconnect.node_pairs``.

GPUs: one process a node runs NVIDIA's test, or copies itself where there is none. CPUs: the
processes of a node copy to each other. Nodes measure at the same time, as they share nothing. A
node of one GPU has no pairs, however many ranks compute on it.
"""

from __future__ import annotations

import socket
from typing import Any

import torch
from torch import distributed as dist

from ddlbench.interconnect.device_copies import cpu_pairs, gpu_pairs
from ddlbench.interconnect.p2p_binary import (
    find_nvbandwidth,
    find_or_build_p2p,
    run_nvbandwidth,
    run_p2p,
)
from ddlbench.runtime.environment import rank_provenance
from ddlbench.runtime.placement import is_shared
from ddlbench.runtime.rank_job import RankContext, rank_job_main
from ddlbench.runtime.rendezvous import join_store, leave

__all__ = ["work"]

_LARGEST_CPU_COPY_BYTES = 64 * 2**20


def work(here: RankContext) -> dict[str, Any]:
    """The matrices of this process's node, and what kind of node it is.

    Settings: ``interconnect`` (of the site), ``largest_bytes``, ``devices_per_node``.
    """
    provenance = rank_provenance()
    pairs = _gpu(here.settings["interconnect"]) if here.device_kind == "cuda" else _cpu(here)
    # Of one GPU, NVIDIA's tests know how fast it copies to itself: that is no link.
    pairs = [pair for pair in pairs if len(pair["endpoints"]) > 1]
    kind = _node_type(provenance)
    for pair in pairs:
        pair["node_type"] = kind
    return {
        "host": socket.gethostname(),
        "node": here.process.node,
        "node_type": kind,
        "pairs": pairs,
        "no_pairs": None if pairs else "one GPU",
        "provenance": provenance,
    }


def _gpu(interconnect: dict[str, Any]) -> list[dict[str, Any]]:
    if is_shared() or torch.cuda.device_count() == 1:
        return []
    binary = find_or_build_p2p(interconnect)
    if binary is not None:
        return run_p2p(binary)
    binary = find_nvbandwidth(interconnect)
    if binary is not None:
        return run_nvbandwidth(binary)
    if torch.cuda.device_count() == 0:
        raise RuntimeError("the site says device: cuda, but torch finds no GPU on this node")
    return gpu_pairs()


def _cpu(here: RankContext) -> list[dict[str, Any]]:
    count = here.settings["devices_per_node"]
    store = join_store(here.host, here.port, here.process.rank, here.world_size)
    pairs = cpu_pairs(
        dist.PrefixStore(f"node{here.process.node}", store),
        here.process.local_rank,
        count,
        min(here.settings["largest_bytes"], _LARGEST_CPU_COPY_BYTES),
        [f"process {index}" for index in range(count)],
    )
    leave(store, here.process.rank, here.world_size)
    return pairs


def _node_type(provenance: dict[str, Any]) -> str:
    gpus = provenance["gpu_models"]
    if gpus:
        return f"{len(gpus)}x {gpus[0]}"
    return f"{provenance['cpu_model']}, {provenance['cpu_count']} cores"


if __name__ == "__main__":
    rank_job_main(work)
