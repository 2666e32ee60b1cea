"""Ask a variant of the oracle: question in, projection out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.schema import nearest
from ddlbench.experiment.units import GB
from ddlbench.predict.paradl import corrected, memory, published
from ddlbench.predict.paradl.configuration import Configuration, Projection
from ddlbench.predict.paradl.limits import corrected_limit, published_limit
from ddlbench.predict.paradl.platform import Platform
from ddlbench.predict.paradl.published import Terms
from ddlbench.predict.paradl.workload import Workload

__all__ = ["VARIANTS", "Variant", "project", "refused", "variant_of"]


@dataclass(frozen=True)
class Variant:
    """One way to evaluate Table III."""

    terms: Mapping[str, Callable[[Workload, Platform, Configuration], Terms]]
    memory_bytes: Callable[[Workload, Platform, Configuration], float]
    limit: Callable[[Workload, Configuration], tuple[int, str]]


VARIANTS = {
    "as-published": Variant(published.TERMS, published.memory_bytes, published_limit),
    "corrected": Variant(corrected.TERMS, memory.memory_bytes, corrected_limit),
}


def variant_of(name: str) -> Variant:
    """The variant of that name.

    Raises:
        ConfigError: there is none.
    """
    if name not in VARIANTS:
        raise ConfigError(f"unknown variant {name!r} of the oracle; {nearest(name, VARIANTS)}")
    return VARIANTS[name]


def project(
    variant: str, workload: Workload, platform: Platform, asked: Configuration
) -> Projection:
    """What one iteration costs, also beyond the strategy's limits (the projection says them).

    Raises:
        ConfigError: unknown variant, or more devices than the platform has.
    """
    chosen = variant_of(variant)
    computation, communication = chosen.terms[asked.strategy](workload, platform, asked)
    most, why = chosen.limit(workload, asked)
    return Projection(
        asked,
        computation,
        communication,
        chosen.memory_bytes(workload, platform, asked),
        most,
        why,
    )


def refused(projection: Projection, platform: Platform) -> str:
    """Why a strategy cannot run like this; empty when it can."""
    asked, room = projection.question, platform.device["memory_bytes"]
    if asked.devices > projection.max_devices:
        return f"at most {projection.max_devices} device(s), limited by {projection.limiting_layer}"
    if projection.memory_bytes > room:
        return f"needs {GB.text(projection.memory_bytes, '.1f')} of {GB.text(room, '.1f')} a device"
    return ""
