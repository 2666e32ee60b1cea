"""Runs a module that takes long to import, in a process of its own.

::

    python -m ddlbench.common.program package.module ARGUMENT ...   ->   main(ARGUMENT, ...)

What is imported is never freed. So looking for garbage meanwhile, and in it later, is lost time.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    """Import modules in a ``with``: the collector looks at them neither now nor later."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def run(module: str, *arguments: str) -> None:
    """Import a module and call its ``main``."""
    with without_collections():
        program = importlib.import_module(module)
    program.main(*arguments)
    gc.freeze()  # the process ends, and frees all at once


if __name__ == "__main__":
    run(*sys.argv[1:])
