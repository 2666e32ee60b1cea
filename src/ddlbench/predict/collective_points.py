"""Measured collectives: what fits the constants of a library, corrects them, and scores them.

::

    sweeps of many clusters  --fit-->  library  --corrected by sweeps of one cluster-->  its library
                                          '--> times from names         times of more nodes <--'

A table has a point per row (:func:`read_points`). The points of one accelerator and one number of
nodes are a sweep. The shipped points are of other people (NOTICE). Expected times are those of
:mod:`ddlbench.predict.collective_times`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ddlbench.common.errors import ConfigError
from ddlbench.predict.collective_times import (
    COLLECTIVES,
    MEDIUM,
    OPERATIONS,
    SIZE_CLASSES,
    Groups,
    Library,
    is_mesh,
    seconds,
    size_class,
)
from ddlbench.predict.constants import Array, Fit, HeldOut, equal_weights, fit, weak_pull
from ddlbench.predict.hardware import DeviceSheet, Fabric, chip_of, device_of
from ddlbench.predict.run_tables import (
    ScoreQuestion,
    check_columns,
    each_kind,
    error_means,
    numbers_of,
    refuse,
    rows_of_kind,
    whole_numbers,
)

PUBLISHED = Path(str(files("ddlbench.predict").joinpath("published", "nccl_all_reduce.csv")))
_SOFT, _PULL = 0.2, 0.4
"""Error of a logarithm beyond which errors weigh less, and the pull of priors: sweeps differ by a
fifth, and there are as many of them as constants."""
_OWN_SIZES = (2**24, 2**30)
_OWN_SWEEPS = 3
"""Of one cluster, that tell how much they differ."""
_OWN_RATIOS = 19
"""Of one size, for both ends of an interval of 90 %: the first of n is the 1 / (n + 1) quantile."""
_NEEDED = ("collective", "accelerator", "nodes", "ranks", "payload_bytes", "time_s")
_LINK, _CARDS = "nvlink_gb_per_s_one_way", "nic_gb_per_s_a_node"


@dataclass(frozen=True)
class Points:
    """Measured collectives of several sweeps.

    Args:
        rows: the table, checked, each point once; ``operation`` is the collective, ``sweep`` names
            accelerator and nodes, ``device`` and ``chip`` are the accelerator's, whatever the table
            calls it, and ``cluster`` names chip, network cards and source.
        groups: of each.
    """

    rows: pd.DataFrame
    groups: Groups

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, chosen: Array) -> Points:
        return Points(self.rows[chosen].reset_index(drop=True), self.groups.take(chosen))

    @property
    def measured_s(self) -> Array:
        return self.rows["time_s"].to_numpy(dtype=float)

    @property
    def payload_bytes(self) -> Array:
        return self.rows["payload_bytes"].to_numpy(dtype=float)

    @property
    def sweeps(self) -> Array:
        """Chip and nodes of each point, whatever its table calls the accelerator."""
        nodes = self.rows["nodes"].map("{:g}".format)
        return (self.rows["chip"] + ", " + nodes).to_numpy(dtype=str)

    @property
    def clusters(self) -> Array:
        return self.rows["cluster"].to_numpy(dtype=str)

    def expected_s(self, library: Library) -> Array:
        groups = self.groups
        if library.tells_latency:
            groups = replace(groups, node_s=np.full(len(self), np.nan))
        expected_s = np.empty(len(self))
        for operation in OPERATIONS:
            of = self.rows["operation"].to_numpy() == operation
            if of.any():
                payload = self.payload_bytes[of]
                expected_s[of] = seconds(groups.take(of), payload, library, operation)
        return expected_s

    def within(self, intervals: Mapping[str, tuple[float, float]], library: Library) -> Array:
        """Whether measured over expected times are in the interval of their size, (n,) of bool."""
        sizes = (size_class(size) for size in self.payload_bytes)
        low, high = np.transpose([intervals.get(size, (0.0, np.inf)) for size in sizes])
        ratios = self.measured_s / self.expected_s(library)
        return np.asarray((ratios >= low) & (ratios <= high))


def read_points(
    table: pd.DataFrame,
    where: str = "the table",
    fabric: Fabric | None = None,
    device: DeviceSheet | None = None,
) -> Points:
    """Check a table of collectives.

    Args:
        table: a row a point: collective (all-reduce, all-gather, reduce-scatter or broadcast),
            accelerator, nodes, ranks, payload_bytes (whole buffer), time_s;
            nvlink_gb_per_s_one_way (the data sheet's if empty), nic_gb_per_s_a_node (if there are
            several nodes).
        where: its name.
        fabric: whose latency and rate stand for those of the table; it links one cluster then.
        device: whose link stands for those of the table.

    Raises:
        ConfigError: a column is missing, or a value is wrong.
    """
    table = _checked(table, where)
    table["accelerator"] = table["accelerator"].astype(object).fillna("")
    named = set(table["accelerator"])
    sheets = {name: device or DeviceSheet.called(str(name)) for name in named}
    of = [sheets[name] for name in table["accelerator"]]
    if device:
        table[_LINK] = np.nan
    link = table[_LINK].fillna(
        pd.Series([sheet.link.bytes_per_s if sheet else np.nan for sheet in of])
    )
    unknown = link.isna()
    refuse(
        unknown,
        table["accelerator"],
        where,
        f"{{!r}} is in no data sheet; fill {_LINK}, or give --hardware",
    )
    devices = table["ranks"] / table["nodes"]
    cards = table[_CARDS]
    if fabric:
        cards = pd.Series([fabric.node_bytes_per_s(int(n)) for n in devices])
    lacking = (table["nodes"] > 1) & cards.isna()
    refuse(
        lacking,
        table["nodes"],
        where,
        f"{{!r}} nodes need a network; fill {_CARDS}, or give --fabric",
    )
    devices_of = {name: device.description if device else device_of(str(name)) for name in named}
    table["device"] = table["accelerator"].map(devices_of)
    table["chip"] = table["device"].map(chip_of)
    table["sweep"] = [
        f"{name}, {nodes:g} node{'s' if nodes > 1 else ''}"
        for name, nodes in zip(table["accelerator"], table["nodes"], strict=True)
    ]
    # One node has no cards in a table: it is of the first cluster of that chip and source.
    source = _submitters(table)
    cards_of = cards.fillna(cards.groupby([table["chip"], source]).transform("first"))
    table["cluster"] = table["chip"]
    if not fabric:
        table["cluster"] += cards_of.map(", {:g} bytes/s".format) + ", " + source
    groups = Groups(
        nodes=table["nodes"].to_numpy(dtype=float),
        devices_per_node=devices.to_numpy(dtype=float),
        link_bytes_per_s=link.to_numpy(dtype=float),
        sums=np.array([bool(sheet and sheet.link.sharp) for sheet in of]),
        mesh=np.array([bool(sheet and is_mesh(sheet)) for sheet in of]),
        cards_bytes_per_s=cards.to_numpy(dtype=float),
        node_s=np.full(len(table), fabric.latency_s if fabric else np.nan),
    )
    return _once(Points(table, groups), "cluster")


def _once(points: Points, *further: str) -> Points:
    """Each point once; ``further`` columns tell points apart, too."""
    keys = ["operation", "chip", "nodes", "ranks", "payload_bytes", "time_s", *further]
    return points.take(~points.rows.duplicated(keys).to_numpy())


def _checked(table: pd.DataFrame, where: str) -> pd.DataFrame:
    """The rows with their operation, whole numbers, and rates in bytes per second."""
    check_columns(table, _NEEDED, where)
    if table.empty:
        raise ConfigError(f"{where} has no row; write at least one point")
    table = table.reset_index(drop=True).copy()
    table["operation"] = table["collective"].astype(str).str.replace("-", "_")
    unlike = ~table["operation"].isin(OPERATIONS)
    known = ", ".join(OPERATIONS)
    refuse(unlike, table["collective"], where, f"no time is expected of {{!r}}; known are {known}")
    for name, least in (("nodes", 1), ("ranks", 2)):
        table[name] = whole_numbers(table[name], where, least)
    uneven = table["ranks"] % table["nodes"] > 0
    refuse(uneven, table["ranks"], where, "ranks is {!r}; write a multiple of nodes")
    for name in ("payload_bytes", "time_s"):
        table[name] = numbers_of(table[name], where, "a number above 0", lambda n: n > 0)
    for name in (_LINK, _CARDS):
        given = table[name] if name in table else pd.Series(np.nan, table.index, name=name)
        rates = numbers_of(given, where, "a number above 0", lambda n: n > 0, may_lack=True)
        table[name] = rates * 1e9
    return table


def _fit(points: Points, library: Library, pull: float, *, few: bool = False) -> Fit:
    """Fit constants; each sweep weighs alike, as its points err together."""
    sweeps = points.sweeps
    return fit(
        library,
        points.expected_s,
        points.measured_s,
        soft=_SOFT,
        pull=pull,
        few=few,
        weights=equal_weights(sweeps),
        groups=np.unique(sweeps, return_inverse=True)[1],
    )


def fit_points(points: Points, library: Library) -> Fit:
    """Fit the library's constants to points of many clusters, from the priors of its file."""
    return _fit(points, replace(library.with_priors(), of_one_cluster=False), _PULL)


