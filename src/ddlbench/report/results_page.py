"""Generates ``docs/results.md`` from the columns of the tables and the schema of result.json."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ddlbench.common.form import schema_of
from ddlbench.experiment.result import Result
from ddlbench.experiment.status import REASON_CODES
from ddlbench.predict.documents import PredictedCell
from ddlbench.report.columns import MEASUREMENTS, STEPS, SUMMARY, VALIDATION, Column

_INTRODUCTION = """\
# Results: files, fields and columns

Every finished cell leaves `results/<site>/cells/<cell id>/result.json`, written last and whole.
Of these an experiment makes four tables in `results/<site>/<experiment>/tables/` and figures in
`results/<site>/<experiment>/figures/`: each a PNG, a PDF, and a CSV with the plotted numbers.

Seconds end in `_s`, bytes in `_bytes`, rates in `_per_s`. An unknown number or text is an empty
field. This page is made by `make tables`.

## report.html: all of it on one page

`results/<site>/<experiment>/report.html` shows what tables and figures hold: what to train with,
the table of speed-ups, every figure with its caption and links to its PDF and numbers, a summary of
every configuration, and why a cell has no number. All pictures are in the one file, and no script
is: send it, or read it offline or on a phone. Its links to files work while it lies in its folder.

The workflow writes it last; `ddlbench report` (`make report`) writes it at any time, of an
unfinished run too, and `ddlbench report --html` does so without drawing anything anew.
`snakemake --profile profiles/local --report report.zip` packs Snakemake's own report: figures and
measurements beside the code and run times of the rules.

## How numbers are made

- Times are summarised as medians; a rate or a speed-up is derived from seconds once, at the end.
- The base of a speed-up is the sequential cell of the same axes and the same repeat. Without it,
  or when the two saw different numbers of images or ran on different processors (models of GPUs; on
  CPU, of CPUs), there is no speed-up; neither where the repeats that it is taken over ran on
  different ones. Figures then have `unlike base` or `unlike repeats` in its place.
- Base and cell, and the repeats of a cell, are compared by processors, CPUs of GPU hosts, cores of
  a host, kinds of hosts (their names without numbers), versions of packages and drivers, commit,
  and probe; ranks of a cell by processors, cores, and versions. What differs is in
  `comparability`, as `base_differs commit: bbbbbbb (base), aaaaaaa (cell)`, and in words below
  figures. What a result does not say gives no entry.
  `ranks[]` in result.json has the processors rank by rank, and older results only those of rank 0.
- Below four measured steps their spread is unknown: `noisy` is empty, and `comparability` has
  `few_steps`; it has `no_warm_up` where no step was warm-up.
- `no_speedup` is `other_training`, `other_weights`, `disturbed`, `base_disturbed`, `other_data`,
  `unlike_base` or `unlike_repeats`; figures have its words in place of the number.
- On CUDA `load_s` is how long the host waited for data. The device may have had other work by then,
  so it need not be a part of the step there.
- Intervals assume no distribution. From 6 repeats on they are order statistics of the median at
  95 %. Fewer repeats cannot give 95 %: the interval is their whole range, and `coverage` says how
  surely it holds the median (2: 50 %, 3: 75 %, 4: 88 %, 5: 94 %).
- A single run has the 95 % interval of its median step, scaled to the epoch; `interval_of` then
  says `steps`. Such an interval knows nothing of the difference between runs.
- The interval of a speed-up is a seeded bootstrap of the ratio of medians over paired repeats,
  from 3 repeats on; with so few it holds the ratio less often than in 95 % of cases. With one or
  two it is a bound: the base's low over the cell's high, and so on.
- `communication` counts what each rank wrote to and received from its TCP connections to other
  ranks, by the kernel's counters (`TCP_INFO`): gloo's few bytes a message are in it, headers of TCP
  and IP and the rendezvous store are not. gloo's all-reduce is a ring (a reduce-scatter, then an
  all-gather; `gloo/allreduce.cc`), so each of N ranks sends and receives 2 (N - 1) / N of the
  gradients' bytes, and with two ranks once their size. A stage of a pipeline sends its activations
  of every micro-batch forward, and as many bytes of gradients come back. Over NCCL nothing counts.
- `mfu` is the share of its devices' measured peak that a step uses for the operations that the
  network needs ([measurement.md](measurement.md)): comparable between strategies, batches and
  precisions, and across machines as far as their peaks are. `energy_j` is of what `energy_of` says;
  two machines of which one counts only GPUs cannot be compared by it.
