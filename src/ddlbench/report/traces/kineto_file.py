"""Events of a Kineto trace, the JSON that PyTorch's profiler writes, read one by one.

::

    {"schemaVersion": 1, "distributedInfo": {"rank": 0, ...}, "traceEvents": [ {...}, {...}, ...
     metadata, before or after the events ------'                  '-- decoded in a moving window

A file may be plain or gzip. It is only ever parsed, in a window of some megabytes, so that memory
does not grow with the file. What Kineto is known to write wrong is mended where it does no harm:

* NaN and infinity, which JSON has not: as Python reads them
* a backslash that begins no escape (a path of Windows in a name): taken as a backslash
* missing or doubled commas between events: overlooked
* an event that is no JSON (quotes within a name), and a tail that is cut off: left out, and counted
"""

from __future__ import annotations

import codecs
import json
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from ddlbench.common.errors import ConfigError, shown

_CHUNK = 4 * 2**20
_LONGEST_EVENT = 2**20  # characters; a longer one is taken for damage
_LONGEST_METADATA = 16 * 2**20
_MOST_CHARACTERS = 2**37  # 128 GiB of text: a file that unpacks to more is no trace
_GZIP = b"\x1f\x8b"
_GZIP_FORMAT = 31  # of zlib
_EVENTS = "traceEvents"
_DECODER = json.JSONDecoder(strict=False)
_BETWEEN = re.compile(r"[\s,]*")
_SPACE = re.compile(r"\s*")
_FIRST_EVENT = re.compile(rf'"{_EVENTS}"\s*:\s*\[')
# Where an event begins after one that cannot be read.
_NEXT_EVENT = re.compile(r'[}\]]\s*,?\s*(\{\s*"(?:ph|name|cat|pid|tid|ts|args|id|s)"\s*:)')
_LONE_BACKSLASH = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|(\\)')


class InvalidTrace(ConfigError):  # noqa: N818 - a state of a file, shown as such
    """A file that is no trace, or holds nothing that can be analysed."""


@dataclass
class TraceFile:
    """A trace whose events are read once, in the order of the file.

    Args:
        path: of the file.
        metadata: what the file says beside its events; complete when they have been read.
        unreadable: events that were left out, as they are no JSON.
        truncated: the file ends within its events.
    """

    path: Path
    metadata: dict[str, Any] = field(default_factory=dict)
    unreadable: int = 0
    truncated: bool = False
    _listed_events: bool = False

    def events(self) -> Iterator[dict[str, Any]]:
        """All events.

        Raises:
            InvalidTrace: the file is not one of events.
            OSError: it cannot be read.
        """
        with self.path.open("rb") as raw:
            packed = raw.read(2) == _GZIP
            raw.seek(0)
            read = _Unpacked(raw).read if packed else raw.read
            yield from self._of(_Window(read, self.path))

    def _of(self, text: _Window) -> Iterator[dict[str, Any]]:
        text.skip(_SPACE)
        opening = text.peek()
        if opening == "[":  # Chrome's other form: the events alone
            text.at += 1
            yield from self._listed(text)
            return
        if opening != "{":
            begins = shown(text.text[text.at : text.at + 20]) if opening else "nothing"
            raise InvalidTrace(
                f"{self.path}: a trace is JSON and begins with {{ or [; this file begins with "
                f"{begins}; name a file that torch.profiler's export_chrome_trace wrote"
            )
        text.at += 1
        while (key := self._key(text)) is not None:
            if key == _EVENTS and text.peek() == "[":
                text.at += 1
                yield from self._listed(text)
            elif not self._describe(text, key):
                break
        if not self._listed_events:
            raise InvalidTrace(
                f"{self.path}: no list of traceEvents; name a file that torch.profiler's "
                "export_chrome_trace wrote"
            )

    def _key(self, text: _Window) -> str | None:
        """The next key of the outermost object; None at its end."""
        text.skip(_BETWEEN)
        if text.peek() != '"':
            self.truncated = self.truncated or text.peek() != "}"
            return None
        key = text.value(_LONGEST_EVENT)
        text.skip(_SPACE)
        if text.peek() != ":" or not isinstance(key, str):
            self.truncated = True
            return None
        text.at += 1
        text.skip(_SPACE)
        return key

    def _describe(self, text: _Window, key: str) -> bool:
        """Keep a value beside the events; False where the file ends in it."""
        value = text.value(_LONGEST_METADATA)
        if value is not _UNREADABLE:
            self.metadata[key] = value
            return True
        if self._listed_events or not text.find(_FIRST_EVENT):
            return False  # what else the file says is lost, and no event
        text.at = text.found.start()
        return True

    def _listed(self, text: _Window) -> Iterator[dict[str, Any]]:
        self._listed_events = True
        while True:
            text.skip(_BETWEEN)
            sign = text.peek()
            if sign == "]":
                text.at += 1
                return
            if not sign:
                self.truncated = True
                return
            event = text.value(_LONGEST_EVENT)
            if isinstance(event, dict):
                yield event
            elif event is _UNREADABLE and not self._resume(text):
                return

    def _resume(self, text: _Window) -> bool:
        """Go to the event after one that cannot be read; False at the end of the file."""
        if text.find(_NEXT_EVENT):
            self.unreadable += 1
            text.at = text.found.start(1)
            return True
        self.truncated = True
        text.at = len(text.text)
        return False


