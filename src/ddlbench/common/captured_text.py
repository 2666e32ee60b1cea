"""Text that somebody captured of a program: its encoding, and lines without colours."""

from __future__ import annotations

import codecs
import re

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
