"""The measurements of an experiment, collected from its cells into tables.

``measurements.csv`` has a row for every cell of the matrix, with or without a result. It is made of
records: a mapping a cell, whose keys are columns; one that is absent is unknown. ``steps.csv`` has
a row for every step, ``validation.csv`` for every validated epoch. :mod:`.summary` makes
``summary.csv`` of the first.
"""

from __future__ import annotations

import logging
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from operator import itemgetter
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd

from ddlbench.common.document import UnreadableJson
from ddlbench.common.errors import ConfigError, printable, unplaced
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.fabric import LinkCondition
from ddlbench.experiment.paths import RESULTS, result_file
from ddlbench.experiment.result import (
    FEWEST_STEPS,
    InputDigests,
    InvalidResult,
    NewerResult,
    RankEntry,
    Result,
    Timing,
    cell_result,
)
from ddlbench.experiment.site import Accelerator
from ddlbench.experiment.status import FAILURE_FILE, Failure, Reason, Status, reason_code
from ddlbench.planning.departures import Trained, departures
from ddlbench.planning.matrix import MatrixRow
from ddlbench.planning.plan import Plan
from ddlbench.planning.planner import make_plan, measured_digests
from ddlbench.planning.strategy import workers_of
from ddlbench.report.comparability import (
    NOTE_BREAK,
    Circumstances,
    Code,
    Note,
    columns_of,
    differ,
    disturbed_note,
    probed,
    step_notes,
    unlike_base,
    unlike_ranks,
)
from ddlbench.report.summary import summarise
from ddlbench.report.tables import (
    MEASUREMENTS,
    STEPS,
    VALIDATION,
    Column,
    Tables,
    frame_of,
    read_steps,
    typed_frame,
    write_table,
)

_REASON_LENGTH = 1000
OF_CELL = (
    "dataset", "network", "strategy", "nodes", "devices_per_node", "geometry", "batch_size",
    "precision", "fabric", "repeat",
)  # fmt: skip
_OF_TIMING = (
    "dataset_samples", "epoch_s", "epoch_scaled", "samples_per_s", "load_s",
)  # fmt: skip
_NAMED = ("batch_size", "precision", "fabric")
_OF_STEPS = tuple(column for column in STEPS if column.name not in {"cell_id", *OF_CELL})
_LOG = logging.getLogger(__name__)


def records_of(
    experiment: str,
    site_name: str,
    rows: list[MatrixRow],
    results_root: Path = RESULTS,
    *,
    stale: bool = True,
) -> list[dict[str, Any]]:
    """What is known of each cell of ``rows``, in their order, and of each against its base.

    Args:
        experiment: its name.
        site_name: of whose results.
        rows: the cells.
        results_root: the folder that holds ``<site>/cells``.
        stale: whether to say what is stale; for that every plan is made anew.
    """
    accelerator = rows[0].accelerator if rows else None
    plans = CurrentPlans(site_name, results_root, accelerator) if stale else None
    records = {}
    for row in rows:
        path = result_file(site_name, row.cell.id, results_root)
        try:
            outcome: Result | InvalidResult | None = cell_result(path, site_name, row.cell.id)
        except InvalidResult as error:
            outcome = error
        record = record_of(row, path, outcome, plans)
        records[row.cell.id] = {"experiment": experiment, "site": site_name, **record}
    compare(records)
    return list(records.values())


def record_of(
    row: MatrixRow,
    path: Path,
    outcome: Result | InvalidResult | None,
    plans: CurrentPlans | None = None,
) -> dict[str, Any]:
    """What is known of a cell by itself.

    Args:
        row: the cell.
        path: where its result lies, or would lie.
        outcome: its result, or what is wrong with that file; None without one.
        plans: to say what is stale; None says nothing of it.
    """
    return {
        "base_cell_id": row.base_id,
        **_identity(row.cell),
        **_condition(row.condition),
        **_outcome(row, path, outcome, plans),
    }


def compare(records: Mapping[str, dict[str, Any]]) -> None:
    """Add to the records of a site's cells, by their ids, what each is against its base."""
    _note_departures(records)
    for record in records.values():
        base = records.get(record["base_cell_id"])
        if base is not None and record["status"] == base["status"] == Status.OK:
            _compare(record, base)
    for record in records.values():
        record.update(columns_of(record.get("bearing", [])))


