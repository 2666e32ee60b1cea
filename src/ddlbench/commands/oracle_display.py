"""How the oracle's answers look in a terminal and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    import pandas as pd

    from ddlbench.predict.paradl.advise import Candidate, Reach
    from ddlbench.predict.paradl.calibrate import Calibration
    from ddlbench.predict.paradl.platform import Platform

from ddlbench.experiment.units import GB

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
        "strategy": found.question.strategy,
        "devices": found.question.devices,
        "batch_size": found.question.batch,
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


def accuracy_by_strategy(rows: pd.DataFrame, told: pd.DataFrame) -> dict[str, Any]:
    """Accuracy of rows that were held out."""
    from ddlbench.predict.paradl.measured import mean_accuracy  # noqa: PLC0415 - pandas is slow

    return {
        "mean_accuracy": mean_accuracy(rows, told),
        "cells": len(rows),
        "strategies": {
            str(name): mean_accuracy(group, told.loc[group.index])
            for name, group in rows.groupby("strategy")
        },
    }


def show_score(console: Console, found: Mapping[str, Any]) -> None:
    """Print accuracies of every campaign and the baselines beside them."""
    campaigns = {found["campaign"]: found, **found["campaigns"]}
    for name, said in campaigns.items():
        table = _table(
            f"{found['predictor']}, campaign {name}: {_percent(said['mean_accuracy'])} on average",
            ("", "accuracy", "computation", "communication", "worst cell", "cells"),
        )
        for part in (*said["strategies"].items(), *said["networks"].items()):
            label, group = part
            table.add_row(
                label,
                *(_percent(group[key]) for key in ACCURACIES),
                str(group["cells"]),
            )
        console.print(table)
        beside = ", ".join(f"{key} {_percent(value)}" for key, value in said["baselines"].items())
        console.print(f"beside it: {beside}", soft_wrap=True)
    for row in found["left_out"]:
        console.print(f"left out: {row['cell']}: {row['why']}", soft_wrap=True)


def show_calibration(console: Console, value: Mapping[str, Any]) -> None:
    """Print every fitted constant, then accuracies."""
    table = _table(
        f"{len(value['constants'])} constants from {value['rows']} iterations",
        ("constant", "fitted", "+-", "prior", "meaning"),
    )
    for name, said in value["constants"].items():
        error, prior = _percent(said["relative_error"]), f"{said['prior']:.4g}"
        table.add_row(name, f"{said['value']:.4g}", error, prior, said["meaning"])
    console.print(table)
    console.print(f"mean accuracy on the same rows: {_percent(value['mean_accuracy'])}")
    if "hold_out" in value:
        held = value["hold_out"]
        parts = ", ".join(f"{key} {_percent(one)}" for key, one in held["strategies"].items())
        console.print(
            f"held out by {held['by']}, {held['cells']} cells: "
            f"{_percent(held['mean_accuracy'])} ({parts})",
            soft_wrap=True,
        )
    if "written" in value:
        console.print(f"written: {value['written']}")


def show_best(console: Console, found: Sequence[Candidate]) -> None:
    """Print a ranking, and the fastest that can run."""
    console.print(_candidates("", found))
    fastest = next((one for one in found if not one.why), None)
    if fastest is None:
        console.print("no strategy can run like this")
    else:
        console.print(f"best: {fastest.projection.question.strategy}")


def show_limits(console: Console, found: Iterable[Reach]) -> None:
    """Print what bounds each strategy from where on, and what ends it."""
    table = _table("", ("strategy", "longest term from", "communication outweighs from", "ends at"))
    for one in found:
        regimes = ", ".join(f"{devices}: {term}" for devices, term in one.regimes) or "never runs"
        outweighs = str(one.communication_from) if one.communication_from else "-"
        table.add_row(one.strategy, regimes, outweighs, one.stops)
    console.print(table)


def show_target(
    console: Console, found: Iterable[tuple[str, Candidate | None]], epoch_s: float
) -> None:
    """Print the fewest devices of each strategy that keep the time."""
    found = list(found)
    console.print(
        _candidates(f"an epoch in {epoch_s:g} s", [one for _, one in found if one is not None])
    )
    missed = [name for name, one in found if one is None]
    if missed:
        console.print(f"not in time with any number of devices: {', '.join(missed)}")


def _candidates(title: str, found: Iterable[Candidate]) -> Table:
    table = _table(
        title,
        ("strategy", "devices", "iteration", "computation", "communication", "epoch", "memory",
         "longest term", "cannot run because"),
    )  # fmt: skip
    for one in found:
        said = one.projection
        table.add_row(
            said.question.strategy,
            str(said.question.devices),
            *(f"{each:.4g} s" for each in (said.iteration_s, said.compute_s, said.communication_s,
                                           one.epoch_s)),
            GB.text(said.memory_bytes),
            said.bottleneck,
            one.why,
        )  # fmt: skip
    return table


def _table(title: str, headings: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"
