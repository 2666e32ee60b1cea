"""Logs of Megatron-LM and Megatron-DeepSpeed.

::

    using world size: 16, data-parallel size: 4, ..., tensor-model-parallel size: 4, ...
      hidden_size ..................................... 4096
     [2024-04-06 02:59:36] iteration       43/     100 | consumed samples: 5504 |
       elapsed time per iteration (ms): 5444.9 | throughput per GPU (TFLOP/s/GPU): 239.8 |
       ... | global batch size:   128 | lm loss: 1.825991E+00 | ...
    [Rank 0] (after 2 iterations) memory (MB) | allocated: 1.5 | max allocated: 2.5 | ...

An iteration stands on one line, its time in milliseconds or seconds; Primus writes its mean beside
it (``500.1/502.3``). Several ranks may print it. A batch that grows counts at its last size only.
``num_query_groups`` counts with ``group_query_attention`` only. DeepSpeed lists its settings, too,
whose ``world_size`` is the number of replicas: those lines are not read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ddlbench.common.captured_text import uncoloured_lines
from ddlbench.common.errors import ConfigError
from ddlbench.common.schema import read_yaml
from ddlbench.predict.run_logs.logged_run import (
    AGAIN,
    COMPLETE,
    CUT,
    MEGATRON,
    ONLY_STEP,
    OUT_OF_MEMORY,
    LoggedRun,
    after_warm_up,
    begins_again,
    median_of,
    out_of_memory,
    real,
    settle,
    whole,
    whole_lines,
)

_ITERATION = re.compile(r"\biteration\s+(\d{1,12})\s*/\s*(\d{1,12})\s*\|")
_ELAPSED = re.compile(r"elapsed time per iteration \((ms|s)\):\s*([\d.]+)(?:/[\d.]+)?\s*(?:\||$)")
_BATCH = re.compile(r"global batch size:\s*(\d+)\s*(?:\||$)")
_TFLOPS = re.compile(
    r"(?:throughput per GPU \(TFLOP/s/GPU\)|TFLOPs):\s*([\d.]+)(?:/[\d.]+)?\s*(?:\||$)"
)
_ARGUMENT = re.compile(r"\b([a-z][a-z0-9_]+) \.{3,} (\S+)")
_BEGIN = re.compile(r"\busing world size: \d+, .*data-parallel[- ]size:")
_OF_DEEPSPEED = re.compile(r"\[config\.py:\d+:print")
_GROUPED = "group_query_attention"
_UNTIED = "untie_embeddings_and_output_weights"
_SIZES = re.compile(r"([a-z-]+?)(?:-parallel)?[- ]size:\s*(\d+)")
_MEMORY = re.compile(r"memory \(MB\).*?max allocated:\s*([\d.]+)")
_PARAMETERS = re.compile(r"Total number of parameters in billions:\s*([\d.]+)")
_NAMES = read_yaml(Path(__file__).with_suffix(".yaml"))
_ARGUMENTS, _WORLD = _NAMES["arguments"], _NAMES["sizes"]


def lines_of(text: str) -> int:
    """How many lines only Megatron prints."""
    return sum(
        1
        for line in uncoloured_lines(text)
        if (_ITERATION.search(line) and "consumed samples" in line) or _BEGIN.search(line)
    )


def read(text: str, source: str) -> LoggedRun:
    """The run of a log.

    Raises:
        ConfigError: it holds several runs, or lines are broken, so that no iteration has a time.
    """
    lines = whole_lines(text)
    untimed: list[int] = []
    steps: dict[int, tuple[float, int | None, float | None]] = {}
    numbers: list[int] = []
    last = 0
    for place, line in enumerate(lines, 1):
        iteration, elapsed = _ITERATION.search(line), _ELAPSED.search(line)
        if iteration and not elapsed:
            untimed.append(place)
        elif iteration and elapsed and (time := real(elapsed[2])):
            last = int(iteration[2])
            size, rate = _BATCH.search(line), _TFLOPS.search(line)
            numbers.append(int(iteration[1]))
            steps[numbers[-1]] = (
                time / 1e3 if elapsed[1] == "ms" else time,
                whole(size[1]) if size else None,
                real(rate[1]) if rate else None,
            )
    if len(untimed) > 1 and not steps:
        raise ConfigError(
            f"{source} line {untimed[0]}: an iteration without 'elapsed time per iteration (ms): "
            "5444.9' on its line; give the log as it was written, a line per iteration"
        )
    values = _arguments(lines, source)
    rows = [steps[number] for number in sorted(steps)]
    if any(row[1] for row in rows):
        rows = [row for row in rows if row[1]]  # a line that was cut off has no batch
    batch = rows[-1][1] if rows else None
    counted = after_warm_up([row for row in rows if row[1] == batch])
    memory_mb = [real(match[1]) for line in lines if (match := _MEMORY.search(line))]
    parameters = next((real(m[1]) for line in lines if (m := _PARAMETERS.search(line))), None)
    ended = bool(steps) and max(steps) >= last
    status = COMPLETE if ended else OUT_OF_MEMORY if out_of_memory(text) else CUT
    again = f"{AGAIN}; of a step its last time counts"
    return LoggedRun(
        source=source,
        log=MEGATRON,
        status=status,
        parameters_billion=parameters,
        global_batch=batch,
        step_s=median_of(row[0] for row in counted),
        steps_counted=len(counted),
        tflops_a_device=median_of(row[2] or 0 for row in counted),
        # Its MB are 2^20 bytes.
        memory_gib=max((peak_mb / 1024 for peak_mb in memory_mb if peak_mb), default=None),
        note=ONLY_STEP if len(rows) == 1 else again if begins_again(numbers) else "",
        **values,
    )


def _arguments(lines: Sequence[str], source: str) -> dict[str, Any]:
    """Shape and cut, from the list of arguments and the line of the world's size."""
    arguments: dict[str, Any] = {}
    cut: dict[str, Any] = {}
    grouped = True
    for line in lines:
        if "world size:" in line:
            for name, word in _SIZES.findall(line):
                if name in _WORLD and (size := whole(word)):
                    settle(cut, _WORLD[name], size, source)
        elif (match := _ARGUMENT.search(line)) is None or _OF_DEEPSPEED.search(line):
            continue
        elif match[1] == _GROUPED:
            grouped = match[2] != "False"
        elif match[1] == _UNTIED:
            settle(arguments, "tied_embedding", "no" if match[2] == "True" else "yes", source)
        elif match[1] in _ARGUMENTS and (size := whole(match[2])) is not None:
            settle(arguments, _ARGUMENTS[match[1]], size, source)
    if not grouped and "attention_heads" in arguments:
        arguments["key_value_heads"] = arguments["attention_heads"]
    return {**cut, **arguments}
