"""Tidy rows on which claims are tested: one row per run, or a run and predictor.

::

    summary.csv of every experiment of a site, cells.csv of figures          kind speed
    predictions.json; cells.csv of studies, which has predicted_step_s       speed and prediction
    table_8_1_published.csv: a recommender's choice of a case                kind choice
    choices_by_way.csv: how often a way to choose is right, what it costs    kind way
    gpipe_step.csv: spans of a step                                          kind span

Every metric has ``<metric>_low`` and ``<metric>_high``, empty where there is no interval.
:func:`ddlbench_claims.pooling.pooled` makes one row per configuration of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

from ddlbench.common.errors import ConfigError, shown
from ddlbench.experiment.links import Links, read_links
from ddlbench.experiment.paths import LINKS_FILE, RESULTS
from ddlbench.experiment.registry import BASE, known, load
from ddlbench.experiment.status import Status
from ddlbench.report.kept_verdicts import CPU, GPU, KNOWN_TO, Device, device_of
from ddlbench_claims.needs import RUNTIME

MEASURED = ("speedup", "samples_per_s", "step_s", "signed_error", "right", "device_share",
            "forward_over_backward", "gap_over_compute")  # fmt: skip
METRICS = (*MEASURED, "samples_per_device_s", "efficiency", "share_of_bubble", "absolute_error")
CONFIGURATION = (
    "kind", "bed", "device", "site", "dataset", "network", "strategy", "predictor", "way",
    "geometry", "batch_size", "chunks", "stage_all_reduce", "options", "precision", "fabric",
    "status",
)  # fmt: skip
"""What rows of one configuration have in common; they differ by run only."""
OF_CONFIGURATION = (
    "nodes", "devices", "micro_batch", "latency_ms", "bandwidth_mbit_per_s", "loss_percent",
    "gbit_per_s", "inside", "at_once", "runtime", "base_s",
)  # fmt: skip
COLUMNS = (
    *CONFIGURATION, *OF_CONFIGURATION, "runs",
    *(f"{name}{end}" for name in METRICS for end in ("", "_low", "_high")),
)  # fmt: skip
_DEVICE_TEXTS = ("notes", "processors", "device", "device_kind")
_RATES = {"": "measured_step_s", "_low": "measured_high_s", "_high": "measured_low_s"}
"""Ends of a rate's interval, and the ends of the step that they come from."""
_PATHS = ("cell_id", "configuration", "variant", "options")  # columns of name=value pairs
_PAIR = re.compile(r"([A-Za-z_]\w*)=([^+,/\s]+)")
_GPIPE = "gpipe"
_OF_TWO = "Horovod or GPipe"  # the kind of the thesis' cases among those of a published table
_BESIDE = ("cells.csv", "summary.csv", "tables/summary.csv")


def rows_of_site(site: str, results: Path = RESULTS) -> pd.DataFrame:
    """All rows of a site's experiments; the results say what they were measured on.

    Args:
        site: its name.
        results: the folder that holds ``<site>/``.
    """
    folder = results / site
    names = ("tables/summary.csv", "predictions.json", "tables/table_8_1_published.csv",
             "tables/gpipe_step.csv")  # fmt: skip
    paths = [path for name in names for path in sorted(folder.glob(f"*/{name}"))]
    rows = _together([_rows_of(path, None) for path in paths]).assign(site=site)
    between = rows["gbit_per_s"].isna() & (pd.to_numeric(rows["nodes"]) > 1)
    if (rows["bed"] == GPU).any():  # their links are no emulated ones, but may be measured
        rates = rows["fabric"].map(lambda name: _measured_gbit_per_s(folder, str(name)))
        rows["gbit_per_s"] = rows["gbit_per_s"].where(~between, rates)
    return rows


def rows_of_tables(paths: Iterable[Path], bed: str | None = None) -> pd.DataFrame:
    """Rows of kept tables.

    Args:
        paths: CSV files of the kinds above.
        bed: where tables do not say themselves what they were measured on.

    Raises:
        ConfigError: a table is of another kind, or neither it nor ``bed`` tells its devices.
    """
    return _together([_rows_of(path, bed) for path in paths])


