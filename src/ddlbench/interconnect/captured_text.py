r"""Text of a command-line tool, as somebody captured it.

::

    bytes  -- decoded -->  text  -- plain_lines -->  lines, as the tool printed them

    [1,0]<stdout>:P2P Connectivity Matrix          P2P Connectivity Matrix
    [1,0]<stdout>:     D\D     0     1             D\D     0     1

Launchers, loggers and mails put something before each line: the rank (``srun --label``), a tag
(``mpirun --tag-output``), a host, the time, a quotation mark. What it is shows before lines that
only the tool prints, and is removed from all lines. Times differ from line to line, and numbers
of lines grow. Anything else that differs tells tasks apart, whose outputs are not to be mixed.
"""

from __future__ import annotations

import codecs
import itertools
import re
from collections.abc import Iterable
from typing import NamedTuple

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

_DAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)\w*,?"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\w*"
_DATE = (
    r"(?:\d{4}[-/.]\d\d[-/.]\d\d|\d\d[-/.]\d\d[-/.]\d{2,4}"
    rf"|(?:{_DAY}\s+)?(?:{_MONTH}\s+\d{{1,2}}|\d{{1,2}}[\s-]{_MONTH})(?:[\s,-]+\d{{4}})?)"
)
_TIME = (
    r"\d{1,2}:\d\d:\d\d(?:[.,]\d+)?(?:\s?[AP]M\b)?"
    r"(?:\s?Z\b|\s?[+-]\d\d:?\d\d\b|\s(?:UTC|GMT|[CEMP][DES]?[DS]?T)\b)?(?:\s+20\d\d\b)?"
)
_SECONDS = r"\d+\.\d+|(?:\d+h)?(?:\d+m)?\d+(?:\.\d+)?m?s|\d{9,}"
# A date, a time, both, or seconds since 1970 or since the start. One group, none within.
_STAMP = re.compile(rf"(?<![\w.])({_DATE}[T_\s]+{_TIME}|{_DATE}|{_TIME}|{_SECONDS})(?![\w.])")
_DIGITS = re.compile(r"\d+")


class _Prefix(NamedTuple):
    """What stands before a known line, split at the times in it."""

    number: int  # of the line
    parts: tuple[str, ...]

    @property
    def text(self) -> str:
        return " ".join(part for part in self.parts if part)

    @property
    def names_a_task(self) -> bool:
        """Whether it holds more than times and signs, such as ``> ``."""
        return any(sign.isalnum() for sign in self.text)


def plain_lines(text: str, known: re.Pattern[str], where: str) -> list[str]:
    """The lines of a text without colours, without what stands before each, and without indent.

    Args:
        text: as captured; the n-th line of the result is its n-th line.
        known: lines that only the tool prints, from their first letter on.
        where: name of the text in messages.

    Raises:
        ConfigError: the output of several tasks is in it.
    """
    lines = [_ESCAPE.sub("", line).translate(_INVISIBLE) for line in _LINE_END.split(text)]
    prefixes = [
        _prefix(number, line[: match.start()])
        for number, line in enumerate(lines, start=1)
        if (match := known.search(line))
    ]
    patterns = _patterns(prefixes, where)
    return [_without_prefix(line, patterns) for line in lines]


def _prefix(number: int, text: str) -> _Prefix:
    # Every second piece is a time.
    return _Prefix(number, tuple(" ".join(part.split()) for part in _STAMP.split(text)[::2]))


def _patterns(prefixes: list[_Prefix], where: str) -> list[re.Pattern[str]]:
    """Of the prefixes, longest first."""
    tasks = {prefix.parts: prefix for prefix in reversed(prefixes) if prefix.names_a_task}
    if len(tasks) > 1 and _are_numbered([prefix for prefix in prefixes if prefix.names_a_task]):
        return [_pattern(next(iter(tasks)), numbered=True)]
    if len(tasks) > 1:
        first, second, *others = sorted(tasks.values())
        more = f" (and {len(others)} more)" if others else ""
        raise ConfigError(
            f"{where} line {second.number}: lines that begin with {shown(first.text)} and with "
            f"{shown(second.text)}{more} are mixed; keep the lines of one task"
        )
    shapes = sorted({prefix.parts for prefix in prefixes}, key=_length, reverse=True)
    return [_pattern(parts) for parts in shapes]


def _length(parts: Iterable[str]) -> int:
    return sum(len(part) + 1 for part in parts)


def _are_numbered(prefixes: list[_Prefix]) -> bool:
    """Whether the prefixes differ in numbers only, which grow from line to line."""
    if len({_DIGITS.sub("0", prefix.text) for prefix in prefixes}) > 1:
        return False
    numbers = [[float(word) for word in _DIGITS.findall(prefix.text)] for prefix in prefixes]
    return all(earlier < later for earlier, later in itertools.pairwise(numbers))


def _pattern(parts: tuple[str, ...], numbered: bool = False) -> re.Pattern[str]:
    pieces = [r"\s*".join(re.escape(word) for word in part.split()) for part in parts]
    if numbered:
        pieces = [_DIGITS.sub(r"\\d+", piece) for piece in pieces]
    return re.compile(r"\s*" + rf"\s*{_STAMP.pattern}\s*".join(pieces))


def _without_prefix(line: str, patterns: list[re.Pattern[str]]) -> str:
    for pattern in patterns:
        if match := pattern.match(line):
            return line[match.end() :].strip()
    return line.strip()


_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?", re.ASCII | re.IGNORECASE)
# As C libraries write what is no number; MSVC's old one wrote 1.#INF.
_NO_NUMBER = re.compile(r"[-+]?(?:nan(?:\(\w*\))?|inf(?:inity)?|1\.#\w+)|N/A", re.IGNORECASE)


def printed_number(word: str) -> float | None:
    """The number that a C program printed; None for inf, nan and N/A.

    Raises:
        ValueError: it is none.
    """
    if _NUMBER.fullmatch(word):
        return float(word)
    if _NO_NUMBER.fullmatch(word):
        return None
    raise ValueError(word)


def is_printed_number(word: str) -> bool:
    """Whether :func:`printed_number` reads it."""
    return bool(_NUMBER.fullmatch(word) or _NO_NUMBER.fullmatch(word))
