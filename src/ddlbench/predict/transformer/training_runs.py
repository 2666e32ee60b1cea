"""Published trainings of decoders: read, cleaned, and with the machines that they ran on.

Three kinds of table, by their columns (:mod:`ddlbench.predict.run_tables`)::

    playbook   tensor x data x pipeline, ZeRO 0 or 1; step and memory, failures too; nanotron
    foundry    FSDP (``sharding`` zero3), recomputation; step; llm-foundry
    megatron   GPTs over tensor x data x pipeline (:mod:`.configurations`); step; Megatron-LM

Cleaning needs no model. **Twins**: runs of one layout that differ in ZeRO's stage alone; a step of
more than three times its twin's is dropped. **Slots**: seconds of a pipeline's slot, step /
(m + p - 1), do not depend on the number of replicas; a step of more than twice the fastest slot of
the same network, tensor, pipeline and micro-batch is dropped. A step is dropped, too, where
``batch_is_product`` is no: its batch is not data x micro-batch x micro-batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ddlbench.common.errors import ConfigError
from ddlbench.common.schema import nearest
from ddlbench.predict.constants import Array, Rows
from ddlbench.predict.hardware import DeviceSheet, Fabric, Software
from ddlbench.predict.run_tables import (
    ScoreQuestion,
    check_columns,
    kind_of,
    kind_of_columns,
    numbers_of,
    read_table,
    refuse,
    whole_numbers,
)
from ddlbench.predict.transformer.configurations import PRECISIONS, RECOMPUTATIONS, SCHEDULES
from ddlbench.predict.transformer.decoders import OF_GPTS, Decoders, Machines, machines

GIB = 2.0**30
RAN, FAILED = "ran", "failed"
TWIN_FACTOR, SLOT_FACTOR = 3.0, 2.0
PUBLISHED = Path(str(files("ddlbench.predict.transformer").joinpath("published")))


@dataclass(frozen=True)
class Origin:
    """Where a kind of table comes from, and what its columns leave out.

    Args:
        software, fabric: names of their files.
        files: the shipped rows, below :data:`PUBLISHED`.
        gated: the feed-forward layer has a gate (SwiGLU).
        accelerator, devices_per_node: of a table that does not say them.
        case_layouts: timed layouts from which on a case is one of a choice.
        cleaned: slow twins and slots are dropped.
    """

    software: str
    fabric: str
    files: tuple[str, ...]
    gated: bool
    accelerator: str = ""
    devices_per_node: int = 8
    case_layouts: int = 6
    cleaned: bool = True


ORIGINS: Mapping[str, Origin] = {
    "playbook": Origin("nanotron", "efa-3200", ("playbook.csv",), gated=True),
    "foundry": Origin("fsdp", "roce-1600-node", ("foundry.csv",), gated=False),
    "megatron": Origin(
        "megatron",
        "infiniband-800-node",
        ("one_node.csv", "many_nodes.csv"),
        gated=False,
        accelerator="A100-SXM-80GB",
        case_layouts=2,
        cleaned=False,
    ),
}
_NEEDED = (
    "model", "layers", "hidden_size", "attention_heads", "feed_forward_size", "vocabulary",
    "accelerator", "devices_per_node", "devices", "sequence_length", "micro_batch",
    "micro_batches", "step_s",
)  # fmt: skip
_GPT_NEEDED = (
    "hidden_size", "attention_heads", "layers", "sequence_length", "global_batch", "tensor", "data",
    "pipeline", "micro_batch",
)  # fmt: skip
_GPT_NUMBERS = ("vocabulary", "chunks", "zero", "sequence_parallel", "gradient_bytes")
_ANSWERS = ("yes", "no")
_GPT_WORDS: Mapping[str, tuple[str, ...]] = {
    "tied_embedding": _ANSWERS,
    "schedule": SCHEDULES,
    "recomputation": RECOMPUTATIONS,
    "precision": tuple(PRECISIONS),
}
"""Columns of a table of GPTs that may be left out; the first word is usual (:func:`_usual`)."""
_VOCABULARY, _MEGATRON_VOCABULARY = 50257, 51200
"""GPT-2's byte pairs; and what Megatron-LM pads them to for its published runs."""
_ONE_NODE = 8
_LARGEST_ZERO = 3
_DEFAULTS: Mapping[str, float] = {"tensor": 1, "pipeline": 1}
_SHARDINGS = {"none": 0, "zero1": 1, "zero2": 2, "zero3": 3}


