"""The smallest cells that show what a strategy does to a network.

::

    devices      those of the geometry; more while too few of them train
    blocks       dealt to as many stages as the strategy has: evenly, and all but a few to the first
    mini-batch   the smallest that gives each part a few samples
"""

from __future__ import annotations

from collections.abc import Iterator

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.status import Reason, code_of
from ddlbench.planning.pipeline_stages import even_blocks
from ddlbench.planning.planner import make_plan
from ddlbench.planning.strategy import Strategy, normalise, strategy_of

MOST_DEVICES = 4

_BATCH_SIZES = (4, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_SAMPLES = 4  # of a part: of two, batch norm makes the same two numbers whatever they are
_FEW_SAMPLES = 2  # of a part, where a sample is large
_LARGE_SAMPLE_BYTES = 2**22
_ONE_DEVICE = "one_device_only"
_CURED_BY_DEVICES = (_ONE_DEVICE, "too_few_devices", "uneven_groups", "wrong_balance")


def tiny_cells(
    cell: Cell, blocks: int, geometry: tuple[int, int], batch_size: int | None = None
) -> list[Cell] | Reason:
    """Cells that the strategy supports, which differ in their balance, or why there is none.

    Args:
        cell: network, dataset, strategy, options and settings.
        blocks: of the network.
        geometry: nodes, and devices of a node.
        batch_size: of the mini-batch; by default the smallest that serves.
    """
    strategy = strategy_of(cell.strategy)
    large = DATASETS[cell.dataset].input_bytes >= _LARGE_SAMPLE_BYTES
    least = _FEW_SAMPLES if large else _SAMPLES
    first: Reason | None = None
    for place in _places(cell, strategy, geometry):
        for size in _BATCH_SIZES if batch_size is None else (batch_size,):
            tried = _dealt(place.with_(batch_size=size), strategy, blocks)
            if isinstance(tried, Reason):
                first = first or tried
            elif batch_size or size >= least * make_plan(tried[0]).parts:
                return tried
        if first is not None and first.code not in _CURED_BY_DEVICES:
            return first
    return first or Reason("unsupported", "no small mini-batch fits; write --batch-size")


def _places(cell: Cell, strategy: Strategy, geometry: tuple[int, int]) -> Iterator[Cell]:
    """The cell where at least as many devices train as the geometry has, then on one device."""
    nodes, devices = geometry
    wanted = nodes * devices
    for each in range(devices, max(devices, MOST_DEVICES // nodes) + 1):
        last = nodes * (each + 1) > MOST_DEVICES
        if last or strategy.workers(nodes * each, dict(cell.options)) >= wanted:
            yield normalise(cell.with_(nodes=nodes, devices_per_node=each))
    placed = cell.with_(nodes=nodes, devices_per_node=devices)
    if code_of(strategy.supports(placed)) == _ONE_DEVICE:
        yield cell.with_(nodes=1, devices_per_node=1)


def _dealt(cell: Cell, strategy: Strategy, blocks: int) -> list[Cell] | Reason:
    """The cell with its blocks dealt to stages, unless they are dealt by hand; or why not.

    No rule for a balance is used: the network may be in no table, and nothing is measured.
    """
    by_hand = str(cell.option("balance", "")).partition("+")[0].isdigit()
    if "balance" not in strategy.options.defaults() or by_hand:
        refusal = strategy.supports(cell)
        return [cell] if refusal is None else _as_reason(refusal)
    refusal = None
    for stages in range(1, blocks + 1):
        counts = even_blocks(blocks, (1,) * stages)
        refusal = strategy.supports(_with_balance(cell, counts))
        if refusal is None:
            late = (blocks - stages + 1, *(1,) * (stages - 1))
            return [_with_balance(cell, dealt) for dealt in dict.fromkeys((counts, late))]
        if code_of(refusal) != "wrong_balance":
            return _as_reason(refusal)
    few = "1 block is" if blocks == 1 else f"{blocks} blocks are"
    return Reason("too_few_blocks", f"{few} too few for its stages: {refusal}")


def _with_balance(cell: Cell, counts: tuple[int, ...]) -> Cell:
    options = {**dict(cell.options), "balance": "+".join(map(str, counts))}
    return cell.with_(options=tuple(options.items()))


def _as_reason(refusal: str) -> Reason:
    return Reason(code_of(refusal), refusal)
