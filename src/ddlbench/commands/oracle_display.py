"""How the oracle's answers look in a terminal and as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ddlbench.experiment.screen import (
    Column,
    duration_text,
    named_lines,
    paragraph,
    size_text,
    table,
)

if TYPE_CHECKING:
    import pandas as pd

    from ddlbench.predict.paradl.advise import Candidate, Reach
    from ddlbench.predict.paradl.calibrate import Calibration
    from ddlbench.predict.paradl.platform import Platform

ACCURACIES = (
    "accuracy",
    "compute_accuracy",
    "communication_accuracy",
    "worst_cell_accuracy",
)


def candidate(one: Candidate) -> dict[str, Any]:
    """A strategy on some devices as JSON values."""
    found = one.projection
    return {
        "strategy": found.configuration.strategy,
        "devices": found.configuration.devices,
        "batch_size": found.configuration.batch,
        "iteration_s": found.iteration_s,
        "computation_s": dict(found.computation),
        "communication_s": dict(found.communication),
        "epoch_s": one.epoch_s,
        "memory_bytes": found.memory_bytes,
        "max_devices": found.max_devices,
        "limiting_layer": found.limiting_layer,
        "bottleneck": found.bottleneck,
        "runs": not one.why,
        "why": one.why,
    }


def reach(one: Reach) -> dict[str, Any]:
    """How a strategy scales, as JSON values."""
    return {
        "strategy": one.strategy,
        "sizes": [candidate(size) for size in one.sizes],
        "regimes": [{"from_devices": devices, "term": term} for devices, term in one.regimes],
        "communication_outweighs_from": one.communication_from,
        "stops": one.stops,
    }


def constants(platform: Platform, found: Calibration) -> dict[str, dict[str, Any]]:
    """Every fitted constant beside its prior and meaning."""
    said = platform.values["fitted"]
    return {
        name: {
            "value": value,
            "relative_error": found.relative_errors[name],
            "prior": said[name]["prior"],
            "meaning": said[name]["meaning"],
        }
        for name, value in found.constants.items()
    }


def accuracy_by_strategy(rows: pd.DataFrame, projections: pd.DataFrame) -> dict[str, Any]:
    """Accuracy of rows that were held out."""
    from ddlbench.predict.paradl.measured import mean_accuracy  # noqa: PLC0415 - pandas is slow

    return {
        "mean_accuracy": mean_accuracy(rows, projections),
        "cells": len(rows),
        "strategies": {
            str(name): mean_accuracy(group, projections.loc[group.index])
            for name, group in rows.groupby("strategy")
        },
    }


def score_lines(found: Mapping[str, Any]) -> list[str]:
    """Accuracies of every campaign, and the baselines beside them."""
    columns = [
        Column(""), Column("accuracy", right=True), Column("computation", right=True),
        Column("communication", right=True), Column("worst cell", right=True),
        Column("cells", right=True),
    ]  # fmt: skip
    lines: list[str] = []
    for name, said in {found["campaign"]: found, **found["campaigns"]}.items():
        average = _percent(said["mean_accuracy"])
        lines += paragraph(f"{found['predictor']}, campaign {name}: {average} on average")
        groups = (*said["strategies"].items(), *said["networks"].items())
        rows = [
            (label, *(_percent(group[key]) for key in ACCURACIES), str(group["cells"]))
            for label, group in groups
        ]
        lines += table(columns, rows) if rows else []
        beside = ", ".join(f"{key} {_percent(value)}" for key, value in said["baselines"].items())
        lines += paragraph(f"beside it: {beside}", hanging="  ")
    for row in found["left_out"]:
        lines += paragraph(f"left out: {row['cell']}: {row['why']}", hanging="  ")
    return lines


def calibration_lines(value: Mapping[str, Any]) -> list[str]:
    """Every fitted constant, then accuracies."""
    columns = [
        Column("constant"), Column("fitted", right=True), Column("+-", right=True),
        Column("prior", right=True),
    ]  # fmt: skip
    fitted = value["constants"]
    rows = [
        (name, f"{said['value']:.3g}", _percent(said["relative_error"]), f"{said['prior']:.3g}")
        for name, said in fitted.items()
    ]
    lines = [f"{len(fitted)} constants from {value['rows']} iterations", *table(columns, rows)]
    lines += named_lines((name, str(said["meaning"])) for name, said in fitted.items())
    lines.append(f"mean accuracy on the same rows: {_percent(value['mean_accuracy'])}")
    if "hold_out" in value:
        held = value["hold_out"]
        parts = ", ".join(f"{key} {_percent(one)}" for key, one in held["strategies"].items())
        lines += paragraph(
            f"held out by {held['by']}, {held['cells']} cells: "
            f"{_percent(held['mean_accuracy'])} ({parts})",
            hanging="  ",
        )
    if "written" in value:
        lines.append(f"written: {value['written']}")
    return lines


def _machine(network: str, platform: Platform) -> str:
    """Network and platform of an answer."""
    memory = size_text(platform.device["memory_bytes"])
    description = platform.values["description"]
    return (
        f"{network} on {description}: {platform.devices_per_node} devices a node, {memory} a device"
    )


def best_lines(
    found: Sequence[Candidate],
    network: str,
    platform: Platform,
    devices: int,
    batch_size: float,
) -> list[str]:
    """A ranking of what can run, fastest first; below it what cannot, with the reason."""
    lines = paragraph(
        f"{_machine(network, platform)}; {devices:,} devices, batch {batch_size:,.0f}"
    )
    able = [one for one in found if not one.why]
    lines += _candidates(able, with_devices=False)
    if able:
        lines.append(f"best: {able[0].projection.configuration.strategy}")
    else:
        lines.append("no strategy can run like this")
    pairs = [(one.projection.configuration.strategy, one.why) for one in found if one.why]
    if pairs:
        lines += ["Cannot run", *named_lines(pairs, "  ")]
    return lines


def limits_lines(found: Iterable[Reach], network: str, platform: Platform) -> list[str]:
    """What bounds each strategy from where on, and what ends it."""
    columns = [
        Column("strategy"), Column("longest term from"),
        Column("mostly sending from", right=True, drop=1), Column("ends at"),
    ]  # fmt: skip
    rows = []
    for one in found:
        regimes = ", ".join(f"{devices:,}: {term}" for devices, term in one.regimes)
        outweighs = f"{one.communication_from:,}" if one.communication_from else ""
        rows.append((one.strategy, regimes or "never runs", outweighs, _end(one.stops)))
    return [*paragraph(_machine(network, platform)), *table(columns, rows)]


_TOO_MANY = re.compile(r"\d+ devices: at most (\d+) device\(s\), limited by (.*)")


def _end(stops: str) -> str:
    """What ends a strategy in few words: ``7 devices (conv5_1.add)``."""
    match = _TOO_MANY.fullmatch(stops)
    if match:
        return f"{match[1]} devices ({match[2].removeprefix('the ')})"
    return stops.replace("the platform:", "platform:")


def target_lines(
    found: Iterable[tuple[str, Candidate | None]],
    network: str,
    platform: Platform,
    epoch_s: float,
) -> list[str]:
    """The fewest devices of each strategy that keep the time."""
    found = list(found)
    lines = paragraph(f"{_machine(network, platform)}; an epoch in {duration_text(epoch_s)}")
    lines += _candidates([one for _, one in found if one is not None], with_devices=True)
    missed = [name for name, one in found if one is None]
    if missed:
        lines += paragraph(f"not in time with any number of devices: {', '.join(missed)}")
    return lines


def _candidates(found: Sequence[Candidate], *, with_devices: bool) -> list[str]:
    if not found:
        return []
    columns = [
        Column("strategy"), Column("devices", right=True), Column("iteration", right=True),
        Column("computing", right=True, drop=2), Column("sending", right=True, drop=1),
        Column("epoch", right=True), Column("memory", right=True), Column("bound by"),
    ]  # fmt: skip
    rows = [
        (
            one.projection.configuration.strategy,
            f"{one.projection.configuration.devices:,}" if with_devices else "",
            duration_text(one.projection.iteration_s),
            duration_text(one.projection.compute_s),
            duration_text(one.projection.communication_s),
            duration_text(one.epoch_s),
            size_text(one.projection.memory_bytes),
            one.projection.bottleneck,
        )
        for one in found
    ]
    return table(columns, rows)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"
