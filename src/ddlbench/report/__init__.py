"""Tables and figures of results; needs no torch.

``make_tables`` runs once for an experiment, then ``make_figure`` for each of ``figures_for(rows)``.
Names are imported at their first use, so that planning an experiment does not import matplotlib.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "FIGURES": "registry",
    "collect": "measurements",
    "collect_steps": "measurements",
    "figures_for": "registry",
    "make_figure": "drawing",
    "make_tables": "measurements",
    "summarise": "summary",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
