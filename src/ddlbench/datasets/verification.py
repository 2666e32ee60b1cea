"""Remembers that files had the right checksums, until one changes or the node boots.

::

    mnist-idx-x1-s0-v1/            the data
    mnist-idx-x1-s0-v1.verified    boot, and digest of names, sizes, times and inodes of its files

Whoever writes to a file changes its times, so its bytes are read again. What changes beside the
file system, as on a failing disk, is found after the next boot.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ddlbench.common.document import write_text

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def is_verified(folder: Path) -> bool:
    """Whether these very files had the right checksums since this node was started."""
    try:
        return _record(folder).read_text("ascii") == _state(folder)
    except (OSError, ValueError):  # none, or damaged
        return False


def note_verified(folder: Path) -> None:
    """Remember the files as they are now; if that fails, they are read again next time."""
    with suppress(OSError):
        write_text(_record(folder), _state(folder))


def forget_verified(folder: Path) -> None:
    """Remember nothing of a folder."""
    _record(folder).unlink(missing_ok=True)


def _record(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.verified")


def _state(folder: Path) -> str:
    """The boot and a digest of all files.

    Raises:
        OSError: the files cannot be seen, or the system does not tell its boots apart.
    """
    digest = hashlib.blake2b(digest_size=16)
    for place, found in _files(folder, ""):
        kept = (place, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)
        digest.update(repr(kept).encode())
    return f"{_BOOT_ID.read_text('ascii').strip()} {digest.hexdigest()}\n"


def _files(folder: Path | str, within: str) -> Iterator[tuple[str, os.stat_result]]:
    """Place and state of every file, in the order of their names; links are not followed."""
    with os.scandir(folder) as scanned:
        entries = sorted(scanned, key=lambda entry: entry.name)
    for entry in entries:
        place = f"{within}/{entry.name}"
        if entry.is_dir(follow_symlinks=False):
            yield from _files(entry.path, place)
        else:
            yield place, entry.stat(follow_symlinks=False)
