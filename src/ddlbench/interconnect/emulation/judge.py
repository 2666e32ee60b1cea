"""Whether a probed link is what its setting says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ddlbench.experiment.units import MBIT_PER_S, MS
from ddlbench.interconnect.emulation.errors import LinkMissed

__all__ = ["TOLERANCE", "misses", "require"]

# Share of the setting by which delay and rate may be off.
TOLERANCE = 0.1


def misses(setting: Mapping[str, Any], measured: Mapping[str, Any]) -> list[str]:
    """A sentence for each part of the setting that the link misses.

    Args:
        setting: fields of a ``LinkCondition``.
        measured: as ``probe`` writes it.
    """
    found = []
    for pair in measured["pairs"]:
        between = f"from node{pair['from']} to node{pair['to']}"
        found += _delay(between, setting["latency_s"], pair["one_way_delay_s"])
        found += _rate(between, setting["bandwidth_bits_per_s"], pair["rate_bits_per_s"])
    return found + _loss(setting["loss"], measured["loss"])


def require(probe: Mapping[str, Any]) -> None:
    """Refuse a link that misses its setting.

    Raises:
        LinkMissed: saying in what, and by how much.
    """
    if probe["misses"]:
        raise LinkMissed("; ".join(probe["misses"]))


def _delay(between: str, asked_s: float, found_s: float | None) -> list[str]:
    if found_s is None:
        return [f"no echo came back {between}"]
    # Without a delay nothing is set; what is measured is the machine's own.
    if not asked_s or _is_near(found_s, asked_s):
        return []
    return [
        f"the one-way delay {between} is {MS.text(found_s)}, the setting is "
        f"{MS.text(asked_s)} ({_off(found_s, asked_s)}, at most {TOLERANCE:.0%} may be)"
    ]


def _rate(between: str, asked: float | None, found: float | None) -> list[str]:
    if asked is None:
        return []
    if found is None:
        return [f"the rate {between} could not be measured: too few packets came"]
    if _is_near(found, asked):
        return []
    return [
        f"the rate {between} is {MBIT_PER_S.text(found, '.6g')}, the setting is "
        f"{MBIT_PER_S.text(asked, '.6g')} "
        f"({_off(found, asked)}, at most {TOLERANCE:.0%} may be)"
    ]


def _loss(asked: float, found: Mapping[str, Any]) -> list[str]:
    interval = found["wide_interval"]
    if interval["low"] <= asked <= interval["high"]:
        return []
    return [
        f"{found['lost']} of {found['sent']} packets were lost, the setting is {asked:.3%} "
        f"({interval['confidence']:.1%} interval {interval['low']:.3%} to {interval['high']:.3%})"
    ]


def _is_near(found: float, asked: float) -> bool:
    return abs(found - asked) <= TOLERANCE * asked


def _off(found: float, asked: float) -> str:
    return f"{(found - asked) / asked:+.0%}"