def _note_departures(records: Mapping[str, dict[str, Any]]) -> None:
    known = [record["trained"] for record in records.values() if record.get("trained")]
    for cell_id, departure in departures(known).items():
        records[cell_id]["departure"] = departure.sentence
        code = Code(departure.code)  # type: ignore[call-arg] # a member by its value
        records[cell_id]["bearing"].append(Note(code, data=departure.data))


def _identity(cell: Cell) -> dict[str, Any]:
    options = {name for name, _ in cell.options}
    pairs = [(name, f"{name}={value}") for name, value in cell.variant_pairs]
    return {
        **{name: getattr(cell, name) for name in OF_CELL},
        "cell_id": cell.id,
        "workers": workers_of(cell),
        "options": ",".join(pair for name, pair in pairs if name in options),
        "settings": ",".join(
            pair for name, pair in pairs if name not in options and name not in _NAMED
        ),
    }


def _condition(condition: LinkCondition | None) -> dict[str, Any]:
    if condition is None:
        return {}
    return {
        "link_latency_s": condition.latency_s,
        "link_bits_per_s": condition.bandwidth_bits_per_s,
        "link_loss": condition.loss,
        "link_mtu_bytes": condition.mtu,
        "link_congestion_control": condition.congestion_control,
        "link_inside_latency_s": condition.inside and condition.inside.latency_s,
        "link_inside_bits_per_s": condition.inside and condition.inside.bandwidth_bits_per_s,
    }


def _outcome(
    row: MatrixRow, path: Path, result: Result | InvalidResult | None, plans: CurrentPlans | None
) -> dict[str, Any]:
    if result is None or isinstance(result, InvalidResult):
        return _without_result(row, path, result)
    circumstances, part = Circumstances.of(result), result.checkpointing
    return {
        "status": result.status,
        "reason": result.reason and _shortened(result.reason),
        "reason_code": result.reason_code,
        **({} if plans is None else {"stale": plans.differ_from(result.inputs, row.cell)}),
        "workers": result.workers or workers_of(row.cell),
        "processes": result.processes,
        **_semantics(result, row),
        "device_kind": result.device_kind,
        "circumstances": circumstances,
        "trained": Trained.of(row.cell, result),
        "validation": result.validation,
        **circumstances.columns(),
        "notes": NOTE_BREAK.join(map(printable, result.notes)),
        "bearing": [
            *disturbed_note(_disturbed(result)),
            *unlike_ranks(result, circumstances),
            *step_notes(result.timing),
        ],
        "loss_last": None if result.loss is None else result.loss.last,
        "accuracy": result.validation[-1].accuracy if result.validation else None,
        "created": result.provenance.created,
        **_timing(result.timing if result.status == Status.OK else None, row.cell),
        "disturbed": _disturbed(result),
        "diverged": _shortened(result.diverged),
        **efficiency_columns(result),
        **_memory(result.ranks),
        **probed(result.ranks, result.accelerator is not None),
        "emulated": result.accelerator is not None,
        "checkpoint_s": part and part.total_s,
        "resumed": part and part.resumed,
        "lost_steps": part and part.lost_steps,
    }


def _semantics(result: Result, row: MatrixRow) -> dict[str, str]:
    """What the plan amounts to; results of earlier versions call a single stage stale."""
    cell, strategy, details = row.cell, row.strategy, result.plan_details
    semantics = {"update_semantics": result.update_semantics, "ran_as": ""}
    if result.status != Status.OK:
        return semantics
    try:
        ran_as, synchronous = strategy.ran_as(cell, details), strategy.is_synchronous(cell, details)
    except (ValueError, TypeError, KeyError, ArithmeticError):  # the schema takes any details
        return semantics
    if synchronous and not strategy.is_synchronous(cell):
        semantics["update_semantics"] = "synchronous"
    return {**semantics, "ran_as": ran_as}


def _without_result(row: MatrixRow, path: Path, fault: InvalidResult | None) -> dict[str, Any]:
    if fault is not None:
        newer = isinstance(fault, NewerResult)
        status = Status.NEWER if newer else Status.INVALID
        why = _shortened(unplaced(path, str(fault)))
        reason: str = Reason("newer_result" if newer else "invalid_result", why)
    elif row.unsupported is not None:
        status, reason = Status.UNSUPPORTED, row.unsupported
    else:
        status, reason = _failure(path.parent)
    return {"status": status.value, "reason": reason, "reason_code": reason_code(reason, status)}