def refitted(points: Points, library: Library) -> Library:
    """The library with constants fitted to points of many clusters."""
    return replace(library.fitted_to(fit_points(points, library)), of_one_cluster=False)


def corrected(points: Points, library: Library) -> tuple[Library, Fit]:
    """The library corrected by points of one cluster.

    Its constants are the priors. Two points tell something: 16 MB and 1 GB on one geometry.
    """
    constants = {
        name: replace(constant, prior=constant.value, prior_source=library.description)
        for name, constant in library.constants.items()
    }
    most = int(points.groups.nodes.max())
    prior = replace(library, constants=constants, of_one_cluster=True, most_nodes=most)
    pull = weak_pull(_SOFT, len(points), len(constants))
    fitted = _fit(points, prior, pull, few=True)
    return prior.fitted_to(fitted), fitted


def held_out_s(
    points: Points,
    fitted: Points,
    library: Library,
    kinds: Array,
    of: Array,
    *,
    correct: bool = False,
) -> Array:
    """Expected seconds of points, each kind by constants that were fitted without it.

    Args:
        points: n to predict.
        fitted: m to fit.
        library: with priors.
        kinds: the kind of each point to predict, (n,).
        of: the kind of each point to fit, (m,).
        correct: other points of the same cluster correct the constants.

    Raises:
        ConfigError: all points are of one kind.
    """
    expected_s = np.empty(len(points))
    for those, others in each_kind(kinds, of, "model"):
        held = points.take(those)
        general = refitted(fitted.take(others), library)
        held_s = held.expected_s(general)
        if correct:
            for here, known in _own_points(held, fitted.take(others)):
                held_s[here] = held.take(here).expected_s(corrected(known, general)[0])
        expected_s[those] = held_s
    return expected_s


