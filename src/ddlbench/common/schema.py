"""Validates YAML by schemas; messages say what is wrong, where, and what to write instead."""

from __future__ import annotations

import difflib
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ddlbench.common.document import check_keys, parse_yaml
from ddlbench.common.errors import ConfigError, placed, shown
from ddlbench.common.form import Form, read_form, schema_of
from ddlbench.common.quantities import in_unit_of

if TYPE_CHECKING:
    from jsonschema import ValidationError


_Form = TypeVar("_Form", bound=Form)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML file's mapping.

    Raises:
        ConfigError: the file is missing, is no YAML, or holds no mapping; a key is written twice.
    """
    try:
        value = parse_yaml(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is no text in UTF-8; save it as UTF-8") from None
    if not isinstance(value, dict):
        kind = "a list" if isinstance(value, list) else "empty" if value is None else "one value"
        raise ConfigError(f"{path} is {kind}; write 'key: value' lines")
    return value


def check(value: Any, schema: Mapping[str, Any], where: str) -> None:
    """Validate ``value``.

    Raises:
        ConfigError: names one wrong key, as ``where: a.b: what is wrong; what to write``.
    """
    from jsonschema.exceptions import best_match  # noqa: PLC0415 - takes its time

    check_keys(value, where)
    error = best_match(_validator()(schema).iter_errors(value), key=_relevance)
    if error is not None:
        error.schema = _described(error, schema)
        raise ConfigError(f"{where}: {_sentence(error)}")


@cache
def file_schema(form: Any) -> Mapping[str, Any]:
    """The JSON schema of a file of the user that a dataclass declares."""
    return schema_of(form, inline=True)


def read_checked(form: type[_Form], values: Mapping[str, Any], where: str) -> _Form:
    """The dataclass of a file's values.

    Raises:
        ConfigError: as :func:`check`.
    """
    kind: Any = form  # a class has a hash, which mypy does not know of dataclasses
    check(values, file_schema(kind), where)
    return read_form(form, values, checked=True)


def nearest(word: object, known: Iterable[str]) -> str:
    """The end of a message: the likely spelling if one is near, else the known words.

    Names that differ from it in digits only are all offered.
    Of very many words only the first are told, so that the message stays a sentence.
    """
    known, are, small = sorted(known), "known", str(word)[:_LONGEST_WORD].lower()
    close = [name for name in known if name.lower() == small][:1]
    longer = [name for name in known if small and name.lower().startswith(small)]
    longer += [name for name in known if small and name.lower().endswith(f"/{small}")]
    if not close and len(longer) <= _MOST_NEAR:
        close = longer
    if not close:
        near = _NEAR_SHORT if len(small) <= _SHORT_WORD else _NEAR
        close = difflib.get_close_matches(str(word)[:_LONGEST_WORD], known, n=1, cutoff=near)
        alike = [name for name in known if _without_digits(name) == _without_digits(small)]
        if set(close) & set(alike):  # one is no nearer than another: lat10 and lat100 to lat20
            close = alike if len(alike) <= _MOST_NEAR else []
            known, are = alike, "similar"
    if close:
        return f"did you mean {_either([repr(name) for name in close])}?"
    shown_words = [
        word for at, word in enumerate(known) if len(", ".join(known[:at])) < _LONGEST_LIST
    ]
    more = f" and {len(known) - len(shown_words)} more" if len(shown_words) < len(known) else ""
    return f"{are}: {', '.join(shown_words)}{more}" if known else "there are none"


def _without_digits(word: str) -> str:
    return re.sub(r"\d+", "0", word.lower())


def _is_integer(_: object, value: object) -> bool:
    """JSON schema accepts 2.0 as an integer; we do not, as paths need 2."""
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(_: object, value: object) -> bool:
    """No setting may be .nan or .inf, which YAML allows."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= _LARGEST_NUMBER


@cache
def _validator() -> Any:
    from jsonschema import Draft202012Validator  # noqa: PLC0415 - takes its time
    from jsonschema.validators import extend  # noqa: PLC0415

    checker = Draft202012Validator.TYPE_CHECKER
    types = checker.redefine_many({"integer": _is_integer, "number": _is_number})
    return extend(Draft202012Validator, {"pattern": _pattern}, type_checker=types)


