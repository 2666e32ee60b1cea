"""JSON files with a versioned schema: what one stage writes and later stages read.

They are only ever parsed, never unpickled or executed; they are checked when they are written and
again when they are read.
"""

from __future__ import annotations

import json
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from ddlbench.experiment.atomic import write_json

__all__ = ["Document"]


class Document:
    """One kind of file.

    Args:
        schema: name of the schema beside this module, ``<schema>.schema.json``.
        noun: what the file is called in messages ("a readable result").
        error: exception class for a file that is not one.
    """

    def __init__(self, schema: str, noun: str, error: type[Exception]) -> None:
        self._schema, self._noun, self._error = schema, noun, error

    @cached_property
    def _validator(self) -> Draft202012Validator:
        schema = files("ddlbench.experiment").joinpath(f"{self._schema}.schema.json")
        return Draft202012Validator(json.loads(schema.read_text("utf-8")))

    def check(self, value: Any, where: str) -> None:
        """Raise the document's error, naming place and fault, unless ``value`` fits the schema."""
        error = best_match(self._validator.iter_errors(value))
        if error is not None:
            place = ".".join(str(part) for part in error.absolute_path) or "the file"
            raise self._error(f"{where}: {place}: {error.message}")

    def write(self, path: Path, value: dict[str, Any]) -> None:
        """Check and write atomically."""
        self.check(value, str(path))
        write_json(path, value)

    def read(self, path: Path) -> dict[str, Any]:
        """Read and check.

        Raises:
            the document's error: the file is unreadable, truncated, or not what its schema says.
        """
        try:
            value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise self._error(f"{path}: not a readable {self._noun}: {error}") from error
        self.check(value, str(path))
        return value