def _own_points(points: Points, others: Points) -> Iterator[tuple[Array, Points]]:
    """Which points are of a cluster that others are of, (n,) of bool, and those others."""
    for cluster in np.unique(points.clusters):
        known = others.clusters == cluster
        if known.any():
            yield points.clusters == cluster, others.take(known)


def intervals_of(ratios: Array, points: Points) -> dict[str, tuple[float, float]]:
    """Intervals of measured over expected times, by size of the message, that cover 90 %.

    The 5th and 95th percentiles; each sweep weighs alike, as its points err together.

    Args:
        ratios: measured over expected of points that were held out, (n,).
        points: n.
    """
    classes = np.array([size_class(size) for size in points.payload_bytes])
    sweeps = points.sweeps
    intervals = {}
    for name in SIZE_CLASSES:
        of = classes == name
        if of.any():
            weights = equal_weights(sweeps[of])
            low, high = (_percentile(ratios[of], weights, share) for share in (0.05, 0.95))
            intervals[name] = (low, high)
    return intervals


def _percentile(values: Array, weights: Array, share: float) -> float:
    """A percentile of weighted values, between those beside it."""
    order = np.argsort(values)
    ends = np.cumsum(weights[order])
    return float(np.interp(share, (ends - weights[order] / 2) / ends[-1], values[order]))


