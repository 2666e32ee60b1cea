"""A measured cell as a log of MLPerf Training: ``:::MLLOG`` lines, which MLCommons' checker reads.

::

    init_start  prepare  init_stop | run_start | epoch_start  epoch_stop | ... | run_stop
                                                            eval_start, eval_accuracy, eval_stop

A cell is no submission, and its log follows the rules of the open division: its schedule is not
the closed division's. It claims a benchmark of MLPerf only where it trained that one: ResNet-50 on
all of the real ImageNet, with validation. Any other cell lacks ``submission_benchmark`` and,
without validation, ``eval_*``: the log's first lines, which are no events, say so. The checker then
complains of these keys, and of no other.

A result has durations, and one date: when it was written. Times are counted back from there.
Validations are in no duration, so that ``eval_start`` and ``eval_stop`` are at one time.

Source: mlcommons/logging, mlperf_logging/compliance_checker, rules of training 4.0.0, the last that
have ResNet-50.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.dataset_spec import DATASETS
from ddlbench.experiment.result import Result
from ddlbench.experiment.status import Status
from ddlbench.report.timeline.box import InvalidTimeline
from ddlbench.report.timeline.cell import read_cell_result

RULES = "4.0.0"
_RESNET50 = ("resnet50", "torchvision:resnet50")
_MS_PER_S = 1000.0


def mllog_files(folder: Path) -> dict[str, bytes]:
    """``result_0.txt`` of a cell.

    Raises:
        InvalidTimeline: the cell has no result, or was not measured to its end.
    """
    result = read_cell_result(folder)
    if result is None:
        raise InvalidTimeline(f"{folder}: no result.json; name the folder of a measured cell")
    return {"result_0.txt": ("\n".join(log_lines(result)) + "\n").encode()}


def unclaimed(result: Result) -> list[str]:
    """Keys that the checker's rules want, and that the cell does not claim."""
    claims = _benchmark(Cell.from_id(result.cell_id), result) is not None
    keys = [] if claims else ["submission_benchmark"]
    return keys if result.validation else [*keys, "eval_start", "eval_stop", "eval_accuracy"]


def log_lines(result: Result) -> Iterator[str]:
    """The lines of a result's log.

    Raises:
        InvalidTimeline: it has no measured epoch, or no date.
    """
    timing, created = result.timing, result.provenance.created
    if result.status != Status.OK or timing is None or not timing.epochs or created is None:
        why = result.reason or "it has no measured epoch, or no date"
        raise InvalidTimeline(f"{result.cell_id}: no log of MLPerf: {why}")
    lacks = unclaimed(result)
    yield f"# {result.cell_id}, measured by ddlbench; no submission to MLPerf."
    if lacks:
        yield f"# Not claimed, so that the rules of training {RULES} miss: {', '.join(lacks)}."
    yield "# Times are counted back from when the result was written."
    yield from map(_line, _events(result, datetime.fromisoformat(created).timestamp()))


Event = tuple[float, str, str, Any, dict[str, Any]]
"""Seconds since 1970, type, key, value, metadata."""


def _line(event: Event) -> str:
    time_s, kind, key, value, metadata = event
    fields = {
        "namespace": "",
        "time_ms": round(time_s * _MS_PER_S),
        "event_type": kind,
        "key": key,
        "value": value,
        "metadata": metadata,
    }
    return f":::MLLOG {json.dumps(fields, allow_nan=False)}"


def _events(result: Result, end_s: float) -> Iterator[Event]:
    cell, timing = Cell.from_id(result.cell_id), result.timing
    assert timing is not None
    run_s = end_s - sum(epoch.elapsed_s for epoch in timing.epochs)
    init_s = run_s - timing.prepare_s

    def point(key: str, value: Any, time_s: float = init_s, **metadata: Any) -> Event:
        return (time_s, "POINT_IN_TIME", key, value, metadata)

    def border(key: str, time_s: float, **metadata: Any) -> Event:
        kind = "INTERVAL_START" if key.endswith("start") else "INTERVAL_END"
        return (time_s, kind, key, None, metadata)

    for key, value in _about(cell, result).items():
        yield point(key, value)
    yield point("cache_clear", False)
    yield border("init_start", init_s)
    yield border("init_stop", run_s)
    yield border("run_start", run_s)
    accuracies = {entry.epoch: entry for entry in result.validation}
    at_s, samples = run_s, 0
    for number, epoch in enumerate(timing.epochs, start=1):
        yield border("epoch_start", at_s, epoch_num=number, samples_count=samples)
        at_s, samples = at_s + epoch.elapsed_s, samples + epoch.samples
        counts = {"epoch_num": number, "samples_count": samples}
        yield border("epoch_stop", at_s, **counts)
        yield point("throughput", epoch.samples / epoch.elapsed_s, at_s, **counts)
        if (entry := accuracies.get(number)) is not None:
            yield border("eval_start", at_s, **counts)
            yield point("eval_accuracy", entry.accuracy, at_s, **counts)
            yield border("eval_stop", at_s, **counts)
    yield border("run_stop", at_s, status="success", samples_count=samples)


def _about(cell: Cell, result: Result) -> dict[str, Any]:
    assert result.timing is not None
    models = sorted({model for rank in result.ranks for model in rank.gpu_models})
    processor = result.provenance.cpu_model or "CPU"
    device = ", ".join(models) or processor
    benchmark = _benchmark(cell, result)
    validated = result.validation[0].samples if result.validation else None
    undeclared = cell.dataset not in DATASETS  # whose configuration is not read here
    spec = None if undeclared else DATASETS[cell.dataset]
    return {
        "submission_org": "not submitted",
        "submission_platform": f"{result.devices} x {device}",
        "submission_status": "research",
        "submission_division": "open",
        **({"submission_benchmark": benchmark} if benchmark else {}),
        "global_batch_size": cell.batch_size,
        "gradient_accumulation_steps": cell.option("accumulate", 1),
        "train_samples": result.timing.dataset_samples,
        "eval_samples": validated if validated is not None else (spec.num_val if spec else 0),
        **_optimizer(cell),
        "seed": cell.seed,
        "number_of_nodes": cell.nodes,
        "accelerators_per_node": cell.devices_per_node,
        "ddlbench_cell": result.cell_id,
    }


def _optimizer(cell: Cell) -> dict[str, Any]:
    if cell.optimizer == "sgd":
        return {
            "opt_name": "sgd",
            "sgd_opt_base_learning_rate": cell.learning_rate,
            "sgd_opt_momentum": cell.momentum,
            "sgd_opt_weight_decay": cell.weight_decay,
        }
    return {
        "opt_name": cell.optimizer,
        "opt_base_learning_rate": cell.learning_rate,
        f"opt_{cell.optimizer}_weight_decay": cell.weight_decay,
    }


def _benchmark(cell: Cell, result: Result) -> str | None:
    """The benchmark of MLPerf that the cell trained; None if it is none."""
    whole = cell.data_source == "real" and cell.data_scale == 1 and cell.max_steps is None
    trained = cell.network in _RESNET50 and cell.dataset == "imagenet"
    return "resnet" if trained and whole and result.validation else None
