"""``make tables``: every table of the repository that is made from the code.

``python -m ddlbench.commands.tables`` writes them all; a test compares each with the code. A table
is a whole file, or a section of a Markdown page between two marks::

    <!-- table: datasets -->
    ...
    <!-- end of table -->

``config/schemas`` has JSON schemas of the YAML files that users write. An editor with a YAML
language server checks and completes a file whose first line names one::

    # yaml-language-server: $schema=../schemas/site.json

The schemas are those by which the files are read.
"""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from pathlib import Path
from typing import Any

from ddlbench.common.document import csv_text, write_text
from ddlbench.common.form import schema_of
from ddlbench.common.quantities import GB, MB, unit_for
from ddlbench.common.schema import file_schema
from ddlbench.common.statistics import grouped
from ddlbench.experiment.cell import Cell, settings
from ddlbench.experiment.config import ExperimentKeys, PaperKeys, Profiling
from ddlbench.experiment.dataset_spec import DATASETS, OwnDataset
from ddlbench.experiment.registry import NETWORKS, SHIPPED_STRATEGIES
from ddlbench.experiment.result import Result
from ddlbench.experiment.site import site_schema
from ddlbench.planning.strategy import strategy_of
from ddlbench.predict.documents import PredictedCell
from ddlbench.report.cell_states import StatusDocument
from ddlbench.report.tables import (
    CELLS,
    LINKS,
    MEASUREMENTS,
    RANKS,
    STEPS,
    SUMMARY,
    TREE_STEPS,
    VALIDATION,
)
from ddlbench.report.tree_tables import rank_columns, setting_columns

FOLDER = "config/schemas"
_FORMS: Mapping[str, str] = {
    "accelerator": "ddlbench.planning.device_folder:Device",
    "claims": "ddlbench_claims.ledger:Ledger",
    "collectives": "ddlbench.predict.collective_times:Library",
    "fabric": "ddlbench.predict.hardware:Fabric",
    "hardware": "ddlbench.predict.hardware:DeviceSheet",
    "platform": "ddlbench.predict.hardware:Platform",
    "software": "ddlbench.predict.hardware:Software",
    "transformer": "ddlbench.predict.hardware:Accelerators",
}


def _experiment() -> Mapping[str, Any]:
    """The schema of an experiment, which may take its keys from another."""
    schema = _with_paper_keys()
    of_own = {"required": [*file_schema(ExperimentKeys)["required"]]}
    return {**schema, "anyOf": [{"required": ["of"]}, of_own]}


def _with_paper_keys() -> dict[str, Any]:
    forms: tuple[Any, ...] = (ExperimentKeys, PaperKeys)
    properties: dict[str, Any] = {}
    for form in forms:
        properties |= file_schema(form)["properties"]
    return {"type": "object", "properties": properties, "additionalProperties": False}


_OTHERS: Mapping[str, Callable[[], Mapping[str, Any]]] = {
    "experiment": _experiment,
    "paper": lambda: {**_with_paper_keys(), "required": ["paper"]},
    "site": site_schema,
}
SCHEMAS = (*_FORMS, *_OTHERS)
_FOLDERS = {
    "experiments": "experiment", "sites": "site", "accelerators": "accelerator",
    "collectives": "collectives", "fabrics": "fabric", "hardware": "hardware",
    "software": "software", "platforms": "platform", "transformers": "transformer",
    "papers": "paper",
}  # fmt: skip
_FILES = {
    "config.yaml": "experiment", "papers/claims.yaml": "claims",
}  # fmt: skip


def schema_of_file(name: str) -> dict[str, Any]:
    """The schema of that name, as a JSON document of its own."""
    if name in _OTHERS:
        schema = _OTHERS[name]()
    else:
        module, _, form = _FORMS[name].partition(":")
        schema = file_schema(getattr(importlib.import_module(module), form))
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def schema_json(name: str) -> str:
    """The file ``config/schemas/<name>.json``."""
    return json.dumps(schema_of_file(name), indent=1) + "\n"


def schema_name(path: Path) -> str:
    """Name of the schema of a YAML file of ``config``; ``path`` is relative to that folder."""
    return _FILES.get(str(path)) or _FOLDERS[path.parts[0]]