@dataclass(frozen=True)
class TrainingRuns(Rows):
    """Runs as columns, (n,) each.

    Args:
        decoders: what was trained, and how it was cut.
        machines: on what.
        models, accelerators: names, as the table writes them.
        statuses: :data:`RAN` or :data:`FAILED`.
        step_s, memory_bytes: measured; NaN where they are not, or were dropped.
        origin: of the table.
    """

    decoders: Decoders
    machines: Machines
    models: Array
    accelerators: Array
    statuses: Array
    step_s: Array
    memory_bytes: Array
    origin: Origin

    def __len__(self) -> int:
        return len(self.decoders)

    @property
    def timed(self) -> Array:
        """Rows with a step."""
        return np.isfinite(self.step_s)


def training_runs(
    table: pd.DataFrame, question: ScoreQuestion | None = None, where: str = "the table"
) -> TrainingRuns:
    """Read a table; twins and batches are cleaned, slots are not (:func:`cleaned_s`).

    Args:
        table: the columns of one of the reference files, as they are.
        question: names of hardware and software that stand for the table's.
        where: the table's name, for messages.

    Raises:
        ConfigError: a column is missing, or a value is wrong.
    """
    question = question or ScoreQuestion()
    kind = kind_of_columns(list(table.columns))
    if kind is None or kind.name not in ORIGINS:
        raise ConfigError(f"{where}: its columns are of no table of decoders' trainings")
    origin = ORIGINS[kind.name]
    if question.device and DeviceSheet.name_of(question.device) and "accelerator" in table:
        _check_device(table["accelerator"], question.device, where)
    if origin.accelerator:
        table = _of_gpts(table, origin, where)
    check_columns(table, _NEEDED, where)
    if table.empty:
        raise ConfigError(f"{where} has no row; write at least one run")
    table = table.reset_index(drop=True)
    if question.device:
        table["accelerator"] = question.device
    for name in ("model", "accelerator"):
        refuse(table[name].isna(), table[name], where, f"{name} is empty; write its name")
    decoders = _decoders(table, origin, where)
    software = Software.load(question.software or origin.software)
    sheets = _sheets(table["accelerator"], question.device, where)
    fabric = Fabric.load(question.fabric or origin.fabric)
    statuses = table["status"] if "status" in table else pd.Series(RAN, index=table.index)
    wrong = ~statuses.isin((RAN, FAILED))
    refuse(wrong, statuses, where, "status is {!r}; write ran or failed")
    memory = _measured(table, "memory_gib", where) * GIB
    runs = TrainingRuns(
        decoders=decoders,
        machines=machines(sheets, fabric, software, decoders["devices_per_node"]),
        models=table["model"].astype(str).to_numpy(),
        accelerators=table["accelerator"].astype(str).to_numpy(),
        statuses=statuses.to_numpy(),
        step_s=_measured(table, "step_s", where),
        memory_bytes=memory,
        origin=origin,
    )
    if "batch_is_product" in table:
        product = (table["batch_is_product"] != "no").to_numpy()
        runs = replace(runs, step_s=np.where(product, runs.step_s, np.nan))
    return replace(runs, step_s=_without_slow_twins(runs)) if origin.cleaned else runs


@cache
def shipped(name: str) -> TrainingRuns:
    """The published rows that this package holds of a kind of table."""
    return read_runs([PUBLISHED / file for file in ORIGINS[name].files])


def read_runs(paths: Sequence[Path], question: ScoreQuestion | None = None) -> TrainingRuns:
    """Tables of one kind as one.

    Raises:
        ConfigError: as :func:`training_runs`.
    """
    return TrainingRuns.joined(
        [training_runs(read_table(path, ()), question, str(path)) for path in paths]
    )


def without_repeats(runs: TrainingRuns) -> TrainingRuns:
    """A row per configuration, with the medians of its runs: measured twice, it tells no more."""
    columns = {**runs.decoders.columns, **vars(runs.machines)}
    configurations = pd.DataFrame(
        {**columns, "of_model": runs.models, "of_accelerator": runs.accelerators}
    )
    numbers = configurations.groupby([*configurations], sort=False, dropna=False).ngroup()
    measured = pd.DataFrame({"step_s": runs.step_s, "memory_bytes": runs.memory_bytes})
    medians = measured.groupby(numbers).median()
    return replace(
        runs.take(~numbers.duplicated().to_numpy()),
        step_s=medians["step_s"].to_numpy(),
        memory_bytes=medians["memory_bytes"].to_numpy(),
    )


def gpts(paths: Sequence[Path]) -> TrainingRuns:
    """Tables of GPTs' runs as one.

    Raises:
        ConfigError: as :func:`training_runs`, or a table is of another kind.
    """
    for path in paths:
        if kind_of(path).name != "megatron":
            raise ConfigError(f"{path} is no table of GPTs (docs/oracle.md); give one")
    return read_runs(paths)


