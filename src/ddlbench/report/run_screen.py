"""The screen of a run: one line for each finished cell, with the time that is left.

::

           cell                        samples/s speed-up    took    left
    [1/30] mnist resnet18 sequential 1x1     812     base     9 s   5 min
    [2/30] mnist resnet18 horovod 1x2        905     1.11    10 s   4 min

Snakemake's events come from a logger plugin; the Snakefile says which cells there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ddlbench.common.quantities import counted, duration_text, ratio_text, two_digits
from ddlbench.common.screen import shortened
from ddlbench.experiment.cell import Cell, naming_among
from ddlbench.experiment.paths import result_file
from ddlbench.experiment.result import InvalidResult, Result, read_result
from ddlbench.experiment.status import Status
from ddlbench.planning.departures import departures_in
from ddlbench.planning.matrix import MatrixRow
from ddlbench.report.comparability import other_than_base

_MEASURING = {"cell": "cell", "profile": "profile", "links_of_fabric": "links"}
_REPORT = "table or figure"
_REPORTING = {"tables", "predict", "figure", "prediction_figure"}
_PAGE = "page"
_PARTS = ("cell", "profile", "links", _REPORT)
# samples/s, speed-up, took, left
_WIDTHS = (9, 9, 8, 8)
_LONGEST_REASON = 300


class _Cells:
    """The cells of a run. Names are made when they are shown, as thousands of cells are planned."""

    def __init__(self, title: str, site: str, rows: Sequence[MatrixRow], links_s: float) -> None:
        self.title = title
        self.links_s = links_s  # expected seconds of one fabric's links
        self._site = site
        self._rows = {row.cell.id: row for row in rows if row.unsupported is None}
        cells = [row.cell for row in self._rows.values()]
        self._name_of = naming_among(cells)
        first = [{cell.dataset for cell in cells}, {cell.network for cell in cells}]
        # Dataset and network, where all cells have one, by their place in a name.
        self._shared = {at: values.pop() for at, values in enumerate(first) if len(values) == 1}

    @property
    def shared(self) -> str:
        """The words that brief names lack."""
        return " ".join(self._shared.values())

    def __contains__(self, cell_id: str) -> bool:
        return cell_id in self._rows

    def name(self, cell_id: str, *, brief: bool) -> str:
        words = self._name_of(self._rows[cell_id].cell).split(" ")
        left_out = self._shared if brief else {}
        return " ".join(word for at, word in enumerate(words) if at not in left_out)

    def longest_name(self, *, brief: bool) -> int:
        return max((len(self.name(cell_id, brief=brief)) for cell_id in self._rows), default=0)

    def base(self, cell_id: str) -> Path | None:
        """The result of the base of a cell's speed-up; None without one."""
        row = self._rows.get(cell_id)
        return result_file(self._site, row.base_id) if row and row.base_id else None


_cells = _Cells("", "", (), 0.0)
_stopped_by = ""


def follow(
    experiment: str, site: str, rows: Sequence[MatrixRow], links_s: Sequence[float] = ()
) -> None:
    """Say what the run is about; the Snakefile calls it before any job starts.

    ``links_s`` are the expected seconds of the links of each fabric.
    """
    global _cells, _stopped_by  # noqa: PLW0603 - Snakemake makes the plugin apart
    mean_s = sum(links_s) / len(links_s) if links_s else 0.0
    _cells = _Cells(f"{experiment} on {site}", site, rows, mean_s)
    _stopped_by = ""


def stop(by: str) -> None:
    """Remember who ends the run: jobs that are cut off have not failed."""
    global _stopped_by  # noqa: PLW0603 - as above
    _stopped_by = by


def ending() -> str:
    """The last sentence of a run that is not complete."""
    if _stopped_by:
        return f"Stopped by {_stopped_by}; the same command goes on from here."
    return "Not everything ran; ddlbench status says which cells and why."


class _Job(NamedTuple):
    part: str
    name: str
    output: Path | None
    base: Path | None
    started_s: float


