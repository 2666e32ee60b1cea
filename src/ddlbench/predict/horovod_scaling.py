"""Steps of a CNN with Horovod on n accelerators, from the submitter's smallest system.

::

    smallest system:  t0 seconds at b0 samples a device      beta = (t0 - c0) / b0
    n devices:        step = c0 + beta b + sigma beta b sqrt(2 ln n) [k > 1]
                             + 2 S (k - 1) / (k phi NIC)

    b      samples a device          c0     start of a step: launch, update, input
    k      nodes                     sigma  spread of a rank's computing
    S      bytes of the gradients    phi    share of the network cards that the sum reaches

A step is as long as its slowest rank; the largest of n normal numbers lies about sqrt(2 ln n)
standard deviations above their mean (Cramer, Mathematical Methods of Statistics, 28.6). The ring
of the gradients' sum sends each byte twice through each node's cards (Patarasuk and Yuan 2009).
The constants are those of ``config/software/horovod.yaml``.

A network is its gradients' bytes and its shipped table (:data:`NETWORKS`): ResNet-50 of MLPerf
Training 0.7 to 3.0 with MXNet, to which the constants were fitted, and CosmoFlow of MLPerf HPC 0.7
to 3.0, to which nothing was. A family is the systems of one network, round, submitter, accelerator
and number of accelerators a node.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ddlbench.common.errors import ConfigError
from ddlbench.predict.constants import Array, Fit, fit
from ddlbench.predict.hardware import Fabric, Software, chip_of
from ddlbench.predict.run_tables import (
    ScoreQuestion,
    check_columns,
    each_kind,
    error_means,
    numbers_of,
    rows_of_kind,
)

_FOLDER = Path(str(files("ddlbench.predict").joinpath("published")))


@dataclass(frozen=True)
class Network:
    """What a prediction needs to know of a network.

    Args:
        gradient_bytes: that a step sums, by round; "" stands for each other round.
        published: its shipped table.
        last_synchronous: accelerators up to which logged epochs are steps.
    """

    gradient_bytes: Mapping[str, int]
    published: Path
    last_synchronous: float = math.inf

    def bytes_of(self, round_name: str) -> int:
        """Bytes of the gradients in a round."""
        return self.gradient_bytes.get(round_name, self.gradient_bytes[""])


RESNET = "resnet"
NETWORKS: Mapping[str, Network] = {
    # He et al. 2016; half precision, as MLPerf's submissions with MXNet send them. The logs of
    # larger systems do not wait for the devices (0.03 s an epoch on 4,216 A100s, whose run takes
    # 0.2 s an epoch).
    RESNET: Network({"": 2 * 25_557_032}, _FOLDER / "mlperf_resnet50.csv", last_synchronous=2048),
    # mlcommons/hpc, cosmoflow/models/cosmoflow.py (after Mathuriya et al. 2018) with cosmo.yaml:
    # five convolutions of 32 to 512 channels, three dense layers. Kernels of 2 in round 0.7, of 3
    # later. Single precision: mixed precision of MXNet and PyTorch keeps it for gradients.
    "cosmoflow": Network(
        {"v0.7": 4 * 5_597_604, "": 4 * 8_907_556}, _FOLDER / "mlperf_hpc_cosmoflow.csv"
    ),
}
"""By the beginning of a benchmark's name in MLPerf's logs; a run without a name is ResNet-50."""
PUBLISHED = NETWORKS[RESNET].published
ALL_REDUCE = ("horovod", "ddp", "mesh tensorflow")
"""Libraries (``process``) that sum the gradients of all devices once a step."""
SOFTWARE = "horovod"
"""Its file in ``config/software``."""
CONSTANTS = ("start_s", "straggler_share", "network_share")
FAMILY = ("model", "round", "submitter", "accelerator", "accelerators_per_node")
NIC = "nic_gb_per_s_a_node"
_NUMBERS = (
    "nodes", "accelerators_per_node", "accelerators", "global_batch", "train_samples",
    "epochs_median", "step_s", "run_s_median", "epochs_share_of_run",
)  # fmt: skip
_NEEDED = ("round", "submitter", "system", "accelerator", *_NUMBERS)
_COUNTS_OF_ONE = ("instances", "accelerators_a_sample")
"""Columns that may be missing: runs of an entry at one time, accelerators that split a sample."""
_SOFT = 0.05
"""Error of a logarithm beyond which errors weigh less: systems of one kind differ by 5 %."""
_PULL = 0.1
"""A constant that is off its prior by its spread weighs as much as an error of 10 %."""
_MANY = 64
_ABSENT = {"start_s": 1e-12, "straggler_share": 1e-12, "network_share": 1e12}
TERMS: Mapping[str, tuple[str, ...]] = {
    "nothing": (),
    "start of a step": ("start_s",),
    "latest rank": ("straggler_share",),
    "sum of the gradients": ("network_share",),
    "all of them (same time a sample)": CONSTANTS,
}
"""Terms that :func:`term_gains` takes out."""

_LABEL = re.compile(r"(storage|management|compute)\s*:", re.IGNORECASE)
_COUNT = re.compile(r"(?<![\w.])(\d+)\s?x(?=\s|\d)")
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*Gb(?:it)?(?:/s(?:ec)?|ps|E)?\b", re.IGNORECASE)
_ALTERNATIVES = re.compile(r"\d\w*\s*/\s*\d")
_BYTES = re.compile(r"\dGB")
_FAST = re.compile(r"\bIB\b|infiniband|[HNE]DR|omni-path", re.IGNORECASE)


def node_bytes_per_s(host_network: str) -> float | None:
    """What the network cards of a node send, read from the free text of a description.

    Cards for storage or management do not count, nor does Ethernet beside InfiniBand.

    Returns:
        bytes per second one way; None where the text has no rate, no number of cards, or leaves a
        choice.
    """
    labelled = _LABEL.split(host_network)
    if len(labelled) > 1:
        parts = dict(zip(map(str.lower, labelled[1::2]), labelled[2::2], strict=True))
        host_network = parts.get("compute", "")
    cards = [card.strip() for card in host_network.split(",") if card.strip()]
    fast = [card for card in cards if _FAST.search(card)]
    rates = [_card_bytes_per_s(card) for card in fast or cards]
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known and len(known) == len(rates) else None


def _card_bytes_per_s(card: str) -> float | None:
    counts, rates = _COUNT.findall(card), _RATE.findall(card)
    if len(counts) != 1 or len(rates) != 1 or _ALTERNATIVES.search(card) or _BYTES.search(card):
        return None
    return int(counts[0]) * float(rates[0]) * 1e9 / 8


@dataclass(frozen=True)
class Scalings:
    """Systems, each with the smallest of its family.

    Args:
        rows: a row a system. ``devices``, ``nodes``, ``batch`` (samples a device),
            ``node_bytes_per_s``; the same of the smallest one with ``base_`` before it, its
            ``base_step_s`` and its ``base_share`` of the run that is in epochs; ``measured_s`` of a
            step; ``by_run``: that is the run's time over its steps.
        left_out: rows that have no prediction, by reason.
    """

    rows: pd.DataFrame
    left_out: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, chosen: Array) -> Scalings:
        """The scalings that are chosen, (n,) of bool."""
        return Scalings(self.rows[chosen].reset_index(drop=True), self.left_out)

    def check_any(self) -> None:
        """Raise ConfigError if no row can be predicted."""
        if not len(self):
            reasons = "; ".join(f"{reason}: {count}" for reason, count in self.left_out.items())
            raise ConfigError(f"no row can be predicted ({reasons})")

    @property
    def measured_s(self) -> Array:
        return self.rows["measured_s"].to_numpy(dtype=float)


def scalings(
    table: pd.DataFrame, where: str = "the table", fabric: Fabric | None = None
) -> Scalings:
    """The systems of a table that are larger than the smallest of their family.

    The smallest one may be a row of a shipped table, and an instance of a weak-scaling entry. Rows
    of other software and of other networks are left out, those whose samples are split over
    accelerators, and those without a step or a rate of their network; each is counted.

    Args:
        table: with the columns of a shipped one. ``model`` may be missing: then it is ResNet-50.
            ``nic_gb_per_s_a_node`` may be missing or empty: then it is the shipped row's of that
            system, or read from ``host_network``.
        where: the table's name.
        fabric: whose rate stands for those of the table.

    Raises:
        ConfigError: a column is missing, or a value is wrong.
    """
    shipped = _shipped()
    given = _checked(table, where)
    given[NIC] = _rates(given, shipped)
    if fabric:
        per_node = given["accelerators_per_node"]
        given[NIC] = fabric.bytes_per_s / 1e9 * (per_node if fabric.per == "device" else 1)
    usable = _usable(given)
    unsized = len(given) - int(_sized(given).sum())
    left_out = Counter(
        {
            "no number of nodes; give `ddlbench oracle read` systems/NAME.json, too": unsized,
            "other software": len(given) - unsized - len(usable),
        }
    )
    smallest = _smallest_systems(pd.concat([usable, _usable(shipped)], ignore_index=True))
    pairs = []
    for row in usable.to_dict("records"):
        base = smallest.get(_family(row))
        reason = _why_not(row, base)
        if reason or base is None:
            left_out[reason or "no step"] += 1
        else:
            pairs.append(_scaling(row, base))
    example = shipped.iloc[0].to_dict()
    names = list(_scaling(example, example))
    return Scalings(pd.DataFrame(pairs, columns=names), {k: n for k, n in left_out.items() if n})


def _shipped() -> pd.DataFrame:
    """The shipped tables of all networks."""
    tables = [
        _checked(pd.read_csv(network.published), network.published.name)
        for network in NETWORKS.values()
    ]
    return pd.concat(tables, ignore_index=True)


def _usable(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["is_all_reduce"] & _sized(table)]


def _sized(table: pd.DataFrame) -> pd.Series[bool]:
    return (table["accelerators"] > 0) & (table["nodes"] > 0)


def _checked(table: pd.DataFrame, where: str) -> pd.DataFrame:
    check_columns(table, _NEEDED, where)
    table = table.copy()
    for name in (*_NUMBERS, NIC, *_COUNTS_OF_ONE):
        if name not in table:
            table[name] = np.nan
        write = "a number of 0 or more, or none"
        numbers = numbers_of(table[name], where, write, lambda n: n >= 0, may_lack=True)
        table[name] = numbers.fillna(1) if name in _COUNTS_OF_ONE else numbers
    table["model"] = [_network_name(name) for name in _texts(table, "model")]
    if "host_network" not in table:
        table["host_network"] = ""
    for name in ("round", "submitter", "system", "accelerator", "host_network"):
        table[name] = table[name].fillna("").astype(str)
    process, framework = (_texts(table, name) for name in ("process", "framework"))
    table["process"] = process.mask(framework.str.contains("mxnet"), "horovod")
    table["is_all_reduce"] = table["process"].isin(ALL_REDUCE)
    return table


def _texts(table: pd.DataFrame, name: str) -> pd.Series[str]:
    """A column in small letters; a missing one is empty."""
    if name not in table:
        return pd.Series("", index=table.index)
    return table[name].fillna("").astype(str).str.strip().str.casefold()


def _network_name(model: str) -> str:
    """The key in :data:`NETWORKS`; the model itself if there is none."""
    return next((name for name in NETWORKS if (model or RESNET).startswith(name)), model)


def _rates(given: pd.DataFrame, shipped: pd.DataFrame) -> pd.Series[float]:
    """GB/s of a node: the row's, else the shipped one's of that system, else of the text."""
    keys = ["model", "round", "submitter", "system"]
    known = shipped.set_index(keys)[NIC].to_dict()
    filled = []
    for row in given[[*keys, NIC, "host_network"]].itertuples(index=False):
        *system, rate, text = row
        if not rate > 0:
            rate = known.get(tuple(system), np.nan)
        if not rate > 0:
            rate = (node_bytes_per_s(text) or np.nan) / 1e9
        filled.append(rate)
    return pd.Series(filled, index=given.index, dtype=float)


def _family(row: Mapping[Any, Any]) -> tuple[Any, ...]:
    return tuple(str(row[name]).casefold() for name in FAMILY)


def _smallest_systems(table: pd.DataFrame) -> dict[tuple[Any, ...], dict[Any, Any]]:
    """The smallest timed system of each family; of equally large ones the fastest."""
    whole = table[(table["step_s"] > 0) & ~(table["accelerators_a_sample"] > 1)]
    timed = whole.sort_values(["accelerators", "step_s"], kind="stable")
    smallest: dict[tuple[Any, ...], dict[Any, Any]] = {}
    for row in timed.to_dict("records"):
        smallest.setdefault(_family(row), row)
    return smallest


def _why_not(row: Mapping[Any, Any], base: Mapping[Any, Any] | None) -> str:
    """Why a row has no prediction; empty if it has one."""
    if row["model"] not in NETWORKS:
        return f"{row['model']}: no known network, which are {', '.join(NETWORKS)}"
    if row["accelerators_a_sample"] > 1:
        return "samples that are split over accelerators"
    if base is None:
        return "no timed system of the family"
    reasons = {
        "the smallest system of its family, which predictions begin with": (
            not row["accelerators"] > base["accelerators"]
        ),
        "no step, and no run time above 2,048 accelerators": not _measured_s(row) > 0,
        f"host_network gives no clear rate; fill {NIC}": (
            not row[NIC] > 0 or (base["nodes"] > 1 and not base[NIC] > 0)
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _by_run(row: Mapping[Any, Any]) -> bool:
    return bool(row["accelerators"] > NETWORKS[row["model"]].last_synchronous)


def _measured_s(row: Mapping[Any, Any]) -> float:
    if not _by_run(row):
        return float(row["step_s"])
    steps = row["epochs_median"] * row["train_samples"] / row["global_batch"]
    return float(row["run_s_median"] / steps)


def _scaling(row: Mapping[Any, Any], base: Mapping[Any, Any]) -> dict[str, Any]:
    share = base["epochs_share_of_run"]
    return {
        **{name: row[name] for name in (*FAMILY, "system", "process")},
        "gradient_bytes": NETWORKS[row["model"]].bytes_of(row["round"]),
        "devices": row["accelerators"],
        "nodes": row["nodes"],
        "batch": row["global_batch"] / row["accelerators"],
        "node_bytes_per_s": 1e9 * row[NIC],
        "base_devices": base["accelerators"],
        "base_nodes": base["nodes"],
        "base_instances": base["instances"],
        "base_batch": base["global_batch"] / base["accelerators"],
        "base_node_bytes_per_s": 1e9 * base[NIC],
        "base_step_s": base["step_s"],
        "base_share": min(1.0, share) if share > 0 else 1.0,
        "measured_s": _measured_s(row),
        "by_run": _by_run(row),
    }


def step_seconds(of: Scalings, software: Software) -> Array:
    """Predicted seconds of a step, (n,).

    Where a run's time was measured, seconds of a run over its steps: the smallest system's share of
    evaluation is added.
    """
    rows = of.rows
    start_s, spread, share = (software.constant(name) for name in CONSTANTS)
    base_late = 1 + spread * _lateness(rows["base_devices"], rows["base_nodes"])
    ring_bytes = 2 * rows["gradient_bytes"] / share
    base_ring_s = ring_bytes / rows["base_node_bytes_per_s"]
    base_rest_s = start_s + _sum_s(rows["base_nodes"], base_ring_s)
    # Of a step that is shorter than its start, a tenth computes.
    compute_s = np.maximum(rows["base_step_s"] - base_rest_s, 0.1 * rows["base_step_s"])
    sample_s = compute_s / (rows["base_batch"] * base_late)
    late = 1 + spread * _lateness(rows["devices"], rows["nodes"])
    summed_s = _sum_s(rows["nodes"], ring_bytes / rows["node_bytes_per_s"])
    step_s = start_s + sample_s * rows["batch"] * late + summed_s
    return np.asarray(step_s / np.where(rows["by_run"], rows["base_share"], 1.0), dtype=float)


def _lateness(devices: pd.Series[float], nodes: pd.Series[float]) -> Array:
    """Standard deviations by which the latest rank is late; ranks of one node wait in step."""
    return np.where(nodes > 1, np.sqrt(2 * np.log(np.maximum(devices, 1))), 0.0)


def _sum_s(nodes: pd.Series[float], ring_s: pd.Series[float]) -> Array:
    """Seconds of the gradients' sum between nodes; ``ring_s`` is that of a ring without end.

    The sum inside a node is part of the start.
    """
    return np.where(nodes > 1, ring_s * (nodes - 1) / nodes, 0.0)


def fit_scaling(of: Scalings, software: Software, without: Sequence[str] = ()) -> Fit:
    """Fit the constants to steps that epochs tell.

    Args:
        of: systems.
        software: with priors.
        without: constants whose terms are left out.

    Raises:
        ConfigError: there are fewer of them than constants.
    """
    timed = of.take(~of.rows["by_run"].to_numpy(dtype=bool))
    priors = software.with_priors(CONSTANTS)
    return fit(
        _without(priors, without),
        lambda constants: step_seconds(timed, constants),
        timed.measured_s,
        soft=_SOFT,
        pull=_PULL,
        names=[name for name in CONSTANTS if name not in without],
    )


def _without(software: Software, names: Sequence[str]) -> Software:
    return software.with_constants({name: _ABSENT[name] for name in names})


def term_gains(table: pd.DataFrame, question: ScoreQuestion) -> Iterator[dict[str, Any]]:
    """Errors without each term, fitted again; "none" of the question counts as "submitter".

    Yields:
        ``term``, and the mean and median error of all steps and of those on several nodes.
    """
    everything = _scalings_of(table, question)
    software = Software.load(question.software or SOFTWARE)
    hold_out = "submitter" if question.hold_out == "none" else question.hold_out
    for term, without in TERMS.items():
        predicted_s = _held_out(everything, everything, software, hold_out, without)
        errors = np.abs(predicted_s / everything.measured_s - 1)
        many = everything.rows["devices"].to_numpy() >= _MANY
        values = {"all": error_means(errors)} | (
            {"many": error_means(errors[many])} if many.any() else {}
        )
        yield {"term": term, **values}


def _scalings_of(table: pd.DataFrame, question: ScoreQuestion) -> Scalings:
    """The systems of a question's table.

    Raises:
        ConfigError: it names a device, or a value is wrong.
    """
    if question.device:
        raise ConfigError(
            "--hardware has no effect on MLPerf's runs, as their predictions begin with each "
            "submitter's smallest system; leave it out"
        )
    fabric = Fabric.load(question.fabric) if question.fabric else None
    return scalings(table, question.where, fabric)


def score(table: pd.DataFrame, question: ScoreQuestion) -> dict[str, Any]:
    """Score a table of MLPerf's runs, as :mod:`ddlbench.predict.run_tables` says.

    What is held out is left out of the shipped rows of the same networks, too: a submitter, a
    number of accelerators, a kind of accelerator, or ("model") a family.

    Raises:
        ConfigError: a value of the table or of the question is wrong, or no row can be predicted.
    """
    if table.empty:
        raise ConfigError(f"{question.where} has no row; write at least one run")
    everything = _scalings_of(table, question)
    everything.check_any()
    rows = everything.rows
    chosen = everything.take(rows_of_kind(question.kind, _filters(rows), len(rows)))
    software = Software.load(question.software or SOFTWARE)
    predicted_s = _held_out(chosen, everything, software, question.hold_out)
    errors = np.abs(predicted_s / chosen.measured_s - 1)
    return {
        "rows": len(chosen),
        **error_means(errors),
        "fit": None,
        "choice": None,
        "by": _by(chosen.rows, errors),
        "left_out": dict(everything.left_out),
    }


def together(tables: Sequence[Scalings]) -> Scalings:
    """Several tables of systems as one, each system once."""
    rows = pd.concat([each.rows for each in tables], ignore_index=True)
    left_out: Counter[str] = sum((Counter(each.left_out) for each in tables), Counter())
    rows = rows.drop_duplicates([*FAMILY, "system", "devices"], ignore_index=True)
    return Scalings(rows, left_out)


def _held_out(
    chosen: Scalings,
    given: Scalings,
    software: Software,
    hold_out: str,
    without: Sequence[str] = (),
) -> Array:
    if hold_out == "none":
        return step_seconds(chosen, software)
    names = dict.fromkeys(chosen.rows["model"])
    known = [scalings(pd.read_csv(NETWORKS[name].published)) for name in names]
    fitted = together([*known, given])
    kinds, fitted_kinds = _kinds(chosen.rows, hold_out), _kinds(fitted.rows, hold_out)
    predicted_s = np.empty(len(chosen))
    left = set(CONSTANTS) - set(without)
    for those, others in each_kind(kinds, fitted_kinds, hold_out):
        fits = [fit_scaling(fitted.take(others), software, without)] if left else []
        fitted_to = _without(software.fitted_to(*fits), without)
        predicted_s[those] = step_seconds(chosen.take(those), fitted_to)
    return predicted_s


def _kinds(rows: pd.DataFrame, hold_out: str) -> Array:
    match hold_out:
        case "submitter":
            kinds = rows["submitter"].str.casefold()
        case "gpus":
            kinds = rows["devices"].astype(int).astype(str)
        case "device":
            kinds = _chips(rows["accelerator"])
        case _:
            kinds = _families(rows).str.casefold()
    return np.asarray(kinds, dtype=object).astype(str)


def _families(rows: pd.DataFrame) -> pd.Series[str]:
    """Names of families, as ``cosmoflow v1.0 NVIDIA, 8 x A100``."""
    each = rows["accelerators_per_node"].astype(int).astype(str)
    named = rows[["model", "round", "submitter"]].agg(" ".join, axis=1)
    return named + ", " + each + " x " + rows["accelerator"]


def _chips(names: pd.Series[str]) -> pd.Series[str]:
    """The chip of each accelerator."""
    return names.map({name: chip_of(name) for name in names.unique()})


def _filters(rows: pd.DataFrame) -> dict[str, Array]:
    """Columns that ``--kind`` may name."""
    names = ("model", "accelerator", "round", "submitter", "process")
    columns = {name: rows[name].to_numpy() for name in names}
    return columns | {"gpus": rows["devices"].to_numpy(), "nodes": rows["nodes"].to_numpy()}


def _by(rows: pd.DataFrame, errors: Array) -> dict[str, dict[str, Any]]:
    timing = np.where(rows["by_run"], "run time", "logged epochs")
    alone = np.where(rows["base_instances"] > 1, "one of several instances", "a system alone")
    columns: dict[str, Any] = {
        "submitter": rows["submitter"],
        "family": _families(rows),
        "software": rows["process"],
        "accelerator": _chips(rows["accelerator"]),
        "devices": rows["devices"].astype(int),
        "round": rows["round"],
        "timing": timing,
        "from": alone,
    }
    return {
        name: {
            str(value): {"rows": int((of == value).sum()), **error_means(errors[of == value])}
            for value in dict.fromkeys(of)
        }
        for name, of in columns.items()
    }
