"""What cells ran on, and what is said where a cell and its base, or a cell's ranks, ran on unlike.

::

    on CUDA    models of the GPUs      unlike those of the base: no speed-up, and a note
               their hosts' CPUs       unlike those of the base: a note
    on CPU     models of the CPUs      unlike those of the base: no speed-up, and a note

A result from before ranks said what they ran on has what its provenance says. Where nothing is
known, nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from ddlbench.experiment.result import Result
from ddlbench.report.tables import NOTE_BREAK

_UNLIKE_BASE = "no speed-up, as base and cell ran on different processors"
_UNLIKE_HOSTS = "base and cell ran on hosts with different processors"
_MIXED = "ranks of one cell ran on different processors"
_MOST_SENTENCES = 3


@dataclass(frozen=True)
class Processors:
    """Models of what a cell ran on, each once; empty where they are not known.

    Args:
        devices: of its GPUs; on CPU of its processors.
        hosts: of its hosts' processors.
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
        """The note of a cell whose own devices differ."""
        return [f"{_MIXED}: {', '.join(self.devices)}"] if len(self.devices) > 1 else []


def unlike(base: Processors, cell: Processors) -> list[str]:
    """Notes of a cell that ran on something else than its base."""
    for what, theirs, own in (
        (_UNLIKE_BASE, base.devices, cell.devices),
        (_UNLIKE_HOSTS, base.hosts, cell.hosts),
    ):
        if theirs and own and theirs != own:
            return [f"{what}: {', '.join(theirs)} (base), {', '.join(own)} (cell)"]
    return []


def forbids_speedup(notes: str) -> bool:
    """Whether a cell with these notes has no speed-up, or had none in one of its repeats."""
    return _UNLIKE_BASE in notes


def is_note(note: str) -> bool:
    """Whether a note is one of these."""
    return note.startswith((_UNLIKE_BASE, _UNLIKE_HOSTS, _MIXED))


def sentences(shown: pd.DataFrame) -> list[str]:
    """What to say under a figure of these cells, each once, without a full stop."""
    notes = [note for text in shown["notes"] for note in text.split(NOTE_BREAK) if is_note(note)]
    found = [f"{note[0].upper()}{note[1:]}" for note in dict.fromkeys(notes)]
    more = len(found) - _MOST_SENTENCES
    if more > 0:
        found[_MOST_SENTENCES:] = [f"{more} more such notes are in summary.csv"]
    return found


def _each_once(models: Iterable[str | None]) -> tuple[str, ...]:
    return tuple(sorted({model for model in models if model}))