def first_line(path: Path) -> str:
    """What such a file begins with, so that editors know its schema."""
    up = "/".join([".."] * (len(path.parts) - 1) or ["."])
    return f"# yaml-language-server: $schema={up}/schemas/{schema_name(path)}.json\n"


_PLANNING = "src/ddlbench/planning"
_REFERENCE = "docs/reference"
_END = "<!-- end of table -->"
_KEY_FORMS: Mapping[str, Any] = {
    "experiment": ExperimentKeys, "profile": Profiling, "data": OwnDataset,
}  # fmt: skip


@dataclass(frozen=True)
class GeneratedTable:
    """One table and what makes it.

    Args:
        path: its file, from the root of the repository.
        maker: ``module:function`` that returns its text.
        arguments: of that function.
        section: the name in its mark, where it is a part of a page.
    """

    path: str
    maker: str
    arguments: tuple[str, ...] = ()
    section: str = ""

    def text(self, present: str) -> str:
        """Make the whole file anew.

        Args:
            present: what the file holds; only its other sections are kept.

        Raises:
            ValueError: the page lacks the marks of the section.
        """
        module, _, name = self.maker.partition(":")
        make: Callable[..., str] = getattr(importlib.import_module(module), name)
        made = make(*self.arguments)
        if not self.section:
            return made
        begin = f"<!-- table: {self.section} -->"
        pattern = re.compile(f"{re.escape(begin)}\n.*?{re.escape(_END)}", re.DOTALL)
        if not pattern.search(present):
            raise ValueError(f"{self.path} lacks {begin!r} and, below it, {_END!r}")
        return pattern.sub(lambda _: f"{begin}\n{made.strip()}\n{_END}", present)


_HERE = "ddlbench.commands.tables"
TABLES = (
    GeneratedTable(f"{_PLANNING}/layer_table.csv", "ddlbench.networks.operations:table"),
    GeneratedTable(f"{_PLANNING}/split_limits.csv", "ddlbench.strategies.splits.convert:table"),
    GeneratedTable(f"{_PLANNING}/tensor_pairs.csv", "ddlbench.networks.linear_pairs:table"),
    GeneratedTable(
        f"{_PLANNING}/transformer_shapes.csv", "ddlbench.networks.factory:transformer_table"
    ),
    GeneratedTable(f"{_REFERENCE}/columns.csv", f"{_HERE}:columns_csv"),
    GeneratedTable(f"{_REFERENCE}/fields.csv", f"{_HERE}:fields_csv"),
    GeneratedTable(f"{_REFERENCE}/networks.csv", "ddlbench.networks.factory:pairs_table"),
    GeneratedTable(f"{_REFERENCE}/devices.csv", "ddlbench.planning.device_folder:device_tables"),
    GeneratedTable("docs/measurement.md", f"{_HERE}:main_columns", section="columns"),
    GeneratedTable("docs/oracle/oracle.csv", "ddlbench.report.figures.paradl:published_table"),
    GeneratedTable("docs/networks.md", f"{_HERE}:dataset_table", section="datasets"),
    GeneratedTable("docs/papers/figures.csv", "ddlbench.commands.papers:papers_table"),
    GeneratedTable(
        "docs/papers.md", "ddlbench.report.comparison:comparison_markdown", section="comparison"
    ),
    GeneratedTable("docs/papers/comparison.csv", "ddlbench.report.comparison:comparison_csv"),
    *(
        GeneratedTable("config/README.md", f"{_HERE}:keys_table", (form,), section=f"{form} keys")
        for form in _KEY_FORMS
    ),
    *(
        GeneratedTable(f"config/schemas/{name}.json", f"{_HERE}:schema_json", (name,))
        for name in SCHEMAS
    ),
    GeneratedTable("config/README.md", f"{_HERE}:axis_table", section="axes"),
    GeneratedTable("config/README.md", f"{_HERE}:settings_table", section="settings"),
    GeneratedTable("config/README.md", f"{_HERE}:option_table", section="options"),
)


def write_tables(root: Path) -> list[Path]:
    """Make all tables anew below ``root``; returns the files that changed."""
    changed = []
    for table in TABLES:
        path = root / table.path
        present = path.read_text("utf-8") if path.exists() else ""
        made = table.text(present)
        if made != present:
            write_text(path, made)
            changed.append(path)
    return list(dict.fromkeys(changed))


