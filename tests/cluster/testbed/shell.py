"""Running the system's commands, with their own words in the error."""

from __future__ import annotations

import os
import subprocess

from .errors import TestBedError

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def system_environment() -> dict[str, str]:
    """A plain environment for daemons: nothing of the caller's reaches jobs through them."""
    return {"PATH": SYSTEM_PATH, "LANG": "C.UTF-8", "HOME": os.environ.get("HOME", "/")}


def system(*command: str, hint: str = "", check: bool = True) -> str:
    """What the command prints.

    Args:
        command: program and arguments.
        hint: what the user can do when it fails.
        check: raise when it fails; else the text is whatever came.

    Raises:
        TestBedError: it failed, or there is no such program.
    """
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env=system_environment(),
        )
    except FileNotFoundError:
        if not check:
            return ""
        raise TestBedError(
            f"there is no program {command[0]!r} here; run `testbed install` as root"
        ) from None
    if check and done.returncode != 0:
        message = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
        advice = f"; {hint}" if hint else ""
        raise TestBedError(f"`{' '.join(command)}` failed: {message}{advice}")
    return done.stdout
