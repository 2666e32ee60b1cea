"""Checks that a cell, its base and its ranks ran on comparable processors.

::

    on CUDA    models of the GPUs      differ from the base's: no speed-up, and a note
               their hosts' CPUs       differ from the base's: a note
    on CPU     models of the CPUs      differ from the base's: no speed-up, and a note

Results of earlier versions name no processors for each rank; then provenance has those of rank 0.
Unknown processors give no note.

Whether a machine had the same speed tells the probe, a fixed piece of work that every cell times
before and after its training::

    probe  [ training ]  probe       the two are apart by over 15 %: unsteady
    |<---- mean of both ---->|       and that of the base are apart by over 15 %: unsteady
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import pandas as pd

from ddlbench.experiment.result import RankEntry, Result
from ddlbench.report.tables import NOTE_BREAK

_UNLIKE_BASE = "no speed-up, as base and cell ran on different processors"
_UNLIKE_HOSTS = "base and cell ran on hosts with different processors"
_MIXED = "ranks of one cell ran on different processors"
_MOST_SENTENCES = 3
UNSTEADY_LIMIT = 0.15


@dataclass(frozen=True)
class Processors:
    """Models of a cell's processors, each once; empty if unknown.

    Args:
        devices: its GPUs; on CPU its CPUs.
        hosts: the CPUs of its hosts.
    """

    devices: tuple[str, ...]
    hosts: tuple[str, ...]

    @classmethod
    def of(cls, result: Result) -> Processors:
        """Read them from a result."""
        ranks, provenance = result.ranks, result.provenance
        cpus = [rank.cpu_model for rank in ranks]
        if not (cpus and all(cpus)):
            cpus = [provenance.cpu_model]
        hosts = _each_once(cpus)
        if result.device_kind != "cuda":
            return cls(hosts, hosts)
        gpus = [rank.gpu_models for rank in ranks]
        if not (gpus and all(gpus)):
            gpus = [provenance.gpu_models]
        return cls(_each_once(model for models in gpus for model in models), hosts)

    def notes(self) -> list[str]:
        """A note if the cell's own devices differ."""
        return [f"{_MIXED}: {', '.join(self.devices)}"] if len(self.devices) > 1 else []


def unlike(base: Processors, cell: Processors) -> list[str]:
    """A note if a cell ran on other processors than its base."""
    for note, theirs, own in (
        (_UNLIKE_BASE, base.devices, cell.devices),
        (_UNLIKE_HOSTS, base.hosts, cell.hosts),
    ):
        if theirs and own and theirs != own:
            return [f"{note}: {', '.join(theirs)} (base), {', '.join(own)} (cell)"]
    return []


def forbids_speedup(notes: str) -> bool:
    """Whether these notes deny a speed-up to the cell or to one of its repeats."""
    return _UNLIKE_BASE in notes


def is_note(note: str) -> bool:
    """Whether a note is one of this module."""
    return note.startswith((_UNLIKE_BASE, _UNLIKE_HOSTS, _MIXED))


def sentences(shown: pd.DataFrame) -> list[str]:
    """The notes of all cells of a figure, each once, without a full stop."""
    notes = [note for text in shown["notes"] for note in text.split(NOTE_BREAK) if is_note(note)]
    unique = [f"{note[0].upper()}{note[1:]}" for note in dict.fromkeys(notes)]
    more = len(unique) - _MOST_SENTENCES
    if more > 0:
        unique[_MOST_SENTENCES:] = [f"{more} more such notes are in summary.csv"]
    return unique


def _each_once(models: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(sorted({model for model in models if model}))


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