def _of_gpts(table: pd.DataFrame, origin: Origin, where: str) -> pd.DataFrame:
    """The columns of this module, from those of :mod:`.configurations`."""
    check_columns(table, ("step_s",), where)
    rows = gpt_configurations(table, where)
    replicas = rows["data"] * rows["micro_batch"]
    return rows.assign(
        model=rows["hidden_size"].astype(str),
        accelerator=origin.accelerator,
        devices_per_node=origin.devices_per_node,
        devices=rows["tensor"] * rows["data"] * rows["pipeline"],
        key_value_heads=rows["attention_heads"],
        feed_forward_size=4 * rows["hidden_size"],
        micro_batches=np.ceil(rows["global_batch"] / replicas),  # the last may be smaller
        zero_stage=rows["zero"],
        activation_recomputation=rows["recomputation"],
        step_s=table["step_s"].to_numpy(),
    )


def gpt_configurations(table: pd.DataFrame, where: str) -> pd.DataFrame:
    """Check a table of GPTs' configurations, and fill in the columns that it may leave out.

    Args:
        table: shape, batch and cut of :mod:`.configurations`; unknown columns are left out.
        where: the table's name, for messages.

    Returns:
        columns of numbers and words of each row.

    Raises:
        ConfigError: a column is missing, or a value is not one that a transformer can have.
    """
    check_columns(table, _GPT_NEEDED, where)
    if table.empty:
        raise ConfigError(f"{where} has no row; write at least one configuration")
    rows = pd.DataFrame(index=table.index)
    for name in _GPT_NEEDED:
        rows[name] = whole_numbers(table[name], where).astype("int64")
    usual = _usual(rows)
    for name in (*_GPT_NUMBERS, *_GPT_WORDS):
        rows[name] = usual[name]
        if name in table.columns:
            rows[name] = table[name].fillna(rows[name])
    for name in _GPT_NUMBERS:
        least = 0 if name in ("zero", "sequence_parallel") else 1
        rows[name] = whole_numbers(rows[name], where, least).astype("int64")
    for name, words in _GPT_WORDS.items():
        wrong = ~rows[name].isin(words)
        refuse(wrong, rows[name], where, f"{name} {{!r}} is unknown; {{}}", words)
    wrong = rows["zero"] > _LARGEST_ZERO
    refuse(wrong, rows["zero"], where, "zero is {}; write 0, 1, 2 or 3")
    for part, whole in (("attention_heads", "tensor"), ("layers", "pipeline")):
        wrong = rows[whole] > rows[part]
        refuse(wrong, rows[whole], where, f"{whole} is {{}}; write at most the number of {part}")
    if "devices" in table.columns:
        cut = rows["tensor"] * rows["data"] * rows["pipeline"]
        wrong = pd.to_numeric(table["devices"], errors="coerce") != cut
        differ = table["devices"].astype(str) + ", but tensor x data x pipeline is " + cut.map(str)
        refuse(wrong, differ, where, "devices is {}; write their product or leave it out")
    return rows.reset_index(drop=True)


def _usual(rows: pd.DataFrame) -> Mapping[str, Any]:
    """Values of columns that a table leaves out: those of the published runs (docs/oracle.md).

    On one node nothing is recomputed, GPT-2's vocabulary is not padded, and gradients are summed in
    half precision; on many, all is recomputed, the vocabulary is Megatron's, and gradients are
    summed in single precision.
    """
    many = rows["tensor"] * rows["data"] * rows["pipeline"] > _ONE_NODE
    return {
        "vocabulary": np.where(many, _MEGATRON_VOCABULARY, _VOCABULARY),
        "chunks": 1,
        "zero": 0,
        "sequence_parallel": 0,
        "tied_embedding": _ANSWERS[0],
        "schedule": SCHEDULES[0],
        "gradient_bytes": np.where(many, 4, 2),
        "recomputation": np.where(many, "full", "none"),
        "precision": _GPT_WORDS["precision"][0],
    }


def cleaned_s(runs: TrainingRuns, known: TrainingRuns | None = None) -> Array:
    """Steps without those that are far slower than other runs of the same slots.

    Args:
        runs: whose steps are cleaned.
        known: further runs to compare with.
    """
    if not runs.origin.cleaned:
        return runs.step_s
    keys, slots = _slot_keys(runs), _slot_s(runs)
    all_keys, all_slots = keys, slots
    if known is not None:
        all_keys = np.concatenate([keys, _slot_keys(known)])
        all_slots = np.concatenate([slots, _slot_s(known)])
    fastest = _fastest(all_keys, all_slots)[: len(runs)]
    slow = (runs.decoders["pipeline"] > 1) & (slots > SLOT_FACTOR * fastest)
    return np.asarray(np.where(slow, np.nan, runs.step_s))


def _without_slow_twins(runs: TrainingRuns) -> Array:
    names = ("tensor", "data", "pipeline", "micro_batch", "micro_batches", "sequence_length")
    keys = _keys(runs, names)
    slow = runs.step_s > TWIN_FACTOR * _fastest(keys, runs.step_s)
    return np.asarray(np.where(slow, np.nan, runs.step_s))


