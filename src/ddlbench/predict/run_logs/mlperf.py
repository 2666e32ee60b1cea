"""Logs of MLPerf Training: ``:::MLLOG`` and JSON on one line.

::

    0: :::MLLOG {"namespace": "", "time_ms": 1719843792116, "event_type": "INTERVAL_START",
                 "key": "epoch_start", "value": null, "metadata": {"epoch_num": 3}}

    run_start [ epoch_start ... epoch_stop | eval ]* run_stop    step = epoch x batch / samples
    run_start [ epoch_start ... [ eval ] ... epoch_stop ]* run_stop    the epoch without evaluation
    run_start [ block_start ... block_stop | eval ]* run_stop    by samples_count of both

Times are milliseconds. All ranks may print an event: the first of a kind and epoch counts. A run of
one epoch may end within it: evaluations tell how far it trained, as a share of the epoch (DLRM), in
samples (BERT) or in tokens (GPT-3). Steps
come from epochs, else from blocks, else from ``train_step_time`` or ``throughput`` (samples per
second) of ``tracked_stats``. The accelerators are in another file of the submission,
``systems/<system>.json``: given beside the logs, it fills in what they lack. Of a weak-scaling
entry it counts the nodes of all instances, a log those of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Any, NamedTuple

from ddlbench.common.captured_text import uncoloured_lines
from ddlbench.common.errors import ConfigError
from ddlbench.predict.run_logs.logged_run import (
    CUT,
    MLPERF,
    OUT_OF_MEMORY,
    LoggedRun,
    after_warm_up,
    median_of,
    out_of_memory,
    real,
    whole,
    with_note,
)

_MARK = ":::MLLOG"
_ROUND = re.compile(r"v\d\.\d(?=[/_]|$)")
_LONGEST_LINE = 100_000
_BEGINNINGS = ("init_start", "init_stop", "run_start")
_LATEST_RANK_S = 60.0
"""Ranks of one run begin within this time."""
_SHORT_END = 0.5
"""What follows an evaluation trains if it is longer than this share of what precedes it. CosmoFlow
on 2,048 V100: 5.1 s of training, 0.2 s of evaluation, 2.3 s of checkpoint."""


class _Event(NamedTuple):
    key: str
    time_s: float
    value: Any
    metadata: Mapping[str, Any]


def lines_of(text: str) -> int:
    """How many lines only MLPerf's logger prints."""
    return text.count(_MARK)


def read(text: str, source: str) -> LoggedRun:
    """The run of a log.

    Raises:
        ConfigError: it holds several runs, or none of its lines has a whole event.
    """
    lines = uncoloured_lines(text)
    events = list(_events(lines))
    if not events:
        place = next((place for place, line in enumerate(lines, 1) if _MARK in line), 1)
        raise ConfigError(
            f"{source} line {place}: {_MARK} without its event, as JSON, on the same line, and no "
            "other line has one; give the log as it was written"
        )
    first: dict[str, _Event] = {}
    for event in events:
        first.setdefault(event.key, event)
    _check_single(events, first, source)
    batch, samples = _number(first, "global_batch_size"), _number(first, "train_samples")
    epochs = _epochs(events)
    trained = _trained_samples(events, first, batch, samples) if len(epochs) == 1 else samples
    step_s, how = _steps(events, epochs, batch, trained)
    counted = after_warm_up(step_s)
    run_s = _between(first, "run_start", "run_stop")
    stop = first.get("run_stop")
    status = str((stop.metadata.get("status") if stop else None) or "complete") if stop else CUT
    if stop is None and out_of_memory(text):
        status = OUT_OF_MEMORY
    match = _ROUND.search(source.replace("\\", "/"))
    nodes, each = _number(first, "number_of_nodes"), _number(first, "accelerators_per_node")
    return LoggedRun(
        source=source,
        log=MLPERF,
        status=status[:40],
        round=match[0] if match else "",
        submitter=_word(first, "submission_org"),
        system=_system(source) or _word(first, "submission_platform"),
        model=_word(first, "submission_benchmark"),
        process="horovod" if "horovod" in text[:_LONGEST_LINE].casefold() else "",
        nodes=nodes,
        accelerators_per_node=each,
        accelerators=nodes * each if nodes and each else None,
        global_batch=batch,
        train_samples=samples,
        epochs_median=len(epochs) or None,
        step_s=median_of(counted),
        steps_counted=len(counted),
        run_s_median=run_s,
        epochs_share_of_run=sum(epochs) / run_s if epochs and run_s else None,
        note=how,
    )


