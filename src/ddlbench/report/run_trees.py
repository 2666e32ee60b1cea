"""Trees of results, read for a comparison: every run below a folder, or a reference file.

::

    nightly/                          a tree is any folder: results/, a site, one cell
      mycluster/cells/<cell id>/
        result.json                   a run: its configuration, status, step
        steps.csv                     its steps, of which only the relative error is used
        failure.json                  a run that failed, where there is no result.json
    reference.yaml                    or a row per configuration (experiment/reference.py)

Where a file lies does not matter, as a result says what it is of. The same run twice counts once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from ddlbench.common.document import UnreadableJson, digest_of
from ddlbench.common.errors import ConfigError, printable, unplaced
from ddlbench.common.quantities import counted
from ddlbench.common.run_noise import Sample, median_error
from ddlbench.common.statistics import grouped, round_means
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.reference import Reference, ReferenceRow, read_reference
from ddlbench.experiment.result import FEWEST_STEPS, Result, StepSummary
from ddlbench.experiment.status import FAILURE_FILE, Failure, Status
from ddlbench.planning.strategy import known_strategy
from ddlbench.report.comparability import Circumstances
from ddlbench.report.result_tree import RESULT_FILE, TreeCell, cells_below
from ddlbench.report.tables import STEPS, read_steps

_STEP_COLUMNS = tuple(column for column in STEPS if column.name in {"warmup", "step_s"})
_NORMAL_95 = 1.96


@dataclass(frozen=True)
class Run:
    """One measurement of a cell.

    Args:
        cell: what was measured.
        site: where; empty if a failed run does not tell.
        status: how it ended.
        reason: why it has no step; empty if it has one.
        step_s: its median step.
        summary_error: relative standard error of that by the result's summary; None if unknown.
        folder: in which its steps.csv may lie.
        created: when the result was written.
        circumstances: what it was measured on and with.
        device_kind: ``cpu`` or ``cuda``; empty if it does not tell.
        emulated: its devices were emulated accelerators.
    """

    cell: Cell
    site: str
    status: Status
    reason: str = ""
    step_s: float | None = None
    summary_error: float | None = None
    folder: Path | None = None
    created: str | None = None
    circumstances: Circumstances = field(default_factory=Circumstances)
    device_kind: str = ""
    emulated: bool = False

    @cached_property
    def step_error(self) -> float | None:
        """Relative standard error of its median step, best from the steps themselves."""
        error = None if self.folder is None else _error_of_steps(self.cell, self.folder)
        return self.summary_error if error is None else error


@dataclass(frozen=True)
class Configuration:
    """All runs of one configuration at one site of a tree.

    Args:
        cell: repeat 0 of it.
        site: where.
        sample: of the runs that have a step; None if none has.
        failed: runs that are not ok.
        status: ``ok`` if a run has a step, or all were disturbed; else the gravest.
        reason: of a run without a step, the gravest; empty if there is none.
        circumstances: of the first run that has a step, else of any.
        device_kind, emulated: as of :class:`Run`.
        digest: of when its runs were written, and of their steps; empty if unknown.
    """

    cell: Cell
    site: str
    sample: Sample | None
    failed: int
    status: Status
    reason: str
    circumstances: Circumstances
    device_kind: str
    emulated: bool
    digest: str = ""

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Configuration:
        timed = [run for run in runs if run.step_s is not None]
        others = [run for run in runs if run.step_s is None]
        gravest = min((run.status for run in others), key=list(Status).index, default=Status.OK)
        first = (timed or others)[0]
        reasons = [run.reason for run in others if run.status == gravest]
        return cls(
            cell=first.cell.again(0),
            site=first.site,
            sample=_sample(timed) if timed else None,
            failed=sum(run.status != Status.OK for run in others),
            status=Status.OK if timed else gravest,
            reason=reasons[0] if reasons else "",
            circumstances=first.circumstances,
            device_kind=first.device_kind,
            emulated=first.emulated,
            digest=_digest(timed),
        )

    @property
    def runs(self) -> int:
        return 0 if self.sample is None else self.sample.runs


def _sample(timed: Sequence[Run]) -> Sample:
    """The sample of runs; steps are read of a single one, as repeats tell more than they do."""
    errors = [timed[0].step_error] if len(timed) == 1 else []
    return Sample.of([run.step_s for run in timed if run.step_s], errors)


def _digest(runs: Sequence[Run]) -> str:
    """What tells the same runs from others; empty unless all say when they were written."""
    made = [(run.created, run.step_s) for run in runs]
    return digest_of(sorted(made)) if made and all(created for created, _ in made) else ""


@dataclass(frozen=True)
class Tree:
    """One side of a comparison.

    Args:
        name: as the user wrote it.
        configurations: of it, in the order of their paths.
        unreadable: files of which not even the cell is known, with the fault of each.
        created: times at which its runs were written, of those that tell.
        commits: of the measuring code.
        versions: packages and drivers that ran steps.
        is_reference: it is a reference file.
    """

    name: str
    configurations: tuple[Configuration, ...]
    unreadable: tuple[str, ...] = ()
    created: tuple[str, ...] = ()
    commits: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    is_reference: bool = False

    @cached_property
    def sites(self) -> tuple[str, ...]:
        return tuple(sorted({each.site for each in self.configurations if each.site}))


def read_tree(path: Path) -> Tree:
    """Read a folder of results, one result.json, or a reference file.

    Raises:
        ConfigError: there is nothing, or nothing that can be read as one of these.
    """
    if not path.exists():
        raise ConfigError(
            f"{path} does not exist; give a folder of results, or a file of `ddlbench report "
            "reference`"
        )
    if path.is_dir() or path.name == RESULT_FILE:
        return _of_cells(str(path), *cells_below(path))
    return _of_reference(str(path), read_reference(path))


def _of_cells(name: str, cells: Sequence[TreeCell], faults: Sequence[str]) -> Tree:
    runs_by_content: dict[object, Run] = {}
    for cell in cells:
        run = _run_of(cell)
        # A copy of a run is no repeat.
        known = (run.site, run.cell.id, run.created, run.step_s) if run.created else cell.folder
        runs_by_content.setdefault(known, run)
    if not runs_by_content:
        _refuse(name, faults)
    runs = _with_site(list(runs_by_content.values()))
    groups = grouped(((run.site, run.cell.again(0).id), run) for run in runs)
    return Tree(
        name,
        tuple(Configuration.of(group) for _, group in sorted(groups.items())),
        tuple(faults),
        tuple(sorted({run.created for run in runs if run.created})),
        tuple(sorted({text for run in runs for text in run.circumstances.commit})),
        tuple(sorted({text for run in runs for text in run.circumstances.versions})),
    )


def _with_site(runs: list[Run]) -> list[Run]:
    """Runs that failed name no site; they are of the only one that others name."""
    sites = {run.site for run in runs if run.site}
    if len(sites) != 1:
        return runs
    return [run if run.site else replace(run, site=next(iter(sites))) for run in runs]


def _refuse(name: str, faults: Sequence[str]) -> None:
    if faults:
        more = (
            f" (and {counted(len(faults) - 1, 'more unreadable file')})" if len(faults) > 1 else ""
        )
        raise ConfigError(f"{faults[0]}{more}; {name} holds no other result")
    raise ConfigError(
        f"{name} holds no result.json; give a folder in which cells were measured, as "
        "results/mysite, or a file of `ddlbench report reference`"
    )


def _run_of(measured: TreeCell) -> Run:
    """The run of a cell that has a result, a damaged one, or a failure."""
    if measured.result is not None:
        return _of_result(measured.result, measured.folder)
    run = Run(measured.cell, measured.site, Status.INVALID)
    file, fault = RESULT_FILE, str(measured.outcome or "")
    if not fault:
        try:
            failure = Failure.read(measured.folder)
            reason = "it is gone" if failure is None else _in_one_line(failure.reason)
            return replace(run, status=Status.FAILED, reason=reason)
        except UnreadableJson as error:
            file, fault = FAILURE_FILE, str(error)
    why = _in_one_line(unplaced(measured.folder / file, fault))
    return replace(run, reason=f"{file} cannot be used: {why}")


def _of_result(result: Result, folder: Path) -> Run:
    """The run of a result.

    Raises:
        ConfigError: it names no cell.
    """
    run = Run(
        Cell.from_id(result.cell_id),
        result.site,
        Status(result.status),
        created=result.provenance.created,
        circumstances=Circumstances.of(result),
        device_kind=result.device_kind,
        emulated=result.accelerator is not None,
    )
    if result.status != Status.OK:
        return replace(run, reason=_in_one_line(result.reason or "gives no reason"))
    timing = result.timing
    if timing is None or not timing.step_s.median_s:
        return replace(run, status=Status.INVALID, reason="its status is ok, but no step was timed")
    if timing.disturbed:
        return replace(run, reason=f"disturbed: {_in_one_line(timing.disturbed)}")
    return replace(
        run,
        step_s=timing.step_s.median_s,
        summary_error=_error_of_summary(timing.step_s),
        folder=folder,
    )


def _error_of_summary(steps: StepSummary) -> float | None:
    """From the interval of the median; None for few steps."""
    low_s, high_s = steps.low_s, steps.high_s
    if steps.count < FEWEST_STEPS or not low_s or not high_s or high_s < low_s:
        return None
    return math.log(high_s / low_s) / (2 * _NORMAL_95)


def _error_of_steps(cell: Cell, folder: Path) -> float | None:
    """From steps.csv beside a result; None without it, or if it is damaged."""
    try:
        columns = read_steps(folder, _STEP_COLUMNS)
    except ValueError:
        return None
    if not columns:
        return None
    pairs = zip(columns["warmup"], columns["step_s"], strict=True)
    steps_s = [step_s for warmup, step_s in pairs if not warmup]
    if not all(isinstance(step_s, float) and math.isfinite(step_s) for step_s in steps_s):
        return None
    try:
        round_steps = known_strategy(cell.strategy).round_steps(cell)
    except (ConfigError, ValueError, TypeError, KeyError):  # of a package that is not here
        round_steps = 1
    return median_error(round_means(steps_s, max(1, round_steps)))


def _in_one_line(text: str) -> str:
    return " ".join(printable(text).split())


def _of_reference(name: str, reference: Reference) -> Tree:
    rows = sorted(reference.configurations, key=lambda row: (row.site, row.configuration))
    return Tree(
        name,
        tuple(_of_row(row, reference) for row in rows),
        created=reference.measured,
        commits=reference.commits,
        versions=reference.versions,
        is_reference=True,
    )


def _of_row(row: ReferenceRow, reference: Reference) -> Configuration:
    sample = None
    if row.step_s is not None:
        sample = Sample(row.step_s, row.runs, row.spread, row.step_error)
    one_commit = reference.commits if len(reference.commits) == 1 else ()
    names = [version.partition(" ")[0] for version in reference.versions]
    one_version = reference.versions if len(set(names)) == len(names) else ()
    return Configuration(
        row.cell,
        row.site,
        sample,
        row.failed_runs,
        Status(row.status),
        row.reason or "",
        Circumstances(processors=row.processors, versions=one_version, commit=one_commit),
        row.device_kind or "",
        row.emulated,
        row.digest or "",
    )


def reference_of(tree: Tree, created: str) -> Reference:
    """What a tree of results reached, as a reference file that is written at ``created`` keeps it.

    Raises:
        ConfigError: no configuration of it was measured.
    """
    if not any(configuration.runs for configuration in tree.configurations):
        first = tree.configurations[0]
        raise ConfigError(
            f"{tree.name}: no run has a step, so there is nothing to keep ({first.reason})"
        )
    # A disturbed or damaged run says nothing of its site.
    kept = (
        each for each in tree.configurations if each.site and (each.runs or each.status in _ENDED)
    )
    return Reference(
        schema_version=1,
        created=created,
        measured=tuple(dict.fromkeys([*tree.created[:1], *tree.created[-1:]])),
        sites=tree.sites,
        commits=tree.commits,
        versions=tree.versions,
        configurations=tuple(map(_row_of, kept)),
    )


_ENDED = (Status.OUT_OF_MEMORY, Status.UNSUPPORTED, Status.TIMEOUT, Status.FAILED)


def _row_of(configuration: Configuration) -> ReferenceRow:
    sample = configuration.sample
    return ReferenceRow(
        configuration=configuration.cell.id.removesuffix("/rep0"),
        site=configuration.site,
        status=configuration.status,  # type: ignore[arg-type] # one of _ENDED or ok
        reason=None if configuration.status == Status.OK else configuration.reason,
        step_s=sample.median_s if sample else None,
        runs=configuration.runs,
        failed_runs=configuration.failed,
        spread=sample.spread if sample else None,
        step_error=sample.step_error if sample else None,
        device_kind={"": None, "cuda": "cuda"}.get(configuration.device_kind, "cpu"),
        emulated=configuration.emulated,
        processors=configuration.circumstances.processors,
        digest=configuration.digest or None,
    )