class RunScreen:
    """Turns the events of a run into lines; of a dry run it lists the cells that would run."""

    def __init__(self, columns: int, *, dry_run: bool = False) -> None:
        self._columns = max(columns, 72)
        self._dry_run = dry_run
        self._jobs: dict[int, _Job] = {}
        self._failures: set[int] = set()
        self._last_reason = ""
        self._planned: Counter[str] = Counter()
        self._done: Counter[str] = Counter()
        self._took_s: dict[str, float] = dict.fromkeys(_PARTS, 0.0)
        self._first_s = 0.0
        self._reporting = self._waits = False
        self._brief, self._room = False, 0

    def planned(self, stats: Mapping[str, Any], table: str) -> list[str]:
        """The first lines: what will be measured."""
        if self._dry_run:
            return [table]
        for rule, count in stats.items():
            part = _part(rule)
            if part:
                self._planned[part] += int(count)
        self._fit_names()
        counts = [_counted(self._planned[part], part) for part in _PARTS if self._planned[part]]
        if datasets := stats.get("dataset"):
            counts.append(counted(int(datasets), "dataset"))
        if stats.get(_PAGE):
            counts.append("HTML report")
        heading = f"cell of {_cells.shared}" if self._brief and _cells.shared else "cell"
        headings = [self._row("", heading, *_HEADINGS)] if self._planned["cell"] else []
        return [f"{_cells.title}: {', '.join(counts)}", *headings]

    def started(self, job: Mapping[str, Any], at_s: float) -> list[str]:
        """Remember a job; a dry run lists it."""
        part = _part(job["rule_name"])
        wildcards = dict(job["wildcards"])
        cell_id = wildcards.get("cell", "")
        name = " ".join(wildcards.values()).replace("/", " ")
        if cell_id in _cells:
            name = _cells.name(cell_id, brief=self._brief)
        if part != "cell":
            name = f"{part or job['rule_name']} {name}"
        if self._dry_run:
            return [f"would measure  {name}"] if part in _MEASURING.values() else []
        self._failures.discard(job["jobid"])
        if part:
            self._first_s = self._first_s or at_s
        output = Path(job["output"][0]) if part == "cell" else None
        self._jobs[job["jobid"]] = _Job(part, name, output, _cells.base(cell_id), at_s)
        first = part == _REPORT and not self._reporting
        self._reporting = self._reporting or first
        return [f"{' ' * len(self._count())} tables and figures"] if first else []

    def finished(self, jobid: int, at_s: float) -> list[str]:
        """The line of a finished job, and the reason if a cell was not measured."""
        job = self._jobs.pop(jobid, None)
        if job is None or not job.part:
            return []
        took_s = at_s - job.started_s
        self._done[job.part] += 1
        self._took_s[job.part] += took_s
        if job.part == _REPORT:
            return []
        times = (duration_text(took_s), self._left(at_s))
        if job.output is None:
            return [self._row("", job.name, "", "", *times)]
        try:
            result = read_result(job.output)
        except InvalidResult as error:
            return [self._row(self._count(), job.name, "", Status.INVALID, *times), f"    {error}"]
        if result.timing is None or result.timing.samples_per_s is None:
            reason = _short(result.reason or "")
            return [self._row(self._count(), job.name, "", result.status, *times), f"    {reason}"]
        rate, base = result.timing.samples_per_s, _base_of(job)
        why = result.timing.disturbed or _departure(result, base)
        if base is not None and (other := other_than_base(base, result)):
            why = why or f"its base {other}"
        speedup = "no ratio" if why else _speedup(rate, job, base)
        why = why or result.diverged
        row = self._row(self._count(), job.name, two_digits(rate), speedup, *times)
        return [row, f"    {_short(why)}"] if why else [row]

    def failed(
        self,
        errors: Sequence[Mapping[str, Any]],
        reason: str | None = None,
        log: str | None = None,
    ) -> list[str]:
        """The lines of a job or group that failed; it may run again.

        Args:
            errors: one for each job of the group, with ``jobid`` and the paths in ``log``.
            reason: why, by whoever submitted the job. None for a job that wrote its reason on this
                screen, where a cell names itself and its log.
            log: a file that says more; without a reason the log of the rule is named.
        """
        new = [error for error in errors if error["jobid"] not in self._failures]
        self._failures.update(error["jobid"] for error in new)
        jobs = [job for error in new if (job := self._jobs.get(error["jobid"]))]
        job = next((job for job in jobs if job.part == "cell"), jobs[0] if jobs else None)
        names_itself = job is not None and job.part == "cell"
        if not new or (reason is None and (names_itself or _stopped_by)):
            return []
        name = job.name if job else "report"
        if reason is None:
            return [f"failed: {name}", f"    log: {next(iter(new[0]['log']), '')}"]
        if reason == self._last_reason:
            return [f"failed: {name}: for the same reason"]
        self._last_reason = reason
        return [f"failed: {name}: {_short(reason)}", *([f"    log: {log}"] if log else [])]

    def waits(self) -> list[str]:
        """What a run that lets its running jobs end says, once, when it is stopped."""
        before, self._waits = self._waits, True
        by = _stopped_by or "a signal"
        return [] if before else [f"stopped by {by}: jobs that run end first, no other is started"]

    def _count(self) -> str:
        total = str(max(self._planned["cell"], self._done["cell"]))
        return f"[{self._done['cell']:{len(total)}}/{total}]"

    def _left(self, at_s: float) -> str:
        """The mean time of each kind of job, times the jobs left, over how many run at once.

        A kind of which no job has ended is taken to last as long as the others.
        """
        total_s, done = sum(self._took_s.values()), sum(self._done.values())
        mean_s = total_s / done
        # A figure takes seconds, not as long as a cell; links take what is planned for them.
        planned_s = {_REPORT: 0.0, "links": _cells.links_s or mean_s}
        left_s = 0.0
        for part, planned in self._planned.items():
            unknown_s = planned_s.get(part, mean_s)
            each_s = self._took_s[part] / self._done[part] if self._done[part] else unknown_s
            left_s += each_s * max(planned - self._done[part], 0)
        at_once = max(total_s / max(at_s - self._first_s, 1e-9), 1e-9)
        return duration_text(left_s / at_once)

    def _fit_names(self) -> None:
        """Choose how names are written, and their column, from the longest of the run."""
        front = 2 * len(str(self._planned["cell"])) + 4
        at_80 = min(self._columns, 80) - front - sum(_WIDTHS)
        most = self._columns - front - sum(_WIDTHS)
        self._brief = _cells.longest_name(brief=False) > most
        self._room = min(max(at_80, _cells.longest_name(brief=self._brief)), most)

    def _row(self, count: str, name: str, *values: str) -> str:
        rate, speedup, took, left = values
        total = str(self._planned["cell"])
        front = f"{count:{2 * len(total) + 3}} "
        wide_rate, wide_speedup, wide_took, wide_left = _WIDTHS
        # The state of a cell without a rate takes the place of both numbers.
        numbers = f"{rate:>{wide_rate}}{speedup:>{wide_speedup}}"
        numbers = numbers if rate else f"{speedup:>{wide_rate + wide_speedup}}"
        name = shortened(name, self._room)
        return f"{front}{name:{self._room}}{numbers}{took:>{wide_took}}{left:>{wide_left}}"


