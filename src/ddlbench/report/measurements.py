"""The measurements of an experiment, collected from its cells into tables.

``measurements.csv`` has a row for every cell of the matrix, with or without a result. It is made of
records: a mapping a cell, whose keys are columns; one that is absent is unknown. ``steps.csv`` has
a row for every step, ``validation.csv`` for every validated epoch. :mod:`.summary` makes
``summary.csv`` of the first.
"""

from __future__ import annotations

import csv
import logging
import textwrap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from operator import itemgetter
from pathlib import Path
from typing import Any

import pandas as pd

from ddlbench.common.document import UnreadableJson, digest_of
from ddlbench.common.errors import ConfigError, printable
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.fabric import LinkCondition
from ddlbench.experiment.paths import RESULTS, result_file
from ddlbench.experiment.result import (
    FEWEST_STEPS,
    Checkpointing,
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
    Tables,
    efficiency_columns,
    frame_of,
    read_columns,
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
    records = {
        row.cell.id: {
            "experiment": experiment,
            "site": site_name,
            **_record_at(row, site_name, results_root, plans),
        }
        for row in rows
    }
    compare(records)
    return list(records.values())


def _record_at(row: MatrixRow, site: str, root: Path, plans: CurrentPlans | None) -> dict[str, Any]:
    path = result_file(site, row.cell.id, root)
    return record_of(row, path, result_or_fault(path, site, row.cell.id), plans)


def result_or_fault(path: Path, site: str, cell_id: str) -> Result | InvalidResult | None:
    """The result of a cell, or what is wrong with its file; None without one."""
    try:
        return cell_result(path, site, cell_id)
    except InvalidResult as error:
        return error


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
    """Note which cells do not train as one device does."""
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
        **({} if condition.inside is None else _inside(condition.inside)),
    }


def _inside(condition: LinkCondition) -> dict[str, Any]:
    return {
        "link_inside_latency_s": condition.latency_s,
        "link_inside_bits_per_s": condition.bandwidth_bits_per_s,
    }


def _outcome(
    row: MatrixRow, path: Path, result: Result | InvalidResult | None, plans: CurrentPlans | None
) -> dict[str, Any]:
    if isinstance(result, InvalidResult):
        return _invalid(result, path)
    if result is None:
        return _without_result(row, path)
    circumstances = Circumstances.of(result)
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
        **efficiency_columns(result),
        **_memory(result.ranks),
        **probed(result.ranks, result.accelerator is not None),
        "emulated": result.accelerator is not None,
        **_checkpointing(result.checkpointing),
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


def _without_result(row: MatrixRow, path: Path) -> dict[str, Any]:
    if row.unsupported is not None:
        return _without_number(Status.UNSUPPORTED, row.unsupported)
    try:
        failure = Failure.read(path.parent)
    except UnreadableJson as error:
        reason = f"it failed, and {FAILURE_FILE} is damaged: {error}"
        return _without_number(Status.FAILED, Reason(Status.FAILED, reason))
    if failure is None:
        return _without_number(Status.NOT_RUN, Reason("no_result", "there is no result.json"))
    reason = Reason(failure.reason.code, _shortened(failure.reason))
    return _without_number(Status.FAILED, reason)


def _invalid(error: InvalidResult, path: Path) -> dict[str, Any]:
    reason = _shortened(str(error).removeprefix(f"{path}: "))
    if isinstance(error, NewerResult):
        return _without_number(Status.NEWER, Reason("newer_result", reason))
    return _without_number(Status.INVALID, Reason("invalid_result", reason))


def _shortened(reason: str) -> str:
    """A reason from a file, as a terminal and a table can show it."""
    return textwrap.shorten(printable(reason), width=_REASON_LENGTH, placeholder=" ...")


def _without_number(status: Status, reason: str) -> dict[str, Any]:
    return {"status": status.value, "reason": reason, "reason_code": reason_code(reason, status)}


class CurrentPlans:
    """What plans of a site's cells would be made from now; repeats of a cell share it."""

    def __init__(self, site: str, root: Path, accelerator: Accelerator | None = None) -> None:
        self._site, self._root, self._accelerator = site, root, accelerator
        self._plans: dict[Cell, dict[str, Any] | None] = {}
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
        return digest_of({**plan, "cell": cell.to_dict()}) != inputs.plan_digest

    def _plan(self, cell: Cell) -> dict[str, Any] | None:
        try:
            return make_plan(cell, self._site, self._accelerator).to_dict()
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


