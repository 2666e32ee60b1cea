"""Files appear whole or not at all: write beside, flush to disk, rename."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["digest_of", "json_text", "whole_file", "write_json", "write_text"]


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A name to write to; what stands there when the block ends well becomes ``path``, at once.

    The folder is made first. Where the block ends badly, ``path`` stays as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}")
    try:
        yield beside
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` atomically, making its folder first."""
    with whole_file(path) as beside:
        beside.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as readable JSON, atomically; NaN is refused, as JSON has none."""
    write_text(path, json_text(value))


def json_text(value: Any) -> str:
    """``value`` as readable JSON, as files hold it; NaN is refused, as JSON has none."""
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


def digest_of(value: Any) -> str:
    """A short digest of a JSON value, equal for equal values whatever the order of keys."""
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(canonical.encode(), digest_size=8).hexdigest()
