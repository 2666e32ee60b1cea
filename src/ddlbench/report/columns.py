"""Columns of the tables: a name, a kind, a unit and a meaning.

``docs/results.md`` is made from them (``make tables``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["text", "integer", "number", "flag", "flag or unknown"]


@dataclass(frozen=True)
class Column:
    """One column. An unknown field is empty; a plain flag is never unknown."""

    name: str
    kind: Kind
    unit: str
    description: str


def _column(kind: Kind, unit: str = "") -> Callable[[str, str], Column]:
    return lambda name, description: Column(name, kind, unit, description)


_text, _flag, _number = _column("text"), _column("flag"), _column("number")
_flag_or_unknown = _column("flag or unknown")
_count, _bytes = _column("integer"), _column("integer", "B")
_seconds, _rate = _column("number", "s"), _column("number", "1/s")
_joules = _column("number", "J")

_WHERE = (
    _text("site", "site that the cell ran on"),
    _text("experiment", "experiment that selects the cell"),
)
_AXES = (
    _text("dataset", "dataset"),
    _text("network", "network"),
    _text("strategy", "strategy"),
    _text("options", "strategy options that differ from their defaults, name=value"),
    _count("nodes", "nodes"),
    _count("devices_per_node", "devices on each node"),
    _text("geometry", "nodes x devices per node"),
    _count("workers", "devices that train; those asked for where there is no result"),
)
_SETTINGS = (
    _count("batch_size", "samples of one optimiser step, over all workers"),
    _text("precision", "arithmetic: fp32, tf32 or bf16"),
    _text("fabric", "link condition"),
    _seconds("link_latency_s", "one-way delay between nodes, where ddlbench emulates the links"),
    Column(
        "link_bits_per_s", "number", "bit/s", "rate of a node's link, emulated; empty: no limit"
    ),
    _number("link_loss", "probability that a packet is lost, emulated"),
    _bytes("link_mtu_bytes", "largest IP packet, emulated"),
    _text("link_congestion_control", "of TCP, emulated"),
    _seconds("link_inside_latency_s", "one-way delay between devices of a node, where emulated"),
    Column(
        "link_inside_bits_per_s",
        "number",
        "bit/s",
        "rate of a device's link inside its node, emulated; empty: no limit",
    ),
    _text("settings", "further cell fields that differ from their defaults, name=value"),
)
_MEMORY = (
    _bytes("peak_memory_bytes", "peak of the fullest device, without warm-up"),
    _bytes("total_memory_bytes", "sum of the peaks of all devices"),
    _bytes("device_memory_bytes", "size of the fullest device, where it is known"),
    _bytes("peak_rss_bytes", "largest resident set of any process"),
)

_ENERGY_OF = (
    "what energy_j is of: gpu, host (processors and memory of whole hosts), or both; empty where "
    "nothing counted"
)

_COMPARISON = (
    _text("no_speedup", "why there is none, by code: the first of comparability that denies one"),
    _text(
        "comparability", "what bears on a speed-up, parted by ' | ': code, differing column, data"
    ),
)

MEASUREMENTS: tuple[Column, ...] = (
    *_WHERE,
    _text("cell_id", "the cell's path below results/<site>/cells/"),
    *_AXES,
    _count("processes", "processes that ran"),
    *_SETTINGS,
    _count("repeat", "index of the repetition; repetitions are separate jobs"),
    _text(
        "status",
        "ok, out_of_memory, unsupported, timeout or failed (from result.json), "
        "not run (there is none), invalid (it cannot be read), "
        "newer (a newer ddlbench wrote it)",
    ),
    _text("reason", "why there is no measurement; empty when ok"),
    _text("reason_code", "a word to count reasons by; the status where an older result has none"),
    _count("dataset_samples", "training images that epoch_s stands for"),
    _seconds("epoch_s", "mean of the measured epochs, scaled to dataset_samples"),
    _flag("epoch_scaled", "epoch_s was scaled, as an epoch left out samples"),
    _rate("samples_per_s", "training samples a second: the mean, so of all measured seconds"),
    _rate("median_samples_per_s", "samples of a step over the median step"),
    _seconds("step_median_s", "median step; a step is as long as its slowest rank"),
    _seconds("step_low_s", "lower end of the 95 % interval of the median step"),
    _seconds("step_high_s", "upper end of the 95 % interval of the median step"),
    _seconds(
        "load_s",
        "slowest rank's wait for data, measured region; on CUDA the host's, which work of the "
        "device may hide",
    ),
    _number(
        "speedup", "epoch_s of the base over epoch_s, same repeat, dataset_samples and processors"
    ),
    _number(
        "speedup_normalised",
        "speedup at equal speed of the machine: times probe_s over that of the base",
    ),
    _text("base_cell_id", "the sequential cell that speedup is measured against"),
    _rate("base_samples_per_s", "absolute speed of the base"),
    _number("mfu", "model FLOPs utilisation: flops_per_s over peak_flops_per_s"),
    _rate("flops_per_s", "operations that the network needs, without recomputation, over a step"),
    _rate("peak_flops_per_s", "measured speed of its devices together, large matrix products"),
    _bytes("sent_bytes", "sent to other processes in a step, by the rank that sends most"),
    _seconds("cpu_s", "processor time of all ranks, measured region"),
    _number("cpu_utilisation", "mean of the ranks: processor time over wall time and threads"),
    _joules("energy_j", "of GPUs and hosts, as far as they count it, measured region"),
    _joules("energy_per_sample_j", "the same over the samples of the measured epochs"),
    _text("energy_of", _ENERGY_OF),
    _seconds("compile_s", "compilation of the network before warm-up; in no other time"),
    *_MEMORY,
    _seconds("checkpoint_s", "all its checkpoints; in neither epoch_s nor samples_per_s"),
    _count("resumed", "times it went on from a checkpoint"),
    _count("lost_steps", "steps trained twice for that; they count once"),
    _number("loss_last", "training loss of the last step"),
    _number("accuracy", "share of the validation images classified right, after the last epoch"),
    _text("update_semantics", "synchronous or stale"),
    _text("ran_as", "what its plan amounts to where the strategy's name says another thing"),
    _text("device_kind", "cpu or cuda"),
    _flag("emulated", "its devices took times of a table and computed nothing"),
    _text("processors", "models of its devices; several are parted by ' | '"),
    _text("host_processors", "models of its hosts' CPUs"),
    _count("cpu_count", "cores of a host"),
    _text("own_data", "digest of the user's own data; empty for generated data"),
    _text("host_kinds", "names of its hosts, with # for numbers"),
    _text("versions", "of the packages and drivers that run steps, parted by ' | '"),
    _seconds("probe_s", "a fixed piece of work, mean of before and after training"),
    _number("probe_change", "that after training over that before, less 1"),
    _flag_or_unknown(
        "noisy",
        "quartile spread of the steps above a quarter of their median; empty below 4 steps",
    ),
    _flag("unsteady", "probes before and after, or those of cell and base, over 15 % apart"),
    _text("disturbed", "what stopped it in measured steps, so that it gives no speed-up; or empty"),
    _text(
        "departure",
        "how it does not train as one device does, so that it gives no speed-up; or empty",
    ),
    *_COMPARISON,
    _flag(
        "stale",
        "the cell's plan, or the profile or links that it is made from, differ from those that "
        "were measured; it is not run again",
    ),
    _text("notes", "what a reader of the numbers must know; several are parted by ' | '"),
    _text("commit", "git commit of the measuring code, with -dirty where it had changes"),
    _text("created", "when the result was written"),
)

SUMMARY: tuple[Column, ...] = (
    *_WHERE,
    _text("configuration", "cell_id without its repeat"),
    *_AXES,
    *_SETTINGS,
    _text("status", "ok when at least one repeat is; else the gravest status of its repeats"),
    _text("reason", "why repeats are missing; empty when all are ok"),
    _text("reason_code", "the gravest missing repeat's; empty when all are ok"),
    _count("repeats", "repeats asked for"),
    _count("n", "repeats that are ok; a disturbed or departing one counts only where all are"),
    _text("interval_of", "what the intervals are over: repeats, or the steps of the only run"),
    _number(
        "coverage",
        "how surely the interval of epoch_s holds the median: 0.95 or more; less for 2 to 5 "
        "repeats, where the interval is their whole range",
    ),
    _seconds("epoch_s", "median of epoch_s over repeats"),
    _seconds("epoch_low_s", "lower end of its rank-based 95 % interval"),
    _seconds("epoch_high_s", "upper end of its rank-based 95 % interval"),
    _rate("samples_per_s", "dataset_samples over epoch_s"),
    _rate("samples_low_per_s", "dataset_samples over epoch_high_s"),
    _rate("samples_high_per_s", "dataset_samples over epoch_low_s"),
    _rate("median_samples_per_s", "median of median_samples_per_s over repeats"),
    _seconds("step_median_s", "median of step_median_s over repeats"),
    _seconds("load_s", "median of load_s over repeats"),
    _number("speedup", "median epoch_s of the base over that of the cell, over shared repeats"),
    _number(
        "speedup_low",
        "lower end of its 95 % interval: paired bootstrap from 3 repeats on, else the base's "
        "low over the cell's high",
    ),
    _number("speedup_high", "upper end of the same"),
    _count("speedup_n", "repeats in which both the cell and its base are ok"),
    _number("speedup_normalised", "median of speedup_normalised over repeats"),
    _text("base_configuration", "configuration of the base"),
    _rate("base_samples_per_s", "absolute speed of the base, over the shared repeats"),
    _number("mfu", "median of mfu over repeats"),
    _rate("flops_per_s", "median of flops_per_s over repeats"),
    _rate("peak_flops_per_s", "median of peak_flops_per_s over repeats"),
    _bytes("sent_bytes", "largest sent_bytes of the repeats"),
    _seconds("cpu_s", "median of cpu_s over repeats"),
    _joules("energy_per_sample_j", "median of energy_per_sample_j over repeats"),
    _text("energy_of", _ENERGY_OF),
    _seconds("compile_s", "median of compile_s over repeats"),
    *_MEMORY,
    _number("loss_last", "median of loss_last over repeats"),
    _number("accuracy", "median of accuracy over repeats"),
    _text("update_semantics", "synchronous or stale"),
    _text("ran_as", "what its plan amounts to where the strategy's name says another thing"),
    _text("device_kind", "cpu or cuda"),
    _flag("emulated", "any repeat is"),
    _text("processors", "models of the devices of any repeat, parted by ' | '"),
    _seconds("probe_s", "median of probe_s over repeats"),
    _flag_or_unknown("noisy", "any repeat is; empty where none is and one is unknown"),
    _flag("unsteady", "any repeat is, or probes of repeats are over 15 % apart"),
    _text(
        "disturbed", "what stopped its repeats in measured steps, where it stopped all; or empty"
    ),
    _text(
        "departure", "how its repeats do not train as one device does, where none does; or empty"
    ),
    *_COMPARISON,
    _flag("stale", "any repeat is"),
    _text("notes", "notes of any repeat, parted by ' | '"),
    _text("commit", "commits of its repeats, parted by a blank"),
    _text("created", "when the last of its results was written"),
)

STEPS: tuple[Column, ...] = (
    _text("cell_id", "the cell's path below results/<site>/cells/"),
    _text("dataset", "dataset"),
    _text("network", "network"),
    _text("strategy", "strategy"),
    _text("geometry", "nodes x devices per node"),
    _count("repeat", "index of the repetition"),
    _count("epoch", "index of the epoch"),
    _count("step", "index of the step in its epoch"),
    _flag("warmup", "the step is dropped from every summary"),
    _seconds("step_s", "duration of the step, slowest rank"),
    _seconds("load_s", "wait for data in the step, slowest rank; on CUDA the host's"),
    _number("loss", "training loss of the step"),
)

VALIDATION: tuple[Column, ...] = (
    _text("cell_id", "the cell's path below results/<site>/cells/"),
    _text("dataset", "dataset"),
    _text("network", "network"),
    _text("strategy", "strategy"),
    _text("geometry", "nodes x devices per node"),
    _count("repeat", "index of the repetition"),
    _count("epoch", "measured epochs that were done"),
    _seconds(
        "training_s",
        "sum of these epochs, slowest rank; without warm-up, validation, checkpoints and staging",
    ),
    _count("samples", "images of the validation split"),
    _count("correct", "of these, with the highest output at their label"),
    _number("accuracy", "correct over samples"),
    _number("loss", "mean loss over these images"),
)


NOTE_BREAK = " | "
