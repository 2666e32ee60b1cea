"""What the report calls configurations, and how they look: labels, marks, colours; no matplotlib.

A cell is input-bound when a fifth of its step is waiting for data. There TensorFlow's profiler says
"highly input-bound" (``op_stats_to_input_pipeline_analysis.cc``,
``kHighlyInfeedBoundThresholdInPercent``). On CUDA the host waits. Its device may compute meanwhile,
so the words are others there.

A strategy has a colour and a marker, which its descriptor declares; a dataset has a shade and a
hatch, a kind of work a colour. Strategies of a family share a hue: data parallel blue, pipeline red
to orange, model green, split purple. What nobody declares is in ``looks.yaml``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pandas as pd

from ddlbench.common.quantities import TIMES, counted, two_digits, unit_for
from ddlbench.common.schema import read_yaml
from ddlbench.common.statistics import grouped
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.status import Status
from ddlbench.planning.labels import dataset_label, network_label
from ddlbench.planning.strategy import known_strategy
from ddlbench.report.tables import rows_of

_DEFAULTS = {
    field.name: field.default for field in fields(Cell) if field.name not in ("options", "repeat")
}


def case_title(case: Mapping[str, Any], *further: str, geometry: bool = True) -> str:
    """The network, dataset and geometry of a case, and what is known of it further."""
    where = [f"{case['nodes']}x{case['devices_per_node']}"] if geometry else []
    named = [network_label(case["network"]), dataset_label(case["dataset"]), *where, *further]
    return ", ".join(named)


def other_settings(case: Mapping[str, Any]) -> list[str]:
    """The settings of a case that are not the defaults, as ``fabric lat10``."""
    settings = case["settings"].items()
    return [setting_label(case, name) for name, value in settings if value != _DEFAULTS.get(name)]


def setting_label(case: Mapping[str, Any], name: str) -> str:
    """A setting of a case, also one at its default: ``precision fp32``."""
    return f"{name} {case['settings'].get(name, _DEFAULTS.get(name))}"


def common_workers(workers: Iterable[int]) -> str:
    """``on 4 workers`` where all have that number; else nothing."""
    counts = set(workers)
    return f"on {counted(int(counts.pop()), 'worker')}" if len(counts) == 1 else ""


def variant_labels(summary: pd.DataFrame, without: Collection[str] = ()) -> pd.Series:
    """Name the variant of each row, as "chunks 8, precision bf16"; empty if there is only one.

    Two cells of one dataset, network, strategy and geometry are variants if an option or another
    field differs. Then its value is written for all rows of the strategy, defaults included. What a
    row ran as, where its strategy's name says another thing, is always written.

    Args:
        summary: rows with ``configuration``.
        without: fields to ignore, as the figure shows them in another way.
    """
    values = [_values(str(row.configuration)) for row in rows_of(summary)]
    groups = grouped(
        ((row.dataset, row.network, row.strategy, row.geometry), place)
        for place, row in enumerate(rows_of(summary))
    )
    differ: dict[str, list[str]] = {}
    for (_, _, strategy, _), places in groups.items():
        known = differ.setdefault(strategy, [])
        for name in dict.fromkeys(key for place in places for key in values[place]):
            if name in without:
                continue
            if len({values[place].get(name) for place in places}) > 1 and name not in known:
                known.append(name)
    texts = [
        ", ".join(
            f"{name} {_readable(values[place].get(name))}" for name in differ[str(row.strategy)]
        )
        for place, row in enumerate(rows_of(summary))
    ]
    if "ran_as" in summary:
        pairs = zip(texts, _ran_as(summary, list(groups.values())), strict=True)
        texts = [", ".join(filter(None, pair)) for pair in pairs]
    return pd.Series(texts, index=summary.index, dtype=object)


def _ran_as(summary: pd.DataFrame, groups: list[list[int]]) -> list[str]:
    """What each row ran as; of a strategy that ran as one thing a network, "64 or 96 samples"."""
    texts = [str(text) for text in summary["ran_as"]]
    strategies = [str(name) for name in summary["strategy"]]
    several = {strategies[group[0]] for group in groups if len({texts[at] for at in group}) > 1}
    either = {
        name: _either([text for of, text in zip(strategies, texts, strict=True) if of == name])
        for name in set(strategies) - several
    }
    return [either.get(of) or text for of, text in zip(strategies, texts, strict=True)]


_FEW_NUMBERS = 2


def _either(texts: list[str]) -> str:
    """``64 or 96 samples an update`` of texts that differ in their number only; else empty.

    A cell that did not run has no text.
    """
    parts = {text.partition(" ") for text in texts if text}
    numbers = sorted({number for number, _, _ in parts if number.isdigit()}, key=int)
    rests = {rest for _, _, rest in parts}
    if len(rests) != 1 or len(numbers) != len(parts):
        return ""
    spread = (
        " or ".join(numbers) if len(numbers) <= _FEW_NUMBERS else f"{numbers[0]} to {numbers[-1]}"
    )
    return f"{spread} {rests.pop()}"


def _values(configuration: str) -> dict[str, Any]:
    cell = Cell.from_id(f"{configuration}/rep0")
    placed = ("dataset", "network", "strategy", "nodes", "devices_per_node")
    values = {name: getattr(cell, name) for name in _DEFAULTS if name not in placed}
    return {**values, **known_strategy(cell.strategy).option_values(cell)}


def _readable(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def span_text(numbers: Iterable[float]) -> str:
    """``3`` of equal numbers, else ``2 to 1,000``: the least and the greatest."""
    known = list(numbers)
    return " to ".join(dict.fromkeys(f"{end:,}" for end in (min(known), max(known))))


OUT_OF_MEMORY = "OOM"


def status_mark(status: str) -> str:
    """The text in place of a number for a cell of this status; empty if it was measured."""
    if status == Status.OK:
        return ""
    return OUT_OF_MEMORY if status == Status.OUT_OF_MEMORY else status


def speedup_mark(row: Any, speedup: float) -> str:
    """The text in place of a row's speed-up; empty if it has one."""
    status = str(row.status)
    if status != Status.OK or math.isfinite(speedup):
        return status_mark(status)
    return mark_without_speedup(str(row.no_speedup))


