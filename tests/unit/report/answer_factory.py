"""Made-up answers of the recommender, valid by the schema of choice.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ddlbench.planning.labels import strategy_label


def candidate(strategy: str, step_s: float, speedup: float, **changes: Any) -> dict[str, Any]:
    """A predicted candidate; ``basis="measured"`` makes it a measured one."""
    basis = changes.get("basis", "predicted")
    spread = 1.05 if basis == "measured" else 1.3
    return {
        "strategy": strategy,
        "geometry": "1x2",
        "step_s": step_s,
        "interval_s": [step_s / spread, step_s * spread],
        "basis": basis,
        "speedup": speedup,
        "speedup_basis": basis,
        "bound": None,
        "chance": None,
        "fits": True,
        "label": strategy_label(strategy),
        "cell_id": f"mnist/vgg11/{strategy}/1x2/batch_size=16/rep0",
        "predicted_step_s": step_s,
        "predicted_interval_s": [step_s / 1.3, step_s * 1.3],
        "measured_step_s": step_s if basis == "measured" else None,
        "runs": int(basis == "measured"),
        "predictor": "ddlbench",
        **dict.fromkeys(("compute_s", "communication_s", "exposed_communication_s", "bubble_s")),
        "memory_bytes": None,
        "device_memory_bytes": None,
        "limits": [],
        "notes": [],
        **changes,
    }


def answer(
    candidates: Sequence[Mapping[str, Any]],
    recommended: str | None,
    why_not: Mapping[str, str] | None = None,
    **case: Any,
) -> dict[str, Any]:
    """An answer; ``case`` is what of its case differs from VGG-11 on MNIST, 1x2, 16 samples."""
    usual = {"network": "vgg11", "dataset": "mnist", "nodes": 1, "devices_per_node": 2}
    usual |= {"batch_size": 16, "settings": {}, "options": {}}
    return {
        "case": {**usual, **case},
        "recommended": recommended,
        "advice": [f"Train with {recommended}.", "And another sentence."],
        "candidates": [dict(entry) for entry in candidates],
        "not_ranked": [{"strategy": "pipedream", "reason": "updates with old weights: a remark"}],
        "tied": [],
        "why_not": dict(why_not or {}),
        "recommender": "ddlbench",
    }


def size(
    geometry: str, strategy: str | None, speedup: float | None, basis: str = "predicted"
) -> dict[str, Any]:
    """An entry of the geometries of ``sizes_dict``; without a strategy it has no answer."""
    nodes, per_node = map(int, geometry.split("x"))
    candidates = [] if strategy is None else [candidate(strategy, 0.2, speedup or 1.0, basis=basis)]
    return {
        "geometry": geometry,
        "speedup": speedup,
        "efficiency": None if speedup is None else speedup / (nodes * per_node),
        "epoch_device_hours": None if speedup is None else 0.25,
        **answer(candidates, strategy, nodes=nodes, devices_per_node=per_node),
    }