class _Unpacked:
    """The content of a gzip file; of one that is cut off, all that is there."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self._packed = b""
        self._unpack = zlib.decompressobj(_GZIP_FORMAT)

    def read(self, size: int) -> bytes:
        """At most ``size`` bytes; none at the end of the file."""
        while True:
            self._packed = self._packed or self._source.read(size)
            if not self._packed:
                return b""
            if self._unpack.eof:  # another member follows
                self._unpack = zlib.decompressobj(_GZIP_FORMAT)
            content = self._unpack.decompress(self._packed, size)
            self._packed = self._unpack.unused_data or self._unpack.unconsumed_tail
            if content:
                return content


_UNREADABLE = object()


class _Window:
    """A part of a text that moves through a file; ``at`` is the place that is read next."""

    def __init__(self, read: Callable[[int], bytes], path: Path) -> None:
        self._read, self._path = read, path
        self._decode = codecs.getincrementaldecoder("utf-8-sig")(errors="replace").decode
        self._ended = False
        self._characters = 0
        self.text, self.at = "", 0
        self.found: re.Match[str]

    def more(self) -> bool:
        """Append a chunk and drop what was read; False at the end of the file."""
        if self._ended:
            return False
        try:
            chunk = self._read(_CHUNK)
        except zlib.error as error:
            if not self._characters:
                raise InvalidTrace(f"{self._path}: not a readable gzip file: {error}") from error
            chunk = b""  # a tail that is damaged
        self._ended = not chunk
        self.text = self.text[self.at :] + self._decode(chunk, final=self._ended)
        self._characters += len(chunk)
        self.at = 0
        if self._characters > _MOST_CHARACTERS:
            raise InvalidTrace(f"{self._path}: it unpacks to more than 128 GiB; name a trace")
        return True

    def skip(self, pattern: re.Pattern[str]) -> None:
        while True:
            match = pattern.match(self.text, self.at)
            assert match is not None  # both patterns match nothing, too
            self.at = match.end()
            if self.at < len(self.text) or not self.more():
                return

    def peek(self) -> str:
        """The next character; empty at the end of the file."""
        if self.at >= len(self.text):
            self.more()
        return self.text[self.at : self.at + 1]

    def value(self, longest: int) -> Any:
        """The JSON value at this place, or ``_UNREADABLE``, which leaves the place as it is."""
        while True:
            try:
                value, end = _DECODER.raw_decode(self.text, self.at)
            except (ValueError, RecursionError):
                if len(self.text) - self.at < longest and self.more():
                    continue
                return self._mended(longest)
            # A number may go on in the next chunk.
            if end == len(self.text) and not isinstance(value, dict | list | str) and self.more():
                continue
            self.at = end
            return value

    def _mended(self, longest: int) -> Any:
        """The value, if its backslashes are all that is wrong."""
        window = self.text[self.at : self.at + longest]
        if "\\" not in window:
            return _UNREADABLE
        following = _NEXT_EVENT.search(window)
        part = window if following is None else window[: following.start(1)]
        mended = _LONE_BACKSLASH.sub(lambda m: r"\\" if m[1] else m[0], part)
        try:
            value, end = _DECODER.raw_decode(mended)
        except (ValueError, RecursionError):
            return _UNREADABLE
        # The place in the text as it was: each lone backslash has become two characters.
        self.at += _place_before(part, end)
        return value

    def find(self, pattern: re.Pattern[str]) -> bool:
        """Move on to the next match of a pattern that is shorter than a chunk."""
        while True:
            match = pattern.search(self.text, self.at)
            if match is not None:
                self.found = match
                return True
            self.at = max(self.at, len(self.text) - 4096)
            if not self.more():
                return False


def _place_before(part: str, end: int) -> int:
    """Where in ``part`` the character lies that mending has moved to ``end``."""
    added = 0
    for match in _LONE_BACKSLASH.finditer(part):
        if match.end() + added > end:
            break
        added += match[1] is not None
    return end - added
