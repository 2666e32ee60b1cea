"""The reference file: what each configuration of a site should reach, a row each.

It is small, so that it can be kept in a repository beside the code that it judges::

    schema_version: 1
    created: '2026-11-27T21:40:00+00:00'
    sites: [mycluster]
    commits: [1003079c4d...]
    versions: [torch 2.13.0]
    configurations:
    - configuration: cifar10/vgg11/ddp/1x4/batch_size=256
      site: mycluster
      status: ok
      step_s: 0.2012
      runs: 5
      spread: 0.0041
    complete: true

People may edit it, so that a mistake in it is one sentence.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import yaml
from annotated_types import Ge, Le, MinLen

from ddlbench.common.document import write_text
from ddlbench.common.errors import ConfigError, shown
from ddlbench.common.form import Amount, Form, Name, Natural, Positive
from ddlbench.common.schema import read_checked, read_yaml
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.result import Ended
from ddlbench.experiment.status import Status

SCHEMA_VERSION = 1
_HEADER = "# What `ddlbench compare` holds results against, from `ddlbench report reference`.\n"
_DIGITS = 6
MOST_BYTES = 16 * 2**20
"""Of a reference file, as YAML is slow to read: some 40,000 rows."""


@dataclass(frozen=True, kw_only=True)
class ReferenceRow(Form):
    """One configuration: all repeats of a cell at a site."""

    configuration: Name
    """A cell's path without its repeat, as cifar10/vgg11/ddp/1x4/batch_size=256."""
    site: Name
    """Where it was measured."""
    status: Ended
    """How its runs ended; ok if one of them did."""
    reason: str | None = None
    """Why it is not ok."""
    step_s: Positive | None = None
    """Median of the runs' median steps; of configurations that are ok."""
    runs: Natural
    """Runs that were measured."""
    failed_runs: Natural = 0
    """Runs that ended otherwise."""
    spread: Amount | None = None
    """Standard deviation of the logarithms of the runs' steps, so a share of a step; of two runs or
    more."""
    step_error: Amount | None = None
    """Relative standard error of a single run's step, from its steps; empty for several runs, and
    where steps are too few."""
    device_kind: Literal["cpu", "cuda"] | None = None
    """What kind of device computed."""
    emulated: bool = False
    """Devices were emulated accelerators."""
    processors: tuple[Name, ...] = ()
    """Models of its devices."""
    digest: str | None = None
    """Of its runs: they are the same as themselves, whatever their noise."""

    @property
    def cell(self) -> Cell:
        """The configuration as a cell, repeat 0.

        Raises:
            ConfigError: it is no path of a cell.
        """
        return Cell.from_id(f"{self.configuration}/rep0")


@dataclass(frozen=True, kw_only=True)
class Reference(Form):
    """The content of a reference file."""

    schema_version: Annotated[int, Ge(SCHEMA_VERSION), Le(SCHEMA_VERSION)]
    """Version of this format."""
    created: Name
    """When it was written."""
    measured: tuple[Name, ...] = ()
    """Times of the first and the last run."""
    sites: tuple[Name, ...]
    """Sites of its rows."""
    commits: tuple[Name, ...] = ()
    """Commits of the measuring code."""
    versions: tuple[Name, ...] = ()
    """Packages and drivers that ran steps."""
    configurations: Annotated[tuple[ReferenceRow, ...], MinLen(1)]
    """A row each."""
    complete: Literal[True] = True
    """Write true at the end, by which a file is seen that was cut."""


def read_reference(path: Path) -> Reference:
    """Read a reference file strictly.

    Raises:
        ConfigError: it is missing, no YAML, not of its form, or a row contradicts itself.
    """
    if not path.is_file():
        raise ConfigError(f"{path} is neither a file nor a folder of results")
    if path.stat().st_size > MOST_BYTES:
        raise ConfigError(f"{path} is larger than any reference file; give one, or a folder")
    values = read_yaml(path)
    if "schema_version" not in values or "configurations" not in values:
        raise ConfigError(
            f"{path} is no reference file; give one of `ddlbench report reference`, or a folder "
            "of results"
        )
    if "complete" not in values:
        raise ConfigError(f"{path} was cut, as it does not end with complete: true; write it anew")
    reference = read_checked(Reference, values, str(path))
    for row in reference.configurations:
        _check(row, str(path))
    counts = Counter((row.configuration, row.site) for row in reference.configurations)
    (configuration, site), most = counts.most_common(1)[0]
    if most > 1:
        raise ConfigError(
            f"{path}: {shown(configuration)} at site {shown(site)} is there {most} times; keep one"
        )
    return reference


def _check(row: ReferenceRow, where: str) -> None:
    try:
        row.cell  # noqa: B018 - it is read here, to be refused here
    except ConfigError as error:
        raise ConfigError(f"{where}: configuration: {error}") from None
    place = f"{where}: {row.configuration}"
    if row.status == Status.OK and (row.step_s is None or row.runs == 0):
        raise ConfigError(f"{place}: its status is ok, so write step_s and runs of 1 or more")
    if row.status != Status.OK and row.step_s is not None:
        raise ConfigError(f"{place}: its status is {row.status}, so it has no step_s; remove one")
    if row.runs > 1 and row.spread is None:
        raise ConfigError(f"{place}: it has {row.runs} runs, so write their spread")
    if row.runs < 2 and row.spread is not None:
        raise ConfigError(f"{place}: one run has no spread; remove it, or write more runs")


def write_reference(path: Path, reference: Reference) -> None:
    """Write a reference file atomically; keys that say nothing are left out."""
    values = reference.to_dict(without_defaults=True)
    values["configurations"] = [
        {name: _rounded(value) for name, value in row.items()} for row in values["configurations"]
    ]
    values["complete"] = True
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=1000)
    write_text(path, _HEADER + text)


def _rounded(value: object) -> object:
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value