def mark_without_speedup(code: str, otherwise: str = "no base") -> str:
    """The text in place of a measured cell's speed-up, by the code of why there is none."""
    return code.replace("_", " ") or otherwise


def printed_name(figure: str) -> str:
    """A published figure as one cites it: ``DDLBench, Fig. 4`` of ``ddlbench/fig4``."""
    paper, _, name = figure.partition("/")
    papers = {"ddlbench": "DDLBench", "thesis": "Jansen 2020", "paradl": "ParaDL",
              "networking": "Cheng et al."}  # fmt: skip
    for short, long in (("fig", "Fig. "), ("table", "Table "), ("appendix", "Appendix ")):
        name = name.replace(short, long)
    return f"{papers.get(paper, paper)}, {name}"


INPUT_BOUND_SHARE = 0.2


def input_bound(row: Mapping[Hashable, Any]) -> str:
    """``input-bound: 24 of 44 ms``; empty of a cell that does not wait so long, or is not known.

    Args:
        row: of the measurements or of the summary.
    """
    wait_s, per_s = row["load_step_s"], row["samples_per_s"]
    if row["status"] != Status.OK or pd.isna(wait_s) or pd.isna(per_s) or per_s <= 0:
        return ""
    step_s = float(row["batch_size"]) / float(per_s)
    if wait_s < INPUT_BOUND_SHARE * step_s:
        return ""
    unit = unit_for(step_s, TIMES)
    words = "host waits for data" if "cuda" in str(row["device_kind"]) else "input-bound"
    return f"{words}: {two_digits(unit.of(wait_s))} of {two_digits(unit.of(step_s))} {unit.name}"


@dataclass(frozen=True)
class StrategyLook:
    """Colour and marker of a strategy."""

    colour: str
    marker: str


@dataclass(frozen=True)
class DatasetLook:
    """Share of white and hatch of a dataset."""

    white: float
    hatch: str


@dataclass(frozen=True)
class KindLook:
    """Label, colour and hatch of one kind of work in timelines."""

    label: str
    colour: str
    hatch: str = ""


_DECLARED = read_yaml(Path(__file__).with_name("looks.yaml"))
FAMILIES: dict[str, list[str]] = _DECLARED["families"]
PARAMETERS: dict[Any, Any] = _DECLARED["matplotlib"]
KINDS = {name: KindLook(*look) for name, look in _DECLARED["kinds"].items()}


def strategy_look(name: str) -> StrategyLook:
    """The look that a strategy declares, else one of its family's colours chosen by its name."""
    strategy = known_strategy(name)
    # A subclass does not inherit the look, so that no two strategies look the same.
    attributes = vars(type(strategy))
    if "colour" in attributes and "marker" in attributes:
        return StrategyLook(attributes["colour"], attributes["marker"])
    number = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "big")
    shades = FAMILIES.get(strategy.family, _DECLARED["other_families"])
    markers = _DECLARED["markers"]
    return StrategyLook(shades[number % len(shades)], markers[number % len(markers)])


def dataset_look(name: str) -> DatasetLook:
    """The look of a dataset."""
    if name not in DATASETS:  # of a package that is not here
        return DatasetLook(0.6, "xxxxx")
    if name in DATASETS.declared:
        place = sorted(DATASETS.declared).index(name)
        return _nth("own_datasets", place)
    spec = DATASETS[name]
    return DatasetLook(spec.white, spec.hatch)


def condition_look(place: int) -> DatasetLook:
    """The look of the bars of one of several geometries, by its place among them."""
    return _nth("conditions", place)


def _nth(looks: str, place: int) -> DatasetLook:
    return DatasetLook(*_DECLARED[looks][place % len(_DECLARED[looks])])


def kind_look(name: str) -> KindLook:
    """The look of a kind of work; an unlisted kind is brown and labelled by its name."""
    return KINDS.get(name, KindLook(name.replace("_", " "), "#8C6D31"))
