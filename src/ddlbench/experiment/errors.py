"""The exception with messages for the user; what messages say of values and of a full disk."""

from __future__ import annotations

import errno
import re
import reprlib

_LONGEST_VALUE = 60
_LONGEST_WORD = 120
_LONGEST_PATH = 1024
_ENDLESS = re.compile(rf"\S{{{_LONGEST_WORD + 1},}}")
_DIGITS_PER_BIT = 0.30103


class ConfigError(ValueError):
    """Wrong user input. The message says what is wrong, where, and what to write instead.

    A message is :func:`printable`; values from a file go into it as :func:`shown`.
    """

    def __init__(self, message: object = "") -> None:
        # A Reason stays one, as its code is read from the exception.
        text = message if isinstance(message, str) else str(message)
        safe = printable(text)
        super().__init__(text if safe == text else safe)


def no_room(error: BaseException) -> str | None:
    """What to say of a full disk; None of any other error."""
    if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return None
    where = error.filename or "a file"
    return f"no room is left to write {where}; free some and run again"


def printable(text: str) -> str:
    """A text that a terminal shows and does not obey; its lines stay lines.

    Control characters, and others that are not printed, are escaped. A word without end is cut; a
    path may be longer.
    """
    if not (text.isascii() and text.isprintable()):
        text = "".join(sign if sign.isprintable() or sign == "\n" else _escaped(sign)
                       for sign in text)  # fmt: skip
    return _ENDLESS.sub(_cut, text)


def _escaped(sign: str) -> str:
    return sign.encode("unicode_escape").decode("ascii")


def _cut(word: re.Match[str]) -> str:
    longest = _LONGEST_PATH if "/" in word[0] else _LONGEST_WORD
    return word[0] if len(word[0]) <= longest else f"{word[0][:_LONGEST_VALUE]}..."


class _Short(reprlib.Repr):
    """``repr`` that looks at the first entries only: an anchor of YAML may expand to billions."""

    def repr_str(self, x: str, level: int) -> str:
        return repr(x) if len(x) <= _LONGEST_VALUE else f"{repr(x[:_LONGEST_VALUE])[:-1]}..."

    def repr_int(self, x: int, level: int) -> str:
        if x.bit_length() > 200:  # Python refuses to write numbers of thousands of digits
            return f"a number of {int(x.bit_length() * _DIGITS_PER_BIT) + 1} digits"
        return repr(x)


_SHORT = _Short()
_SHORT.maxlevel = 3


def shown(value: object) -> str:
    """A value as a message shows it: as Python writes it, at most some 60 characters of it."""
    text = _SHORT.repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."
