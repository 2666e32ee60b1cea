"""The exception with messages for the user; what messages say of values and of files."""

from __future__ import annotations

import errno
import os
import re
import reprlib
import signal
import stat
from pathlib import Path

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


_VERB = re.compile(r"(is|has|must) ")


def placed(place: object, fault: str) -> str:
    """``place: fault``; the colon is left out where the place is the subject of the fault."""
    return f"{place} {fault}" if _VERB.match(fault) else f"{place}: {fault}"


def unplaced(place: object, sentence: str) -> str:
    """The fault in a sentence of :func:`placed`; a sentence of another place as it is."""
    for sign in (": ", " "):
        if sentence.startswith(f"{place}{sign}"):
            return sentence.removeprefix(f"{place}{sign}")
    return sentence


def file_fault(error: BaseException, folder: Path | None = None) -> str | None:
    """What to say of a file that cannot be written, read or reached; None of any other error.

    The sentence names the file, or what is in its way, and says what to do.

    Args:
        error: any.
        folder: what is written to, as a full disk shows in writes, which name no file.
    """
    if not isinstance(error, OSError) or error.errno is None:
        return None
    reason = error.strerror or type(error).__name__
    if reason.startswith("No usable temporary directory"):
        return f"{printable(reason)}; set TMPDIR to a folder that can be written"
    place = error.filename
    named = isinstance(place, str | bytes | os.PathLike)
    if error.errno in _NO_ROOM:
        written = place if error.filename2 is None else error.filename2  # of a copy, its target
        where = os.fsdecode(written) if named else folder or "a file"
        return printable(f"no room is left to write {where}; free some and run again")
    if not named:
        return None
    path = Path(os.fsdecode(place))
    in_the_way = None
    if error.errno in _NOT_REACHED:  # a folder could not be made, or something in it not reached
        in_the_way = obstacle(path / "any file" if error.errno == errno.EEXIST else path)
    if error.errno == errno.EACCES:
        closed = (p for p in reversed(path.parents) if p.exists() and not os.access(p, os.X_OK))
        path = next(closed, path)
    cure = _CURES.get(error.errno, "look at that place, and run again")
    return printable(in_the_way or f"{path}: {reason}; {cure}")


def obstacle(path: Path) -> str | None:
    """What keeps ``path`` from being a folder, or a file in one; None if nothing does.

    It is a link that leads nowhere, or a file where a folder should be.
    """
    for place in (*reversed(path.parents), path):
        try:
            reached = stat.S_ISDIR(place.stat().st_mode)
        except OSError as error:
            if not os.path.islink(place):  # noqa: PTH114 - unlike Path, it raises nothing
                return None  # nothing is there yet, or it cannot be looked at
            if error.errno == errno.ELOOP:
                return f"{place} is a link that leads back to itself; remove it"
            where = place.readlink()
            return f"{place} points to {where}, which is missing; make that, or remove the link"
        if place != path and not reached:
            return f"{place} is a file where a folder should be; move it away"
    return None


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_NOT_REACHED = (errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.ELOOP)
_RIGHTS = "its owner must let you write and read it, and enter the folders above it (chmod)"
_SHORTER = "work in a folder with a shorter path, or shorten the names in it"
_CURES = {
    errno.EROFS: "let it lie on a file system that can be written",
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.ENOENT: "make it, or run again if somebody has just deleted it",
    errno.EEXIST: "move it away",
    errno.ENOTDIR: "a folder should be there; move the file away",
    errno.EISDIR: "a file should be there; move the folder away",
    errno.ELOOP: "remove the link that leads back to itself",
    errno.ENAMETOOLONG: _SHORTER,
    errno.ESTALE: "the file server has replaced it; change into the folder anew, and run again",
    errno.EIO: "its disk or file server does not answer; have it looked at, and run again",
    errno.EMFILE: "allow more open files (ulimit -n), and run again",
    errno.EFBIG: "allow larger files (ulimit -f), and run again",
    errno.EXDEV: "let both places lie on one file system",
}


def first_line(error: BaseException) -> str:
    """The first line of what an error says; its kind, if it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


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


def signal_name(number: int) -> str:
    """``SIGKILL``; Python has no names of most real-time signals."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def shown(value: object) -> str:
    """A value as a message shows it: as Python writes it, at most some 60 characters of it."""
    text = _SHORT.repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."
