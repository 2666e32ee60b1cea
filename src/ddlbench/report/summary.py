"""Summarises the repeats of each configuration as a median with an interval.

Means and medians are of seconds; rates and speed-ups are derived from them afterwards.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

import pandas as pd

from ddlbench.common.statistics import (
    CONFIDENCE,
    Interval,
    grouped,
    is_known,
    median_interval,
    ratio_interval,
    scaled,
)
from ddlbench.experiment.status import Status
from ddlbench.report.comparability import (
    NOTE_BREAK,
    columns_of,
    have_no_ratio,
    notes_of,
    of_a_repeat,
    repeats_are_unsteady,
    unlike_repeats,
)
from ddlbench.report.tables import SUMMARY, frame_of, is_unknown

_FROM_FIRST = [
    "site", "experiment", "dataset", "network", "strategy", "options", "nodes", "devices_per_node",
    "geometry", "batch_size", "precision", "fabric", "link_latency_s", "link_bits_per_s",
    "link_loss", "link_mtu_bytes", "link_congestion_control", "link_inside_latency_s",
    "link_inside_bits_per_s", "settings",
]  # fmt: skip
_MEDIANS = (
    "step_median_s", "load_s", "load_step_s", "loss_last", "accuracy", "probe_s", "mfu",
    "flops_per_s", "peak_flops_per_s", "cpu_s", "energy_per_sample_j", "compile_s",
    "median_samples_per_s",
)  # fmt: skip
_FEWEST_TO_BOOTSTRAP = 3


Run = Mapping[Any, Any]
"""A row of the measurements."""


def summarise(measurements: pd.DataFrame) -> pd.DataFrame:
    """Summarise repeats; see :data:`~ddlbench.report.tables.SUMMARY`."""
    rows = measurements.to_dict("records")  # far quicker than a frame of a few rows
    by_id = {row["cell_id"]: row for row in rows}
    repeats = grouped((_configuration(row["cell_id"]), row) for row in rows)
    return frame_of((_record(name, runs, by_id) for name, runs in repeats.items()), SUMMARY)


def _configuration(cell_id: str) -> str:
    return cell_id.rpartition("/")[0]


def _of(name: str, runs: Iterable[Run]) -> list[Any]:
    """What is known of a column."""
    return [run[name] for run in runs if not is_unknown(run[name])]


def _median(name: str, runs: Iterable[Run]) -> float:
    known = _of(name, runs)
    return float(median(known)) if known else math.nan


def _record(configuration: str, runs: Sequence[Run], by_id: Mapping[str, Run]) -> dict[str, Any]:
    first = runs[0]
    ok = [run for run in runs if run["status"] == Status.OK]
    odd = [run for run in ok if run["disturbed"] or run["departure"]]
    left_out = odd if len(odd) < len(ok) else []
    ids_left_out = {run["cell_id"] for run in left_out}
    good = [run for run in ok if run["cell_id"] not in ids_left_out]
    bases = sorted({_configuration(name) for name in _of("base_cell_id", runs)})
    is_base = bases == [configuration]
    pairs = [run for run in good if not is_unknown(run["speedup"])]
    forbid = not is_base and have_no_ratio(pairs)
    notes = [
        of_a_repeat(note) if pairs or run["cell_id"] in ids_left_out else note
        for run in runs
        for note in notes_of([run["comparability"]])
    ]
    noisy = _of("noisy", good)
    return {
        **{name: first[name] for name in _FROM_FIRST},
        "configuration": configuration,
        "workers": max(_of("workers", good or runs), default=None),
        "repeats": len(runs),
        "n": len(good),
        "base_configuration": bases[0] if bases else None,
        **_status(runs, left_out),
        **_epoch(good),
        **({"speedup_n": 0} if forbid or not pairs else _speedup(pairs, by_id, is_base)),
        **{name: max(_of(name, runs), default=None) for name in first if name.endswith("_bytes")},
        **{name: _median(name, good) for name in _MEDIANS},
        "speedup_normalised": None if forbid else _median("speedup_normalised", pairs),
        "update_semantics": _joined("update_semantics", runs, " "),
        "ran_as": _joined("ran_as", runs, NOTE_BREAK),
        "energy_of": _joined("energy_of", runs, " "),
        "device_kind": _joined("device_kind", runs, " "),
        "emulated": any(_of("emulated", runs)),
        "processors": _joined("processors", runs, NOTE_BREAK),
        "noisy": any(noisy) or (False if len(noisy) == len(good) else None),
        "unsteady": any(_of("unsteady", good)) or repeats_are_unsteady(good),
        "disturbed": _joined("disturbed", good, NOTE_BREAK),
        "departure": _joined("departure", good, NOTE_BREAK),
        "stale": any(_of("stale", runs)),
        **columns_of([*notes, *unlike_repeats(good, forbid=forbid)]),
        "notes": _joined("notes", runs, NOTE_BREAK),
        "commit": _joined("commit", runs, " "),
        "created": max(run["created"] for run in runs),
    }


def _joined(name: str, runs: Iterable[Run], sign: str) -> str:
    parts = [part for run in runs for part in run[name].split(sign) if part]
    return sign.join(dict.fromkeys(parts))


def _status(runs: Sequence[Run], left_out: Sequence[Run]) -> dict[str, str]:
    """Status and reason; repeats that are ok may be left out, too."""
    missing = [run for run in runs if run["status"] != Status.OK]
    departing = sum(bool(run["departure"]) for run in left_out)
    numbers = {"disturbed": len(left_out) - departing, "departing": departing}
    apart = [f"{number} {word}" for word, number in numbers.items() if number]
    if not missing:
        reason = f"of {len(runs)} repeats: {', '.join(apart)}" if apart else ""
        return {"status": "ok", "reason": reason, "reason_code": ""}
    rank = {status.value: place for place, status in enumerate(Status)}
    gravest = min(missing, key=lambda run: rank.get(run["status"], -1))
    if len(missing) == len(runs):
        return {name: gravest[name] for name in ("status", "reason", "reason_code")}
    counts = Counter(run["status"] for run in missing)
    parts = [*(f"{count} {status}" for status, count in counts.items()), *apart]
    reason = f"of {len(runs)} repeats: {', '.join(parts)}"
    return {"status": "ok", "reason": reason, "reason_code": gravest["reason_code"]}


def _interval(runs: Sequence[Run]) -> Interval:
    """The interval of ``epoch_s``: over repeats, or over the steps of the only run."""
    if len(runs) > 1:
        return median_interval([run["epoch_s"] for run in runs])
    (run,) = runs
    return scaled(run["epoch_s"], run["step_median_s"], run["step_low_s"], run["step_high_s"])


def _epoch(good: Sequence[Run]) -> dict[str, Any]:
    if not good:
        return {}
    epoch = _interval(good)
    samples = int(good[0]["dataset_samples"])
    over = "repeats" if len(good) > 1 else "steps"
    return {
        "interval_of": over if is_known(epoch) else None,
        "coverage": epoch.coverage,
        "epoch_s": epoch.median,
        "epoch_low_s": epoch.low,
        "epoch_high_s": epoch.high,
        "samples_per_s": _per_second(samples, epoch.median),
        "samples_low_per_s": _per_second(samples, epoch.high),
        "samples_high_per_s": _per_second(samples, epoch.low),
    }


def _per_second(samples: int, seconds: float) -> float | None:
    return samples / seconds if seconds > 0 else None


def _speedup(pairs: Sequence[Run], by_id: Mapping[str, Run], is_base: bool) -> dict[str, Any]:
    bases = [by_id[run["base_cell_id"]] for run in pairs]
    ratio = Interval(1.0, 1.0, 1.0, CONFIDENCE) if is_base else _ratio(pairs, bases)
    return {
        "speedup": ratio.median,
        "speedup_low": ratio.low,
        "speedup_high": ratio.high,
        "speedup_n": len(pairs),
        "base_samples_per_s": _per_second(
            int(bases[0]["dataset_samples"]), _median("epoch_s", bases)
        ),
    }


def _ratio(pairs: Sequence[Run], bases: Sequence[Run]) -> Interval:
    if len(pairs) >= _FEWEST_TO_BOOTSTRAP:
        return ratio_interval([run["epoch_s"] for run in bases], [run["epoch_s"] for run in pairs])
    base, cell = _interval(bases), _interval(pairs)
    return Interval(
        base.median / cell.median,
        base.low / cell.high,
        base.high / cell.low,
        min(base.coverage, cell.coverage),
    )
