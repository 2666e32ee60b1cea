"""The verdicts that this repository keeps, ``docs/papers/claims.csv``: a row per claim and bed.

A bed is one of four kinds of devices::

    what a result says of its devices                     bed
    cpu                                                   CPU
    emulated compute: times of one-core, 4 times slower   emulated accelerator
    emulated compute: times of pipedream, 16 times ...    emulated GPU
    cuda                                                  GPU
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from ddlbench.common.errors import ConfigError, first_line
from ddlbench.common.quantities import two_digits
from ddlbench.common.schema import read_yaml
from ddlbench.experiment.paths import project_root
from ddlbench.experiment.site import EMULATED_COMPUTE

_MAKE_ANEW = "make it anew: python validation/claims.py"
_NEEDED = ("experiment", "claim", "verdict", "bed", "lacks", "rests_on", "cases", "share", "value")


@dataclass(frozen=True)
class KeptVerdict:
    """What the kept studies say of a claim.

    Args:
        figure: of the paper, such as ddlbench/fig4.
        claim: in our words.
        verdict: on it.
        bed: what it was tested on; empty if on nothing.
        numbers: cases that are true and the median of what was tested, or what the bed lacks.
    """

    figure: str
    claim: str
    verdict: str
    bed: str
    numbers: str


def kept_verdicts(path: Path | None = None) -> list[KeptVerdict]:
    """The verdicts on the kept studies, in the order of the ledger; none where no file is.

    Args:
        path: another table than the repository's.

    Raises:
        ConfigError: the table cannot be read or lacks a column.
    """
    path = path or project_root() / "docs" / "papers" / "claims.csv"
    if not path.is_file():
        return []
    try:
        rows = pd.read_csv(path)
    except ValueError as error:  # pandas' own, and of text that is no UTF-8
        raise ConfigError(
            f"{path}: no table of verdicts: {first_line(error)}; {_MAKE_ANEW}"
        ) from None
    if missing := [name for name in _NEEDED if name not in rows]:
        raise ConfigError(f"{path}: no column {missing[0]!r}; {_MAKE_ANEW}")
    return [
        KeptVerdict(
            str(row["experiment"]),
            str(row["claim"]),
            str(row["verdict"]),
            _text(row, "bed"),
            _numbers(row),
        )
        for row in rows.to_dict("records")
    ]


def _text(row: Mapping[Any, Any], name: str) -> str:
    return "" if pd.isna(row[name]) else str(row[name])


def _numbers(row: Mapping[Any, Any]) -> str:
    if lacks := _text(row, "lacks"):
        return f"lacks {lacks}"
    cases, share, value = (float(row[name]) for name in ("cases", "share", "value"))
    if not cases > 0:
        return ""
    true = "" if math.isnan(share) else f"{round(share * cases)} of "
    median = "" if math.isnan(value) else f", median {two_digits(value)}"
    rests = _text(row, "rests_on")
    return f"{true}{cases:g}{median}{f'; {rests}' if rests else ''}"


CPU = "CPU"
ACCELERATOR = "emulated accelerator"
EMULATED_GPU = "emulated GPU"
GPU = "GPU"

KNOWN_TO = {CPU: 0.084, ACCELERATOR: 0.015, EMULATED_GPU: 0.035, GPU: 0.0044}
"""Each bed, and to what share of itself the value of one run is known there.

* CPU: DDP's runs differ most of all strategies with five cells or more; one run of it is 8.4 % off
  the others of its cell (docs/validation/prediction/repeats_fast-link.csv).
* emulated accelerator: likewise, Horovod's, 1.5 % (docs/validation/emulated/repeats.csv).
* emulated GPU: three runs of eight cells on four devices differ by 3.5 % on average (VGG-16 and
  ResNet-50; Horovod, GPipe, PipeDream, model parallelism; 26 November 2026).
* GPU: five runs of ResNet-50 on one H100 differ by 0.44 % (docs/validation/gpu/tables.md).
"""

_REMARK = re.compile(
    rf"{EMULATED_COMPUTE}: times of (?P<profile>[^,|]+?)"
    r"(?:, (?P<slower>[\d.]+) times slower)?(?:, 1/(?P<shrunk>[\d.]+) of the bytes)?\s*(?:\||$)"
)


@dataclass(frozen=True)
class Device:
    """What a row was measured on.

    Args:
        bed: a key of :data:`KNOWN_TO`.
        name: in the results' words; pairs of rows share it.
        slow_down: factor on the times of computation and links of an emulated device.
        shrink: divisor of its bytes.
    """

    bed: str
    name: str
    slow_down: float = 1.0
    shrink: float = 1.0


def device_of(texts: Iterable[str]) -> Device | None:
    """The device that these texts of a result tell: notes, processors, device_kind.

    An emulated one outweighs the ``cpu`` that its processes ran on. None if no text tells one.
    """
    texts = list(texts)
    for text in texts:
        remark = _REMARK.search(text)
        if remark is not None:
            profile = remark["profile"].strip()
            name = remark[0].strip(" |").removeprefix(f"{EMULATED_COMPUTE}: ")
            slower, shrunk = (float(remark[key] or 1) for key in ("slower", "shrunk"))
            return Device(_bed_of_profile(profile), name, slower, shrunk)
    for text, bed in (("cuda", GPU), ("cpu", CPU)):
        if text in texts:
            return Device(bed, text)
    return None


@cache
def _bed_of_profile(profile: str) -> str:
    """The bed of an emulated device, by the description beside its profiles."""
    file = project_root() / "config" / "accelerators" / profile / "device.yaml"
    words = str(read_yaml(file).get("description", "")) if file.is_file() else "GPU"
    return EMULATED_GPU if "GPU" in words else ACCELERATOR
