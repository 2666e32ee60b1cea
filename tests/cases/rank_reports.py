"""Made-up reports of ranks; what a test does not name is some plain value."""

from __future__ import annotations

from typing import Any

from ddlbench.runtime.rank_report import RankFailure, RankReport


def rank_report(**changes: Any) -> RankReport:
    """A rank that is done."""
    values: dict[str, Any] = {
        "rank": 0,
        "role": "worker",
        "node": 0,
        "local_rank": 0,
        "stage": 0,
        "replica": 0,
        "shard": 0,
        "host": "node0",
        "devices": ("cpu:0",),
        "cpu_model": None,
        "gpu_models": (),
        "threads": 1,
        "prepare_s": 1.0,
        "parameter_bytes": 0,
        "peak_rss_bytes": 0,
        "memory": (),
        "dataset_samples": 20,
        "samples": 0,
        "steps_per_epoch": 2,
        "plan_details": {},
        "provenance": {"host": "node0"},
        "warmup_step_s": (),
        "warmup_load_s": (),
        "warmup_loss": (),
        "step_s": (),
        "load_s": (),
        "loss": (),
    }
    return RankReport(**{**values, **changes})


def rank_failure(reason: str, **changes: Any) -> RankFailure:
    """Rank 1 that ended early."""
    values = {"rank": 1, "status": "failed", "reason_code": "exception"}
    return RankFailure(reason=reason, **{**values, **changes})