def _failure(folder: Path) -> tuple[Status, Reason]:
    try:
        failure = Failure.read(folder)
    except UnreadableJson as error:
        reason = f"it failed, and {FAILURE_FILE} is damaged: {error}"
        return Status.FAILED, Reason(Status.FAILED, reason)
    if failure is None:
        return Status.NOT_RUN, Reason("no_result", "there is no result.json")
    return Status.FAILED, Reason(failure.reason.code, _shortened(failure.reason))


def _shortened(reason: str) -> str:
    """A reason from a file, as a terminal and a table can show it."""
    return textwrap.shorten(printable(reason), width=_REASON_LENGTH, placeholder=" ...")


class CurrentPlans:
    """What plans of a site's cells would be made from now; repeats of a cell share it."""

    def __init__(self, site: str, root: Path, accelerator: Accelerator | None = None) -> None:
        self._site, self._root, self._accelerator = site, root, accelerator
        self._plans: dict[Cell, Plan | None] = {}
        self._measured: dict[Cell, dict[str, str | None]] = {}

    def differ_from(self, inputs: InputDigests, cell: Cell) -> bool:
        """Whether the plan, or a file that it is made from, is another than at the measurement."""
        first = cell.again(0)
        if first not in self._plans:
            self._measured[first] = measured_digests(cell, self._site, self._root)
            self._plans[first] = self._plan(first)
        for name, digest in self._measured[first].items():
            if None not in (digest, getattr(inputs, name)) and digest != getattr(inputs, name):
                return True
        plan = self._plans[first]
        if inputs.plan_digest is None or plan is None:
            return False
        return replace(plan, cell=cell).digest != inputs.plan_digest

    def _plan(self, cell: Cell) -> Plan | None:
        try:
            return make_plan(cell, self._site, self._accelerator)
        except ConfigError:  # a third-party strategy, or a profile, that this machine does not have
            return None


def _disturbed(result: Result) -> str:
    """Why the numbers of a cell are wrong; empty where nothing disturbed it."""
    disturbed = (
        None if result.timing is None or result.status != Status.OK else result.timing.disturbed
    )
    return _shortened(disturbed).replace(NOTE_BREAK, ", ") if disturbed else ""


def _timing(timing: Timing | None, cell: Cell) -> dict[str, Any]:
    if timing is None:
        return {}
    median_s = timing.step_s.median_s
    return {
        **{name: getattr(timing, name) for name in _OF_TIMING},
        # Earlier versions did not write it.
        "median_samples_per_s": cell.batch_size / median_s if median_s else None,
        # Earlier versions called few steps quiet.
        "noisy": timing.noisy if timing.step_s.count >= FEWEST_STEPS else None,
        "step_median_s": timing.step_s.median_s,
        "step_low_s": timing.step_s.low_s,
        "step_high_s": timing.step_s.high_s,
        "load_step_s": timing.load_s / timing.step_s.count if timing.step_s.count else None,
    }


def efficiency_columns(result: Result) -> dict[str, Any]:
    """Operations, messages, processor time, energy and compilation of a result; None if unknown."""
    part, energy = result.efficiency, result.energy
    cpu_s = [rank.cpu_s for rank in result.ranks if rank.cpu_s is not None]
    used = [rank.cpu_utilisation for rank in result.ranks if rank.cpu_utilisation is not None]
    traffic = () if result.communication is None else result.communication.ranks
    sent = [r.sent_bytes_per_step for r in traffic if r.sent_bytes_per_step is not None]
    complete = bool(cpu_s) and len(cpu_s) == len(result.ranks)
    return {
        **{name: getattr(part, name, None) for name in ("mfu", "flops_per_s", "peak_flops_per_s")},
        "sent_bytes": round(max(sent)) if sent else None,
        "cpu_s": sum(cpu_s) if complete else None,
        "cpu_utilisation": fmean(used) if used else None,
        "energy_j": None if energy is None else energy.energy_j,
        "energy_per_sample_j": None if energy is None else energy.energy_per_sample_j,
        "compile_s": None if result.compilation is None else result.compilation.compile_s,
        "energy_of": "" if energy is None else " ".join(energy.covers),
    }


