"""A short folder for the sockets of helper processes, where TMPDIR is too long for them.

Python's `multiprocessing` puts its sockets into a folder below TMPDIR. Linux takes at most 107
bytes for the path of a socket (`sun_path`, unix(7)); some clusters give a job a longer TMPDIR.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from multiprocessing import util

_LONGEST_SOCKET = 107
_BELOW = len("/pymp-12345678/listener-12345678")
LONGEST_TMPDIR = _LONGEST_SOCKET - _BELOW
_SHORT_PLACES = ("/tmp", "/var/tmp", "/dev/shm")
_made: list[str] = []


def use_short_socket_folder() -> None:
    """Put the sockets of this process and its children elsewhere if TMPDIR is too long for them.

    Call it before the first helper process starts. Other temporary files stay in TMPDIR. The folder
    is removed when the process ends, or by :func:`remove_socket_folder`.
    """
    before = tempfile.gettempdir()
    if len(os.fsencode(before)) <= LONGEST_TMPDIR:
        return
    for place in _SHORT_PLACES:
        tempfile.tempdir = place
        try:
            with suppress(OSError):  # it is not there, or not ours to write: the next one
                _made.append(util.get_temp_dir())
                return
        finally:
            tempfile.tempdir = before


def remove_socket_folder() -> None:
    """Remove the folder, before an exit that skips the handlers of Python."""
    while _made:
        shutil.rmtree(_made.pop(), ignore_errors=True)


def tmpdir_hint(text: str) -> str:
    """What to add to an error that a too long TMPDIR explains; empty for any other."""
    if "AF_UNIX path too long" not in text:
        return ""
    return (
        f"; TMPDIR ({tempfile.gettempdir()}) is too long for a socket below it: set it to a path "
        f"of at most {LONGEST_TMPDIR} letters, for example TMPDIR=/tmp"
    )