def dataset_table() -> str:
    """One row a built-in dataset, as Markdown; its size is that of all decoded samples."""
    lines = [
        "| dataset | samples (train / val) | classes | sample | native format | decoded |",
        "|---|---:|---:|---|---|---:|",
    ]
    for spec in DATASETS.built_in.values():
        sample = "x".join(map(str, spec.shape))
        size_bytes = (spec.num_train + spec.num_val) * spec.image_bytes
        size = unit_for(size_bytes, (GB, MB)).text(size_bytes, ".0f")
        lines.append(
            f"| `{spec.name}` | {spec.num_train:,} / {spec.num_val:,} | {spec.num_classes} "
            f"| {sample} | `{spec.native_format}` | {size} |"
        )
    return "\n".join(lines)


def axis_table() -> str:
    """The values of the axes of a matrix, as Markdown."""
    datasets = ", ".join(
        f"`{spec.name}`{'' if spec.kind == 'images' else f' ({spec.kind})'}"
        for spec in DATASETS.built_in.values()
    )
    return "\n".join(
        [
            "| axis | values |",
            "|---|---|",
            f"| `dataset` | {datasets} |",
            f"| `network` | {_names(NETWORKS.built_in)}, or `package.module:callable` |",
            f"| `strategy` | {_names(SHIPPED_STRATEGIES)}, or `package.module:Class`. "
            "Keep `sequential`: it is the base of every speed-up |",
            "| `geometry` | `<nodes>x<devices per node>`, for example `1x4` or `2x4` |",
        ]
    )


def settings_table() -> str:
    """One row a setting, as Markdown."""
    rows = _key_rows(settings(), fields(Cell), "none")
    return f"{rows}\n| `options` | options | `{{}}` | options of the strategy |"


def keys_table(name: str) -> str:
    """One row a key of a file, or of a part of one, as Markdown."""
    return _key_rows(
        file_schema(_KEY_FORMS[name])["properties"], fields(_KEY_FORMS[name]), "required"
    )


def _key_rows(
    schemas: Mapping[str, Mapping[str, Any]], declared: Iterable[Field[Any]], without_default: str
) -> str:
    defaults = {field.name: _default(field) for field in declared}
    lines = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for name, schema in schemas.items():
        meaning = schema["description"].rstrip(".")
        if not meaning[1].isupper():  # as in CPU
            meaning = meaning[0].lower() + meaning[1:]
        default = defaults.get(name) or without_default
        lines.append(f"| `{name}` | {_kind(schema)} | {default} | {meaning} |")
    return "\n".join(lines)


def _default(declared: Field[Any]) -> str:
    """A key's default as YAML; empty where a value is required."""
    value = declared.default if declared.default_factory is MISSING else {}
    if value is MISSING or value is None:
        return "" if value is MISSING else "empty"
    text = f"{value:g}" if isinstance(value, float) else json.dumps(value).strip('"')
    return f"`{text}`"


