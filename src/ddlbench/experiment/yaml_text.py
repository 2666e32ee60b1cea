"""The one reader of YAML: what a person wrote by mistake, or with malice, is one sentence.

YAML takes the last of two equal keys in silence, expands an anchor as often as it is named, reads
a date where one writes 2024-13-45, and a number of any length. None of it is wanted here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from ddlbench.experiment.errors import ConfigError, shown

MOST_BYTES = 200_000  # read within seconds; a configuration has some thousand
_MOST_VALUES = 100_000  # after anchors are expanded
_MOST_DEPTH = 30
_MOST_DIGITS = 30
_LONGEST_TEXT = 10_000
_LONGEST_SHOWN = 40
_LARGEST = 10**_MOST_DIGITS
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_MERGE = "tag:yaml.org,2002:merge"
_TEXT = "tag:yaml.org,2002:str"


def parse_yaml(text: str, where: str) -> Any:
    """The value of a text.

    Args:
        text: YAML.
        where: the file's name, for messages.

    Raises:
        ConfigError: it is no YAML, a key is written twice or is no text, or it is too large.
    """
    if len(text) > MOST_BYTES:
        raise ConfigError(f"{where}: has {len(text)} characters; write at most {MOST_BYTES}")
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _Nodes(where).size(node, 0)
        value = loader.construct_document(node)
    except ConfigError:
        raise
    except yaml.YAMLError as error:
        raise ConfigError(_no_yaml(error, where)) from None
    except RecursionError:
        raise ConfigError(f"{where}: {_TOO_DEEP}") from None
    except Exception as error:  # a constructor's: of a date that is none, a tag that does not fit
        said = str(error).partition("\n")[0][: 2 * _LONGEST_SHOWN]
        raise ConfigError(
            f"{where}: a number, a date or a tag does not fit ({said}); write a text in quotes"
        ) from None
    check_plain(value, where)
    return value


def check_plain(value: Any, where: str) -> None:
    """Refuse what would hang, or fill the screen, before anything looks at it.

    Raises:
        ConfigError: a key is no text, or lists and groups are too deep, too many values, a number
            or a text too long.
    """
    _Values(where).size(value, 0)


_TOO_DEEP = f"lists and groups lie more than {_MOST_DEPTH} deep in each other; write fewer"
_TOO_MANY = f"more than {_MOST_VALUES} values, with what its anchors stand for; shorten it"


class _Values:
    """Counts Python values; what an anchor stands for is counted as often as it is named."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._sizes: dict[int, int] = {}

    def size(self, value: Any, depth: int) -> int:
        if isinstance(value, str):
            if len(value) > _LONGEST_TEXT:
                raise self._wrong(f"a text of {len(value)} characters; shorten it")
            return 1
        if isinstance(value, int) and abs(value) >= _LARGEST:
            raise self._wrong(f"{shown(value)} is too large a number; write a smaller one")
        if not isinstance(value, Mapping | list | tuple):
            return 1
        if id(value) in self._sizes:
            return self._sizes[id(value)]
        if depth > _MOST_DEPTH:
            raise self._wrong(_TOO_DEEP)
        if isinstance(value, Mapping):
            self._check_keys(value)
        inner = value.values() if isinstance(value, Mapping) else value
        found = 1 + sum(self.size(one, depth + 1) for one in inner)
        if found > _MOST_VALUES:
            raise self._wrong(_TOO_MANY)
        self._sizes[id(value)] = found
        return found

    def _check_keys(self, value: Mapping[Any, Any]) -> None:
        for key in value:
            if not isinstance(key, str):
                raise self._wrong(f"the key {shown(key)} is no text; write it in quotes")

    def _wrong(self, what: str) -> ConfigError:
        return ConfigError(f"{self._where}: {what}")


class _Nodes:
    """Walks the nodes of a text before values are made of them, as these do not hold all of it."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._sizes: dict[int, int] = {}  # of nodes, as an anchor's is met again
        self._open: set[int] = set()

    def size(self, node: yaml.Node, depth: int) -> int:
        """Values in a node, with all that its anchors and merges expand to."""
        if id(node) in self._sizes:
            return self._sizes[id(node)]
        if id(node) in self._open:
            raise self._wrong(node, "an anchor contains itself; write its values out")
        if depth > _MOST_DEPTH:
            raise self._wrong(node, _TOO_DEEP)
        self._open.add(id(node))
        found = 1
        if isinstance(node, yaml.MappingNode):
            self._check_keys(node)
            found += sum(self.size(value, depth + 1) for _, value in node.value)
        elif isinstance(node, yaml.SequenceNode):
            found += sum(self.size(value, depth + 1) for value in node.value)
        elif node.tag in _NUMBERS and len(node.value) > _MOST_DIGITS:
            raise self._wrong(node, f"a number of {len(node.value)} signs; write a shorter one")
        if found > _MOST_VALUES:
            raise self._wrong(node, _TOO_MANY)
        self._open.remove(id(node))
        self._sizes[id(node)] = found
        return found

    def _check_keys(self, node: yaml.MappingNode) -> None:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag == _MERGE:
                continue
            if not isinstance(key, yaml.ScalarNode):
                raise self._wrong(key, "a list or group cannot be a key; write a name")
            name = shown(key.value[:_LONGEST_SHOWN])
            if key.tag != _TEXT:
                raise self._wrong(key, f"the key {name} is no text; write it in quotes")
            if key.value in seen:
                raise self._wrong(key, f"{name} is written twice; keep one, as the last would win")
            seen.add(key.value)

    def _wrong(self, node: yaml.Node, what: str) -> ConfigError:
        return ConfigError(f"{self._where} line {node.start_mark.line + 1}: {what}")


def _no_yaml(error: yaml.YAMLError, where: str) -> str:
    mark = getattr(error, "problem_mark", None)
    line = f" line {mark.line + 1}" if mark else ""
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "cannot be read"
    return f"{where}{line}: not valid YAML: {problem[: _LONGEST_SHOWN * 3]}"
