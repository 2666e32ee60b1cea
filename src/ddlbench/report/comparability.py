"""Checks that a cell, its base, its repeats and its ranks were measured alike.

::

    data           the user's own data, by its digest: no speed-up, and a note
    processors     models of the GPUs, or of CPUs that compute; others have no common speed:
                   no speed-up, and a note
    host           CPUs beside GPUs, cores, kind of host (its name without numbers): a note
    software       torch, the libraries of strategies, driver, CUDA, NCCL: a note
    program        commit of this program: a note

A cell that something disturbed (``timing.disturbed``), or whose base is such a cell, has no
speed-up either, and a note; neither has a cell that does not train as one device does, or began
with other weights (:mod:`ddlbench.planning.departures`). Where other repeats give one, the note
says that a repeat has none.

What is unknown gives no note. Results of earlier versions name no processors for each rank; then
provenance has those of rank 0.

Whether a machine had the same speed tells the probe, a fixed piece of work that every cell times
before and after its training::

    probe  [ training ]  probe       the two are apart by over 15 %: unsteady
    |<---- mean of both ---->|       and that of the base, or of a repeat, by over 15 %: unsteady
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

from ddlbench.experiment.result import FEWEST_STEPS, Provenance, RankEntry, Result, Timing
from ddlbench.experiment.site import EMULATED_COMPUTE
from ddlbench.planning.departures import OTHER_TRAINING, OTHER_WEIGHTS
from ddlbench.report.columns import NOTE_BREAK

if TYPE_CHECKING:
    import pandas as pd

_MOST_SENTENCES = 3
UNSTEADY_LIMIT = 0.15
# Packages that run no step of a cell.
_OF_THE_WORKFLOW = ("ddlbench", "snakemake", "snakemake-executor-plugin-slurm")


@dataclass(frozen=True)
class _Kind:
    """Something in which measurements may differ.

    Args:
        name: field of :class:`Circumstances`, and column of the measurements.
        clause: of the note.
        of_machine: another machine differs in several of these; the first is said.
        forbids: there is no ratio of such measurements.
    """

    name: str
    clause: str
    of_machine: bool = False
    forbids: bool = False


_KINDS = (
    _Kind("own_data", "read other data", forbids=True),
    _Kind("processors", "ran on different processors", of_machine=True, forbids=True),
    _Kind("host_processors", "ran on hosts with different processors", of_machine=True),
    _Kind("cpu_count", "ran on hosts with different numbers of cores", of_machine=True),
    _Kind("host_kinds", "ran on different kinds of hosts", of_machine=True),
    _Kind("versions", "ran with different software"),
    _Kind("commit", "were measured by different commits"),
)
_PROCESSORS = next(kind for kind in _KINDS if kind.name == "processors")
_UNKNOWN = ("", "None", "nan", "<NA>")  # as text, what tables have where nothing is known
_BASE, _REPEATS, _RANKS = "base and cell", "repeats", "ranks of one cell"
_NO_RATIO = "no speed-up, as "
_DISTURBED = f"{_NO_RATIO}the cell was disturbed"
_BASE_DISTURBED = f"{_NO_RATIO}its base was disturbed"
_A_REPEAT = "a repeat "  # before a note that denies it a speed-up
_FEW_STEPS = f"fewer than {FEWEST_STEPS} measured steps, so their spread is unknown"
_NO_WARM_UP = "no warm-up, so the slow first steps count"
_BEGINNINGS = (
    *(f"{who} {kind.clause}" for who in (_BASE, _REPEATS, _RANKS) for kind in _KINDS),
    _NO_RATIO,
    OTHER_TRAINING,
    OTHER_WEIGHTS,
    _A_REPEAT,
    _FEW_STEPS,
    _NO_WARM_UP,
)


@dataclass(frozen=True)
class Circumstances:
    """What a cell was measured on and with, each entry once; empty where unknown.

    Args:
        processors: models of its GPUs; on CPU of its CPUs.
        host_processors: the CPUs of its hosts.
        cpu_count: cores of a host.
        host_kinds: names of its hosts, with ``#`` for numbers, without the domain.
        versions: of packages and drivers that run steps, as ``torch 2.13.0``.
        commit: of this program.
        own_data: digest of the user's own data.
    """

    processors: tuple[str, ...] = ()
    host_processors: tuple[str, ...] = ()
    cpu_count: tuple[str, ...] = ()
    host_kinds: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    commit: tuple[str, ...] = ()
    own_data: tuple[str, ...] = ()

    @classmethod
    def of(cls, result: Result) -> Circumstances:
        """Read them from a result."""
        ranks, provenance = result.ranks, result.provenance
        cpus = [rank.cpu_model for rank in ranks]
        if not (cpus and all(cpus)):
            cpus = [provenance.cpu_model]
        gpus = [rank.gpu_models for rank in ranks]
        if not (gpus and all(gpus)):
            gpus = [provenance.gpu_models]
        hosts = _each_once(cpus)
        on_gpus = result.device_kind == "cuda"
        count = provenance.cpu_count
        names = [rank.host for rank in ranks] or provenance.hosts
        if result.link is not None:  # ranks ran in emulated nodes of this host
            names = [result.link.host]
        return cls(
            own_data=_each_once([result.own_data]),
            processors=_each_once(one for models in gpus for one in models) if on_gpus else hosts,
            host_processors=hosts,
            cpu_count=() if count is None else (str(count),),
            host_kinds=_each_once(re.sub(r"\d+", "#", name.partition(".")[0]) for name in names),
            versions=tuple(f"{name} {version}" for name, version in _versions(provenance)),
            commit=_each_once([commit_of(provenance)]),
        )

    def columns(self) -> dict[str, str]:
        """Texts of the measurements' columns; empty where unknown."""
        return {kind.name: NOTE_BREAK.join(getattr(self, kind.name)) for kind in _KINDS}

    def notes(self) -> list[str]:
        """A note if the cell's own processors differ."""
        if len(self.processors) < 2:
            return []
        return [f"{_RANKS} {_PROCESSORS.clause}: {', '.join(self.processors)}"]