def _memory(ranks: Sequence[RankEntry]) -> dict[str, Any]:
    devices = [entry for rank in ranks for entry in rank.memory]
    measured = [(e.peak_bytes, e.total_bytes) for e in devices if e.peak_bytes is not None]
    fullest = max(measured, key=itemgetter(0), default=(None, None))
    complete = bool(devices) and len(measured) == len(devices)
    return {
        "peak_memory_bytes": fullest[0],
        "total_memory_bytes": sum(peak for peak, _ in measured) if complete else None,
        "device_memory_bytes": fullest[1],
        "peak_rss_bytes": max((rank.peak_rss_bytes for rank in ranks), default=None),
    }


def _compare(record: dict[str, Any], base: dict[str, Any]) -> None:
    """Set the speed-up of a cell over its base, or a note with the reason why there is none."""
    notes = unlike_base(base["circumstances"], record["circumstances"])
    same_data = record["dataset_samples"] == base["dataset_samples"]
    if not (same_data and record["epoch_s"] > 0 and base["epoch_s"] > 0):
        record["bearing"] += [note for note in notes if note.no_speedup]
        return
    if base is not record:
        notes += disturbed_note(base["disturbed"], Code.BASE_DISTURBED)
    record["bearing"] += notes
    if not any(note.no_speedup for note in record["bearing"]):
        record["speedup"] = base["epoch_s"] / record["epoch_s"]
        record["base_samples_per_s"] = base["samples_per_s"]
        own_s, base_s = record.get("probe_s"), base.get("probe_s")
        if own_s and base_s:
            record["speedup_normalised"] = record["speedup"] * own_s / base_s
            record["unsteady"] |= not record["emulated"] and differ(own_s, base_s)


def collect_steps(site_name: str, rows: list[MatrixRow], results_root: Path) -> pd.DataFrame:
    """Concatenate the ``steps.csv`` of all cells; see :data:`STEPS`.

    An unreadable file is left out with a warning.
    """
    folders = (
        (row.cell, result_file(site_name, row.cell.id, results_root).parent, dict[str, Any]())
        for row in rows
        if row.unsupported is None
    )
    return steps_table(folders, STEPS)


def steps_table(
    cells: Iterable[tuple[Cell, Path, Mapping[str, Any]]], columns: Sequence[Column]
) -> pd.DataFrame:
    """The steps of cells, one row per step.

    Args:
        cells: each with its folder, and with columns that are the same in all of its rows.
        columns: of the table; those that are neither there nor in ``steps.csv`` name the cell.
    """
    # One table in the end: pandas takes milliseconds for each, and there may be thousands.
    fields: dict[str, list[Any]] = {column.name: [] for column in columns}
    for cell, folder, further in cells:
        of_file = _steps_of(folder)
        same = {"cell_id": cell.id, **further}
        for name, values in fields.items():
            if name in of_file:
                values.extend(of_file[name])
            elif of_file:
                value = same[name] if name in same else getattr(cell, name)
                values.extend([value] * len(of_file["step"]))
    return typed_frame(fields, columns)


def _steps_of(folder: Path) -> dict[str, list[Any]]:
    """The columns of a cell's own file; none if it is missing or damaged."""
    try:
        return read_steps(folder, _OF_STEPS)
    except ValueError as error:
        _LOG.warning("%s is left out: %s", folder / "steps.csv", error)
        return {}


def make_tables(
    experiment: str, site: str, rows: list[MatrixRow], results_root: Path, out_dir: Path
) -> Tables:
    """Write the tables of measurements, summary, steps and validation into ``out_dir``."""
    records = records_of(experiment, site, rows, results_root)
    measurements = frame_of(records, MEASUREMENTS)
    epochs = (
        {**record, **asdict(epoch)} for record in records for epoch in record.get("validation", ())
    )
    tables = Tables(
        measurements,
        summarise(measurements),
        collect_steps(site, rows, results_root),
        frame_of(epochs, VALIDATION),
    )
    for name, table in vars(tables).items():
        write_table(out_dir / f"{name}.csv", table)
    return tables
