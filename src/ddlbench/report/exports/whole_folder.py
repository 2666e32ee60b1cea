"""A folder that appears whole or not at all, and replaces only what an export wrote."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ddlbench import __version__
from ddlbench.common.errors import ConfigError
from ddlbench.report.result_tree import EXPORT_MARK


@contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """Give an empty folder that takes the place of ``out`` when the block ends.

    If the block raises, ``out`` is unchanged.

    Raises:
        ConfigError: what lies there was not written by an export.
    """
    out = out.resolve()
    check_ours(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = out.with_name(f".{out.name}.{os.uname().nodename}.{os.getpid()}")
    earlier = beside.with_name(f"{beside.name}.earlier")
    shutil.rmtree(beside, ignore_errors=True)  # of a process that was killed
    try:
        beside.mkdir()
        yield beside
        (beside / EXPORT_MARK).write_text(f"ddlbench {__version__}\n", encoding="utf-8")
        if out.exists():
            out.rename(earlier)
        beside.rename(out)
    except BaseException:
        if earlier.exists() and not out.exists():
            earlier.rename(out)
        raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        shutil.rmtree(earlier, ignore_errors=True)


def check_ours(out: Path) -> None:
    """Refuse to replace what others put there.

    Raises:
        ConfigError: it is a file, or a folder with content that no export wrote.
    """
    if not out.exists() or (out / EXPORT_MARK).is_file():
        return
    if not out.is_dir():
        raise ConfigError(f"{out} is a file; name a folder with --out")
    if next(out.iterdir(), None) is not None:
        raise ConfigError(
            f"{out} holds files that no export of ddlbench wrote; name another folder with --out"
        )
