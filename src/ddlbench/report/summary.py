"""Summarises the repeats of each configuration as a median with an interval.

Means and medians are of seconds; rates and speed-ups are derived from them afterwards.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from ddlbench.common.statistics import (
    CONFIDENCE,
    Interval,
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
from ddlbench.report.tables import SUMMARY, frame_of

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


def summarise(measurements: pd.DataFrame) -> pd.DataFrame:
    """Summarise repeats; see :data:`~ddlbench.report.tables.SUMMARY`."""
    by_id = measurements.set_index("cell_id", drop=False)
    configurations = measurements["cell_id"].map(_configuration)
    return frame_of(
        (
            _record(str(name), runs, by_id)
            for name, runs in measurements.groupby(configurations, sort=False)
        ),
        SUMMARY,
    )


def _configuration(cell_id: str) -> str:
    return cell_id.rpartition("/")[0]


def _record(configuration: str, runs: pd.DataFrame, by_id: pd.DataFrame) -> dict[str, Any]:
    first = runs.iloc[0]
    ok = runs[runs["status"] == Status.OK]
    quiet = ok[(ok["disturbed"] == "") & (ok["departure"] == "")]
    good = quiet if len(quiet) else ok
    bases = sorted({_configuration(name) for name in runs["base_cell_id"] if name})
    is_base = bases == [configuration]
    pairs = good[good["speedup"].notna()]
    forbid = not is_base and have_no_ratio(pairs)
    left_out = ok[~ok.index.isin(good.index)]
    of_repeats = runs.index if len(pairs) else left_out.index
    notes = [
        of_a_repeat(note) if index in of_repeats else note
        for index, text in runs["comparability"].items()
        for note in notes_of([text])
    ]
    return {
        **{name: first[name] for name in _FROM_FIRST},
        "configuration": configuration,
        "workers": (good if len(good) else runs)["workers"].max(),
        "repeats": len(runs),
        "n": len(good),
        "base_configuration": bases[0] if bases else None,
        **_status(runs, left_out),
        **_epoch(good),
        **({"speedup_n": 0} if forbid or not len(pairs) else _speedup(pairs, by_id, is_base)),
        **{
            name: runs[name].max()
            for name in runs.columns
            if name.endswith("_bytes") and runs[name].notna().any()
        },
        **{name: float(good[name].median()) for name in _MEDIANS if len(good)},
        "speedup_normalised": None if forbid else float(pairs["speedup_normalised"].median()),
        "update_semantics": _joined(runs["update_semantics"], " "),
        "ran_as": _joined(runs["ran_as"], NOTE_BREAK),
        "energy_of": _joined(runs["energy_of"], " "),
        "device_kind": _joined(runs["device_kind"], " "),
        "emulated": bool(runs["emulated"].any()),
        "processors": _joined(runs["processors"], NOTE_BREAK),
        "noisy": good["noisy"].any(skipna=False),  # unknown where one is and none is noisy
        "unsteady": bool(good["unsteady"].any()) or repeats_are_unsteady(good),
        "disturbed": _joined(good["disturbed"], NOTE_BREAK),
        "departure": _joined(good["departure"], NOTE_BREAK),
        "stale": bool(runs["stale"].any()),
        **columns_of([*notes, *unlike_repeats(good, forbid=forbid)]),
        "notes": _joined(runs["notes"], NOTE_BREAK),
        "commit": _joined(runs["commit"], " "),
        "created": max(runs["created"]),
    }


def _joined(texts: pd.Series, sign: str) -> str:
    parts = [part for text in texts for part in text.split(sign) if part]
    return sign.join(dict.fromkeys(parts))


def _status(runs: pd.DataFrame, left_out: pd.DataFrame) -> dict[str, str]:
    """Status and reason; repeats that are ok may be left out, too."""
    missing = runs[runs["status"] != Status.OK]
    departing = int((left_out["departure"] != "").sum())
    numbers = {"disturbed": len(left_out) - departing, "departing": departing}
    apart = [f"{number} {word}" for word, number in numbers.items() if number]
    if not len(missing):
        reason = f"of {len(runs)} repeats: {', '.join(apart)}" if apart else ""
        return {"status": "ok", "reason": reason, "reason_code": ""}
    rank = {status.value: place for place, status in enumerate(Status)}
    gravest = missing.iloc[int(missing["status"].map(rank).to_numpy().argmin())]
    if len(missing) == len(runs):
        return {name: gravest[name] for name in ("status", "reason", "reason_code")}
    counts = missing["status"].value_counts(sort=False)
    parts = [*(f"{count} {status}" for status, count in counts.items()), *apart]
    reason = f"of {len(runs)} repeats: {', '.join(parts)}"
    return {"status": "ok", "reason": reason, "reason_code": gravest["reason_code"]}


def _interval(runs: pd.DataFrame) -> Interval:
    """The interval of ``epoch_s``: over repeats, or over the steps of the only run."""
    if len(runs) > 1:
        return median_interval(runs["epoch_s"].tolist())
    run = runs.iloc[0]
    return scaled(run["epoch_s"], run["step_median_s"], run["step_low_s"], run["step_high_s"])


def _epoch(good: pd.DataFrame) -> dict[str, Any]:
    if not len(good):
        return {}
    epoch = _interval(good)
    samples = int(good["dataset_samples"].iloc[0])
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


def _speedup(pairs: pd.DataFrame, by_id: pd.DataFrame, is_base: bool) -> dict[str, Any]:
    bases = by_id.loc[pairs["base_cell_id"].tolist()]
    ratio = Interval(1.0, 1.0, 1.0, CONFIDENCE) if is_base else _ratio(pairs, bases)
    return {
        "speedup": ratio.median,
        "speedup_low": ratio.low,
        "speedup_high": ratio.high,
        "speedup_n": len(pairs),
        "base_samples_per_s": _per_second(
            int(bases["dataset_samples"].iloc[0]), float(bases["epoch_s"].median())
        ),
    }


def _ratio(pairs: pd.DataFrame, bases: pd.DataFrame) -> Interval:
    if len(pairs) >= _FEWEST_TO_BOOTSTRAP:
        return ratio_interval(bases["epoch_s"].tolist(), pairs["epoch_s"].tolist())
    base, cell = _interval(bases), _interval(pairs)
    return Interval(
        base.median / cell.median,
        base.low / cell.high,
        base.high / cell.low,
        min(base.coverage, cell.coverage),
    )