def _checkpointing(part: Checkpointing | None) -> dict[str, Any]:
    if part is None:
        return {}
    return {"checkpoint_s": part.total_s, "resumed": part.resumed, "lost_steps": part.lost_steps}


def _compare(record: dict[str, Any], base: dict[str, Any]) -> None:
    """Set the speed-up of a cell over its base, or a note with the reason why there is none."""
    notes = unlike_base(base["circumstances"], record["circumstances"])
    if not _comparable(record, base):
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


def _comparable(record: dict[str, Any], base: dict[str, Any]) -> bool:
    return bool(
        record["dataset_samples"] == base["dataset_samples"]
        and record["epoch_s"] > 0
        and base["epoch_s"] > 0
    )


_LOG = logging.getLogger(__name__)
_OWN = tuple(column for column in STEPS if column.name not in {"cell_id", *OF_CELL})


def collect(
    experiment: str, site_name: str, rows: list[MatrixRow], results_root: Path = RESULTS
) -> pd.DataFrame:
    """Collect the measurements of an experiment, in the order of its matrix.

    ``results_root`` is the folder that holds ``<site>/cells``.
    """
    return frame_of(records_of(experiment, site_name, rows, results_root), MEASUREMENTS)


def collect_steps(
    site_name: str, rows: list[MatrixRow], results_root: Path = RESULTS
) -> pd.DataFrame:
    """Concatenate the ``steps.csv`` of all cells; see :data:`STEPS`.

    An unreadable file is left out with a warning.
    """
    # One table in the end: pandas takes milliseconds for each, and there may be thousands.
    fields: dict[str, list[Any]] = {column.name: [] for column in STEPS}
    for row in rows:
        if row.unsupported is not None:
            continue
        columns = steps_of(result_file(site_name, row.cell.id, results_root).parent)
        if not columns:
            continue
        count = len(columns["step"])
        for name, values in fields.items():
            if name in columns:
                values.extend(columns[name])
            else:
                values.extend([field_of_cell(row.cell, name)] * count)
    return typed_frame(fields, STEPS)


def field_of_cell(cell: Cell, name: str) -> Any:
    """A column that says which cell a row is of."""
    return cell.id if name == "cell_id" else getattr(cell, name)


def steps_of(folder: Path) -> dict[str, list[Any]]:
    """The columns of a cell's own file; none if it is missing or damaged."""
    path = folder / "steps.csv"
    if not path.is_file():
        return {}
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return read_columns(file, _OWN)
    except (ValueError, OverflowError, OSError, csv.Error) as error:
        _LOG.warning("%s is left out: %s", path, error)
        return {}


def collect_validation(
    site_name: str, rows: list[MatrixRow], results_root: Path = RESULTS
) -> pd.DataFrame:
    """Accuracies after every epoch of the cells that have a valid result; see :data:`VALIDATION`.

    A result that cannot be read is left out: ``measurements.csv`` says why.
    """
    records = []
    for row in rows:
        path = results_root / result_file(site_name, row.cell.id).relative_to(RESULTS)
        if not row.cell.validate:
            continue
        with suppress(InvalidResult):
            result = cell_result(path, site_name, row.cell.id)
            of_cell = {name: field_of_cell(row.cell, name) for name in ("cell_id", *OF_CELL)}
            records += (
                [{**of_cell, **asdict(epoch)} for epoch in result.validation] if result else []
            )
    return frame_of(records, VALIDATION)


def make_tables(
    experiment: str, site: str, rows: list[MatrixRow], results_root: Path, out_dir: Path
) -> Tables:
    """Write the tables of measurements, summary, steps and validation into ``out_dir``."""
    measurements = collect(experiment, site, rows, results_root)
    tables = Tables(
        measurements,
        summarise(measurements),
        collect_steps(site, rows, results_root),
        collect_validation(site, rows, results_root),
    )
    for name, table in vars(tables).items():
        write_table(out_dir / f"{name}.csv", table)
    return tables
