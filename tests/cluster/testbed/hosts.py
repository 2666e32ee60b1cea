"""The bed's lines in /etc/hosts, between two marks."""

from __future__ import annotations

from pathlib import Path

from .errors import TestBedError
from .layout import HOSTS
from .options import Options

_BEGIN = "# ddlbench test bed begins"
_END = "# ddlbench test bed ends"


def add(options: Options, path: Path = HOSTS) -> None:
    """Name the nodes.

    Raises:
        TestBedError: one of the names is taken.
    """
    remove(path)
    text = path.read_text(encoding="utf-8")
    for line in text.splitlines():
        taken = set(line.split("#")[0].split()[1:]) & set(options.node_names)
        if taken:
            raise TestBedError(
                f"{path} names {min(taken)} already ({line.strip()!r}), which the test bed needs "
                "for a node; remove that line"
            )
    lines = [f"{options.address(node)} {node}" for node in options.node_names]
    separator = "" if text.endswith("\n") or not text else "\n"
    # Written in place: in containers this file is a mount and cannot be replaced.
    path.write_text(text + separator + "\n".join([_BEGIN, *lines, _END]) + "\n", encoding="utf-8")


def remove(path: Path = HOSTS) -> None:
    """Take the bed's lines away; all others stay as they are."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    kept, inside = [], False
    for line in lines:
        if line.rstrip("\n") == _BEGIN:
            inside = True
        if not inside:
            kept.append(line)
        if line.rstrip("\n") == _END:
            inside = False
    if kept != lines:
        path.write_text("".join(kept), encoding="utf-8")
