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

A :class:`Note` is a code with data, as an entry of the column ``comparability`` is; only the footer
of a figure makes a sentence of it.

What is unknown gives no note. Results of earlier versions name no processors for each rank; then
provenance has those of rank 0.

The probe tells whether a machine kept its speed. It is a fixed piece of work that every cell times
before and after its training::

    probe  [ training ]  probe       the two are apart by over 15 %: unsteady
    |<---- mean of both ---->|       and that of the base, or of a repeat, by over 15 %: unsteady
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import fmean
from typing import TYPE_CHECKING, Any, Self

from ddlbench.common.statistics import grouped
from ddlbench.experiment.result import FEWEST_STEPS, Provenance, RankEntry, Result, Timing
from ddlbench.planning.departures import SENTENCES

if TYPE_CHECKING:
    import pandas as pd

NOTE_BREAK = " | "
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
    _Kind("own_network", "trained other code of the network", forbids=True),
    _Kind("processors", "ran on different processors", of_machine=True, forbids=True),
    _Kind("host_processors", "ran on hosts with different processors", of_machine=True),
    _Kind("cpu_count", "ran on hosts with different numbers of cores", of_machine=True),
    _Kind("host_kinds", "ran on different kinds of hosts", of_machine=True),
    _Kind("versions", "ran with different software"),
    _Kind("commit", "were measured by different commits"),
)
_UNKNOWN = ("", "None", "nan", "<NA>")  # as text, what tables have where nothing is known


class Code(StrEnum):
    """What a note tells, with its sentence; the first seven are values of ``no_speedup``."""

    sentence: str

    def __new__(cls, code: str, sentence: str) -> Self:
        member = str.__new__(cls, code)
        member._value_, member.sentence = code, sentence
        return member

    OTHER_TRAINING = "other_training", f"{{cell}}{SENTENCES['other_training']}"
    OTHER_WEIGHTS = "other_weights", f"{{cell}}{SENTENCES['other_weights']}"
    DISTURBED = "disturbed", "{has}no speed-up, as the cell was disturbed: {data}"
    BASE_DISTURBED = "base_disturbed", "{has}no speed-up, as its base was disturbed: {data}"
    # What unlike_base and unlike_repeats are called there, by what they are about.
    OTHER_DATA = "other_data", ""
    OTHER_CODE = "other_code", ""
    UNLIKE_BASE = "unlike_base", "no speed-up, as base and cell {clause}: {data}"
    UNLIKE_REPEATS = "unlike_repeats", "no speed-up, as repeats {clause}: {data}"
    BASE_DIFFERS = "base_differs", "base and cell {clause}: {data}"
    REPEATS_DIFFER = "repeats_differ", "repeats {clause}: {data}"
    RANKS_DIFFER = "ranks_differ", "ranks of one cell {clause}: {data}"
    FEW_STEPS = (
        "few_steps",
        f"fewer than {FEWEST_STEPS} measured steps, so their spread is unknown",
    )
    NO_WARM_UP = "no_warm_up", "no warm-up, so the slow first steps count"


_OF_ONE_RUN = (Code.OTHER_TRAINING, Code.OTHER_WEIGHTS, Code.DISTURBED, Code.BASE_DISTURBED)
_DENYING = (*_OF_ONE_RUN, Code.UNLIKE_BASE, Code.UNLIKE_REPEATS)
_A_REPEAT = "a_repeat"
_CALLED = {"own_data": Code.OTHER_DATA, "own_network": Code.OTHER_CODE}