def _together(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    filled = [frame for frame in frames if len(frame)]
    if not filled:
        return pd.DataFrame(columns=list(COLUMNS))
    return pd.concat(filled, ignore_index=True).reindex(columns=list(COLUMNS))


def _rows_of(path: Path, bed: str | None) -> pd.DataFrame:
    table = _predictions(path) if path.suffix == ".json" else _read(path)
    for columns, rows_of in _KINDS:
        if columns & set(table.columns):
            table = _with_device(_measured(table).reset_index(drop=True), path, bed)
            try:
                return _together([part for part in rows_of(table) if len(part)])
            except _NotANumber as error:
                raise ConfigError(f"{path}: {error}") from None
    raise ConfigError(
        f"{path}: neither speedup, samples_per_s nor predicted_step_s is a column; write a "
        "summary, a figure's table or a study's cells.csv"
    )


def _measured(table: pd.DataFrame) -> pd.DataFrame:
    """The rows without the published ones that a figure's table has beside ours."""
    for source in ("source", "where"):
        if source in table.columns:
            table = table[table[source].fillna("").astype(str).isin(["", "measured here"])]
    return table


def _read(path: Path) -> pd.DataFrame:
    try:
        return pd.read_csv(path, low_memory=False)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{path}: not a CSV table ({reason}); write a kept table") from None


def _predictions(path: Path) -> pd.DataFrame:
    from ddlbench.predict.accuracy import read_predictions  # noqa: PLC0415 - slow to import

    return read_predictions(path)


def _with_device(table: pd.DataFrame, path: Path, bed: str | None) -> pd.DataFrame:
    """Add the device of each row: its own, else that of all other rows, else ``bed``.

    A cell that failed or did not run names no device. A figure's table has a table of cells beside
    it that does.

    Raises:
        ConfigError: nothing tells it.
    """
    texts = [table[name] for name in _DEVICE_TEXTS if name in table.columns]
    devices_written = list(zip(*texts, strict=True)) if texts else [()] * len(table)
    of_texts = {row: device_of(map(str, row)) for row in set(devices_written)}
    devices = [of_texts[row] for row in devices_written]
    others = {device for device in devices if device is not None}
    other = None
    if None in devices:
        other = others.pop() if len(others) == 1 else _device_beside(path)
    if None in devices and other is None:
        if bed is None:
            raise ConfigError(
                f"{path}: it does not say what it was measured on (columns processors, "
                f"device_kind or device); give --bed: {', '.join(KNOWN_TO)}"
            )
        other = Device(bed, bed)
    devices_known = [device or other for device in devices]
    return table.assign(**{f"_{name}": [getattr(device, name) for device in devices_known]
                           for name in ("bed", "name", "slow_down", "shrink")})  # fmt: skip


def _device_beside(path: Path) -> Device | None:
    """The one device that the table of cells beside a table tells; None if there are several."""
    for name in _BESIDE:
        beside = path.parent / name
        if beside != path and beside.is_file():
            table = _read(beside)
            texts = [table[column] for column in _DEVICE_TEXTS if column in table.columns]
            devices = {device_of(map(str, row)) for row in set(zip(*texts, strict=True))}
            if len(devices) == 1:
                return devices.pop()
    return None


# --- what each kind of table tells ------------------------------------------------------------


class _NotANumber(ValueError):  # noqa: N818 - what a value is
    """A word in a column of numbers; the message says where."""


def _of_summary(table: pd.DataFrame) -> list[pd.DataFrame]:
    """Rows of kind ``speed``."""
    made = _keys(table).assign(kind="speed")
    names = {
        "speedup": ("speedup", "speedup_low", "speedup_high"),
        "samples_per_s": ("samples_per_s", "samples_low_per_s", "samples_high_per_s"),
        "step_s": ("step_median_s", "step_low_s", "step_high_s"),
    }
    for metric, columns in names.items():
        for end, column in zip(("", "_low", "_high"), columns, strict=True):
            made[f"{metric}{end}"] = _numbers(table, column)
    made["step_s"] = made["step_s"].fillna(_numbers(table, "step_s"))
    return [made]


def _of_study(table: pd.DataFrame) -> list[pd.DataFrame]:
    """A study's predictions, and its cells' measured steps, each cell once."""
    # Some predictors are scored on a part of a cell's runs: the row with most runs has all.
    most_first = table.assign(_count=_runs(table)).sort_values("_count", ascending=False)
    of_cell = [name for name in ("cell_id", "network", "strategy", "geometry") if name in table]
    cells = most_first.drop_duplicates(of_cell[:1] if "cell_id" in table else of_cell).sort_index()
    made = _keys(cells).assign(kind="speed", predictor=None)
    for end, source in _RATES.items():
        made[f"samples_per_s{end}"] = made["batch_size"] / _numbers(cells, source)
    made["step_s"] = _numbers(cells, "measured_step_s")
    both = table[table["predicted_step_s"].notna() & table["measured_step_s"].notna()]
    errors = _keys(both).assign(kind="prediction")
    predicted = _numbers(both, "predicted_step_s")
    for end, source in _RATES.items():
        errors[f"signed_error{end}"] = predicted / _numbers(both, source) - 1
    return [_with_speedups(made), errors]


def _with_speedups(made: pd.DataFrame) -> pd.DataFrame:
    """Speed-ups over the sequential cell of the same network, dataset and batch."""
    keys = ["dataset", "network", "batch_size"]
    base = made[made["strategy"] == BASE].groupby(keys)
    for end, other in (("", ""), ("_low", "_high"), ("_high", "_low")):
        alone = base[f"samples_per_s{other}"].mean().to_dict()
        rates = pd.MultiIndex.from_frame(made[keys]).map(alone)
        made[f"speedup{end}"] = made[f"samples_per_s{end}"] / pd.to_numeric(
            pd.Series(list(rates), index=made.index), errors="coerce"
        )
    return made


def _of_choices(table: pd.DataFrame) -> list[pd.DataFrame]:
    of_two = table[table["kind"].astype(str).str.contains(_OF_TWO)] if "kind" in table else table
    made = _keys(of_two).assign(kind="choice", predictor=of_two["recommender"], strategy=None)
    made["right"] = _numbers(of_two, "correct")
    # A case holds a cell of GPipe: where its partitions take turns, nobody can choose it rightly.
    made["at_once"] = [not _takes_turns(_GPIPE, bed) for bed in of_two["_bed"]]
    return [made]


def _of_ways(table: pd.DataFrame) -> list[pd.DataFrame]:
    made = _keys(table).assign(kind="way", way=table["way"])
    return [made.assign(right=_numbers(table, "right"),
                        device_share=_numbers(table, "device_share"))]  # fmt: skip


def _of_spans(table: pd.DataFrame) -> list[pd.DataFrame]:
    """Ratios of each recorded step.

    All forward passes over all backward passes, from the first to the last; and the median gap
    between two forward passes of a partition over the computation before it.
    """
    spans = table[table.get("row", pd.Series("measured", table.index)) != "planned"]
    keys = ["dataset", "network", "geometry"]
    made = []
    for _, step in spans.groupby(keys, sort=False):
        forward = step[step["kind"] == "forward"].sort_values(["partition", "start_s"])
        backward = step[step["kind"].isin(["backward", "recompute"])]
        if forward.empty or backward.empty:
            continue
        row = _keys(step.head(1)).assign(kind="span", strategy=_GPIPE)
        row["chunks"] = float(forward["micro_batch"].nunique())
        row["at_once"] = not _takes_turns(_GPIPE, str(step["_bed"].iloc[0]))
        row["forward_over_backward"] = _length(forward) / _length(backward)
        gaps = forward["start_s"] - forward.groupby("partition")["end_s"].shift()
        computed = (forward["end_s"] - forward["start_s"])[gaps.notna()]
        row["gap_over_compute"] = median((gaps.dropna() / computed).tolist() or [float("nan")])
        made.append(row)
    return made


def _length(spans: pd.DataFrame) -> float:
    return float(spans["end_s"].max() - spans["start_s"].min())


_KINDS: tuple[tuple[set[str], Callable[[pd.DataFrame], list[pd.DataFrame]]], ...] = (
    ({"predicted_step_s"}, _of_study),
    ({"recommender"}, _of_choices),
    ({"way"}, _of_ways),
    ({"micro_batch"}, _of_spans),
    ({"speedup", "samples_per_s"}, _of_summary),
)


# --- the columns that all kinds share ---------------------------------------------------------


def _keys(table: pd.DataFrame) -> pd.DataFrame:
    """The columns of a configuration, and its number of runs, as far as a table tells them."""
    made = pd.DataFrame(index=table.index)
    for name in ("dataset", "network", "strategy", "predictor", "geometry", "fabric"):
        made[name] = table[name] if name in table.columns else None
    made["bed"], made["device"] = table["_bed"], table["_name"]
    # Emulated devices of one description are the same wherever they are.
    real = made["bed"].isin([CPU, GPU])
    made["site"] = table.get("site", table.get("study", pd.Series("", table.index)))
    made["site"] = made["site"].where(real, made["device"]).fillna("")
    if not {"geometry"} & set(table.columns) and {"nodes", "devices_per_node"} <= set(table):
        made["geometry"] = table["nodes"].astype(str) + "x" + table["devices_per_node"].astype(str)
    sizes = made["geometry"].astype(str).str.extract(r"(\d+)x(\d+)").astype(float)
    made["nodes"], made["devices"] = sizes[0], sizes[0] * sizes[1]
    made["runs"] = _runs(table)
    paths = [name for name in _PATHS if name in table.columns]
    written = [_settings_in(row) for row in zip(*(table[name] for name in paths), strict=True)]
    written = written or [{}] * len(table)
    strategies = made["strategy"].astype(str)
    options = [_options_of(*pair) for pair in zip(strategies, written, strict=True)]
    made["batch_size"] = _numbers(table, "batch_size").fillna(
        pd.to_numeric(
            pd.Series([values.get("batch_size") for values in written], index=table.index)
        )
    )
    made["chunks"] = pd.to_numeric(
        pd.Series([values.pop("chunks", None) for values in options], table.index)
    )
    made["stage_all_reduce"] = [values.pop("stage_all_reduce", None) for values in options]
    made["options"] = [
        " ".join(f"{key}={values[key]}" for key in sorted(values)) for values in options
    ]
    made["precision"] = [values.get("precision", "fp32") for values in written]
    made["micro_batch"] = made["batch_size"] / made["chunks"]
    made = made.assign(**_of_links(table))
    made["at_once"] = _at_once(made)
    made["runtime"] = RUNTIME
    made["base_s"] = _numbers(table, "speedup") / _numbers(table, "samples_per_s")
    made["status"] = _statuses(table)
    return made


def _of_links(table: pd.DataFrame) -> dict[str, pd.Series]:
    rate = _numbers(table, "link_bits_per_s")
    of_devices = [name for name in table.columns if name.startswith("link_inside_")]
    return {
        "latency_ms": _numbers(table, "link_latency_s") * 1e3,
        "bandwidth_mbit_per_s": rate / 1e6,
        "loss_percent": _numbers(table, "link_loss") * 100,
        # Devices that are slower, and have fewer bytes, see a link that is as many times faster.
        "gbit_per_s": rate / 1e9 * table["_slow_down"] * table["_shrink"],
        "inside": (table["_bed"] == GPU) | table[of_devices].notna().any(axis=1),
    }


def _runs(table: pd.DataFrame) -> pd.Series:
    """Runs behind each row: ``n`` of a summary, ``repeats`` of a study; a figure's cell is one."""
    for name in ("n", "repeats"):
        if name in table.columns:
            return _numbers(table, name).fillna(1).clip(lower=1)
    return pd.Series(1.0, index=table.index)


def _at_once(made: pd.DataFrame) -> list[bool]:
    """Whether devices compute at the same time."""
    return [
        not _takes_turns(str(strategy), str(bed))
        for strategy, bed in zip(made["strategy"], made["bed"], strict=True)
    ]


@cache
def _takes_turns(strategy: str, bed: str) -> bool:
    descriptor = _descriptor(strategy)
    return bed == CPU and descriptor is not None and descriptor.takes_turns


@cache
def _descriptor(strategy: str) -> Any:
    """The strategy's class; None of one that is not installed here."""
    return (
        load("ddlbench.strategies", strategy) if strategy in known("ddlbench.strategies") else None
    )


def _settings_in(texts: Iterable[Any]) -> dict[str, str]:
    """``name=value`` pairs of a cell's path, a configuration, a variant, or options."""
    settings: dict[str, str] = {}
    for text in texts:
        pairs = text.items() if isinstance(text, dict) else _PAIR.findall(str(text))
        settings |= {str(name): str(value) for name, value in pairs}
    return settings


def _options_of(strategy: str, settings: Mapping[str, str]) -> dict[str, str]:
    """The options of a cell, with the defaults that its path leaves out."""
    descriptor = _descriptor(strategy)
    if descriptor is None:
        return {}
    declared = {name: str(value) for name, value in descriptor.options.defaults().items()}
    return {**declared, **{name: value for name, value in settings.items() if name in declared}}


def _statuses(table: pd.DataFrame) -> pd.Series:
    known_words = {str(status) for status in Status}
    status = pd.Series("ok", index=table.index)
    for name in ("status", "mark"):
        if name in table.columns:
            statuses = table[name].astype(str)
            status = status.where(~statuses.isin(known_words), statuses)
    return status


def _numbers(table: pd.DataFrame, name: str) -> pd.Series:
    """A column as numbers; what is empty, or no column, is not a number.

    Raises:
        _NotANumber: it holds words.
    """
    if name not in table.columns:
        return pd.Series(float("nan"), index=table.index)
    numbers = pd.to_numeric(table[name], errors="coerce")
    words = table[name].notna() & numbers.isna()
    if words.any():
        line = int(words[words].index[0]) + 2  # after the header
        raise _NotANumber(
            f"line {line}: {shown(table[name][words].iloc[0])} in column {name} is no number; "
            "leave it empty where there is none"
        )
    return numbers


def _measured_gbit_per_s(folder: Path, fabric: str) -> float:
    """The median rate between nodes of a site's links.json; not a number without one."""
    path = folder / "links" / fabric / LINKS_FILE
    if not path.is_file():
        return float("nan")
    rates = list(_rates_between_nodes(read_links(path)))
    return median(rates) * 8 / 1e9 if rates else float("nan")


def _rates_between_nodes(links: Links) -> Iterable[float]:
    """Bytes a second of all pairs of devices on different nodes."""
    for pair in links.pairs:
        for sender, row in zip(pair.nodes, pair.bandwidth_bytes_per_s, strict=True):
            for receiver, rate in zip(pair.nodes, row, strict=True):
                if rate is not None and sender != receiver:
                    yield rate
