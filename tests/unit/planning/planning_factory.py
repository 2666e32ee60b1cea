"""Made-up profiles and links of a site, in the working folder, as plans read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ddlbench.experiment.links import Links, write_links
from ddlbench.experiment.paths import links_file, profile_file
from ddlbench.experiment.profile import Profile, write_profile
from ddlbench.planning.schedules import Schedule, Timeline

SITE_NAME = "here"


def picture(schedule: Schedule) -> list[str]:
    """The passes of each rank, ``F0 F1 B0 B1``; ``F0.2`` for stage 2 if ranks hold several."""
    several = schedule.num_stages > schedule.world_size
    return [
        " ".join(f"{a}.{a.stage}" if several else str(a) for a in schedule.computations(rank))
        for rank in range(schedule.world_size)
    ]


def bubble_share(timeline: Timeline) -> float:
    """Share of all ranks' time without computation."""
    whole_s = timeline.end_s * len(timeline.ranks)
    return 1 - sum(map(timeline.busy_s, range(len(timeline.ranks)))) / whole_s


def released_warmups(replicas: Sequence[int]) -> tuple[int, ...]:
    """Warm-up counts of PipeDream's released runtime: ``R_{>s} // r_s`` for each stage.

    The paper's NOAM rounds up, the release's code rounds ``(R - 1 - ranks before s) / r_s`` down;
    both are the same number.
    """
    ranks = sum(replicas)
    return tuple((ranks - 1 - sum(replicas[:s])) // count for s, count in enumerate(replicas))


def timings(seconds_per_sample: float) -> list[dict[str, Any]]:
    return [
        {"batch_size": b, "time_s": seconds_per_sample * b, "interval_s": None} for b in (2, 8, 32)
    ]


def block(number: int, seconds_per_sample: float = 0.001, **changes: Any) -> dict[str, Any]:
    """A third of the time forward."""
    values: dict[str, Any] = {
        "block": number,
        "name": f"block{number}",
        "parameter_bytes": 1000,
        "buffer_bytes": 0,
        "input_bytes_per_sample": 100,
        "output_bytes_per_sample": 100,
        "saved_bytes_per_sample": 300,
        "forward": timings(seconds_per_sample / 3),
        "backward": timings(seconds_per_sample * 2 / 3),
    }
    return {**values, **changes}


def write_site(blocks: list[dict[str, Any]], network: str = "vgg11", **changes: Any) -> None:
    """A profile of ``network`` on mnist, and links of four devices on one node, 1 GB/s."""
    layer = {
        "name": "layer",
        "block": 0,
        "block_name": "block0",
        "kind": "Linear",
        "parameter_bytes": 0,
        "output_bytes_per_sample": 100,
        "saved_bytes_per_sample": 300,
        "forward": timings(0.001),
        "backward": timings(0.001),
    }
    values: dict[str, Any] = {
        "schema_version": 1,
        "site": SITE_NAME,
        "profile_id": f"mnist/{network}/fp32-1t",
        "dataset": "mnist",
        "network": network,
        "precision": "fp32",
        "threads_per_device": 1,
        "device_kind": "cpu",
        "batch_sizes": [2, 8, 32],
        "steps": [],
        "layers": [layer],
        "blocks": blocks,
        "tensors": [{"name": "w", "block": 0, "bytes": 100, "ready_fraction": 1.0}],
        "node_slowdown": [{"replicas": 1, "slowdown": 1.0, "interval": None}],
        "fixed_memory_bytes": 0,
        "notes": [],
        "provenance": {},
    }
    path = profile_file(SITE_NAME, f"mnist/{network}/fp32-1t")
    write_profile(path, Profile.from_dict({**values, **changes}))
    size = range(4)
    pair = {
        "scope": "world",
        "method": "given",
        "endpoints": [f"device{n}" for n in size],
        "nodes": [0, 0, 0, 0],
        "bandwidth_bytes_per_s": [[None if r == c else 1e9 for c in size] for r in size],
        "latency_s": [[None if r == c else 1e-5 for c in size] for r in size],
        "repeats": 1,
        "slow_pairs": [],
    }
    write_links(
        links_file(SITE_NAME, "default"),
        Links.from_dict(
            {
                "schema_version": 1,
                "site": SITE_NAME,
                "fabric": "default",
                "device_kind": "cpu",
                "pairs": [pair],
                "sweeps": [],
                "notes": [],
                "provenance": {},
            }
        ),
    )