def commit_of(provenance: Provenance) -> str | None:
    """The commit of the measuring code, with ``-dirty`` where it had changes; None if unknown."""
    commit = provenance.git_commit
    return f"{commit}-dirty" if commit and provenance.git_dirty else commit


def _versions(provenance: Provenance) -> Iterator[tuple[str, str]]:
    for name, version in (provenance.packages or {}).items():
        if name not in _OF_THE_WORKFLOW:
            yield name, version
    for name in ("driver", "cuda", "nccl"):
        if (said := getattr(provenance, name)) is not None:
            yield name, said


def _each_once(texts: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(sorted({text for text in texts if text}))


def unlike(base: Circumstances, cell: Circumstances) -> list[str]:
    """Notes if a cell was measured otherwise than its base."""
    found = []
    for kind, (theirs, own) in _apart([base.columns(), cell.columns()]):
        note = f"{_BASE} {kind.clause}: {theirs} (base), {own} (cell)"
        found.append(_NO_RATIO + note if kind.forbids else note)
    return found


def other_data(base: Result, cell: Result) -> bool:
    """Whether a cell read other data of the user's own than its base."""
    both = {base.own_data, cell.own_data}
    return None not in both and len(both) > 1


def repeats_differ(runs: pd.DataFrame, *, forbid: bool) -> list[str]:
    """A note for each thing in which the repeats of one cell differ, as their median hides it.

    Args:
        runs: its measurements.
        forbid: its speed-up is taken over these repeats, so unlike processors leave it none.
    """
    found = []
    for kind, texts in _apart(runs[[kind.name for kind in _KINDS]].to_dict("records")):
        note = f"{_REPEATS} {kind.clause}: {', '.join(dict.fromkeys(texts))}"
        found.append(_NO_RATIO + note if kind.forbids and forbid else note)
    return found


def have_no_ratio(runs: pd.DataFrame) -> bool:
    """Whether some of these measurements differ from the others in what forbids a ratio."""
    return any(
        len({text for text in runs[kind.name] if text}) > 1 for kind in _KINDS if kind.forbids
    )


def _apart(runs: Sequence[Mapping[Any, Any]]) -> Iterator[tuple[_Kind, list[str]]]:
    """Each kind in which measurements differ, and their texts, of those that are known."""
    machine_said = False
    for kind in _KINDS:
        texts = [str(run[kind.name]) for run in runs if str(run[kind.name]) not in _UNKNOWN]
        if kind.name == "versions":
            texts = _differing_versions(texts)
        if len(set(texts)) > 1 and not (kind.of_machine and machine_said):
            machine_said |= kind.of_machine
            yield kind, [_in_a_note(kind, text) for text in texts]


def _in_a_note(kind: _Kind, text: str) -> str:
    """Notes are parted by what parts entries of a column."""
    if kind.name == "own_data":
        return text[:_SHORT_COMMIT]
    return _short(text) if kind.name == "commit" else text.replace(NOTE_BREAK, ", ")


def _differing_versions(texts: Sequence[str]) -> list[str]:
    """Versions of each run that another run has otherwise; a part that one run lacks is unknown."""
    runs = [dict(part.split(" ", 1) for part in text.split(NOTE_BREAK)) for text in texts]
    shared = set(runs[0]).intersection(*runs[1:]) if runs else set()
    names = [name for name in (runs[0] if runs else ()) if name in shared]
    differing = [name for name in names if len({run[name] for run in runs}) > 1]
    return [" and ".join(f"{name} {run[name]}" for name in differing) for run in runs]


_SHORT_COMMIT = 7


def _short(commits: str) -> str:
    name, _, dirty = commits.partition("-")
    return f"{name[:_SHORT_COMMIT]}{'-' if dirty else ''}{dirty}"


def step_notes(timing: Timing | None) -> list[str]:
    """Notes where steps are few, or the first ones count."""
    if timing is None:
        return []
    few = [_FEW_STEPS] if timing.step_s.count < FEWEST_STEPS else []
    return [*few, *([_NO_WARM_UP] if timing.warmup_steps == 0 else [])]


def disturbed_note(sentence: str | None) -> list[str]:
    """The note of a cell that this sentence says was disturbed; none where it says nothing."""
    return [f"{_DISTURBED}: {sentence}"] if sentence else []


def base_disturbed_note(sentence: str | None) -> list[str]:
    """The same of a cell whose base was disturbed."""
    return [f"{_BASE_DISTURBED}: {sentence}"] if sentence else []


def of_a_repeat(notes: str) -> str:
    """The notes of a repeat, as those of all repeats say it where others give a speed-up."""
    return NOTE_BREAK.join(_of_a_repeat(note) for note in notes.split(NOTE_BREAK))


def _of_a_repeat(note: str) -> str:
    if note.startswith((_DISTURBED, _BASE_DISTURBED)):
        return f"{_A_REPEAT}has {note}"
    return f"{_A_REPEAT}{note}" if note.startswith(_DEPARTURES) else note


def forbids_speedup(notes: str) -> bool:
    """Whether these notes deny a speed-up to the cell or to one of its repeats."""
    return bool(mark_of(notes))


def mark_of(notes: str) -> str:
    """What stands in place of a ratio that these notes deny; empty where they deny none."""
    for note in notes.split(NOTE_BREAK):
        for beginning, mark in _MARKS:
            if note.startswith(beginning):
                return mark
    return ""


_DEPARTURES = (OTHER_TRAINING, OTHER_WEIGHTS)
_MARKS = (
    (OTHER_TRAINING, "other training"),
    (OTHER_WEIGHTS, "other weights"),
    (_DISTURBED, "disturbed"),
    (_BASE_DISTURBED, "base disturbed"),
    (f"{_NO_RATIO}{_BASE} read other data", "other data"),
    (f"{_NO_RATIO}{_REPEATS} read other data", "other data"),
    (_NO_RATIO + _BASE, "unlike base"),
    (_NO_RATIO, "unlike repeats"),
)


def is_note(note: str) -> bool:
    """Whether a note is one of this module."""
    return note.startswith(_BEGINNINGS)


def sentences(shown: pd.DataFrame) -> list[str]:
    """The notes of all cells of a figure, each once, without a full stop.

    Of many notes of one kind, only the kind is said.
    """
    notes = [note for text in shown["notes"] for note in text.split(NOTE_BREAK) if is_note(note)]
    unique = list(dict.fromkeys(notes))
    if len(unique) > _MOST_SENTENCES:
        kinds: dict[str, list[str]] = {}
        for note in unique:
            kinds.setdefault(note.partition(":")[0], []).append(note)
        unique = [
            group[0] if len(group) == 1 else f"{kind}: {len(group)} pairs, named in summary.csv"
            for kind, group in kinds.items()
        ]
    whole = [f"a cell {note}" if note.startswith(_DEPARTURES) else note for note in unique]
    return [f"{note[0].upper()}{note[1:]}" for note in whole]


def probed(ranks: Sequence[RankEntry], emulated: bool) -> dict[str, Any]:
    """The columns ``probe_s``, ``probe_change`` and ``unsteady``; none without probes.

    ``probe_s`` is the mean over nodes, before and after; ``probe_change`` the largest ratio of
    after to before, less 1, of any node. ``emulated`` computation takes the same time at any speed
    of the machine, so it is never unsteady.
    """
    pairs = [rank.probe_s for rank in ranks if len(rank.probe_s) == 2]
    if not pairs:
        return {"unsteady": False}
    changes = [after_s / before_s - 1 for before_s, after_s in pairs]
    return {
        "probe_s": fmean(seconds for pair in pairs for seconds in pair),
        "probe_change": max(changes, key=abs),
        "unsteady": not emulated and any(differ(*pair) for pair in pairs),
    }


def differ(one_s: float, other_s: float) -> bool:
    """Whether two probes differ by so much that their cells ran at different speeds."""
    return max(one_s, other_s) > (1 + UNSTEADY_LIMIT) * min(one_s, other_s)


def repeats_are_unsteady(runs: pd.DataFrame) -> bool:
    """Whether the probes of repeats differ so much; never where computation is emulated."""
    probes_s = runs["probe_s"].dropna()
    emulated = runs["notes"].str.contains(EMULATED_COMPUTE, regex=False).any()
    return len(probes_s) > 1 and not emulated and differ(probes_s.min(), probes_s.max())
