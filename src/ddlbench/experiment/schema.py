"""Schema checks whose messages say what is wrong, where, and what to write instead."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator, ValidationError
from jsonschema.exceptions import best_match

from ddlbench.experiment.errors import ConfigError
from ddlbench.experiment.paths import schema_file

__all__ = ["check", "check_against", "fill_defaults", "nearest", "read_yaml"]


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file's mapping.

    Raises:
        ConfigError: the file is missing, is no YAML, or holds no mapping.
    """
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", "cannot be read")
        raise ConfigError(f"{path}{line}: not valid YAML: {problem}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: must hold 'key: value' lines")
    return value


def check(value: Any, schema: Mapping[str, Any], where: str) -> None:
    """Validate ``value``.

    Raises:
        ConfigError: naming the deepest key at fault, as ``where: a.b: what to write``.
    """
    error = best_match(Draft202012Validator(schema).iter_errors(value))
    if error is not None:
        raise ConfigError(f"{where}: {_sentence(error)}")


@cache
def _schema(name: str) -> dict[str, Any]:
    return read_yaml(schema_file(name))


def check_against(name: str, value: Any, where: str) -> None:
    """Validate ``value`` against ``config/schemas/<name>.schema.yaml``."""
    check(value, _schema(name), where)


def fill_defaults(name: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """``value`` with the defaults of its schema where it is silent."""
    return _filled(_schema(name), value)


def nearest(word: object, known: Iterable[str]) -> str:
    """A closing remark: the likely spelling if one is near, else all known words."""
    known = sorted(known)
    close = difflib.get_close_matches(str(word), known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"


def _filled(schema: Mapping[str, Any], value: Mapping[str, Any]) -> dict[str, Any]:
    filled = dict(value)
    for key, sub in schema.get("properties", {}).items():
        if key not in filled and "default" in sub:
            filled[key] = json.loads(json.dumps(sub["default"]))
        if sub.get("type") == "object" and "properties" in sub and key in filled:
            filled[key] = _filled(sub, filled[key])
    return filled


def _sentence(error: ValidationError) -> str:
    place = ".".join(str(part) for part in error.absolute_path)
    at = f"{place}: " if place else ""
    schema: Mapping[str, Any] = error.schema if isinstance(error.schema, Mapping) else {}
    rule, wanted, got = error.validator, error.validator_value, error.instance
    if rule == "additionalProperties":
        known = list(schema.get("properties", {}))
        key = next(k for k in got if k not in known)
        return f"{at}{key!r} is not a key here; {nearest(key, known)}"
    if rule == "required":
        missing = next(k for k in wanted if k not in got)
        return f"{at}{missing!r} is missing; {_about(schema, missing)}"
    if rule == "type":
        kinds = [wanted] if isinstance(wanted, str) else wanted
        return f"{at}{got!r} is not {' or '.join(_KINDS.get(k, k) for k in kinds)}"
    if rule == "enum":
        remark = nearest(got, [str(option) for option in wanted])
        return f"{at}{got!r} is not allowed; {remark}"
    if rule in ("minimum", "exclusiveMinimum"):
        least = "at least" if rule == "minimum" else "more than"
        return f"{at}{got!r} is too small; write {least} {wanted}"
    if rule in ("maximum", "exclusiveMaximum"):
        most = "at most" if rule == "maximum" else "less than"
        return f"{at}{got!r} is too large; write {most} {wanted}"
    if rule in ("minItems", "minProperties"):
        return f"{at}must not be empty"
    about = schema.get("description", "")
    return f"{at}{got!r} does not fit; {about}" if about else f"{at}{error.message}"


def _about(schema: Mapping[str, Any], key: str) -> str:
    about = schema.get("properties", {}).get(key, {}).get("description", "")
    return f"it says: {about}" if about else "please add it"


_KINDS = {
    "integer": "a whole number",
    "number": "a number",
    "string": "a text",
    "boolean": "true or false",
    "array": "a list",
    "object": "a group of 'key: value' lines",
    "null": "empty (null)",
}
