"""Imports matplotlib as it comes; figures depend on no setting of the user.

::

    MPLBACKEND                                  of a notebook's shell, a backend that is not here
    matplotlibrc in the working folder,         settings that change figures, or bytes that are
    below HOME, or named by MATPLOTLIBRC        no text

Matplotlib reads them once, while it is imported, and some end the import. Whatever draws imports
this module before matplotlib. The environment is the user's again afterwards, so that programs that
are started from here see what the user has set.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from ddlbench.common.environment import environment


@contextmanager
def _without_settings() -> Iterator[None]:
    """Let matplotlib find the settings that it comes with, and no others."""
    spec = find_spec("matplotlib")
    shipped = Path(spec.origin).parent / "mpl-data" if spec and spec.origin else Path()
    # A file in the working folder goes before all others, so it must not be the working folder.
    here = Path.cwd() if Path("matplotlibrc").exists() else None
    if here is not None:
        os.chdir(shipped)
    try:
        with environment(MPLBACKEND=None, MATPLOTLIBRC=str(shipped / "matplotlibrc")):
            yield
    finally:
        if here is not None:
            os.chdir(here)


if "matplotlib" not in sys.modules:
    with _without_settings():
        import matplotlib as mpl
    # Figures of the project need no backend, but others of this process may want theirs.
    with suppress(ValueError, KeyError):
        mpl.rcParams["backend"] = os.environ["MPLBACKEND"]