def _slot_s(runs: TrainingRuns) -> Array:
    slots = runs.decoders["micro_batches"] + runs.decoders["pipeline"] - 1
    return np.asarray(runs.step_s / slots)


def _slot_keys(runs: TrainingRuns) -> Array:
    return _keys(runs, ("tensor", "pipeline", "micro_batch", "sequence_length"))


def _keys(runs: TrainingRuns, names: tuple[str, ...]) -> Array:
    shape = ("layers", "hidden_size", "feed_forward_size", "vocabulary")
    columns = [runs.decoders[name] for name in (*shape, *names)]
    return np.stack([*columns, runs.machines.peak_flops_per_s], axis=1)


def _fastest(keys: Array, seconds: Array) -> Array:
    """The least of the rows with the same key, (n,); NaN where none is measured."""
    return pd.Series(seconds).groupby([*keys.T]).transform("min").to_numpy()


def _sheets(names: pd.Series[Any], device: str | None, where: str) -> list[DeviceSheet]:
    if device:
        return [DeviceSheet.named(device)] * len(names)
    sheets = {name: DeviceSheet.called(str(name)) for name in names.unique()}
    unknown = names.map(lambda name: sheets[name] is None)
    for name in names[unknown]:
        remark = nearest(name, DeviceSheet.names())
        refuse(unknown, names, where, f"accelerator is {{!r}}, which no data sheet names; {remark}")
    return [sheet for name in names if (sheet := sheets[name])]


def _check_device(names: pd.Series[Any], device: str, where: str) -> None:
    """Refuse rows of another known device; a name that no data sheet has may be of this one."""
    sheet = DeviceSheet.called(device)
    others = [
        name
        for name in names.dropna().astype(str).unique()
        if DeviceSheet.called(name) not in (None, sheet)
    ]
    remark = f"accelerator is {{!r}}, another device than --hardware {device}"
    refuse(names.isin(others), names, where, f"{remark}; give only rows of {device}")


def _measured(table: pd.DataFrame, name: str, where: str) -> Array:
    """A column that may be empty; NaN where it is."""
    if name not in table:
        return np.full(len(table), np.nan)
    write = "a number above 0, or nothing"
    numbers = numbers_of(table[name], where, write, lambda n: n > 0, may_lack=True)
    return np.asarray(numbers.to_numpy(dtype=float))


def _decoders(table: pd.DataFrame, origin: Origin, where: str) -> Decoders:
    """Shapes and layouts; what a table leaves out has the origin's usual value."""
    columns = {name: _counts(table[name], where) for name in (*_NEEDED[1:6], *_NEEDED[7:12])}
    for name, usual in _DEFAULTS.items():
        given = name in table
        columns[name] = _counts(table[name], where) if given else np.full(len(table), usual)
    cut = columns["tensor"] * columns["pipeline"]
    devices = columns.pop("devices")
    columns["data"] = _counts(table["data"], where) if "data" in table else devices / cut
    wrong = pd.Series(columns["data"] * cut != devices)
    sentence = "devices is {}; write tensor x data x pipeline"
    refuse(wrong, table["devices"], where, sentence)
    heads = "key_value_heads" if "key_value_heads" in table else "attention_heads"
    columns["key_value_heads"] = _counts(table[heads], where)
    columns["zero_stage"] = _zero_stages(table, where)
    tied = table["tied_embedding"] if "tied_embedding" in table else pd.Series("yes", table.index)
    refuse(~tied.isin(_ANSWERS), tied, where, "tied_embedding is {!r}; write yes or no")
    columns["tied_embedding"] = (tied == "yes").to_numpy(dtype=float)
    columns["gated"] = np.full(len(table), float(origin.gated))
    again = pd.Series("none", table.index)
    if "activation_recomputation" in table:
        again = table["activation_recomputation"]
    sentence = "activation_recomputation is {!r}; write none, selective or full"
    refuse(~again.isin(RECOMPUTATIONS), again, where, sentence)
    columns["recomputation"] = again.to_numpy()
    columns |= {name: table[name].to_numpy() for name in OF_GPTS if origin.accelerator}
    return Decoders(columns)


def _zero_stages(table: pd.DataFrame, where: str) -> Array:
    if "zero_stage" in table:
        return _counts(table["zero_stage"], where, least=0)
    wrong = ~table["sharding"].isin(tuple(_SHARDINGS))
    refuse(wrong, table["sharding"], where, "sharding is {!r}; {}", tuple(_SHARDINGS))
    return table["sharding"].map(_SHARDINGS).to_numpy(dtype=float)


def _counts(given: pd.Series[Any], where: str, least: int = 1) -> Array:
    return np.asarray(whole_numbers(given, where, least).to_numpy(dtype=float))
