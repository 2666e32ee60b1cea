"""Published figures as experiments: ``config/papers/<paper>/<figure>.yaml``.

::

    paper:   what the figure asks, and how to read ours      -> ddlbench papers
    of:      an experiment of config/experiments, whose keys come first
    ...      keys of an experiment: the figure as published  |
    scales:  laptop: {keys that replace these}               |-> one experiment, at one scale
             laptop: {of: an experiment whose keys do}       |
    scale:   full                                            |

A figure that needs no cells has only ``paper``: with a command, such as that of a schedule's
picture; as a table, whose printed values are in a CSV file beside; as the same picture as another;
or with the sentence that says why nothing is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from annotated_types import Len
from typing_extensions import TypedDict

from ddlbench.common.errors import ConfigError
from ddlbench.common.form import Form, InFile, Name, typed_open
from ddlbench.common.project import project_root
from ddlbench.common.schema import nearest, read_checked, read_yaml

FULL = "full"
LAPTOP = "laptop"
SCALES = (FULL, LAPTOP)
PAPERS = ("ddlbench", "thesis", "paradl", "networking")
EXAMPLE_SITE = "slurm-example"
NO_CELLS = "no cells are needed"
_FIGURE = {"type": "string", "pattern": "^[a-z]+/[A-Za-z0-9.]+$"}
Figure = Annotated[str, InFile(_FIGURE)]
Picture = Annotated[str, InFile({"type": "string", "pattern": "^docs/.*[.]png$"})]


@dataclass(frozen=True)
class Paper(Form):
    """What ``ddlbench papers`` says of a published figure."""

    figure: Figure
    """<paper>/<figure>, as the file's path."""
    title: Annotated[str, Len(1, 70)]
    """One line."""
    source: Name
    """Paper, section, and other places where it is printed."""
    question: Name
    """What the figure answers."""
    original: Name
    """Hardware and size of the original."""
    read: Name
    """How to read ours beside it."""
    draws: tuple[str, ...] = ()
    """Names of our figures and tables that show it."""
    published: tuple[Figure, ...] = ()
    """Prints whose values stand beside ours: this figure, or one that shows the same values."""
    pictures: tuple[Picture, ...] = ()
    """Kept pictures of the published values alone, from the project's folder."""
    also_site: Name = ""
    """At laptop scale: the site that the figure compares with."""
    command: Name = ""
    """Makes it, where no cells are needed."""
    table: Name = ""
    """Prints its .csv beside what of ours has this name: datasets, batches, strategies or
    networks."""
    same_as: Figure = ""
    """The figure that is the same picture."""
    not_drawn: Name = ""
    """Why there is nothing to draw, in a sentence."""

    @property
    def file(self) -> Path:
        """Its file, from the project's folder."""
        return Path("config") / "papers" / f"{self.figure}.yaml"

    @property
    def printed(self) -> Path:
        """The values of a printed table, from the project's folder."""
        return self.file.with_suffix(".csv")

    @property
    def kept(self) -> Path:
        """The folder of what is drawn of it, from the project's folder."""
        return Path("docs") / "papers" / self.figure.replace("/", "-")

    @property
    def makes(self) -> str:
        """The command that makes it, where no cells are needed; empty if nothing is made."""
        if self.table:
            return f"ddlbench papers {self.figure} --out {self.kept}"
        return self.command


@typed_open
class Scale(TypedDict, total=False):
    """Keys of an experiment, and these."""

    like: Literal["laptop"]
    """A scale whose keys, and whose overrides, come first."""
    of: Name
    """An experiment of config/experiments, without .yaml; its keys come first, but for its matrix
    and exclude."""
    reason: str
    """Why the question cannot be answered at this scale."""


@dataclass(frozen=True)
class PaperKeys(Form):
    """What a file of config/papers has besides the keys of an experiment."""

    paper: Paper
    """What `ddlbench papers` says of the figure."""
    of: Name = ""
    """An experiment of config/experiments, without .yaml; its keys come first."""
    scale: str = FULL
    """Which scale runs."""
    scales: Mapping[str, Scale] = field(default_factory=dict)
    """Scales besides full: keys of the experiment that replace those of the file, or the reason why
    there is none."""


_KEYS = tuple(key.name for key in fields(PaperKeys))


