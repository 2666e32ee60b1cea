"""Constants of software, fitted to runs of decoders.

Least squares of ln(predicted / measured) with Cauchy's loss, so that broken runs hardly pull; each
constant is pulled weakly to its prior, so that one on which the rows depend little stays there.
Time and memory have constants of their own.

A cluster that is new has few rows: three constants are fitted to at most ten of them, as rows are
bound by three different things: products, the host, and the latency of further nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ddlbench.common.errors import ConfigError
from ddlbench.predict.constants import Array, Fit, cauchy, fit, weak_pull
from ddlbench.predict.hardware import Software
from ddlbench.predict.transformer import decoder_memory, decoder_time
from ddlbench.predict.transformer.training_runs import TrainingRuns

_SOFT = 0.1
FEW_CONSTANTS = ("product_efficiency", "host_layer_s", "node_latency_factor")
FEW_ROWS = 10
PIPELINE, NO_PIPELINE = "pipeline", "no pipeline"
"""Kinds of runs whose intervals differ."""
LARGEST_FITTED = 256
"""Devices. Published runs on 512 are up to eight times as slow as on 256, with no cause told."""


def fitted_names(software: Software, among: Sequence[str]) -> list[str]:
    """Constants among these that rows can tell."""
    known = software.constants.items()
    return [name for name, constant in known if name in among and not constant.fixed]


def predicted_s(runs: TrainingRuns, software: Software) -> Array:
    """Seconds of a step of each run."""
    return decoder_time.step_time(runs.decoders, runs.machines, software).seconds


def first_stage_bytes(runs: TrainingRuns, software: Software) -> tuple[Array, Array]:
    """Memory of the first rank, with gathered inputs gathered again, and kept."""
    stage = np.zeros(len(runs), dtype=int)
    return tuple(  # type: ignore[return-value]
        decoder_memory.memory_bytes(runs.decoders, software, kept, stage)
        for kept in decoder_memory.kept_inputs(runs.decoders, software)
    )


def nearer_bytes(runs: TrainingRuns, software: Software) -> Array:
    """Memory of the first rank with the setting of gathered inputs that fits the run better.

    Tables do not say the setting. Where the software's is unknown, this is a choice after the fact.
    """
    again, kept = first_stage_bytes(runs, software)
    distances = [
        np.abs(np.log(predicted_bytes / runs.memory_bytes)) for predicted_bytes in (again, kept)
    ]
    return np.asarray(np.where(distances[0] <= distances[1], again, kept))


def fit_time(runs: TrainingRuns, software: Software, names: Sequence[str] | None = None) -> Fit:
    """Fit constants of the step to runs that have one.

    Raises:
        ConfigError: there are fewer runs than constants.
    """
    runs = runs.take(runs.timed)
    names = names or fitted_names(software, decoder_time.CONSTANTS)
    return _fit(runs, software, names, lambda tried: predicted_s(runs, tried), runs.step_s)


def fit_memory(runs: TrainingRuns, software: Software) -> Fit:
    """Fit constants of the memory to runs that have one.

    Raises:
        ConfigError: there are fewer runs than constants.
    """
    runs = runs.take(np.isfinite(runs.memory_bytes))
    names = fitted_names(software, decoder_memory.CONSTANTS)
    return _fit(runs, software, names, lambda tried: nearer_bytes(runs, tried), runs.memory_bytes)


def _fit(
    runs: TrainingRuns,
    software: Software,
    names: Sequence[str],
    predicted: Callable[[Software], Array],
    measured: Array,
) -> Fit:
    """Fit constants of these names to measured seconds or bytes of ``runs``, (n,)."""
    return fit(
        software,
        predicted,
        measured,
        soft=_SOFT,
        pull=weak_pull(_SOFT, max(len(runs), 1), len(names)),
        groups=_groups(runs),
        loss=cauchy,
        names=names,
    )


def _groups(runs: TrainingRuns) -> Array:
    """Runs of one network and cut err together."""
    names = ("hidden_size", "layers", "tensor", "pipeline", "sequence_length")
    keys = np.stack([runs.decoders[name] for name in names], axis=1)
    return np.asarray(np.unique(keys, axis=0, return_inverse=True)[1]).ravel()


def fits_of(runs: TrainingRuns, software: Software) -> list[Fit]:
    """Fits of the step and of the memory to cleaned ``runs``, those for which there are runs."""
    small = runs.take(runs.decoders.devices <= LARGEST_FITTED)
    fits = []
    if small.timed.any():
        few = small.timed.sum() <= FEW_ROWS
        if few:  # a fitted value is a better prior than the expectation before the fit
            constants = software.constants.items()
            values = {name: replace(known, prior=known.value) for name, known in constants}
            fits.append(fit_time(small, replace(software, constants=values), FEW_CONSTANTS))
        else:
            fits.append(fit_time(small, software))
    enough = np.isfinite(runs.memory_bytes).sum() > FEW_ROWS
    if enough and fitted_names(software, decoder_memory.CONSTANTS):
        fits.append(fit_memory(runs, software))
    if not fits:
        raise ConfigError("no run to fit has a measured step; give rows with step_s")
    return fits


@dataclass(frozen=True)
class Proposal:
    """A run that is worth measuring.

    Args:
        bound_by: what it tells.
        layout: tensor, data, pipeline, micro_batch.
    """

    bound_by: str
    layout: Mapping[str, int]


def proposals(devices_per_node: int, nodes: int) -> list[Proposal]:
    """Runs that tell the three constants of a new cluster."""
    whole = devices_per_node * nodes

    def layout(tensor: int, micro_batch: int) -> dict[str, int]:
        return {
            "tensor": tensor, "data": whole // tensor, "pipeline": 1, "micro_batch": micro_batch,
        }  # fmt: skip

    inside = [Proposal("products", layout(1, 2))]
    inside += [Proposal("host", layout(t, 1)) for t in (2, 8) if t <= devices_per_node]
    over = [
        Proposal("latency of nodes", layout(devices_per_node * spanned, 1))
        for spanned in (2, 4)
        if spanned <= nodes
    ]
    over += [Proposal("latency of nodes, gradients", layout(1, 1))] if nodes > 1 else []
    return inside + over
