"""One row of the table of logged runs: its columns, what they mean, and how steps are summed up.

Columns have the names of the tables that `ddlbench oracle score` reads, so that it scores the rows
of one kind of log as they are. A column without any value is not written, unless scores of MLPerf
need it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from statistics import median
from typing import Annotated, Any, TypeVar

from annotated_types import Ge

from ddlbench.common.captured_text import uncoloured_lines
from ddlbench.common.document import csv_text
from ddlbench.common.errors import ConfigError
from ddlbench.common.form import Amount, Count, Form, Name, Positive

_Value = TypeVar("_Value")
MOST_WARM_UP = 10
MEGATRON, TORCHTITAN, MLPERF = "Megatron", "torchtitan", "MLPerf"
_OUT_OF_MEMORY = re.compile(r"OutOfMemoryError|CUDA out of memory|HIP out of memory")
COMPLETE, CUT, OUT_OF_MEMORY = "complete", "cut off", "out of memory"


@dataclass(frozen=True, kw_only=True)
class LoggedRun(Form):
    """A run, as far as its log tells it."""

    source: Name
    """File that was read."""
    log: Name
    """Whose format it has: MLPerf, torchtitan or Megatron."""
    status: Name
    """complete, cut off (the log ends before the run), out of memory, or what MLPerf's run_stop
    says."""
    round: str = ""
    """Of MLPerf, where the file's path names it."""
    submitter: str = ""
    system: str = ""
    """Of MLPerf."""
    instances: Count | None = None
    """Runs that a weak-scaling entry of MLPerf HPC did at one time, this run among them."""
    model: str = ""
    """Network, as the log names it."""
    process: str = ""
    """Library of the data-parallel part, where the log tells it."""
    accelerator: str = ""
    nodes: Count | None = None
    accelerators_per_node: Count | None = None
    accelerators: Count | None = None
    """All of them, as MLPerf counts."""
    host_network: str = ""
    """Free text of an MLPerf system."""
    devices: Count | None = None
    """All of them, of a transformer."""
    parameters_billion: Positive | None = None
    layers: Count | None = None
    hidden_size: Count | None = None
    attention_heads: Count | None = None
    key_value_heads: Count | None = None
    feed_forward: Count | None = None
    vocabulary: Count | None = None
    tied_embedding: str = ""
    """yes, or no if the logits have weights of their own."""
    sequence_length: Count | None = None
    tensor: Count | None = None
    pipeline: Count | None = None
    data: Count | None = None
    context: Count | None = None
    micro_batch: Count | None = None
    """Samples of one pass of one replica."""
    global_batch: Count | None = None
    """Samples of a step over all devices."""
    train_samples: Count | None = None
    epochs_median: Annotated[int, Ge(0)] | None = None
    """Of this run."""
    step_s: Positive | None = None
    """Median of the steps after warm-up."""
    steps_counted: Annotated[int, Ge(0)] = 0
    """Logged values of which step_s is the median."""
    run_s_median: Positive | None = None
    """From run_start to run_stop of this run."""
    epochs_share_of_run: Amount | None = None
    tokens_per_s_a_device: Positive | None = None
    tflops_a_device: Positive | None = None
    """As the log counts them."""
    memory_gib: Positive | None = None
    """Largest that a rank reports."""
    note: str = ""
    """What makes a value doubtful."""


COLUMNS = tuple(field.name for field in fields(LoggedRun))
_OF_MLPERF = (
    "round", "submitter", "system", "accelerator", "nodes", "accelerators_per_node",
    "accelerators", "global_batch", "train_samples", "epochs_median", "step_s", "run_s_median",
    "epochs_share_of_run",
)  # fmt: skip


def with_note(run: LoggedRun, note: str) -> LoggedRun:
    """The run with one more note, perhaps an empty one."""
    return replace(run, note="; ".join(filter(None, (run.note, note))))


def table_text(runs: Sequence[LoggedRun]) -> str:
    """The runs as CSV, without columns that have no value."""
    rows = [{name: _cell(getattr(run, name)) for name in COLUMNS} for run in runs]
    needed = _OF_MLPERF if any(run.log == MLPERF for run in runs) else ()
    used = [name for name in COLUMNS if name in needed or any(row[name] != "" for row in rows)]
    return csv_text([used, *([row[name] for name in used] for row in rows)])


def _cell(value: Any) -> Any:
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else value


def whole_lines(text: str) -> list[str]:
    """Lines of a log without colours.

    A log that is still written ends anywhere: a number that ends it may lack digits, and is left
    out.
    """
    *lines, last = uncoloured_lines(text)
    words, _, end = last.rpartition(" ")
    return [*lines, words if any(sign.isdigit() for sign in end) else last]


def settle(settings: dict[str, Any], name: str, value: Any, source: str) -> None:
    """Note a setting that a log says; it may say it again.

    Raises:
        ConfigError: it said another value before, so that its steps are of several runs.
    """
    if settings.setdefault(name, value) != value:
        raise ConfigError(
            f"{source}: {name} is {settings[name]} and later {value}, so it holds several runs; "
            "give each a file of its own"
        )


def begins_again(numbers: Sequence[int]) -> bool:
    """Whether steps, in the order of the log, begin again: a restart, or one more run.

    Ranks print a step at about the same time, so that one smaller number is no new beginning.
    """
    largest, second = -1, -1
    for number in numbers:
        if number < second:
            return True
        if number > largest:
            largest, second = number, largest
    return False


ONLY_STEP = "its only step, warm-up included"
AGAIN = "its steps begin again (a restart, or one more run)"


def out_of_memory(text: str) -> bool:
    """Whether a rank says so."""
    return _OUT_OF_MEMORY.search(text) is not None


def after_warm_up(values: Sequence[_Value]) -> list[_Value]:
    """Values of later steps: the first half, but at most ten, is left out.

    A single value is kept, as there is no other.
    """
    dropped = min(MOST_WARM_UP, max(1, len(values) // 2)) if len(values) > 1 else 0
    return list(values[dropped:])


def median_of(values: Iterable[float]) -> float | None:
    """The median of the positive finite ones; None if there are none."""
    known = [value for value in values if 0 < value < math.inf]
    return median(known) if known else None


def whole(word: Any) -> int | None:
    """A count above 0, from a word or a JSON value; None if it is none."""
    number = real(word)
    return int(number) if number is not None and number == int(number) and number < 1e15 else None


def real(word: Any) -> float | None:
    """A finite number above 0, from a word as ``1,234.5`` or a JSON value; None if it is none."""
    if isinstance(word, bool) or not isinstance(word, int | float | str):
        return None
    try:
        number = float(word.replace(",", "") if isinstance(word, str) else word)
    except (ValueError, OverflowError):
        return None
    return number if 0 < number < math.inf else None
