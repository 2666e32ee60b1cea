"""Two trees of results beside each other: the ratio of each configuration's steps, and a verdict.

With a margin of 5 %, by the 95 % interval of the ratio B/A (:mod:`ddlbench.common.statistics`)::

          0.95          1          1.05
    ---------|----------+----------|---------
     |-o-|   |          |          |              faster
             |     |--o-+---|      |              same
             |          |      |---|--o----|      cannot tell
             |          |          |  |---o---|   slower

The lower end of the margin is 1 / 1.05, so that B against A says the opposite of A against B. A
configuration whose runs fail in B and not in A is a regression, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum
from itertools import islice
from statistics import median
from typing import Any

from ddlbench.common.errors import ConfigError, shown
from ddlbench.common.quantities import counted
from ddlbench.common.run_noise import Noise, Pair, Ratio, RunNoise
from ddlbench.common.schema import nearest
from ddlbench.experiment.cell import Cell, short_names
from ddlbench.experiment.status import Status
from ddlbench.report.comparability import unlike_base
from ddlbench.report.run_trees import Configuration, Tree

DEFAULT_MARGIN = 0.05
SPREAD_EMULATED = 0.024
SPREAD_COMPUTED = 0.061
"""Spread from run to run where no configuration of either tree has repeats: the pooled spread of
the repeated cells in docs/papers/*/cells.csv. Emulated accelerators: 14 configurations, 28 degrees
of freedom; CPU cores that compute: 6 and 6. Of GPUs nothing is kept, so the larger one is taken."""

_SITE = "site"
_GEOMETRY = {"geometry": ("nodes", "devices_per_node")}
_OPTIONS = "options"
_FEW_DIFFERENCES = 2
_MOST_HINTS = 200
_MOST_NOTES = 4


class Verdict(StrEnum):
    """The judgement on a configuration; the worst first."""

    FAILED = str(Status.FAILED)
    MISSING = "missing"
    SLOWER = "slower"
    CANNOT_TELL = "cannot tell"
    SAME = "same"
    FASTER = "faster"
    WORKS_NOW = "works now"
    BOTH_FAILED = "failed in both"

    @property
    def is_regression(self) -> bool:
        return self in (Verdict.FAILED, Verdict.MISSING, Verdict.SLOWER)


@dataclass(frozen=True)
class Compared:
    """One configuration.

    Args:
        name: what tells it apart from the others.
        first: in tree A.
        second: in tree B; None if B lacks it.
        ratio: B/A of the steps; None without a step in both.
        verdict: of it.
        reason: why it failed, or why there is no ratio; empty if the ratio says all.
    """

    name: str
    first: Configuration
    second: Configuration | None
    ratio: Ratio | None
    verdict: Verdict
    reason: str = ""


@dataclass(frozen=True)
class Comparison:
    """Two trees.

    Args:
        first: tree A.
        second: tree B.
        rows: configurations that both have, the worst first.
        margin: as a share.
        alone: names of configurations that only A, and only B, has.
        hint: in what those of both that are alike differ; empty if there are none.
        notes: what both were measured on or with that differs.
        across: settings that need not match.
        per_sample: steps are divided by their batch sizes, as these need not match.
        common: words that the names of all configurations would begin with.
    """

    first: Tree
    second: Tree
    rows: tuple[Compared, ...]
    margin: float
    alone: tuple[tuple[str, ...], tuple[str, ...]]
    hint: str
    notes: tuple[str, ...]
    across: tuple[str, ...]
    per_sample: bool
    common: str

    @property
    def regressions(self) -> int:
        return sum(row.verdict.is_regression for row in self.rows)

    @property
    def counts(self) -> Mapping[Verdict, int]:
        """Configurations of each verdict that occurs, the worst first."""
        tally = Counter(row.verdict for row in self.rows)
        return {verdict: tally[verdict] for verdict in Verdict if tally[verdict]}

    @property
    def middle(self) -> float | None:
        ratios = [row.ratio.ratio for row in self.rows if row.ratio is not None]
        return median(ratios) if ratios else None

    def noises(self) -> list[Noise]:
        ratios = [row.ratio for row in self.rows if row.ratio is not None]
        return [ratio.noise for ratio in ratios if ratio.noise is not None]


def compare_trees(
    first: Tree,
    second: Tree,
    *,
    margin: float = DEFAULT_MARGIN,
    across: Sequence[str] = (),
    stated: float | None = None,
    require_all: bool = False,
) -> Comparison:
    """Match the configurations of two trees, and judge each.

    Args:
        first: tree A.
        second: tree B.
        margin: a ratio within 1 / (1 + margin) to 1 + margin is no change.
        across: settings that need not match: fields of a cell, ``geometry``, ``site``,
            ``options`` or one of them.
        stated: spread from run to run where neither tree has repeats; measured ones by default.
        require_all: a configuration that B lacks is a regression.

    Raises:
        ConfigError: a setting is unknown, a tree has two configurations that only differ in one
            that need not match, or no configuration is in both trees.
    """
    _check_across(across, [*first.configurations, *second.configurations])
    sites_match = _SITE not in across and max(len(first.sites), len(second.sites)) > 1
    of_first = _keyed(first, across, sites_match)
    of_second = _keyed(second, across, sites_match)
    shared = [key for key in of_first if key in of_second]
    both = set(shared)
    lone = tuple([tree[key] for key in tree if key not in both] for tree in (of_first, of_second))
    hint = _hint(lone[0], lone[1], sites_match)
    if not shared:
        examples = ", ".join(
            f"{tree.name} has {tree.configurations[0].cell.id.removesuffix('/rep0')}"
            for tree in (first, second)
        )
        raise ConfigError(
            f"no configuration is both in {first.name} and in {second.name}"
            + (f": {hint}" if hint else f"; {examples}")
        )
    per_sample = "batch_size" in across
    pairs = [(of_first[key], of_second[key]) for key in shared]
    sides = [[pair[side] for pair in pairs] for side in (0, 1)]
    common, (names, other_names, *alone) = _names([*sides, *lone], sites_match)
    both_names = list(map(_both, names, other_names))
    rows = _judged(both_names, pairs, margin, stated, per_sample)
    if require_all:
        lacking = zip(alone[0], lone[0], strict=True)
        rows += [
            Compared(name, configuration, None, None, Verdict.MISSING, f"{second.name} lacks it")
            for name, configuration in lacking
        ]
    return Comparison(
        first,
        second,
        tuple(sorted(rows, key=_badness)),
        margin,
        (tuple(alone[0]), tuple(alone[1])),
        hint,
        tuple(_notes(pairs, first, second)),
        tuple(across),
        per_sample,
        common,
    )


def _badness(row: Compared) -> tuple[int, float, str]:
    ratio = 0.0 if row.ratio is None else row.ratio.ratio
    return list(Verdict).index(row.verdict), -ratio, row.name


# Keys.


def _check_across(across: Sequence[str], configurations: Sequence[Configuration]) -> None:
    options = {name for configuration in configurations for name, _ in configuration.cell.options}
    of_cell = {field.name for field in fields(Cell)} - {"repeat"}
    known = {*of_cell, *_GEOMETRY, _SITE, *options}
    for name in across:
        if name not in known:
            raise ConfigError(
                f"--across {shown(name)} is no setting of a cell; {nearest(name, known)}"
            )


def _settings(configuration: Configuration, sites_match: bool) -> dict[str, Any]:
    """Every setting that must match, by its name; options by theirs."""
    cell = configuration.cell
    values = {
        field.name: getattr(cell, field.name)
        for field in fields(Cell)
        if field.name not in ("repeat", _OPTIONS)
    }
    values.update(cell.options)
    if sites_match:
        values[_SITE] = configuration.site
    return values


def _keyed(
    tree: Tree, across: Sequence[str], sites_match: bool
) -> dict[tuple[tuple[str, Any], ...], Configuration]:
    left_out = {part for name in across for part in _GEOMETRY.get(name, (name,))}
    by_options = _OPTIONS in left_out
    keyed: dict[tuple[tuple[str, Any], ...], Configuration] = {}
    for configuration in tree.configurations:
        settings = _settings(configuration, sites_match)
        without = left_out | (
            {name for name, _ in configuration.cell.options} if by_options else set()
        )
        key = tuple(sorted((n, repr(v)) for n, v in settings.items() if n not in without))
        if key in keyed:
            raise ConfigError(_several(tree, keyed[key], configuration))
        keyed[key] = configuration
    return keyed


def _several(tree: Tree, this: Configuration, other: Configuration) -> str:
    first, second = _settings(this, True), _settings(other, True)
    name = next(name for name in {**first, **second} if first.get(name) != second.get(name))
    return (
        f"{tree.name} holds both {name}={first.get(name)} and {name}={second.get(name)} of one "
        "configuration, so it is not known which to compare; give a folder with only one of them"
    )


def _hint(lone: list[Configuration], other: list[Configuration], sites_match: bool) -> str:
    """In which few settings configurations without a partner differ from the other tree's."""
    differences: Counter[tuple[str, ...]] = Counter()
    others = [_settings(configuration, sites_match) for configuration in other[:_MOST_HINTS]]
    for configuration in lone[:_MOST_HINTS]:
        settings = _settings(configuration, sites_match)
        differing = (_differing(settings, theirs) for theirs in others)
        nearest_one = min(differing, key=len, default=())
        if 0 < len(nearest_one) <= _FEW_DIFFERENCES:
            differences[nearest_one] += 1
    if not differences:
        return ""
    names, count = differences.most_common(1)[0]
    options = " ".join(f"--across {name}" for name in names)
    verb = "differs" if count == 1 else "differ"
    return f"{count:,} of A {verb} only in {' and '.join(names)} ({options})"


def _differing(settings: Mapping[str, Any], others: Mapping[str, Any]) -> tuple[str, ...]:
    names = dict.fromkeys([*settings, *others])
    differing = [name for name in names if settings.get(name) != others.get(name)]
    both = _GEOMETRY["geometry"]
    if set(both) & set(differing):
        differing = [name for name in differing if name not in both] + ["geometry"]
    return tuple(differing)


def _names(
    groups: Sequence[Sequence[Configuration]], with_sites: bool
) -> tuple[str, list[list[str]]]:
    """What all names would begin with, and the rest of each: what tells configurations apart."""
    every = [configuration for group in groups for configuration in group]
    words = [name.split(" ") for name in short_names([each.cell for each in every])]
    if with_sites:
        words = [[*name, each.site] for name, each in zip(words, every, strict=True)]
    shared = 0
    if len(set(map(tuple, words))) > 1:
        while shared < _PLACED and len({name[shared] for name in words}) == 1:
            shared += 1
    rest = (" ".join(name[shared:]) for name in words)
    return " ".join(words[0][:shared]), [list(islice(rest, len(group))) for group in groups]


def _both(name: str, other: str) -> str:
    """The name of a pair; words that differ, as they need not match, are both there."""
    words, theirs = name.split(" "), other.split(" ")
    if len(words) != len(theirs):
        return f"{name}, {other}"
    pairs = zip(words, theirs, strict=True)
    return " ".join(word if word == their else f"{word}/{their}" for word, their in pairs)


_PLACED = 3  # dataset, network, strategy; the geometry always stays


# Verdicts.


def _judged(
    names: Sequence[str],
    pairs: Sequence[tuple[Configuration, Configuration]],
    margin: float,
    stated: float | None,
    per_sample: bool,
) -> list[Compared]:
    samples = [_samples(*pair, per_sample) for pair in pairs]
    known: dict[bool, list[Pair]] = {True: [], False: []}
    for sample, (before, _) in zip(samples, pairs, strict=True):
        known[before.emulated] += [] if sample is None else [sample]
    noises = {
        emulated: RunNoise(known[emulated], stated or spread)
        for emulated, spread in ((True, SPREAD_EMULATED), (False, SPREAD_COMPUTED))
    }
    return [
        _verdict(name, pair, sample, noises[pair[0].emulated], margin)
        for name, pair, sample in zip(names, pairs, samples, strict=True)
    ]


def _samples(before: Configuration, after: Configuration, per_sample: bool) -> Pair | None:
    if before.sample is None or after.sample is None or _unlike_beds(before, after):
        return None
    if not per_sample:
        return before.sample, after.sample
    return before.sample.scaled(1 / before.cell.batch_size), after.sample.scaled(
        1 / after.cell.batch_size
    )


def _unlike_beds(before: Configuration, after: Configuration) -> str:
    """Why steps of these have no ratio, whatever they are; empty if they have one."""
    if before.emulated != after.emulated:
        words = [("emulated" if each.emulated else "computed") for each in (before, after)]
        return f"{words[0]} devices in A, {words[1]} ones in B"
    kinds = {before.device_kind, after.device_kind} - {""}
    if len(kinds) > 1:
        return f"measured on {before.device_kind} in A, on {after.device_kind} in B"
    return ""


def _verdict(
    name: str,
    pair: tuple[Configuration, Configuration],
    samples: Pair | None,
    noise: RunNoise,
    margin: float,
) -> Compared:
    before, after = pair

    def made(verdict: Verdict, reason: str = "", ratio: Ratio | None = None) -> Compared:
        return Compared(name, before, after, ratio, verdict, reason)

    failed = [each.status != Status.OK for each in (before, after)]
    if all(failed):
        return made(Verdict.BOTH_FAILED, f"{after.status}: {after.reason}")
    if failed[1]:
        return made(Verdict.FAILED, f"{after.status}: {after.reason}")
    if failed[0]:
        return made(Verdict.WORKS_NOW, f"in A {before.status}: {before.reason}")
    ratio = None if samples is None else _ratio(before, after, samples, noise)
    if after.failed and not before.failed:
        runs = after.runs + after.failed
        return made(
            Verdict.FAILED, f"{after.failed} of {counted(runs, 'run')}: {after.reason}", ratio
        )
    if ratio is None:
        why = _unlike_beds(before, after) or next(
            f"in {tree} {each.reason}"
            for tree, each in (("A", before), ("B", after))
            if each.sample is None
        )
        return made(Verdict.CANNOT_TELL, why)
    return made(verdict_of(ratio, margin), ratio=ratio)


def _ratio(before: Configuration, after: Configuration, samples: Pair, noise: RunNoise) -> Ratio:
    # A tree against itself, or against its copy.
    if before.digest and before.digest == after.digest:
        ratio = samples[1].median_s / samples[0].median_s
        return Ratio(ratio, ratio, ratio)
    return noise.ratio(samples)


def verdict_of(ratio: Ratio, margin: float) -> Verdict:
    """The verdict on a ratio of steps by its interval alone."""
    top = 1 + margin
    if ratio.low > top:
        return Verdict.SLOWER
    if ratio.high < 1 / top:
        return Verdict.FASTER
    return Verdict.SAME if ratio.low >= 1 / top and ratio.high <= top else Verdict.CANNOT_TELL


def _notes(
    pairs: Sequence[tuple[Configuration, Configuration]], first: Tree, second: Tree
) -> Iterator[str]:
    """In what the trees were measured otherwise, each once."""
    if first.sites != second.sites:
        yield f"A is of site {_listed(first.sites)}, B of {_listed(second.sites)}"
    differences: Counter[str] = Counter()
    for before, after in pairs:
        if before.runs and after.runs:
            for note in unlike_base(before.circumstances, after.circumstances):
                data = note.data.replace("(base)", "(A)").replace("(cell)", "(B)")
                differences[f"A and B {note.clause}: {data}"] += 1
    most = differences.most_common(_MOST_NOTES)
    yield from (text for text, _ in most)
    if len(differences) > len(most):
        more = counted(len(differences) - len(most), "difference")
        yield f"{more} more in what runs ran on or with"
    same = sum(bool(before.digest) and before.digest == after.digest for before, after in pairs)
    if same:
        yield f"A and B hold the same runs of {counted(same, 'configuration')}"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(names) if names else "unknown"
