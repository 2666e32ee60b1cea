"""Which profiles an experiment needs, and at which batch sizes of one device.

::

    sequential   1x1  batch 16    ->  16                     whole steps at 4, 8 and 16
    ddp          1x2  batch 16    ->  16 / 2 shards  =  8    layers at three sizes from 4 to 16
    gpipe        1x2  batch 16    ->  16 / 4 chunks  =  4, and 16
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ddlbench.common.errors import ConfigError
from ddlbench.common.form import Form
from ddlbench.common.schema import check
from ddlbench.experiment.cell import Cell, axes
from ddlbench.experiment.config import Profiling
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.profile import ProfileKey
from ddlbench.experiment.registry import BASE
from ddlbench.experiment.site import Accelerator, Site
from ddlbench.planning.matrix import MatrixRow, check_name
from ddlbench.planning.pipeline_stages import NeedsProfile
from ddlbench.planning.strategy import strategy_of


@dataclass(frozen=True)
class ProfileNeeds(Form):
    """The measurements of one profile.

    Args:
        cell: the sequential cell whose settings whole steps run with; its batch does not matter.
        step_batches: batch sizes of whole steps, ascending.
        layer_batches: batch sizes at which layers and blocks are timed, ascending.
        replica_batch: batch size of each replica where several share a node.
        alone: cells of which one device runs alone, one for each ``Strategy.device_work``.
        budget_s: seconds that the profile should take.
    """

    cell: Cell
    step_batches: tuple[int, ...]
    layer_batches: tuple[int, ...]
    replica_batch: int
    budget_s: float
    alone: tuple[Cell, ...] = ()

    @property
    def key(self) -> ProfileKey:
        return ProfileKey.of(self.cell)

    def to_dict(self, *, without_defaults: bool = False) -> dict[str, Any]:
        alone = [cell.to_dict() for cell in self.alone]
        written = super().to_dict(without_defaults=without_defaults)
        return {**written, "cell": self.cell.to_dict(), "alone": alone}


def profiles_of(rows: Iterable[MatrixRow]) -> list[ProfileKey]:
    """All profiles that the cells of a matrix need, without repetition."""
    return list(dict.fromkeys(ProfileKey.of(r.cell) for r in rows if r.unsupported is None))


def device_batches(cell: Cell, accelerator: Accelerator | None = None) -> set[int]:
    """Batch sizes that one device of the cell computes on: its share, and its micro-batch."""
    strategy = strategy_of(cell.strategy, accelerator)
    try:
        processes = strategy.placement(cell)
    except NeedsProfile:  # its stages take whole mini-batches, wherever the profile cuts
        return {cell.batch_size}
    shards = {process.num_shards for process in processes if process.shard >= 0}
    shares = {cell.batch_size // count for count in shards}
    values = strategy.option_values(cell)
    parts = int(values.get("chunks", values.get("accumulate", 1)))
    return shares | {max(share // parts, 1) for share in shares}


def needs_of(
    profile_id: str, rows: Sequence[MatrixRow], settings: Profiling, site: Site
) -> ProfileNeeds:
    """The measurements of a profile, for the experiment's rows and its settings ``profile``.

    A network that is not in the matrix takes the batch sizes and settings of the other networks
    of its dataset; failing those, of all. Where none of them can run, those of one device count.

    Raises:
        ConfigError: no such dataset or network, or the site cannot run it.
    """
    key = ProfileKey.from_id(profile_id)
    _check(key)
    on_one_device = {"strategy": BASE, "nodes": 1, "devices_per_node": 1, "options": ()}
    cells = [row.cell for row in rows if row.unsupported is None]
    cells = cells or [row.cell.with_(**on_one_device) for row in rows]
    batches_of_cell = [cell for cell in cells if ProfileKey.of(cell) == key]
    cells = batches_of_cell or [cell for cell in cells if cell.dataset == key.dataset] or cells
    template = next((cell for cell in cells if cell.strategy == BASE), cells[0])
    cell = template.with_(
        dataset=key.dataset,
        network=key.network,
        precision=key.precision,
        threads_per_device=key.threads_per_device,
        optimizer=key.optimizer,
        fabric="default",
        repeat=0,
        **on_one_device,
    )
    reason = site.supports(cell)
    if reason is not None:
        raise ConfigError(f"profile {profile_id}: {reason}")
    batches = [device_batches(cell, site.accelerator) for cell in cells]
    steps = sorted(set().union(*batches))
    shared = [
        max(batches_of_cell)
        for c, batches_of_cell in zip(cells, batches, strict=True)
        if c.devices > 1
    ]
    return ProfileNeeds(
        cell=cell,
        step_batches=tuple(steps),
        layer_batches=tuple(sorted(set(settings.batch_sizes))) or _between(steps[0], steps[-1]),
        replica_batch=min(shared or steps),
        budget_s=settings.budget_s,
        alone=_alone(batches_of_cell),
    )


def _alone(cells: Iterable[Cell]) -> tuple[Cell, ...]:
    """The first of the cells with each work that one device must run alone."""
    first: dict[str, Cell] = {}
    for cell in cells:
        work = strategy_of(cell.strategy).device_work(cell)
        if work is not None:
            first.setdefault(work, cell)
    return tuple(first.values())


def _between(smallest: int, largest: int) -> tuple[int, ...]:
    """Three batch sizes in about equal ratios, from a quarter of the largest or below."""
    low = max(1, min(smallest, largest // 4))
    middle = round(math.sqrt(low * largest))
    if middle in (low, largest):
        middle = low + 1
    return tuple(sorted({low, middle, max(largest, middle + 1)}))


def _check(key: ProfileKey) -> None:
    where = f"profile {key.id}"
    DATASETS.check(key.dataset, where)
    check_name("ddlbench.networks", key.network, where)
    for name in ("precision", "optimizer"):
        check(getattr(key, name), axes()[name], f"{where}: {name}")
