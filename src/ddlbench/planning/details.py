"""Typed views of what a plan fixes beside its processes.

plan.json holds ``details`` as plain JSON: a strategy's options, and what follows from them. Only
the strategy itself reads them, through a view that names each value and its type::

    class DdpDetails(PlanDetails):
        bucket_cap_bytes: int

    DdpDetails.of(plan).bucket_cap_bytes
"""

from __future__ import annotations

from dataclasses import MISSING, Field, dataclass, fields
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from ddlbench.planning.plan import Plan

__all__ = ["PlanDetails"]


@dataclass(frozen=True)
class PlanDetails:
    """Base of the views; a field without a default must be in the plan."""

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """The view of a plan's details. JSON lists become tuples, also those within lists.

        Raises:
            KeyError: the plan lacks a value: it is not of this strategy.
        """
        values = {field.name: field for field in fields(cls)}
        missing = [
            name
            for name, field in values.items()
            if name not in plan.details and _has_no_default(field)
        ]
        if missing:
            raise KeyError(f"the plan of {plan.cell.strategy} has no {', '.join(missing)}")
        return cls(**{name: _tuples(plan.details[name]) for name in values if name in plan.details})


def _has_no_default(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _tuples(value: Any) -> Any:
    return tuple(_tuples(entry) for entry in value) if isinstance(value, list) else value
