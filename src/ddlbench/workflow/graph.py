"""What makes Snakemake plan tens of thousands of cells in about a minute.

Snakemake's graph holds an object for each job, file and resource. Two things cost as much as it::

    functions of resources   Snakemake inspects the signature of each three times a job
    garbage collection       each full collection walks all objects, and finds nothing to free

Both are kept off here, without a change of what is planned.
"""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any


def inspected(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with its parameters where Snakemake looks for them before it inspects it."""
    with suppress(ImportError):  # an older Snakemake inspects it
        from snakemake.common import (  # noqa: PLC0415 - slow; rules run where it is loaded
            overwrite_function_params,
        )

        overwrite_function_params(function, inspect.signature(function).parameters)
    return function


def plan_quickly() -> None:
    """Prepare this process to plan a large graph; call :func:`planned` once jobs run."""
    with suppress(ImportError, AttributeError):
        from snakemake.common import overwrite_function_params  # noqa: PLC0415 - as above
        from snakemake.resources import Resource  # noqa: PLC0415

        bound = inspect.signature(Resource("nodes", 1).evaluate).parameters
        overwrite_function_params(Resource.evaluate, bound)
    gc.disable()


def planned() -> None:
    """Collect garbage again: a run lasts for days. The graph itself is left out."""
    gc.freeze()
    gc.enable()