def _own_intervals(
    points: Points, known: Points, library: Library
) -> Mapping[str, tuple[float, float]]:
    """Intervals of one cluster's sweeps, each held out; none from fewer than three sweeps.

    Nor from fewer ratios of a size than 90 % intervals need (:meth:`HeldOut.of`).
    """
    sweeps = points.sweeps
    if len(np.unique(sweeps)) < _OWN_SWEEPS:
        return {}
    held_s = held_out_s(points, known, library, sweeps, known.sweeps, correct=True)
    sizes = Counter(map(size_class, points.payload_bytes))
    intervals = intervals_of(points.measured_s / held_s, points)
    return {name: ends for name, ends in intervals.items() if sizes[name] >= _OWN_RATIOS}


def calibrated(
    points: Points, library: Library, where: str, fabric: str = ""
) -> tuple[Library, Fit]:
    """The library fitted to points, with intervals of sweeps that were held out.

    Points of one cluster correct it, and it names their device, and the ``fabric`` between their
    nodes. Then intervals of fewer than three sweeps are the library's, as are those of several
    clusters of one device and one number of nodes.
    """
    sweeps, most_nodes = points.sweeps, int(points.groups.nodes.max())
    device = ""
    if len(np.unique(points.clusters)) == 1:
        names = points.rows["device"].unique()
        device = str(names[0] if len(names) == 1 else points.rows["chip"].iloc[0])
        fitted, constants = corrected(points, library)
        ends = _own_intervals(points, _with_shipped(points), library)
    else:
        constants = fit_points(points, library)
        fitted = replace(library.fitted_to(constants), of_one_cluster=False)
        ends = {}
        if len(np.unique(sweeps)) > 1:
            held_s = held_out_s(points, points, library, sweeps, sweeps)
            ends = intervals_of(points.measured_s / held_s, points)
    intervals = {
        name: HeldOut(low=low, high=high, source=f"{where}, each sweep held out in turn")
        for name, (low, high) in ends.items()
    }
    changed = replace(
        fitted,
        intervals={**library.intervals, **intervals},
        fitted_on=f"{len(points)} points of {where}",
        most_nodes=most_nodes,
        device=device,
        fabric=fabric if device and most_nodes > 1 else "",
    )
    return changed, constants


def score(table: pd.DataFrame, question: ScoreQuestion) -> dict[str, Any]:
    """Score a table of collectives, as :mod:`ddlbench.predict.run_tables` says.

    ``model`` holds out each sweep (accelerator and nodes), ``gpus`` each number of nodes, while
    other numbers of the same cluster correct the constants, ``device`` each accelerator,
    ``submitter`` each source. ``coverage``: share of the points inside
    the interval from names; where something is held out, so is it for the interval.
    Errors count messages of 1 MB and more; ``by`` has the shorter ones.

    Raises:
        ConfigError: a value of the table or of the question is wrong.
    """
    fabric = Fabric.load(question.fabric) if question.fabric else None
    device = DeviceSheet.named(question.device) if question.device else None
    given = read_points(table, question.where, fabric, device)
    points = given.take(rows_of_kind(question.kind, _filters(given.rows), len(given)))
    library = Library.load(question.software or COLLECTIVES)
    if question.hold_out == "none":
        expected_s = points.expected_s(library)
        ends = {name: (interval.low, interval.high) for name, interval in library.intervals.items()}
        inside = points.within(ends, library)
        own_s = None
    else:
        known = _with_shipped(given)
        expected_s, inside, own_s = _nested(points, known, library, question.hold_out)
    errors = np.abs(expected_s / points.measured_s - 1)
    return _scored(points, errors, inside, own_s)


def _with_shipped(given: Points) -> Points:
    """The shipped points and those of a table, each once."""
    known = read_points(pd.read_csv(PUBLISHED))
    rows = pd.concat([known.rows, given.rows], ignore_index=True)
    return _once(Points(rows, Groups.joined([known.groups, given.groups])))