@dataclass(frozen=True)
class PaperFile(PaperKeys):
    """One file of config/papers.

    Args:
        values: the whole file.
    """

    values: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_values(cls, values: Mapping[str, Any], where: str) -> Self:
        """Check what stands besides the keys of an experiment; scales are checked as experiments.

        Raises:
            ConfigError: a key is unknown or wrong.
        """
        keys = {key: values[key] for key in _KEYS if key in values}
        return cls(**vars(read_checked(PaperKeys, keys, where)), values=values)

    def site(self, scale: str) -> str | None:
        """Where the cells of a scale run, unless the user says otherwise; None: on a cluster."""
        return self.experiment_at(scale, str(self.paper.file)).get("site")

    def without_cells_why(self, scale: str) -> str:
        """Why a scale has no cells; empty if it has."""
        if "experiment" not in self.values:
            same = f"the same as {self.paper.same_as}" if self.paper.same_as else ""
            return self.paper.not_drawn or same or NO_CELLS
        if scale not in (FULL, *self.scales):
            return f"it has no scale {scale}"
        return self.scales.get(scale, Scale()).get("reason", "")

    def experiment_at(self, scale: str, where: str) -> dict[str, Any]:
        """The experiment at a scale; of one that is for a cluster, the site is left open.

        Raises:
            ConfigError: there is no such scale, or it has no cells.
        """
        values = {key: value for key, value in self.values.items() if key not in _KEYS}
        paper = self.paper
        if "experiment" not in values:
            what = f"needs no cells; run: {paper.makes}" if paper.makes else "has no cells"
            raise ConfigError(f"{where}: {paper.figure} {what}")
        if scale not in (FULL, *self.scales):
            remark = nearest(scale, (FULL, *self.scales))
            raise ConfigError(f"{where}: {paper.figure} has no scale {scale!r}; {remark}")
        keys = _scale(self.scales, scale)
        if "reason" in keys:
            raise ConfigError(
                f"{where}: {paper.figure} has no scale {scale}: {keys['reason']}; "
                f"write scale={FULL}"
            )
        if self.of:
            base = _experiment(self.of)
            if base.get("site") == EXAMPLE_SITE:
                del base["site"]  # the user's own comes in its place
            values = {**base, **values}
        for key in {"site", "repeats"} & self.values.keys():  # the user's
            keys.pop(key, None)
        name = values["experiment"]
        return {**values, **keys, "experiment": name if scale == FULL else f"{name}-{scale}"}


def read_papers() -> list[PaperFile]:
    """Every published figure, in the order of the sources.

    Raises:
        ConfigError: a file is wrong; the message names it.
    """
    folder = project_root() / "config" / "papers"
    files = [
        read_paper(path)
        for paper in PAPERS
        for path in sorted((folder / paper).glob("*.yaml"), key=_by_number)
    ]
    names = [file.paper.figure for file in files]
    for paper in (file.paper for file in files):
        wanted = {
            "same_as": (paper.same_as,) if paper.same_as else (),
            "published": paper.published,
        }
        for key, others in wanted.items():
            for other in set(others) - set(names):
                raise ConfigError(
                    f"{paper.file}: paper.{key}: no file is of {other!r}; {nearest(other, names)}"
                )
    return files


def _by_number(path: Path) -> tuple[int, list[tuple[int, str]]]:
    """Tables behind figures, an appendix behind both; fig10 behind fig9."""
    digits = "".join(sign if sign.isdigit() else " " for sign in path.stem).split()
    place = next((n for n, kind in enumerate(("fig", "table")) if path.stem.startswith(kind)), 2)
    return place, [(int(number), path.stem) for number in digits]


def read_paper(path: Path) -> PaperFile:
    """Read and check one file.

    Raises:
        ConfigError: a key is unknown or wrong, or the file's name is another.
    """
    file = PaperFile.of_values(read_yaml(path), str(path))
    paper, named = file.paper, f"{path.parent.name}/{path.stem}"
    if paper.figure != named:
        raise ConfigError(f"{path}: paper.figure is {paper.figure!r}; write {named!r}")
    alone = (paper.command, paper.table, paper.same_as, paper.not_drawn)
    if ("experiment" in file.values) + sum(map(bool, alone)) != 1:
        raise ConfigError(
            f"{path}: write one of: an experiment, or for a figure without cells paper.command, "
            "paper.table, paper.same_as or paper.not_drawn"
        )
    return file


def at_scale(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The experiment that a configuration means; one that is of no paper stays as it is.

    A site and repeats that the user names go before those of a scale.

    Args:
        config: the file, with what the user has set.
        where: its name, for messages.

    Raises:
        ConfigError: there is no such scale, it has no cells, or it is for a cluster and none is
            named; the message says what to do.
    """
    if "paper" not in config:
        for key in _KEYS:
            if key in config:
                raise ConfigError(
                    f"{where}: is of no published figure, so {key!r} means nothing here; leave it "
                    "out"
                )
        return dict(config)
    file = PaperFile.of_values(config, where)
    values = file.experiment_at(file.scale, where)
    if "site" not in values:
        # Without this, a figure of sixteen GPUs would begin on this machine.
        remark = "" if file.without_cells_why(LAPTOP) else f", or write scale={LAPTOP}"
        raise ConfigError(
            f"{where}: scale {FULL} is for a cluster; name yours: site=NAME (ddlbench: --site NAME)"
            f"{remark}"
        )
    return values


def _scale(scales: Mapping[str, Mapping[str, Any]], name: str) -> dict[str, Any]:
    """The keys of a scale. Those of a scale that it is like come first, overrides included.

    Those of an experiment that it is ``of`` come first, too, but for the matrix and for what leaves
    cells of that out: a figure's stay.
    """
    keys = dict(scales.get(name, {}))
    if "of" in keys:
        return {**_experiment(keys.pop("of"), ("matrix", "exclude")), **keys}
    if "like" not in keys:
        return keys
    base = dict(scales[keys.pop("like")])
    overrides = [*base.get("overrides", []), *keys.pop("overrides", [])]
    return {**base, **keys, "overrides": overrides}


def _experiment(name: str, without: Sequence[str] = ()) -> dict[str, Any]:
    values = read_yaml(project_root() / "config" / "experiments" / f"{name}.yaml")
    return {key: value for key, value in values.items() if key not in without}
