"""Generates ``docs/results.md`` from the columns of the tables and the schema of result.json."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ddlbench.common.form import schema_of
from ddlbench.common.schema import read_yaml
from ddlbench.experiment.result import Result
from ddlbench.experiment.status import REASON_CODES
from ddlbench.predict.documents import PredictedCell
from ddlbench.report.columns import MEASUREMENTS, STEPS, SUMMARY, VALIDATION, Column


def results_page() -> str:
    """The whole page in Markdown; its prose is in ``results_page.yaml``."""
    text = read_yaml(Path(__file__).with_suffix(".yaml"))
    parts = [
        text["introduction"],
        _table("measurements.csv: one row a cell of the matrix", MEASUREMENTS),
        _table("summary.csv: one row a cell configuration, over its repeats", SUMMARY),
        _table("steps.csv: one row a step of every cell", STEPS),
        _table("validation.csv: one row an epoch of every cell with `validate`", VALIDATION),
        "## result.json\n\n| field | type | meaning |\n|---|---|---|\n"
        + "".join(
            f"| `{name}` | {kind} | {meaning} |\n" for name, kind, meaning in schema_fields()
        ),
        text["reason_codes"]
        + "".join(f"| `{code}` | {meaning} |\n" for code, meaning in REASON_CODES.items()),
        text["partitions"],
        text["predictions"]
        + "".join(
            f"| `{name}` | {kind} | {meaning} |\n" for name, kind, meaning in _predicted_fields()
        ),
    ]
    return "\n".join(parts)


def schema_fields() -> list[tuple[str, str, str]]:
    """List every field of result.json with its type and meaning."""
    schema = schema_of(Result)
    return list(_walk("", schema, schema["$defs"]))


def _predicted_fields() -> list[tuple[str, str, str]]:
    schema = schema_of(PredictedCell)
    return list(_walk("", schema, {}))


def _table(title: str, columns: Sequence[Column]) -> str:
    meanings = [column.description.replace("|", r"\|") for column in columns]
    lines = [
        f"| `{column.name}` | {column.kind} | {column.unit} | {meaning} |\n"
        for column, meaning in zip(columns, meanings, strict=True)
    ]
    return f"## {title}\n\n| column | kind | unit | meaning |\n|---|---|---|---|\n{''.join(lines)}"


def _walk(
    prefix: str, schema: dict[str, Any], parts: dict[str, Any]
) -> Iterator[tuple[str, str, str]]:
    for name, entry in schema["properties"].items():
        path, text = f"{prefix}{name}", entry.get("description", "")
        known = next((one for one in entry.get("anyOf", []) if one.get("type") != "null"), entry)
        inner, mark = (known["items"], "[]") if "items" in known else (known, "")
        part = parts.get(str(inner.get("$ref")).rpartition("/")[2], {})
        if text or "properties" not in part:
            yield path, _kind(entry, parts), text
        if "properties" in part:
            yield from _walk(f"{path}{mark}.", part, parts)


def _kind(entry: dict[str, Any], parts: dict[str, Any]) -> str:
    if "$ref" in entry:
        entry = parts[entry["$ref"].rpartition("/")[2]]
    if "enum" in entry:
        return ", ".join(f"`{value}`" for value in entry["enum"])
    if "const" in entry:
        return f"`{entry['const']}`"
    if "anyOf" in entry:
        return " or ".join(dict.fromkeys(_kind(option, parts) for option in entry["anyOf"]))
    kinds = entry.get("type", "any")
    return " or ".join(kinds) if isinstance(kinds, list) else str(kinds)
