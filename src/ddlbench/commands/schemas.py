"""JSON schemas of the YAML files that users write, in ``config/schemas``.

An editor with a YAML language server checks and completes a file whose first line names one::

    # yaml-language-server: $schema=../schemas/site.json

The schemas are those by which the files are read; ``make tables`` writes them.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ddlbench.common.schema import file_schema
from ddlbench.experiment.config import ExperimentKeys, PaperKeys
from ddlbench.experiment.site import site_schema

FOLDER = "config/schemas"
_FORMS: Mapping[str, str] = {
    "accelerator": "ddlbench.planning.device_folder:Device",
    "claims": "ddlbench_claims.ledger:Ledger",
    "collectives": "ddlbench.predict.collective_times:Library",
    "fabric": "ddlbench.predict.hardware:Fabric",
    "hardware": "ddlbench.predict.hardware:DeviceSheet",
    "platform": "ddlbench.predict.platforms:Platform",
    "software": "ddlbench.predict.hardware:Software",
    "transformer": "ddlbench.predict.platforms:Accelerators",
}


def _experiment() -> Mapping[str, Any]:
    """Of an experiment, which may take its keys of another one."""
    schema = _with_paper_keys()
    of_own = {"required": [*file_schema(ExperimentKeys)["required"]]}
    return {**schema, "anyOf": [{"required": ["of"]}, of_own]}


def _paper() -> Mapping[str, Any]:
    """Of a published figure: an experiment and what `ddlbench papers` says of it."""
    return {**_with_paper_keys(), "required": ["paper"]}


def _with_paper_keys() -> dict[str, Any]:
    forms: tuple[Any, ...] = (ExperimentKeys, PaperKeys)
    properties = {key: value for form in forms for key, value in _properties(form).items()}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _properties(form: Any) -> Mapping[str, Any]:
    properties: Mapping[str, Any] = file_schema(form)["properties"]
    return properties


_OTHERS: Mapping[str, Callable[[], Mapping[str, Any]]] = {
    "experiment": _experiment, "paper": _paper, "site": site_schema,
}  # fmt: skip
NAMES = (*_FORMS, *_OTHERS)
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
