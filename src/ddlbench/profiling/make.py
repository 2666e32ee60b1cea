"""Makes profile.json, in a job with all devices of one node."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ddlbench.experiment.profile import Profile, write_profile
from ddlbench.experiment.site import Site
from ddlbench.experiment.status import Status
from ddlbench.planning.planner import request_of
from ddlbench.planning.profiles import ProfileNeeds
from ddlbench.profiling.steps import slowdowns
from ddlbench.runtime.environment import driver_provenance
from ddlbench.runtime.rank_job import RankJobFailed, run_rank_job
from ddlbench.runtime.staging import stage_cell, unstage_cell

_METHOD = (
    "steps: the sequential executor on staged data, median over windows of consecutive steps; "
    "blocks: a training step cut between blocks; layers: each leaf operation alone on its recorded "
    "input; CPU layers by processor time, stretched to wall time by the ratio over all passes; "
    "alone: a rank's executor without its peers, median over windows of consecutive steps"
)


def make_profile(needs: ProfileNeeds, site: Site, path: Path) -> Profile:
    """Stages data, measures, checks and writes profile.json; its folder gets log.txt.

    Raises:
        RankJobFailed: a process crashed, hung, or ran out of memory outside a measurement.
        StagingError: the data could not be made.
    """
    stage_cell(needs.cell, site, path.parent)
    try:
        reports = run_rank_job(
            site,
            (1, site.devices_per_node),
            "ddlbench.profiling.worker",
            {
                "needs": needs.to_dict(),
                "data": asdict(request_of(needs.cell, site)),
                "patience_s": site.cell_timeout_s,
                "memory_bytes": _memory_of_device(site),
            },
            path.parent,
            threads=needs.cell.threads_per_device,
        )
    finally:
        if not site.keep_data:
            unstage_cell(needs.cell, site, path.parent)
    for report in reports:
        if report["status"] != Status.OK:
            log = path.parent / "log.txt"
            raise RankJobFailed(f"rank {report['rank']}: {report['reason']}; see {log}")
    profile = _profile(needs, site, reports)
    write_profile(path, profile)
    return profile


def _profile(needs: ProfileNeeds, site: Site, reports: list[dict[str, Any]]) -> Profile:
    own, cell, key = reports[0], needs.cell, needs.key
    of_replicas = [report.get("replicas") for report in reports]
    values = {
        "site": site.name,
        "profile_id": key.id,
        "dataset": key.dataset,
        "network": key.network,
        "precision": key.precision,
        "threads_per_device": key.threads_per_device,
        "device_kind": site.device,
        "batch_sizes": list(needs.layer_batches),
        "steps": own["steps"],
        "layers": own["layers"],
        "blocks": own["blocks"],
        "tensors": own["tensors"],
        "alone": own["alone"],
        "node_slowdown": slowdowns([seconds for seconds in of_replicas if seconds]),
        "fixed_memory_bytes": own["fixed_memory_bytes"],
        "device_memory_bytes": own["device_memory_bytes"] or _memory_of_device(site),
        **_shrink(site),
        "notes": [*own["notes"], *_comparison(own)],
        "provenance": {
            **driver_provenance(cell.seed),
            **own["provenance"],
            "method": _METHOD,
            "settings_of": cell.id,
            "replica_batch_size": needs.replica_batch,
            "budget_s": needs.budget_s,
            "spent_s": own["spent_s"],
            "stretch": own["stretch"],
        },
    }
    return Profile.from_dict(values)


def _shrink(site: Site) -> dict[str, float]:
    accelerator = site.accelerator
    return {} if accelerator is None or accelerator.shrink == 1 else {"shrink": accelerator.shrink}


def _memory_of_device(site: Site) -> int | None:
    if site.device == "cuda" or site.memory_per_device_mb is None:
        return None
    return site.memory_per_device_mb * 1_000_000


def _comparison(report: dict[str, Any]) -> list[str]:
    """Compares the sum of the blocks with whole steps, where both were measured."""
    notes = []
    for step in report["steps"]:
        blocks_s = report["block_totals_s"].get(str(step["batch_size"]))
        whole_s = step["forward_s"] + step["backward_s"]
        if blocks_s and whole_s:
            notes.append(
                f"at batch size {step['batch_size']} the blocks take {blocks_s:.6g} s together, "
                f"{blocks_s / whole_s:.3f} of forward, loss and backward in whole steps"
            )
    return notes