def _pattern(_: object, pattern: str, value: object, schema: object) -> Iterator[ValidationError]:
    """As JSON schema has it, where ``$`` is the end; Python's also matches before a line break."""
    from jsonschema import ValidationError  # noqa: PLC0415 - takes its time

    if isinstance(value, str) and not re.search(re.sub(r"\$$", r"\\Z", pattern), value):
        yield ValidationError(f"{shown(value)} does not match {pattern!r}")


def _relevance(error: ValidationError) -> Any:
    """Prefer outer keys, and a misspelt key over the required key that is missing for it."""
    from jsonschema.exceptions import relevance  # noqa: PLC0415 - takes its time

    return -len(error.path), error.validator == "additionalProperties", relevance(error)


def _described(error: ValidationError, schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema that a value does not fit, with the text of the nearest key around it."""
    text: dict[str, Any] = {}
    inner: Any = schema
    for part in error.absolute_schema_path:
        if isinstance(inner, Mapping):
            if isinstance(inner.get("description"), str):
                text = {"description": inner["description"]}
            inner = inner.get(part)
        else:
            inner = inner[int(part)] if isinstance(inner, list) else None
    return {**text, **_schema_of(error)}


def _sentence(error: ValidationError) -> str:
    place = ".".join(str(part)[:_LONGEST_WORD] for part in error.absolute_path)
    write = _SENTENCES.get(str(error.validator), _other)
    return placed(place, write(error)) if place else write(error)


def _unknown_key(error: ValidationError) -> str:
    known = list(_schema_of(error).get("properties", {}))
    key = next(key for key in _instance(error) if key not in known)
    instead = _OTHER_WORDS.get(str(key).lower()) if "learning_rate" in known else None
    remark = instead or nearest(key, known)
    return f"{shown(key)} is not a key here; {remark}"


def _missing_key(error: ValidationError) -> str:
    key = next(key for key in _rule(error) if key not in _instance(error))
    described = _description(_schema_of(error).get("properties", {}).get(key, {}))
    return f"{key!r} is missing; add it{described}"


def _wrong_type(error: ValidationError) -> str:
    kinds = [_rule(error)] if isinstance(_rule(error), str) else list(_rule(error))
    value = _instance(error)
    described = _description(_schema_of(error))
    if value is None:
        return f"is empty; write {_kinds(kinds)}, or leave the key out{described}"
    in_list = bool(error.absolute_path) and isinstance(error.absolute_path[-1], int)
    spelling = _spelling(kinds, value, _key(error), in_list=in_list)
    return f"{shown(value)} is not {_kinds(kinds)}{spelling}{described}"


def _no_choice(error: ValidationError) -> str:
    options = [str(option) for option in _rule(error) if option is not None]
    few = len(options) <= _FEW
    remark = f"write {_either(options)}" if few else nearest(_instance(error), options)
    return f"{shown(_instance(error))} is not allowed; {remark}"


def _out_of_range(error: ValidationError) -> str:
    words = _LIMITS[str(error.validator)]
    return f"{shown(_instance(error))} is {words} {_rule(error)}{_description(_schema_of(error))}"


def _too_long(error: ValidationError) -> str:
    count = len(_instance(error))
    return f"a text of {count} characters is too long; write at most {_rule(error)}"


def _wrong_length(error: ValidationError) -> str:
    few, described = str(error.validator).startswith("min"), _description(_schema_of(error))
    if few and _rule(error) == 1:
        remark = "" if _instance(error) == "" else "; write at least one value"
        return f"must not be empty{remark}{described}"
    amount = f"too {'few' if few else 'many'} values; write {_rule(error)}"
    return f"{shown(_instance(error))} has {amount}{described}"


def _other(error: ValidationError) -> str:
    rule = _description(_schema_of(error)) or f": {error.message.splitlines()[0][:_LONGEST_RULE]}"
    return f"{shown(_instance(error))} does not fit{rule}"


_LIMITS = {
    "minimum": "too small; write at least",
    "exclusiveMinimum": "too small; write more than",
    "maximum": "too large; write at most",
    "exclusiveMaximum": "too large; write less than",
}
_SENTENCES: dict[str, Callable[[ValidationError], str]] = {
    "additionalProperties": _unknown_key,
    "required": _missing_key,
    "type": _wrong_type,
    "enum": _no_choice,
    **dict.fromkeys(_LIMITS, _out_of_range),
    "maxLength": _too_long,
    **dict.fromkeys(("minItems", "minProperties", "minLength", "maxItems"), _wrong_length),
}


# jsonschema types these three loosely, as they are unset until an error is raised.
def _schema_of(error: ValidationError) -> Mapping[str, Any]:
    return error.schema if isinstance(error.schema, Mapping) else {}


def _rule(error: ValidationError) -> Any:
    return error.validator_value


def _instance(error: ValidationError) -> Any:
    return error.instance


def _description(schema: Mapping[str, Any]) -> str:
    """The first sentence of what a key means, in brackets."""
    first, _, _ = _LINK.sub("", schema.get("description", "")).partition(". ")
    return f" ({first.rstrip('.')})" if first else ""


def _kinds(kinds: Sequence[str]) -> str:
    return _either([_KINDS[kind] for kind in kinds if kind != "integer" or "number" not in kinds])


def _either(words: Sequence[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _key(error: ValidationError) -> str:
    """The name of the value; of a value in a mapping by name, that of the mapping."""
    names = [str(name) for name in error.absolute_path if isinstance(name, str)]
    return next((name for name in reversed(names) if "_" in name), "")


def _spelling(kinds: Sequence[str], value: object, key: str, *, in_list: bool) -> str:
    """Guess what the user meant where YAML read the value as another type.

    A number in a list of texts, as a geometry, lacks more than quotes.
    """
    numeric = {"integer", "number"} & set(kinds)
    if "string" in kinds and isinstance(value, bool):
        return ", as YAML reads on, off, yes and no; write it in quotes"
    if "string" in kinds and isinstance(value, int | float) and not in_list:
        return "; write it in quotes"
    if "array" in kinds and not numeric and isinstance(value, str | int | float):
        return f"; write [{str(value)[:_LONGEST_WORD]}]"
    number = _number(value, key) if numeric and isinstance(value, str | float) else None
    if number is not None and number.is_integer() and abs(number) < _LARGEST_WRITTEN:
        return f"; write {number:.0f}"
    if number is not None and "number" in kinds and math.isfinite(number):
        return f"; write {_yaml_number(number)}"
    return ""


def _number(value: str | float, key: str) -> float | None:
    """The number that a text holds, with or without a unit."""
    try:
        return float(value)
    except ValueError:
        return in_unit_of(key, str(value))


def _yaml_number(number: float) -> str:
    """A number as YAML reads it: ``1e-05`` without a point is a text."""
    mantissa, mark, exponent = repr(number).partition("e")
    return f"{mantissa}.0e{exponent}" if mark and "." not in mantissa else repr(number)


_ACCUMULATE = "write it as an option of each strategy, strategies: {ddp: {accumulate: 4}}"
# Settings that other tools have, and what to say of them where ours stand.
_OTHER_WORDS = {
    "lr": "write learning_rate",
    "optimiser": "write optimizer",
    "adam": "write optimizer: adamw",
    "adamw": "write optimizer: adamw",
    "loss": "the loss is always cross-entropy; leave it out",
    "gradient_accumulation": _ACCUMULATE,
    "gradient_accumulation_steps": _ACCUMULATE,
    "accumulate": _ACCUMULATE,
}
_LINK = re.compile(r" \(\[[^]]*\]\([^)]*\)\)")  # to a page of the documents
_LONGEST_WORD = 60
_MOST_NEAR = 3
_SHORT_WORD = 4
_NEAR_SHORT, _NEAR = 0.6, 0.75
"""Of :func:`difflib.SequenceMatcher.ratio`. At 0.7 another word is meant, as densenet121 and
resnet152 show; two letters that change places leave 0.67 of three."""
_LONGEST_LIST = 180  # characters
_LONGEST_RULE = 120
_LARGEST_WRITTEN = 1e15
_LARGEST_NUMBER = sys.float_info.max  # a larger whole number is none for a float
_FEW = 5
_KINDS = {
    "integer": "a whole number",
    "number": "a number",
    "string": "a text",
    "boolean": "true or false",
    "array": "a list",
    "object": "a group of 'key: value' lines",
    "null": "empty",
}
