"""What an experiment file says of cells: schemas of its matrix, conditions and groups of settings.

A field of :class:`ddlbench.experiment.cell.Cell` is the one declaration of a setting. Its schema is
used where a file names it: in ``settings``, as an axis, in a condition, in a cell of ``include``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

from ddlbench.common.form import Count, Form, InFile, schema_of
from ddlbench.experiment.cell import PLACED, Cell, OptionValue
from ddlbench.experiment.fabric import FOLDER_NAME

NAMED = ("dataset", "network", "strategy", "geometry")
"""Axes that every matrix has."""
_Schemas = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class _Point(Form):
    """What an experiment file may say of a cell, besides fields of the cell."""

    dataset: str
    """A dataset: mnist, cifar10, imagenet, highres, cosmoflow, or one of your own."""
    network: str
    """A network by name, or package.module:callable of your own."""
    strategy: str
    """A way to parallelise; include sequential, the base of every speed-up."""
    geometry: str
    """<nodes>x<devices per node>, for example 1x4 or 2x4. The sequential baseline is always 1x1."""
    batch_per_device: Count
    """Samples of one optimiser step for each device that trains; the baseline takes one device's
    share."""
    options: Mapping[str, OptionValue]
    """Options of the strategy, under their own names."""


@cache
def settings() -> _Schemas:
    """The schema of every setting by its name."""
    of_cell = schema_of(Cell)["properties"]
    schemas = {name: schema for name, schema in of_cell.items() if name not in PLACED}
    schemas["fabric"] = FOLDER_NAME | schemas["fabric"]
    for schema in schemas.values():
        schema.pop("default", None)  # a setting that is not written is not one
    return {"batch_size": schemas.pop("batch_size"), **_point("batch_per_device"), **schemas}


@cache
def axes() -> _Schemas:
    """The schema of one value of every axis by its name."""
    return {**_point(*NAMED), **settings()}


def _point(*names: str) -> _Schemas:
    known = schema_of(_Point, inline=True)["properties"]
    return {name: known[name] for name in names}


def _group(keys: _Schemas, required: Iterable[str] = ()) -> dict[str, Any]:
    closed = {"type": "object", "additionalProperties": False}
    return {**closed, "properties": dict(keys), "required": list(required)}


def _matrix() -> Mapping[str, Any]:
    lists = {
        name: {"description": value["description"], "type": "array", "minItems": 1, "items": value}
        for name, value in axes().items()
    }
    return _group(lists, NAMED)


def _condition() -> Mapping[str, Any]:
    texts = {name: {"description": value["description"]} for name, value in axes().items()}
    return {**_group(texts), "minProperties": 1}  # values are checked one by one


Matrix = Annotated[Mapping[str, list[Any]], InFile(_matrix)]
Condition = Annotated[Mapping[str, Any], InFile(_condition)]
Settings = Annotated[Mapping[str, Any], InFile(lambda: _group({**settings(), **_point("options")}))]
WrittenCell = Annotated[
    Mapping[str, Any], InFile(lambda: _group({**axes(), **_point("options")}, NAMED))
]
