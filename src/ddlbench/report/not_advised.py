"""Why the highest speed-up of a case is not the advised one: a sentence below the table.

::

    network     Horovod  DDP
    ResNet-18    1.21    1.18       Horovod has the highest speed-up for ResNet-18 and is not
    VGG-11       0.96    1.14       advised: one device may be as fast.

The reasons are those of the answers in advice.json; nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.registry import BASE
from ddlbench.planning.labels import dataset_label, network_label, strategy_label

_SIZE = ("network", "dataset", "nodes", "devices_per_node", "batch_size")
_Answer = Mapping[str, Any]


def not_advised(answers: Sequence[_Answer], summary: pd.DataFrame) -> list[str]:
    """A sentence for each case whose highest measured speed-up has a reason against it.

    Args:
        answers: see :func:`ddlbench.predict.advice.answer_dict`.
        summary: the table of the experiment.
    """
    measured = summary[(summary["strategy"] != BASE) & summary["speedup"].notna()]
    cells = [Cell.from_id(f"{name}/rep0") for name in measured["configuration"]]
    found = []
    for answer in answers:
        case = answer["case"]
        named = {**{name: case[name] for name in _SIZE}, **case["settings"]}
        of_case = [all(getattr(cell, k) == v for k, v in named.items()) for cell in cells]
        own = measured[of_case]
        if own.empty or answer["recommended"] is None:
            continue
        highest = str(own["strategy"].iloc[int(own["speedup"].argmax())])
        reason = _reason(answer, highest)
        if reason:
            found.append(
                f"{strategy_label(highest)} has the highest speed-up for "
                f"{_named(answer['case'], answers)} and is not advised: {reason.rstrip('.')}."
            )
    return found


def _reason(answer: _Answer, strategy: str) -> str:
    """Why it is not recommended; empty if it is, or nothing is said against it."""
    if strategy == answer["recommended"]:
        return ""
    left_out = {one["strategy"]: one["reason"] for one in answer["not_ranked"]}
    # The sentence has a colon of its own.
    reason = left_out.get(strategy, "").replace(": ", "; ")
    return str(answer["why_not"].get(strategy, reason))


def _named(case: Mapping[str, Any], answers: Sequence[_Answer]) -> str:
    """The network, and what else tells this case from the others."""
    labels = [_labels(case), *(_labels(answer["case"]) for answer in answers)]
    network, *others = labels[0]
    differing = [
        text for place, text in enumerate(others, 1) if len({one[place] for one in labels}) > 1
    ]
    return ", ".join([network, *differing])


def _labels(case: Mapping[str, Any]) -> tuple[str, ...]:
    settings = case["settings"]
    return (
        network_label(case["network"]),
        dataset_label(case["dataset"]),
        f"{case['nodes']}x{case['devices_per_node']}",
        f"{case['batch_size']} samples a step",
        str(settings.get("fabric", "default")),
        str(settings.get("precision", "fp32")),
    )