def _kind(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return _names(str(word) for word in schema["enum"] if word is not None)
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    words = [_WORDS[kind] for kind in kinds if kind != "null"]
    words += [word.format(schema[key]) for key, word in _LIMITS.items() if key in schema]
    return ", ".join(words) + (", or empty" if "null" in kinds else "")


_WORDS = {
    "integer": "whole number", "number": "number", "boolean": "true or false", "string": "text",
    "array": "list", "object": "group",
}  # fmt: skip
_LIMITS = {
    "minimum": "from {}",
    "exclusiveMinimum": "over {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "under {}",
}


def option_table() -> str:
    """One row an option, as Markdown; strategies that share an option share the row."""
    rows = grouped(
        ((option, json.dumps(schema["default"]).strip('"'), _meaning(schema)), strategy)
        for strategy in SHIPPED_STRATEGIES
        for option, schema in strategy_of(strategy).options.schemas().items()
    )
    lines = ["| strategy | option | default | meaning |", "|---|---|---|---|"]
    lines += [
        f"| {_names(strategies)} | `{option}` | `{default}` | {meaning} |"
        for (option, default, meaning), strategies in rows.items()
    ]
    without = [name for name in SHIPPED_STRATEGIES if not strategy_of(name).options.defaults()]
    return "\n".join([*lines, "", f"Without options: {_names(without)}."])


def _meaning(schema: Mapping[str, Any]) -> str:
    values = f"; one of {_names(map(str, schema['enum']))}" if "enum" in schema else ""
    tried = schema.get("examples", ())
    tuned = f"; `recommend tune` tries {_names(map(str, tried))}, too" if tried else ""
    return schema["description"].rstrip(".") + values + tuned


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


_COLUMNS_OF = {
    "measurements.csv": MEASUREMENTS, "summary.csv": SUMMARY, "steps.csv": STEPS,
    "validation.csv": VALIDATION,
}  # fmt: skip
_MAIN_COLUMNS = (
    "status", "reason", "epoch_s", "samples_per_s", "step_median_s", "speedup",
    "speedup_normalised", "load_s", "mfu", "sent_bytes", "energy_j", "peak_memory_bytes",
    "accuracy", "noisy", "unsteady", "disturbed", "departure", "stale",
)  # fmt: skip


def main_columns() -> str:
    """The columns that most readers need, as Markdown."""
    known = {column.name: column for column in MEASUREMENTS}
    lines = ["| column | unit | meaning |", "|---|---|---|"]
    for name in _MAIN_COLUMNS:
        column = known[name]
        meaning = column.description.replace("|", r"\|")
        lines.append(f"| `{column.name}` | {column.unit} | {meaning} |")
    return "\n".join(lines)


def columns_csv() -> str:
    """One row a column of every table of an experiment, and of a tree of results."""
    of_trees = {
        "ddlbench.load": (*CELLS, *setting_columns()), "export: steps": TREE_STEPS,
        "export: ranks": (*RANKS, *rank_columns()), "export: links": LINKS,
    }  # fmt: skip
    rows = [
        (file, column.name, column.kind, column.unit, column.description)
        for file, columns in {**_COLUMNS_OF, **of_trees}.items()
        for column in columns
    ]
    return csv_text([("file", "column", "kind", "unit", "meaning"), *rows])


def fields_csv() -> str:
    """One row a field of every file of results in JSON."""
    forms = {
        "result.json": Result, "predictions.json": PredictedCell, "status --json": StatusDocument,
    }  # fmt: skip
    rows = [
        (file, name, kind.replace("`", ""), meaning)
        for file, form in forms.items()
        for name, kind, meaning in fields_of(form)
    ]
    return csv_text([("file", "field", "type", "meaning"), *rows])


def fields_of(form: Any) -> list[tuple[str, str, str]]:
    """Every field of a document with its type and meaning."""
    schema = schema_of(form)
    return list(_walk("", schema, schema.get("$defs", {})))


def _walk(
    prefix: str, schema: dict[str, Any], parts: dict[str, Any]
) -> Iterator[tuple[str, str, str]]:
    for name, entry in schema["properties"].items():
        path, text = f"{prefix}{name}", entry.get("description", "")
        known = next((kind for kind in entry.get("anyOf", []) if kind.get("type") != "null"), entry)
        inner, mark = (known["items"], "[]") if "items" in known else (known, "")
        part = parts.get(str(inner.get("$ref")).rpartition("/")[2], {})
        if text or "properties" not in part:
            yield path, _field_kind(entry, parts), text
        if "properties" in part:
            yield from _walk(f"{path}{mark}.", part, parts)


def _field_kind(entry: dict[str, Any], parts: dict[str, Any]) -> str:
    if "$ref" in entry:
        entry = parts[entry["$ref"].rpartition("/")[2]]
    if "enum" in entry:
        return ", ".join(f"`{value}`" for value in entry["enum"])
    if "const" in entry:
        return f"`{entry['const']}`"
    if "anyOf" in entry:
        return " or ".join(dict.fromkeys(_field_kind(option, parts) for option in entry["anyOf"]))
    kinds = entry.get("type", "any")
    return " or ".join(kinds) if isinstance(kinds, list) else str(kinds)


if __name__ == "__main__":
    for changed in write_tables(Path(sys.argv[1] if len(sys.argv) > 1 else ".")):
        print(f"{changed} is written anew")