def _nested(
    points: Points, known: Points, library: Library, hold_out: str
) -> tuple[Array, Array, Array]:
    """Expected seconds, whether the interval holds, and seconds with two own points known.

    The interval of what is held out comes from the others, each of which is held out in turn.
    """
    kinds, of = _kinds_of(points, hold_out), _kinds_of(known, hold_out)
    expected_s, own_s = np.empty(len(points)), np.full(len(points), np.nan)
    inside = np.zeros(len(points), dtype=bool)
    for those, chosen in each_kind(kinds, of, hold_out):
        others, held = known.take(chosen), points.take(those)
        general, names = refitted(others, library), others.sweeps
        inner_s = held_out_s(others, others, library, names, names)
        shared = intervals_of(others.measured_s / inner_s, others)
        held_s, within = held.expected_s(general), held.within(shared, general)
        own_s[those] = _by_own_points(held, general)
        for here, of_cluster in _own_points(held, others) if hold_out == "gpus" else ():
            there, constants = held.take(here), corrected(of_cluster, general)[0]
            intervals = {**shared, **_own_intervals(of_cluster, others, library)}
            held_s[here] = there.expected_s(constants)
            within[here] = there.within(intervals, constants)
        expected_s[those], inside[those] = held_s, within
    return expected_s, inside, own_s


def _by_own_points(held: Points, library: Library) -> Array:
    """Seconds of each group's other sizes if 16 MB and 1 GB were measured; nan for these two."""
    expected_s = np.full(len(held), np.nan)
    keys = ("operation", "sweep", "ranks", _CARDS, "source")
    columns = [name for name in keys if name in held.rows]
    numbers = held.rows.groupby(columns, dropna=False).ngroup().to_numpy()
    for number in np.unique(numbers):
        at = numbers == number
        measured = at & np.isin(held.payload_bytes, _OWN_SIZES)
        if measured.sum() >= len(_OWN_SIZES):
            again, _ = corrected(held.take(measured), library)
            rest = at & ~measured
            expected_s[rest] = held.take(rest).expected_s(again)
    return expected_s


def _kinds_of(points: Points, hold_out: str) -> Array:
    rows = points.rows
    match hold_out:
        case "gpus":
            return rows["nodes"].to_numpy(dtype=int).astype(str)
        case "device":
            return rows["chip"].to_numpy(dtype=str)
        case "submitter":
            return _submitters(rows).to_numpy(dtype=str)
        case _:
            return points.sweeps


def _submitters(rows: pd.DataFrame) -> pd.Series[str]:
    """The first word of each source."""
    if "source" not in rows:
        return pd.Series("", rows.index)
    return rows["source"].fillna("").astype(str).str.split().str[0].fillna("")


def _filters(rows: pd.DataFrame) -> dict[str, Array]:
    """Columns that ``--kind`` may name."""
    names = {"bytes": "payload_bytes", "gpus": "ranks", "nodes": "nodes"}
    columns = {name: rows[column].to_numpy(dtype=float) for name, column in names.items()}
    return columns | {"accelerator": rows["accelerator"].to_numpy(dtype=str)}


def _scored(points: Points, errors: Array, inside: Array, own_s: Array | None) -> dict[str, Any]:
    long = points.payload_bytes >= SIZE_CLASSES[MEDIUM]
    counted = long if long.any() else np.ones(len(points), dtype=bool)
    classes = np.array([size_class(size) for size in points.payload_bytes])
    sweeps = points.rows["sweep"].to_numpy()
    by: dict[str, dict[str, Any]] = {
        "sweep": {
            name: _means(errors, inside, counted & (sweeps == name))
            for name in dict.fromkeys(sweeps)
            if (counted & (sweeps == name)).any()
        },
        "message": {
            name: _means(errors, inside, classes == name)
            for name in SIZE_CLASSES
            if (classes == name).any()
        },
    }
    if own_s is not None:
        error = np.abs(own_s / points.measured_s - 1)
        known = counted & np.isfinite(error)
        if known.any():
            by["known"] = {"16 MB and 1 GB of the sweep": _means(error, None, known)}
    values = _means(errors, inside, counted)
    return {**values, "all_rows": len(points), "fit": None, "choice": None, "by": by}


def _means(errors: Array, inside: Array | None, of: Array) -> dict[str, Any]:
    values = {"rows": int(of.sum()), **error_means(errors[of])}
    return values | ({} if inside is None else {"coverage": float(inside[of].mean())})
