"""Text that somebody captured of a program: encoding, lines without colours, JSON in it."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ddlbench.common.errors import ConfigError, shown

# The marks of UTF-32 begin with those of UTF-16, and come first.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_SAMPLE_BYTES = 4096


def decoded(content: bytes) -> str:
    """The text of a file: UTF-8, or what its byte order mark or its zero bytes tell.

    PowerShell's ``>`` writes UTF-16. What is no text becomes U+FFFD.
    """
    for mark, encoding in _MARKS:
        if content.startswith(mark):
            return content[len(mark) :].decode(encoding, errors="replace")
    sample = content[:_SAMPLE_BYTES]
    for start, encoding in ((1, "utf-16-le"), (0, "utf-16-be")):
        # ASCII in UTF-16: every second byte is zero.
        if 2 * sample[start::2].count(0) > len(sample[start::2]):
            return content.decode(encoding, errors="replace")
    return content.decode("utf-8", errors="replace")


_LINE_END = re.compile(r"\r{0,2}\n|\r")
# Colours and cursor moves; titles of a terminal's window.
_ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_INVISIBLE = str.maketrans({"\xa0": " ", "\ufeff": None, "\u200b": None, "\0": None})


def uncoloured_lines(text: str) -> list[str]:
    """The lines of a text without colours and invisible characters."""
    return [_ESCAPE.sub("", line).translate(_INVISIBLE) for line in _LINE_END.split(text)]


def json_at(start: int, text: str, where: str, command: str) -> tuple[Any, int]:
    """The JSON value that begins there, and where it ends.

    Args:
        start: of its first letter.
        text: in which other text may stand before and after it.
        where: name of the text in messages.
        command: what writes the value, to run again; its first word is the program.

    Raises:
        ConfigError: it is no whole JSON; the message gives the line.
    """
    program = command.split(maxsplit=1)[0]
    try:
        return json.JSONDecoder().raw_decode(text, start)
    except json.JSONDecodeError as error:
        line = text.count("\n", 0, error.pos) + 1
        is_cut = not text[error.pos :].strip() or error.msg.startswith("Unterminated")
        foreign = shown(text.split("\n")[line - 1])
        remedy = "" if is_cut else f"remove {foreign} if {program} did not print it, or "
        raise ConfigError(
            f"{where} line {line}: not complete JSON ({error.msg}); {remedy}run {command} again"
        ) from None
    except (ValueError, RecursionError):
        line = text.count("\n", 0, start) + 1
        raise ConfigError(
            f"{where} line {line}: JSON with endless numbers or lists, which {program} does not "
            f"write; run {command} again"
        ) from None


_LARGEST = 1e30


@dataclass(frozen=True)
class JsonObject:
    """An object in a program's JSON, whose values are taken by key and type.

    Args:
        value: of the file.
        where: its place, for messages.
        remedy: what to do where a value is missing or of another type.
    """

    value: Mapping[str, Any]
    where: str
    remedy: str

    def take(self, key: str, *kinds: type) -> Any:
        """The value of a key.

        Raises:
            ConfigError: it is missing, of another type, or a number that nothing measures.
        """
        value: Any = self.value.get(key)
        is_huge = isinstance(value, int | float) and not abs(value) < _LARGEST
        if not isinstance(value, kinds) or isinstance(value, bool) or is_huge:
            known = shown(value) if key in self.value else "missing"
            raise ConfigError(f"{self.where}: {key!r} is {known}; {self.remedy}")
        return value

    def inner(self, key: str) -> JsonObject:
        """The object of a key."""
        return JsonObject(self.take(key, dict), f"{self.where}: {key}", self.remedy)

    def each(self, key: str) -> Iterator[JsonObject]:
        """The objects of a list."""
        for number, value in enumerate(self.take(key, list), start=1):
            place = f"{self.where}: {key} {number}"
            if not isinstance(value, dict):
                raise ConfigError(f"{place} is {shown(value)} instead of an object; {self.remedy}")
            yield JsonObject(value, place, self.remedy)
