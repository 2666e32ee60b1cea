"""Gradient accumulation: a rank computes its share of a mini-batch in micro-batches.

::

    a rank    | forward | backward | forward | backward | update |       accumulate: 2
    kept                | gradients            | sum    |

It holds the activations of one micro-batch at a time, and the sum of the gradients of earlier ones.
The loss of each is divided by their number, so that an update equals that of the whole share; a
batch norm sees micro-batches. When ranks sum their gradients is the strategy's to say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddlbench.common.form import Count
from ddlbench.experiment.cell import Cell, OptionValue
from ddlbench.experiment.status import Reason
from ddlbench.planning.data_parallel import uneven_shares
from ddlbench.planning.plan import Options
from ddlbench.planning.strategy import Strategy

if TYPE_CHECKING:
    from ddlbench.planning.plan import Plan

_MOST = 256  # micro-batches that are tried


@dataclass(frozen=True, kw_only=True)
class AccumulatingOptions(Options):
    """The option of strategies whose ranks can cut their share of a mini-batch."""

    accumulate: Count = 1
    """Micro-batches of a rank's share of a mini-batch, one after the other; their gradients are
    summed, and weights updated once a step."""


class Accumulating(Strategy):
    """Base of data-parallel strategies with :class:`AccumulatingOptions`."""

    def supports(self, cell: Cell) -> str | None:
        return uneven_shares(cell) or self._uneven_micro_batches(cell)

    def _uneven_micro_batches(self, cell: Cell) -> Reason | None:
        """Why the equal shares of the ranks are not cut into equal micro-batches."""
        count, share = AccumulatingOptions.of_cell(cell).accumulate, cell.batch_size // cell.devices
        if share % count == 0:
            return None
        return Reason(
            "uneven_batch",
            f"a worker's share of a mini-batch ({share}) does not divide into {count} "
            f"micro-batches (accumulate); make batch_size a multiple of {cell.devices * count}",
        )

    def micro_batches(self, plan: Plan) -> int:
        return AccumulatingOptions.of(plan).accumulate

    def reductions(self, cell: Cell) -> Iterator[Mapping[str, OptionValue]]:
        """Further micro-batches of each rank's share, of which it holds the activations of one."""
        share = cell.batch_size // cell.devices
        counts = range(2, min(share, _MOST) + 1)
        yield from ({"accumulate": count} for count in counts if share % count == 0)