- `accuracy` is of cells with `validate`: the share of the validation images that rank 0 classifies
  right with the network that all ranks hold after the epoch ([datasets.md](datasets.md#accuracy)).
  `accuracy.csv` is another thing: the errors of predictors.
- A cell is `stale` when its plan today, or the profile or links that it is made from, differ from
  those that were measured: it is shown, marked, and not run again. A `noisy` run is marked too, and
  never cleaned.
- A cell is `disturbed` when something stopped it within its measured steps: a rank stood still,
  SLURM suspended its job, or a step took many times its neighbours. Its numbers are wrong, so it
  gives no speed-up and is no base, and of several repeats it is left out
  ([measurement.md](measurement.md)). `ddlbench forget --state disturbed` has it measured again.
- A cell whose first losses are not those of one device has a `departure`: it `does not train as one
  device does`. It gives no speed-up (figures have `other training` in its place), is not advised
  and not ranked, and of several repeats it is left out; so is a cell that began with other weights
  than its base (`other weights`). See
  [measurement.md](measurement.md#does-a-cell-train-as-one-device-does).
"""

_PARTITIONS = """\
## partitions.csv: what the partitions of torchgpipe did, beside steps.csv

One step after the timed region, recorded with hooks. Only cells of `gpipe` and `model-parallel`
have the file.

| column | meaning |
|---|---|
| `partition` | index of the partition |
| `kind` | `forward`, `recompute` or `backward` |
| `micro_batch` | index of the micro-batch |
| `start_s`, `end_s` | seconds from the start of the step |

## trace.json: what every rank did, beside steps.csv

Chrome's trace format, for chrome://tracing or ui.perfetto.dev: a row a rank, microseconds from the
first piece on rank 0's clock. Cells whose strategy records spans have the file;
`plan_details.clock` in their result says how each rank's clock was moved and how sure that is.
`ddlbench timeline CELL_FOLDER` draws it under what was planned ([timelines.md](timelines.md)).
"""

_REASON_CODES = """\
## Reason codes

A cell without a number has a reason: a sentence, and a code by which `ddlbench status` and the
tables count.

| code | meaning |
|---|---|
"""

_PREDICTIONS = """\
## predictions.json: what every predictor said of every cell

`snakemake predictions` and `ddlbench accuracy` write it into the experiment's folder, and among its
tables `accuracy.csv`, `table_6_1.csv`, `table_8_1.csv` and `table_8_2.csv` (the latter two also as
`.md`); [prediction.md](prediction.md) explains them. The report writes what to train with into
`advice.json`, in the form of `choice.json`. An entry of `predictions`:

| field | type | meaning |
|---|---|---|
"""


def results_page() -> str:
    """The whole page in Markdown."""
    parts = [
        _INTRODUCTION,
        _table("measurements.csv: one row a cell of the matrix", MEASUREMENTS),
        _table("summary.csv: one row a cell configuration, over its repeats", SUMMARY),
        _table("steps.csv: one row a step of every cell", STEPS),
        _table("validation.csv: one row an epoch of every cell with `validate`", VALIDATION),
        "## result.json\n\n| field | type | meaning |\n|---|---|---|\n"
        + "".join(f"| `{name}` | {kind} | {text} |\n" for name, kind, text in schema_fields()),
        _REASON_CODES + "".join(f"| `{code}` | {text} |\n" for code, text in REASON_CODES.items()),
        _PARTITIONS,
        _PREDICTIONS
        + "".join(f"| `{name}` | {kind} | {text} |\n" for name, kind, text in _predicted_fields()),
    ]
    return "\n".join(parts)


def schema_fields() -> list[tuple[str, str, str]]:
    """List every field of result.json with its type and meaning."""
    schema = schema_of(Result)
    return list(_walk("", schema, schema["$defs"]))


def _predicted_fields() -> list[tuple[str, str, str]]:
    schema = schema_of(PredictedCell)
    return list(_walk("", schema, {}))


def _table(title: str, columns: Sequence[Column]) -> str:
    meanings = [column.description.replace("|", r"\|") for column in columns]
    lines = [
        f"| `{column.name}` | {column.kind} | {column.unit} | {meaning} |\n"
        for column, meaning in zip(columns, meanings, strict=True)
    ]
    return f"## {title}\n\n| column | kind | unit | meaning |\n|---|---|---|---|\n{''.join(lines)}"


def _walk(
    prefix: str, schema: dict[str, Any], parts: dict[str, Any]
) -> Iterator[tuple[str, str, str]]:
    for name, entry in schema["properties"].items():
        path, text = f"{prefix}{name}", entry.get("description", "")
        known = next((one for one in entry.get("anyOf", []) if one.get("type") != "null"), entry)
        inner, mark = (known["items"], "[]") if "items" in known else (known, "")
        part = parts.get(str(inner.get("$ref")).rpartition("/")[2], {})
        if text or "properties" not in part:
            yield path, _kind(entry, parts), text
        if "properties" in part:
            yield from _walk(f"{path}{mark}.", part, parts)


def _kind(entry: dict[str, Any], parts: dict[str, Any]) -> str:
    if "$ref" in entry:
        entry = parts[entry["$ref"].rpartition("/")[2]]
    if "enum" in entry:
        return ", ".join(f"`{value}`" for value in entry["enum"])
    if "const" in entry:
        return f"`{entry['const']}`"
    if "anyOf" in entry:
        return " or ".join(dict.fromkeys(_kind(option, parts) for option in entry["anyOf"]))
    kinds = entry.get("type", "any")
    return " or ".join(kinds) if isinstance(kinds, list) else str(kinds)