_HEADINGS = ("samples/s", "speed-up", "took", "left")


def _base_of(job: _Job) -> Result | None:
    """The result of the base of a job's cell; None without one."""
    if job.base is None:
        return None
    try:
        return read_result(job.base)
    except (InvalidResult, OSError):
        return None


def _departure(result: Result, base: Result | None) -> str:
    """How a cell does not train as its base does; empty if it does, or has none."""
    both = [result_of_cell for result_of_cell in (result, base) if result_of_cell is not None]
    results = {Cell.from_id(result_of_cell.cell_id): result_of_cell for result_of_cell in both}
    departure = departures_in(results).get(result.cell_id)
    return "" if departure is None else departure.sentence


def _speedup(rate: float, job: _Job, base: Result | None) -> str:
    """Speed-up of this one result over that of its base."""
    if job.base is not None and job.base == job.output:
        return "base"
    timing = None if base is None else base.timing
    if timing and timing.disturbed:
        return "no base"
    base_rate = timing.samples_per_s if timing else None
    return ratio_text(rate / base_rate) if base_rate else "no base"


def _part(rule: str) -> str:
    """What a rule makes; empty for a step that is none of its own, such as staging."""
    return _REPORT if rule in _REPORTING else _MEASURING.get(rule, "")


def _counted(number: int, part: str) -> str:
    if part == "links":
        return "links" if number == 1 else f"links of {number} fabrics"
    if part == _REPORT:
        return f"{number} tables and figures"
    return counted(number, part)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]} ..."
