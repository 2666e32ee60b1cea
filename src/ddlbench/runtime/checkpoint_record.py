"""What was measured so far, as tensors and numbers that a checkpoint holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from ddlbench.runtime.loop import Measurement
from ddlbench.runtime.meters import Usage
from ddlbench.strategies.executor import RunRecord

__all__ = ["measurement", "packed", "seconds"]


def packed(so_far: Measurement) -> dict[str, Any]:
    """Without spans: they are by the clock of a process that ends."""
    return {
        "steps": so_far.steps,
        "warmup": _packed_record(so_far.warmup),
        "measured": _packed_record(so_far.measured),
        "utilisation": asdict(so_far.utilisation),
    }


def measurement(state: dict[str, Any]) -> Measurement:
    """What :func:`packed` took apart."""
    return Measurement(
        warmup=_record(state["warmup"]),
        measured=_record(state["measured"]),
        utilisation=Usage(**state["utilisation"]),
        steps=int(state["steps"]),
    )


def seconds(values: Sequence[float]) -> Tensor:
    """Numbers, bit for bit; float64 (n,)."""
    return torch.tensor(values, dtype=torch.float64)


def _packed_record(record: RunRecord) -> dict[str, Any]:
    return {
        "ids": torch.tensor(record.ids, dtype=torch.int64),
        "step_s": seconds(record.step_s),
        "load_s": seconds(record.load_s),
        "loss": seconds(record.loss),
        "communication_wait_s": record.communication_wait_s,
    }


def _record(state: dict[str, Any]) -> RunRecord:
    lists = {name: state[name].tolist() for name in ("ids", "step_s", "load_s", "loss")}
    return RunRecord(**lists, communication_wait_s=state["communication_wait_s"])
