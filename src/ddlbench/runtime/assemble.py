"""result.json from the plan, the site and the reports of the ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ddlbench.experiment.result import Result
from ddlbench.experiment.result_parts import Attempt, InputDigests, Link, Provenance, Staging
from ddlbench.experiment.site import Site
from ddlbench.experiment.status import Status, reason_code
from ddlbench.planning.measured_digests import measured_digests
from ddlbench.planning.plan import Plan
from ddlbench.planning.strategy import Strategy, strategy_of
from ddlbench.runtime import aggregate, losses
from ddlbench.runtime.checkpoint_report import checkpointing, notes
from ddlbench.runtime.environment import driver_provenance
from ddlbench.runtime.rank_report import RankFailure, RankReport
from ddlbench.runtime.shared_gpu import NOTE as SHARED_GPU
from ddlbench.runtime.traffic import communication

__all__ = ["assemble"]

_STAGING = ("seconds", "reused", "bytes", "nodes")


def assemble(
    plan: Plan,
    site: Site,
    status: Status,
    reason: str | None,
    *,
    reports: Sequence[RankReport | RankFailure],
    staging: dict[str, Any] | None,
    link: dict[str, Any] | None = None,
    earlier: Sequence[Attempt] = (),
    measured: Mapping[str, str | None] | None = None,
) -> Result:
    """The result of a cell that is done.

    Args:
        plan: what ran.
        site: where.
        status: ok, out_of_memory, unsupported or timeout.
        reason: why it is not ok.
        reports: of the ranks that left one.
        staging: what staging reported.
        link: what an emulated link was; None where the network is the site's own.
        earlier: attempts that ended before the one that was measured; see :mod:`.restart`.
        measured: digests of the files that the plan was made from; those of now where left out.
    """
    cell, strategy = plan.cell, strategy_of(plan.cell.strategy)
    ok = sorted((r for r in reports if isinstance(r, RankReport)), key=lambda r: r.rank)
    complete = status == Status.OK
    timing = aggregate.timing(cell, ok, site.device) if complete else None
    saved = None if timing is None else checkpointing(cell, ok, timing, earlier)
    synchronous = strategy.is_synchronous(cell)
    return Result(
        status=status,
        reason=reason,
        reason_code=reason_code(reason, status),
        site=site.name,
        cell_id=cell.id,
        cell=cell.to_dict(),
        inputs=InputDigests(
            plan_digest=plan.digest,
            dataset_digest=None if staging is None else staging["digest"],
            **(measured_digests(cell, site.name) if measured is None else measured),
        ),
        processes=plan.world_size,
        devices=cell.devices,
        workers=sum(len(p.devices) for p in plan.processes if p.shard >= 0),
        device_kind=site.device,
        update_semantics="synchronous" if synchronous else "stale",
        notes=(
            *_notes(strategy, site),
            *notes(cell, synchronous, saved),
            *losses.divergence(ok if complete else []),
        ),
        plan_details=ok[0].plan_details if complete else plan.details,
        ranks=tuple(aggregate.rank_entry(r) for r in ok),
        timing=timing,
        staging=None if staging is None else Staging(**{key: staging[key] for key in _STAGING}),
        loss=losses.summary(ok, ok[0].steps_per_epoch) if complete else None,
        communication=communication(ok) if complete else None,
        link=None if link is None else Link.from_dict(link),
        checkpointing=saved,
        log_tail=(),
        elapsed_s=0.0,
        provenance=_provenance(cell.seed, ok, link),
    )


def _notes(strategy: Strategy, site: Site) -> list[str]:
    shared = SHARED_GPU if site.devices_share_gpu else None
    return [note for note in (strategy.note(site.device), shared) if note is not None]


def _provenance(
    seed: int, reports: Sequence[RankReport], link: dict[str, Any] | None
) -> Provenance:
    values = driver_provenance(seed)
    values["hosts"] = sorted({r.provenance["host"] for r in reports})
    if reports:
        of_a_rank = dict(reports[0].provenance)
        of_a_rank.pop("host")
        values.update(of_a_rank)
    if link is not None:  # the kernel's own setting does not hold inside emulated nodes
        values["tcp_congestion_control"] = link["setting"]["congestion_control"]
    return Provenance.from_dict(values)
