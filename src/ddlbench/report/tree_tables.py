"""Tables of trees of results: cells, steps, ranks and links, whatever experiments they are of.

``ddlbench.load`` returns the first; ``ddlbench report export`` hands all to a format. Columns of
results are those of ``measurements.csv``; the other ones are derived from the forms of result.json,
and ``docs/reference/columns.csv`` lists them.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import permutations
from typing import TYPE_CHECKING, Any

from ddlbench.common.errors import ConfigError, printable
from ddlbench.common.form import schema_of
from ddlbench.common.statistics import grouped
from ddlbench.experiment.cell import settings
from ddlbench.experiment.links import PairMatrix, read_links
from ddlbench.experiment.result import DeviceMemory, RankEntry, Result
from ddlbench.report.comparability import NOTE_BREAK
from ddlbench.report.measurements import compare, record_of, steps_table
from ddlbench.report.result_tree import RESULT_FILE, Given, ResultTree, TreeCell, read_tree
from ddlbench.report.tables import (
    CELLS,
    LINKS,
    RANKS,
    TREE_STEPS,
    Column,
    Kind,
    frame_of,
)

if TYPE_CHECKING:
    import pandas as pd

_LOG = logging.getLogger(__name__)
_MOST_PLAN_COLUMNS = 200
_MOST_NAME = 60
_LINK = re.compile(r"\s*\(\[[^\]]*\]\([^)]*\)\)")  # of Markdown, in brackets
_KINDS: dict[str, Kind] = {
    "integer": "integer", "number": "number", "string": "text", "boolean": "flag or unknown",
    "array": "text",
}  # fmt: skip
# Endings of names, longest first, and their units.
_UNITS = {"_bytes_per_s": "B/s", "_per_s": "1/s", "_bytes": "B", "_s": "s", "_j": "J", "_w": "W"}


@dataclass(frozen=True)
class TreeTable:
    """One table: what it is called, its columns and its rows."""

    name: str
    columns: tuple[Column, ...]
    frame: pd.DataFrame


class TreeTables:
    """The tables of some trees, each made when it is first wanted."""

    def __init__(self, tree: ResultTree) -> None:
        self.tree = tree

    @cached_property
    def cells(self) -> TreeTable:
        """One row per cell that has a result or has failed."""
        records = self._records()
        columns = (*CELLS, *setting_columns(), *_own_columns(records))
        return TreeTable("cells", columns, frame_of(records, columns))

    @cached_property
    def steps(self) -> TreeTable:
        cells = (
            (measured.cell, measured.folder, {"results": measured.tree, "site": measured.site})
            for measured in self.tree.cells
            if measured.result is not None
        )
        return TreeTable("steps", TREE_STEPS, steps_table(cells, TREE_STEPS))

    @cached_property
    def ranks(self) -> TreeTable:
        """One row a rank that wrote a report."""
        columns = (*RANKS, *rank_columns())
        records = (record for tree_cell in self.tree.cells for record in _ranks(tree_cell))
        return TreeTable("ranks", columns, frame_of(records, columns))

    @cached_property
    def links(self) -> TreeTable:
        """One row an ordered pair of devices between which a link was measured."""
        return TreeTable("links", LINKS, frame_of(self._links(), LINKS))

    @property
    def all(self) -> tuple[TreeTable, ...]:
        tables = (self.cells, self.steps, self.ranks, self.links)
        return tuple(table for table in tables if len(table.frame))

    def _records(self) -> list[dict[str, Any]]:
        by_site: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
        records = []
        for tree_cell in self.tree.cells:
            record = {
                **record_of(tree_cell.row, tree_cell.folder / RESULT_FILE, tree_cell.outcome),
                **_further(tree_cell),
            }
            by_site.setdefault((tree_cell.tree, tree_cell.site), {})[tree_cell.cell.id] = record
            records.append(record)
        for of_site in by_site.values():
            compare(of_site)
        return records

    def _links(self) -> Iterator[dict[str, Any]]:
        for tree, path in self.tree.links:
            try:
                links = read_links(path)
            except ConfigError as error:
                _LOG.warning("%s", printable(str(error)))
                continue
            of_file = {"results": tree, "site": links.site, "fabric": links.fabric,
                       "device_kind": links.device_kind}  # fmt: skip
            for pairs in links.pairs:
                yield from ({**of_file, **pair} for pair in _pairs(pairs))


def load(results: Given | Iterable[Given]) -> pd.DataFrame:
    """See :func:`ddlbench.load`."""
    return TreeTables(read_tree(results)).cells.frame


@cache
def setting_columns() -> tuple[Column, ...]:
    """Settings of a cell that no other column has, as the form of a cell declares them."""
    taken = {column.name for column in CELLS} | {"batch_per_device"}
    return tuple(_column(name, schema) for name, schema in settings().items() if name not in taken)


@cache
def rank_columns() -> tuple[Column, ...]:
    """Fields of a rank as its form declares them; of several devices the largest number."""
    columns = []
    for name, schema in schema_of(RankEntry)["properties"].items():
        if name != "memory":
            columns.append(_column(name, schema))
            continue
        columns += [_column(f"memory_{part}", inner) for part, inner in _memory_fields().items()]
    return tuple(columns)


@cache
def _memory_fields() -> Mapping[str, Mapping[str, Any]]:
    """Numbers that are known of the memory of a device."""
    properties: dict[str, Any] = schema_of(DeviceMemory)["properties"]
    return {name: schema for name, schema in properties.items() if name != "device"}


def _column(name: str, schema: Mapping[str, Any]) -> Column:
    kinds = schema.get("type", "string")
    kind = kinds if isinstance(kinds, str) else next(each for each in kinds if each != "null")
    meaning = _LINK.sub("", schema.get("description", "")).rstrip(".")
    if not meaning[1:2].isupper():  # as in CPU
        meaning = meaning[:1].lower() + meaning[1:]
    return Column(name, _KINDS[kind], unit_of(name), meaning)


def unit_of(name: str) -> str:
    """The unit that the name of a column ends in; empty without one."""
    return next((unit for ending, unit in _UNITS.items() if name.endswith(ending)), "")


def _further(tree_cell: TreeCell) -> dict[str, Any]:
    """What a row of a tree has beside the columns of ``measurements.csv``."""
    fields = {
        "results": tree_cell.tree,
        "site": tree_cell.site,
        "experiment": NOTE_BREAK.join(tree_cell.experiments),
        "folder": str(tree_cell.folder),
        "devices": tree_cell.cell.devices,
        **{column.name: getattr(tree_cell.cell, column.name) for column in setting_columns()},
        **{f"option_{name}": value for name, value in tree_cell.cell.options},
    }
    return fields if tree_cell.result is None else {**fields, **_of_result(tree_cell.result)}


def _of_result(result: Result) -> dict[str, Any]:
    timing, provenance = result.timing, result.provenance
    fields: dict[str, Any] = {
        "devices": result.devices,
        "elapsed_s": result.elapsed_s,
        "staging_s": None if result.staging is None else result.staging.seconds,
        "mean_power_w": None if result.energy is None else result.energy.mean_power_w,
        "hosts": NOTE_BREAK.join(map(printable, provenance.hosts)),
        "python": provenance.python,
        "slurm_job_id": provenance.slurm_job_id,
        **dict(_plan(result.plan_details)),
    }
    if timing is not None:
        fields |= {
            "steps": timing.step_s.count,
            "step_mean_s": timing.step_s.mean_s,
            "step_p95_s": timing.step_s.p95_s,
            "step_p99_s": timing.step_s.p99_s,
            "step_spread": timing.step_spread,
            "prepare_s": timing.prepare_s,
        }
    return fields


def _plan(details: Mapping[str, Any], prefix: str = "plan_") -> Iterator[tuple[str, Any]]:
    """What a strategy fixed, one column a value; a list is JSON."""
    for key, value in details.items():
        name = f"{prefix}{printable(str(key))[:_MOST_NAME]}"
        if isinstance(value, Mapping) and prefix == "plan_":
            yield from _plan(value, f"{name}_")
        else:
            nested = isinstance(value, Mapping | list | tuple)
            yield name, json.dumps(value) if nested else value


def _own_columns(records: Sequence[Mapping[str, Any]]) -> list[Column]:
    """Columns of the options and plans that the cells have, each of the kind of its values."""
    meanings = {"option_": "option of the strategy, where it is not the default",
             "plan_": "what the strategy fixed when it ran; a list is JSON"}  # fmt: skip
    every = (pair for record in records for pair in record.items())
    values = grouped((name, value) for name, value in every if name.startswith(tuple(meanings)))
    if len(values) > _MOST_PLAN_COLUMNS:
        _LOG.warning(
            "options and plans have %d columns; only the first %d are kept",
            len(values), _MOST_PLAN_COLUMNS,
        )  # fmt: skip
    return [
        Column(name, _kind_of(values[name]), unit_of(name), meanings[f"{name.partition('_')[0]}_"])
        for name in sorted(values)[:_MOST_PLAN_COLUMNS]
    ]


def _kind_of(values: Iterable[Any]) -> Kind:
    kinds = {type(value) for value in values if value is not None}
    if kinds and kinds <= {bool}:
        return "flag or unknown"
    if kinds and kinds <= {int}:
        return "integer"
    return "number" if kinds and kinds <= {int, float} else "text"


def _ranks(tree_cell: TreeCell) -> Iterator[dict[str, Any]]:
    if tree_cell.result is None:
        return
    counted = tree_cell.result.communication
    traffic = {} if counted is None else {entry.rank: entry for entry in counted.ranks}
    for rank in tree_cell.result.ranks:
        values = {
            name: NOTE_BREAK.join(map(str, value)) if isinstance(value, tuple) else value
            for name, value in vars(rank).items()
        }
        for part in _memory_fields():
            numbers = [getattr(device, part) for device in rank.memory]
            measured = [number for number in numbers if number is not None]
            values[f"memory_{part}"] = max(measured, default=None)
        sent = traffic.get(rank.rank)
        yield {
            "results": tree_cell.tree,
            "site": tree_cell.site,
            "cell_id": tree_cell.cell.id,
            "sent_bytes_per_step": None if sent is None else sent.sent_bytes_per_step,
            "received_bytes_per_step": None if sent is None else sent.received_bytes_per_step,
            **values,
        }


def _pairs(pairs: PairMatrix) -> Iterator[dict[str, Any]]:
    same = {
        name: getattr(pairs, name)
        for name in ("scope", "method", "access", "direction", "operation", "node_type", "repeats")
    }
    for sender, receiver in permutations(range(len(pairs.endpoints)), 2):
        bandwidth = pairs.bandwidth_bytes_per_s[sender][receiver]
        latency_s = pairs.latency_s[sender][receiver]
        if bandwidth is None and latency_s is None:
            continue
        yield {
            **same,
            "sender": sender,
            "receiver": receiver,
            "sender_device": pairs.endpoints[sender],
            "receiver_device": pairs.endpoints[receiver],
            "sender_node": pairs.nodes[sender],
            "receiver_node": pairs.nodes[receiver],
            "latency_s": latency_s,
            "bandwidth_bytes_per_s": bandwidth,
        }