def with_system(run: LoggedRun, name: str, system: Mapping[str, Any]) -> LoggedRun:
    """The run with what ``systems/<name>.json`` says, if that is its system.

    The processors of a system without accelerators stand for them.
    """
    if run.log != MLPERF or run.system.casefold() != name.casefold():
        return run
    has_none = str(system.get("accelerators_per_node")).strip() == "0"
    kind = "host_processor" if has_none else "accelerator"
    all_nodes = whole(system.get("number_of_nodes"))
    nodes = run.nodes or all_nodes
    each = run.accelerators_per_node or whole(system.get(f"{kind}s_per_node"))
    software = f"{system.get('framework')} {system.get('other_software_stack')}".casefold()
    uses_horovod = "mxnet" in software or "horovod" in software
    return replace(
        run,
        submitter=str(system.get("submitter") or "") or run.submitter,
        instances=max(1, all_nodes // run.nodes) if all_nodes and run.nodes else None,
        nodes=nodes,
        accelerators_per_node=each,
        accelerators=nodes * each if nodes and each else None,
        accelerator=str(system.get(f"{kind}_model_name") or ""),
        host_network=str(system.get("host_networking") or ""),
        process=run.process or ("horovod" if uses_horovod else ""),
    )


def with_note_of_system(run: LoggedRun, names: Sequence[str]) -> LoggedRun:
    """The run with a note if none of the given descriptions is of its system."""
    described = run.system.casefold() in map(str.casefold, names)
    if run.log != MLPERF or described or run.nodes:
        return run
    what = f"its system is {run.system!r}" if run.system else "it names no system"
    remark = f"{what}, and the descriptions given are of {', '.join(names)}; rename the right one"
    return with_note(run, remark)


def is_system(value: Any) -> bool:
    """Whether JSON describes a system of MLPerf."""
    return isinstance(value, dict) and {"number_of_nodes", "accelerators_per_node"} <= value.keys()


def _system(source: str) -> str:
    """``results/<system>/<benchmark>/result_0.txt`` names the system."""
    parts = PurePath(source).parts
    at = [place for place, part in enumerate(parts) if part == "results"]
    return parts[at[-1] + 1] if at and at[-1] + 3 < len(parts) else ""


def _events(lines: Sequence[str]) -> Iterator[_Event]:
    """All events that are whole, in their order; other text is skipped."""
    decoder = json.JSONDecoder()
    for line in lines:
        start = line.find("{", at) if (at := line.find(_MARK)) >= 0 else -1
        if start < 0 or len(line) > _LONGEST_LINE:
            continue
        try:
            entry, _ = decoder.raw_decode(line, start)
        except (ValueError, RecursionError):
            continue
        key, time_ms = entry.get("key"), real(entry.get("time_ms"))
        metadata = entry.get("metadata")
        if isinstance(key, str) and time_ms is not None:
            known = metadata if isinstance(metadata, dict) else {}
            yield _Event(key, time_ms / 1e3, entry.get("value"), known)


def _check_single(events: Sequence[_Event], first: Mapping[str, _Event], source: str) -> None:
    """Refuse a log in which one more run begins.

    Raises:
        ConfigError: it holds several runs.
    """
    if "run_start" not in first:
        return
    begin_s, end = first["run_start"].time_s, first.get("run_stop")
    later = [
        event.time_s - begin_s
        for event in events
        if event.key in _BEGINNINGS
        and (event.time_s > begin_s + _LATEST_RANK_S or (end and event.time_s > end.time_s))
    ]
    if later:
        raise ConfigError(
            f"{source}: a run begins {later[0]:.0f} s after the first, so it holds several runs; "
            "give each a file of its own"
        )


def _trained_samples(
    events: Sequence[_Event], first: Mapping[str, _Event], batch: int | None, samples: int | None
) -> float | None:
    """Samples of the only epoch until its last evaluation, where that is told; else all.

    A number below a batch counts epochs. GPT-3 alone counts tokens.
    """
    ((start, stop),) = _pairs(events, "epoch_start", "epoch_stop", ("epoch_num",))
    logged = [
        progress
        for event in events
        if event.key in ("eval_accuracy", "eval_stop")
        and start.time_s < event.time_s <= stop.time_s
        and (progress := real(event.metadata.get("epoch_num")))
    ]
    progress = logged[-1] if logged else 1.0
    if progress < 1:
        return samples * progress if samples else None
    if progress < (batch or 1):
        return samples
    if "gpt3" not in _word(first, "submission_benchmark"):
        return progress
    length = _number(first, "max_sequence_length")
    return progress / length if length else None


def _number(first: Mapping[str, _Event], key: str) -> int | None:
    return whole(first[key].value) if key in first else None


def _word(first: Mapping[str, _Event], key: str) -> str:
    value = first[key].value if key in first else ""
    return value.strip()[:100] if isinstance(value, str) else ""


def _between(first: Mapping[str, _Event], start: str, stop: str) -> float | None:
    if start not in first or stop not in first:
        return None
    return real(first[stop].time_s - first[start].time_s)


def _epochs(events: Sequence[_Event]) -> list[float]:
    """Seconds that each epoch trains."""
    evaluations = _pairs(events, "eval_start", "eval_stop", ("step_num", "epoch_num"))
    spans = [(start.time_s, stop.time_s) for start, stop in evaluations]
    return [
        _training_s(start.time_s, stop.time_s, spans)
        for start, stop in _pairs(events, "epoch_start", "epoch_stop", ("epoch_num",))
    ]


def _training_s(start_s: float, stop_s: float, evaluations: Sequence[tuple[float, float]]) -> float:
    """Seconds of an epoch without its evaluations.

    One late evaluation ends the training: writing a checkpoint, say, may follow it.
    """
    within = [(begin, end) for begin, end in evaluations if start_s < begin < end <= stop_s]
    if len(within) == 1:
        begin, end = within[0]
        if stop_s - end < _SHORT_END * (begin - start_s):
            return begin - start_s
    return stop_s - start_s - sum(end - begin for begin, end in within)


def _pairs(
    events: Sequence[_Event], start: str, stop: str, names: Sequence[str]
) -> list[tuple[_Event, _Event]]:
    """Starts with their stops, each once: by epoch, or one after the other."""
    begun: dict[str, _Event] = {}
    done: dict[str, tuple[_Event, _Event]] = {}
    opened = ""
    for event in events:
        if event.key not in (start, stop):
            continue
        label = next((repr(event.metadata[n]) for n in names if n in event.metadata), "")
        if event.key == start:
            label = label or f"after {len(done)}"
            begun.setdefault(label, event)
            opened = label
        else:
            label = label if label in begun else opened
            if label in begun and label not in done and event.time_s > begun[label].time_s:
                done[label] = (begun[label], event)
    return list(done.values())


def _steps(
    events: Sequence[_Event], epochs: Sequence[float], batch: int | None, samples: float | None
) -> tuple[list[float], str]:
    """Seconds a step, one value an epoch, a block or a report, and a doubt."""
    if epochs and batch and samples:
        return [number * batch / samples for number in epochs], ""
    blocks = list(_block_steps(events, batch))
    if blocks:
        return blocks, ""
    stats = [event for event in events if event.key == "tracked_stats"]
    values = [event.value for event in stats if isinstance(event.value, dict)]
    known = [real(value.get("train_step_time")) for value in values]
    if any(known):
        return [number for number in known if number], ""
    rates = [real(value.get("throughput")) for value in values]
    if batch and any(rates):
        return [
            batch / number for number in rates if number
        ], "step_s by throughput, taken as samples/s"
    return [], "" if batch else "no global_batch_size: no step_s"


def _block_steps(events: Sequence[_Event], batch: int | None) -> Iterator[float]:
    """By the samples at the beginning and the end of each block."""
    for start, stop in _pairs(events, "block_start", "block_stop", ()):
        first, last = (real(event.metadata.get("samples_count")) or 0.0 for event in (start, stop))
        if batch and last > first:
            yield (stop.time_s - start.time_s) * batch / (last - first)