@dataclass(frozen=True)
class Note:
    """What a reader of a speed-up must know.

    Args:
        code: what it tells.
        about: the kind in which measurements differ; ``a_repeat`` if other repeats of the cell
            have a speed-up.
        data: what the sentence names; empty if it names nothing.
    """

    code: Code
    about: str = ""
    data: str = ""

    def __str__(self) -> str:
        """An entry of the column, as ``unlike_base processors: A (base), B (cell)``."""
        head = " ".join(filter(None, [self.code, self.about]))
        return f"{head}: {self.data}" if self.data else head

    @classmethod
    def of(cls, entry: str) -> Note:
        """Read an entry of the column."""
        head, _, data = entry.partition(": ")
        code, _, about = head.partition(" ")
        return cls(Code(code), about, data)  # type: ignore[call-arg]

    @property
    def no_speedup(self) -> str:
        """Code of the reason why there is no speed-up; empty if the note is none."""
        if self.code not in _DENYING or self.about == _A_REPEAT:
            return ""
        return _CALLED.get(self.about, self.code)

    @property
    def clause(self) -> str:
        """In what measurements differ, as ``ran with different software``; empty if in nothing."""
        return next((kind.clause for kind in _KINDS if kind.name == self.about), "")

    def sentence(self, data: str = "") -> str:
        of_a_repeat = self.about == _A_REPEAT
        return self.code.sentence.format(
            cell="a repeat " if of_a_repeat else "a cell ",
            has="a repeat has " if of_a_repeat else "",
            clause=self.clause,
            data=data or self.data,
        )


def notes_of(column: Iterable[str]) -> list[Note]:
    """The notes of some rows, each once."""
    entries = dict.fromkeys(NOTE_BREAK.join(column).split(NOTE_BREAK))
    return [Note.of(entry) for entry in entries if entry]


def columns_of(notes: Iterable[Note]) -> dict[str, str]:
    """The columns ``comparability`` and ``no_speedup``."""
    notes = list(dict.fromkeys(notes))
    return {
        "comparability": NOTE_BREAK.join(map(str, notes)),
        "no_speedup": next((note.no_speedup for note in notes if note.no_speedup), ""),
    }


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
        own_network: of the code of a network that is not built in.
    """

    processors: tuple[str, ...] = ()
    host_processors: tuple[str, ...] = ()
    cpu_count: tuple[str, ...] = ()
    host_kinds: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    commit: tuple[str, ...] = ()
    own_data: tuple[str, ...] = ()
    own_network: tuple[str, ...] = ()

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
            own_network=_each_once([result.inputs.network_digest]),
            processors=_each_once(model for models in gpus for model in models)
            if on_gpus
            else hosts,
            host_processors=hosts,
            cpu_count=() if count is None else (str(count),),
            host_kinds=_each_once(re.sub(r"\d+", "#", name.partition(".")[0]) for name in names),
            versions=tuple(f"{name} {version}" for name, version in _versions(provenance)),
            commit=_each_once([commit_of(provenance)]),
        )

    def columns(self) -> dict[str, str]:
        return {kind.name: NOTE_BREAK.join(getattr(self, kind.name)) for kind in _KINDS}


def commit_of(provenance: Provenance) -> str | None:
    """The commit of the measuring code, with ``-dirty`` where it had changes; None if unknown."""
    commit = provenance.git_commit
    return f"{commit}-dirty" if commit and provenance.git_dirty else commit


def short_commit(commit: str) -> str:
    """Seven digits of a commit or digest, and ``-dirty`` where that follows."""
    name, dash, dirty = commit.partition("-")
    return f"{name[:7]}{dash}{dirty}"


def _versions(provenance: Provenance) -> Iterator[tuple[str, str]]:
    for name, version in (provenance.packages or {}).items():
        if name not in _OF_THE_WORKFLOW:
            yield name, version
    for name in ("driver", "cuda", "nccl", "rocm", "rccl"):
        if (version := getattr(provenance, name)) is not None:
            yield name, version


def _each_once(texts: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(sorted({text for text in texts if text}))


def unlike_ranks(result: Result, circumstances: Circumstances) -> list[Note]:
    """A note for each thing in which the ranks of a cell differ."""
    known = circumstances.processors
    apart: dict[str, str] = {"processors": ", ".join(known)} if len(known) > 1 else {}
    apart.update(result.ranks_differ)
    return [Note(Code.RANKS_DIFFER, name, data) for name, data in apart.items()]


def unlike_base(base: Circumstances, cell: Circumstances) -> list[Note]:
    """A note for each thing in which a cell was measured otherwise than its base."""
    return [
        Note(
            Code.UNLIKE_BASE if kind.forbids else Code.BASE_DIFFERS,
            kind.name,
            f"{theirs} (base), {ours} (cell)",
        )
        for kind, (theirs, ours) in _apart([base.columns(), cell.columns()])
    ]


def other_than_base(base: Result, cell: Result) -> str:
    """What the base of a cell did with other data or code of the user's; empty if nothing."""
    notes = unlike_base(Circumstances.of(base), Circumstances.of(cell))
    return next((note.clause for note in notes if note.about in _CALLED), "")


