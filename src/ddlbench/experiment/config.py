"""An experiment file: a matrix of cells with settings, one's own or that of a published figure.

A published figure is an experiment in ``config/papers/<paper>/<figure>.yaml``::

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

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from annotated_types import Ge, Le, Len, MinLen
from typing_extensions import TypedDict

from ddlbench.common.errors import ConfigError
from ddlbench.common.form import Count, Form, InFile, Name, Positive, typed_open
from ddlbench.common.schema import check, nearest, read_checked, read_yaml
from ddlbench.experiment.cell import Condition, Matrix, OptionValue, Settings, WrittenCell, axes
from ddlbench.experiment.dataset_spec import OwnDatasets, declare, declaring_file, refuse_classes
from ddlbench.experiment.paths import CONFIG, NAMES_OF_SITES, RESULTS, project_file
from ddlbench.experiment.site import load_site, site_file, written_site

FULL = "full"
LAPTOP = "laptop"
SCALES = (FULL, LAPTOP)
PAPERS = ("ddlbench", "thesis", "paradl", "networking")
EXAMPLE_SITE = "slurm-example"
NO_CELLS = "no cells are needed"
_FIGURE = {"type": "string", "pattern": "^[a-z]+/[A-Za-z0-9.]+$"}
Figure = Annotated[str, InFile(_FIGURE)]
Picture = Annotated[str, InFile({"type": "string", "pattern": "^docs/.*[.]png$"})]
_FOLDER = {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_.-]*$", "maxLength": 100}
_OneOrMany = OptionValue | Annotated[tuple[OptionValue, ...], MinLen(1)]


@dataclass(frozen=True, kw_only=True)
class Override(Form):
    """An exception: `when` selects cells, and `set` changes them."""

    when: Condition
    """Which cells: a value, or a list of values, for each key."""
    set: Settings
    """What changes for them."""


@dataclass(frozen=True, kw_only=True)
class Profiling(Form):
    """How networks are profiled for predictions."""

    batch_sizes: tuple[Count, ...] = ()
    """Batch sizes at which layers are timed; empty takes three between the smallest and the largest
    batch that one device gets in the matrix."""
    budget_s: Positive = 40.0
    """Seconds that one profile should take; slow networks take longer, as a few passes of
    everything are always made; splits take 30 % on top."""
    runs: Annotated[int, Ge(1), Le(100)] = 1
    """Jobs that measure a profile, whose medians it holds
    ([docs/measurement.md](../docs/measurement.md#profiles))."""


@dataclass(frozen=True, kw_only=True)
class ExperimentKeys(Form):
    """The keys of an experiment file: which cells are measured, on which site."""

    experiment: Annotated[str, InFile(_FOLDER)]
    """Name of the folder of its tables and figures; of letters, digits, dots, dashes and
    underscores, with a letter or digit first."""
    site: str = "local"
    """Name of a file in config/sites/ (without .yaml), or the path of a site file."""
    repeats: Annotated[int, Ge(1), Le(1000)] = 1
    """How often each cell is measured, each time as a job of its own. Raising it runs only the new
    ones."""
    most_cells: Count = 10_000
    """Stop if the experiment has more cells than this, repeats included."""
    matrix: Matrix
    """Axes and their values; every combination is a cell. Any key of `settings` may be an axis
    too."""
    settings: Settings = field(default_factory=dict)
    """What holds for every cell unless an axis or an override says otherwise."""
    strategies: Mapping[str, Mapping[str, _OneOrMany]] = field(default_factory=dict)
    """Options of a strategy, by its name; a list of values makes one cell for each of them:
    `gpipe: {chunks: [4, 8]}`."""
    overrides: tuple[Override, ...] = ()
    """Exceptions, a list of `when` and `set`, applied in order to cells that match `when`."""
    exclude: tuple[Condition, ...] = ()
    """Combinations of the matrix to leave out; a value, or a list of values, for each key."""
    include: tuple[WrittenCell, ...] = ()
    """Cells written out by hand beside the matrix. One that cannot run is an error."""
    profile: Profiling = field(default_factory=Profiling)
    """How networks are profiled for predictions (rule profile); no cell's path or result depends on
    it."""
    data: OwnDatasets = field(default_factory=dict)
    """Datasets of your own by name, for example `photos: {folder: ~/photos, size: 96}` or `texts:
    {tokens: corpus.bin, vocabulary: 50304, sequence: 1024}`
    ([docs/networks.md](../docs/networks.md#your-own-data))."""
    real_data: Mapping[str, Name] = field(default_factory=dict)
    """Folders of your own copies of datasets, by dataset name, in torchvision's layout or as files
    of tokens; they go before the site's. Cells with data_source real read them
    ([docs/networks.md](../docs/networks.md#your-own-data))."""
    predict: bool = False
    """Also profile networks, measure links, predict every cell and score the predictions; no cell's
    path or result depends on it. Without it, `snakemake predictions` does so."""


@dataclass(frozen=True, kw_only=True)
class Experiment(ExperimentKeys):
    """A checked experiment.

    Args:
        where: the file's name, for messages.
        paper: the published figure that it is of; None if of no one.
        given: what was set beside the file, as Snakemake's ``--config`` takes it: ``site=mine``.
    """

    where: str
    paper: Paper | None = None
    given: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.experiment

    def conditions(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Every condition on cells, and its place in the file."""
        for number, rule in enumerate(self.overrides):
            yield f"overrides.{number}.when", rule.when
        for number, condition in enumerate(self.exclude):
            yield f"exclude.{number}", condition

    def layers(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Every group of settings, and its place in the file."""
        yield "settings", self.settings
        yield "matrix", self.matrix
        for number, rule in enumerate(self.overrides):
            yield f"overrides.{number}.set", rule.set
        for number, entry in enumerate(self.include):
            yield f"include.{number}", entry


def parse_experiment(config: Mapping[str, Any], where: str = "config") -> Experiment:
    """Check a configuration and fill in its defaults; a published figure's at its scale.

    Raises:
        ConfigError: a key is unknown or missing, its value is not allowed, one group has both
            batch keys, or the name is that of another folder.
    """
    refuse_classes(config.get("data"), where)
    keys = read_checked(ExperimentKeys, at_scale(config, where), where)
    paper = Paper.from_dict(config["paper"]) if "paper" in config else None
    experiment = Experiment(**vars(keys), where=where, paper=paper)
    if experiment.name in NAMES_OF_SITES:
        raise ConfigError(
            f"{where}: experiment: {experiment.name!r} is the name of something else in every "
            "site's results; write another one"
        )
    for place, layer in experiment.layers():
        if {"batch_size", "batch_per_device"} <= set(layer):
            raise ConfigError(
                f"{where}: {place} gives batch_size and batch_per_device; keep one of them"
            )
    for place, condition in experiment.conditions():
        _check_condition(condition, f"{where}: {place}")
    declare(experiment.data, where)
    return experiment


def each(value: Any) -> list[Any] | tuple[Any, ...]:
    """The values of a condition or option, which may be a list."""
    return value if isinstance(value, list | tuple) else [value]


def _check_condition(condition: Mapping[str, Any], where: str) -> None:
    """Refuse a value that no cell can have: the condition would silently change nothing."""
    for key, wanted in condition.items():
        if wanted == []:
            raise ConfigError(f"{where}.{key} must not be empty; write at least one value")
        for value in each(wanted):
            check(value, axes()[key], f"{where}.{key}")


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
    """One file of config/papers; ``values`` is all of it."""

    values: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_values(cls, values: Mapping[str, Any], where: str) -> Self:
        """Check what stands besides the keys of an experiment; scales are checked as experiments.

        Raises:
            ConfigError: a key is unknown or wrong.
        """
        keys = {key: values[key] for key in _KEYS if key in values}
        file = cls(**vars(read_checked(PaperKeys, keys, where)), values=values)
        for name, scale in file.scales.items():
            base = scale.get("like")
            if base is not None and (base == name or "like" in file.scales.get(base, {"like": ""})):
                raise ConfigError(
                    f"{where}: scales.{name}.like: no scale {base} has keys of its own here; write "
                    f"scales.{base}, or leave like out"
                )
        return file

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
    folder = project_file("config/papers")
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
    """Figures, then tables, then an appendix; fig9 before fig10."""
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

    Raises:
        ConfigError: there is no such scale, it has no cells, or it is for a cluster and none is
            named; the message says what to do.
    """
    if "paper" not in config:
        for key in _KEYS:
            if key in config:
                raise ConfigError(
                    f"{where} is of no published figure, so {key!r} means nothing here; leave it "
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
    values = read_yaml(project_file(f"config/experiments/{name}.yaml"))
    return {key: value for key, value in values.items() if key not in without}


def making_command(site: str, files: Iterable[Path], *, anew: bool = False) -> str:
    """The command with which the workflow makes files below ``results/<site>/``.

    ``anew`` also makes those that are there.
    """
    launcher, planned, written = "<slurm or local>", site, written_site(site)
    with suppress(ConfigError):
        launcher = load_site(written).launcher
    with suppress(ConfigError):
        planned = _site_in(project_file(str(CONFIG)), site)
    files = list(files)
    targets = [shlex.quote(str(file)) for file in files]
    force = ["--force"] if anew else []
    words = ["snakemake", "--profile", f"profiles/{launcher}", *force, *targets]
    declared = declaring_file(part for file in files for part in file.parts)
    if declared is not None and site_file(written) != Path(declared) and Path(declared).is_file():
        words += ["--configfile", shlex.quote(declared)]
        with suppress(ConfigError):
            planned = _site_in(Path(declared), "local")
    if planned != site or written != site:
        words += ["--config", shlex.quote(f"site={written}")]
    return " ".join(words)


def making_anew(where: str) -> str:
    """What to do with a file of the workflow that cannot be read."""
    path = Path(where)
    if not path.is_relative_to(RESULTS):
        return "replace it, or take another one"
    return f"make it anew: {making_command(path.parts[1], [path], anew=True)}"


def _site_in(experiment: Path, otherwise: str) -> str:
    """Name of the site that an experiment's file names, or whose path it gives."""
    return site_file(str(read_yaml(experiment).get("site", otherwise))).stem
