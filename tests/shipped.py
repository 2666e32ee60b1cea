"""The configuration that the project ships, whatever the user has made of it.

People edit ``config/config.yaml`` and add site files, as the README tells them; tests of the
shipped ones must not see that. Where git says that these files were changed, tests run in a folder
of links to the checkout whose ``config/`` holds them as they were committed::

    <temporary>/Snakefile, src, docs ...  -> the checkout's
    <temporary>/config/papers, ...        -> the checkout's
    <temporary>/config/{config.yaml, experiments/, sites/}     as committed
"""

from __future__ import annotations

import subprocess
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
# The shipped configuration; another copy where the user has edited the checkout's.
CONFIG = CHECKOUT / "config"
EDITED = ("config/config.yaml", "config/experiments", "config/sites")


def git(*arguments: str) -> bytes:
    command = ["git", "-C", str(CHECKOUT), *arguments]
    return subprocess.run(command, check=True, capture_output=True).stdout


def is_edited() -> bool:
    """Whether the user changed, added or removed one of the files; not known without git."""
    try:
        return bool(git("status", "--porcelain", "--untracked-files=all", "--", *EDITED).strip())
    except (OSError, subprocess.CalledProcessError):
        return False


def make_project(folder: Path) -> Path:
    """The checkout with the committed configuration; returns its folder."""
    for path in CHECKOUT.iterdir():
        if path.name not in ("config", "results"):
            (folder / path.name).symlink_to(path)
    (folder / "config").mkdir()
    for path in (CHECKOUT / "config").iterdir():
        if f"config/{path.name}" not in EDITED:
            (folder / "config" / path.name).symlink_to(path)
    for name in git("ls-tree", "-r", "--name-only", "HEAD", "--", *EDITED).decode().split():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(git("show", f"HEAD:{name}"))
    return folder
