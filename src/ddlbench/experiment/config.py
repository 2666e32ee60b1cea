"""An experiment file: a matrix of cells with settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from annotated_types import Ge, Le, MinLen

from ddlbench.common.errors import ConfigError
from ddlbench.common.form import Count, Form, InFile, Name, Positive
from ddlbench.common.schema import check, read_checked
from ddlbench.experiment.cell import OptionValue
from ddlbench.experiment.own_data import OwnDatasets, declare
from ddlbench.experiment.paper import Paper, at_scale
from ddlbench.experiment.paths import NAMES_OF_SITES
from ddlbench.experiment.settings import Condition, Matrix, Settings, WrittenCell, axes

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
    ([docs/profiling.md](../docs/profiling.md))."""


@dataclass(frozen=True, kw_only=True)
class ExperimentKeys(Form):
    """The keys of an experiment file: which cells are measured, on which site."""

    experiment: Annotated[str, InFile(_FOLDER)]
    """Name of the folder of its tables and figures; of letters, digits, dots, dashes and
    underscores."""
    site: str = "local"
    """Name of a file in config/sites/ (without .yaml), or the path of a site file."""
    repeats: Annotated[int, Ge(1), Le(1000)] = 1
    """How often each cell is measured, each time as a job of its own. Raising it runs only the new
    ones."""
    most_cells: Count = 10_000
    """A matrix of more cells, repeats included, is taken for a mistake; raise it if you mean it."""
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
    ([docs/datasets.md](../docs/datasets.md#your-own-data))."""
    real_data: Mapping[str, Name] = field(default_factory=dict)
    """Folders of your own copies of datasets, by dataset name, in torchvision's layout or as files
    of tokens; they go before the site's. Cells with data_source real read them
    ([docs/datasets.md](../docs/datasets.md))."""
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
                f"{where}: {place}: gives batch_size and batch_per_device; keep one of them"
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
            raise ConfigError(f"{where}.{key}: must not be empty; write at least one value")
        for value in each(wanted):
            check(value, axes()[key], f"{where}.{key}")