def unlike_repeats(runs: Sequence[Mapping[Any, Any]], *, forbid: bool) -> list[Note]:
    """A note for each thing in which the repeats of one cell differ, as their median hides it.

    Args:
        runs: its measurements.
        forbid: its speed-up is taken over these repeats, so unlike processors leave it none.
    """
    return [
        Note(
            Code.UNLIKE_REPEATS if kind.forbids and forbid else Code.REPEATS_DIFFER,
            kind.name,
            ", ".join(dict.fromkeys(texts)),
        )
        for kind, texts in _apart(runs)
    ]


def have_no_ratio(runs: Sequence[Mapping[Any, Any]]) -> bool:
    """Whether some of these measurements differ from the others in what forbids a ratio."""
    return any(len({run[kind.name] for run in runs} - {""}) > 1 for kind in _KINDS if kind.forbids)


def _apart(runs: Sequence[Mapping[Any, Any]]) -> Iterator[tuple[_Kind, list[str]]]:
    """Each kind in which measurements differ, and their texts, of those that are known."""
    machine_noted = False
    for kind in _KINDS:
        texts = [str(run[kind.name]) for run in runs if str(run[kind.name]) not in _UNKNOWN]
        if kind.name == "versions":
            texts = _differing_versions(texts)
        if len(set(texts)) > 1 and not (kind.of_machine and machine_noted):
            machine_noted |= kind.of_machine
            short = kind.name in (*_CALLED, "commit")
            # Notes are parted by what parts entries of a column.
            yield kind, [short_commit(t) if short else t.replace(NOTE_BREAK, ", ") for t in texts]


def _differing_versions(texts: Sequence[str]) -> list[str]:
    """Versions of each run that another run has otherwise; a part that one run lacks is unknown."""
    runs = [dict(part.split(" ", 1) for part in text.split(NOTE_BREAK)) for text in texts]
    by_name = grouped(pair for run in runs for pair in run.items())
    shared = {name: versions for name, versions in by_name.items() if len(versions) == len(runs)}
    differing = [name for name, versions in shared.items() if len(set(versions)) > 1]
    return [" and ".join(f"{name} {run[name]}" for name in differing) for run in runs]


def step_notes(timing: Timing | None) -> list[Note]:
    """Notes where steps are few, or the first ones count."""
    if timing is None:
        return []
    few = [Note(Code.FEW_STEPS)] if timing.step_s.count < FEWEST_STEPS else []
    return [*few, *([Note(Code.NO_WARM_UP)] if timing.warmup_steps == 0 else [])]


def disturbed_note(cause: str, code: Code = Code.DISTURBED) -> list[Note]:
    """The note of a cell that something disturbed, or whose base it disturbed; none without it."""
    return [Note(code, data=cause)] if cause else []


def of_a_repeat(note: Note) -> Note:
    """The note of a repeat, as those of all repeats say it where others give a speed-up."""
    return replace(note, about=_A_REPEAT) if note.code in _OF_ONE_RUN else note


def sentences(shown: pd.DataFrame) -> list[str]:
    """The notes of all cells of a figure, each once, without a full stop.

    Where many notes are of one kind, only the kind is named.
    """
    notes = notes_of(shown["comparability"])
    few = len(notes) <= _MOST_SENTENCES
    groups = grouped((note if few else (note.code, note.about), note) for note in notes)
    texts = [
        group[0].sentence("" if len(group) == 1 else f"{len(group)} pairs, named in summary.csv")
        for group in groups.values()
    ]
    return [f"{text[0].upper()}{text[1:]}" for text in texts]


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


def repeats_are_unsteady(runs: Sequence[Mapping[Any, Any]]) -> bool:
    """Whether the probes of repeats differ so much; never where computation is emulated."""
    probes_s = [run["probe_s"] for run in runs if not math.isnan(run["probe_s"])]
    apart = len(probes_s) > 1 and differ(min(probes_s), max(probes_s))
    return apart and not any(run["emulated"] for run in runs)
