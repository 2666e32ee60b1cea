"""The settings of an experiment file: the fields of a cell that have no place of their own.

A field of :class:`ddlbench.experiment.cell.Cell` is the one declaration of a setting. Its schema is
used where a file names it: in ``settings``, as an axis, in a condition, in a cell of ``include``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from ddlbench.common.form import schema_of
from ddlbench.experiment.cell import PLACED, Cell
from ddlbench.experiment.fabric import FOLDER_NAME

_PER_DEVICE = {
    "type": "integer",
    "minimum": 1,
    "description": "Samples of one optimiser step for each device that trains; the baseline takes "
    "one device's share.",
}


@cache
def settings() -> Mapping[str, Mapping[str, Any]]:
    """The schema of every setting by its name."""
    of_cell = schema_of(Cell)["properties"]
    schemas = {name: schema for name, schema in of_cell.items() if name not in PLACED}
    schemas["fabric"] = FOLDER_NAME | schemas["fabric"]
    for schema in schemas.values():
        schema.pop("default", None)  # a setting that is not written is not one
    first, *others = schemas
    return {first: schemas[first], "batch_per_device": _PER_DEVICE} | {
        n: schemas[n] for n in others
    }


def with_settings(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of an experiment file, and of every setting wherever one may stand."""
    each = settings()
    groups, places = schema["$defs"], schema["properties"]
    axes = {name: {"type": "array", "minItems": 1, "items": one} for name, one in each.items()}
    written = groups["settings"] | {"properties": groups["settings"]["properties"] | each}
    matrix = places["matrix"] | {"properties": places["matrix"]["properties"] | axes}
    selected = [*matrix["properties"]]
    selector = groups["selector"] | {"propertyNames": {"enum": selected}}
    entry = places["include"]["items"]
    entry = entry | {"properties": entry["properties"] | each}
    return {
        **schema,
        "properties": places | {"matrix": matrix, "include": places["include"] | {"items": entry}},
        "$defs": groups | {"settings": written, "selector": selector},
    }
