"""Fits the roofline's constants, and scores it on networks and devices that it was not fitted on.

::

    PipeDream's blocks      single precision, one GPU     efficiencies, memory, a timed call
    MLPerf's one-node runs  half precision, several GPUs  matrix units, what fusion leaves

PipeDream's release does not name its GPU. Of the three kinds in its paper (V100, Titan X, 1080 Ti)
only a V100 moves 740 GB/s, as its profile of VGG-16 does in the first ReLU; so it is taken as one.
Its profile times each layer by itself with the host's wait, ``timed_call_s``. The first layer takes
several times what its operations tell, perhaps with the copy of its input.

A network is held out of PipeDream's. A device is held out with all of its generation (V100, A100,
H100) of MLPerf's, whose V100 runs are not PipeDream's: other precision, software and machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ddlbench.common.document import read_json
from ddlbench.common.errors import ConfigError
from ddlbench.experiment.paths import project_root
from ddlbench.planning.device_table import DeviceTable, read_table
from ddlbench.planning.layer_table import layers_of
from ddlbench.predict.constants import Array, HeldOut, Rows, fit
from ddlbench.predict.hardware import DeviceSheet
from ddlbench.predict.roofline import Layers, Roofline, passes_s, shipped, whole_step_s
from ddlbench.predict.run_tables import check_columns

RUNS = Path(__file__).with_name("published") / "mlperf_resnet50.csv"
"""MLPerf's runs of ResNet-50 (docs/oracle.md)."""
PROFILED_DEVICE = "v100-sxm-16gb"
RUN_COLUMNS = (
    "accelerator", "accelerators", "accelerators_per_node", "nodes", "global_batch", "step_s",
)  # fmt: skip
_DATASET = "imagenet"
_RUN_NETWORK, _RUN_PRECISION = "resnet50", "fp16"
_OF_PROFILE = (
    "first_efficiency", "pointwise_efficiency", "spatial_efficiency", "linear_efficiency",
    "memory_share", "timed_call_s",
)  # fmt: skip
_OF_RUNS = ("matrix_efficiency", "fused_share")
_OF_EAGER = ("matrix_efficiency", "launch_s")
_SOFT, _PULL = 0.3, 0.1
_WEIGHT = 10.0
"""Of a network's blocks together, and of a device's runs together."""
_GENERATIONS = ("V100", "A100", "H100", "H200", "B200")


@dataclass(frozen=True)
class ProfiledNetwork:
    """A network whose blocks were timed on one device.

    Args:
        name: of the network.
        samples: of the mini-batch.
        layers: its operations.
        seconds: of the forward, then of the backward passes of its blocks, (2 blocks,).
    """

    name: str
    samples: int
    layers: Layers
    seconds: Array


def profiled_networks() -> list[ProfiledNetwork]:
    """The networks of PipeDream's release, as ``config/accelerators/pipedream`` has them."""
    folder = project_root() / "config/accelerators/pipedream" / _DATASET
    return [
        _profiled(path.stem, read_table(path, _DATASET)) for path in sorted(folder.glob("*.csv"))
    ]


def _profiled(name: str, table: DeviceTable) -> ProfiledNetwork:
    samples = table.batch_sizes[-1]
    times = [[block.forward.at(samples) for block in table.blocks]]
    times.append([block.backward.at(samples) for block in table.blocks])
    return ProfiledNetwork(name, samples, _layers(name), np.array(times).ravel())


@dataclass(frozen=True)
class NodeRuns(Rows):
    """Runs of ResNet-50 on one node, a row each (n).

    Args:
        sheets: by the name of their device.
        device: name of each row's device, (n,).
        samples: of a device, (n,).
        step_s: measured, (n,).
    """

    sheets: Mapping[str, DeviceSheet]
    device: Array
    samples: Array
    step_s: Array


def node_runs(table: pd.DataFrame, where: str = "the table") -> NodeRuns:
    """ResNet-50's rows of a table of MLPerf's runs, on one node of a device with a data sheet.

    A table without the column ``model`` is ResNet-50's.

    Raises:
        ConfigError: a column is missing, or no such row is left.
    """
    check_columns(table, RUN_COLUMNS, where)
    if "model" in table:
        networks = table.model.fillna("resnet").astype(str).str.casefold()
        table = table[networks.str.startswith("resnet")]
    on_one_node = (table.nodes == 1) | (table.accelerators == table.accelerators_per_node)
    rows = table[on_one_node & (table.accelerators > 0) & table.step_s.notna()]
    sheets = {name: DeviceSheet.called(str(name)) for name in rows.accelerator.unique()}
    rows = rows[rows.accelerator.map(lambda name: sheets[name] is not None)]
    if rows.empty:
        raise ConfigError(
            f"{where}: no run of ResNet-50 on one node of a device that config/hardware has; add "
            "its data sheet"
        )
    names = [sheet.description for name in rows.accelerator if (sheet := sheets[name])]
    return NodeRuns(
        {sheet.description: sheet for sheet in sheets.values() if sheet},
        np.array(names),
        (rows.global_batch / rows.accelerators).to_numpy(float),
        rows.step_s.to_numpy(float),
    )


@dataclass(frozen=True)
class EagerRuns(Rows):
    """Steps of built-in networks that this project measured on one device, a row each (n).

    Args:
        device: on which.
        network, precision, samples: of each row, (n,).
        step_s: without the wait for data, (n,).
    """

    device: DeviceSheet
    network: Array
    precision: Array
    samples: Array
    step_s: Array


def eager_runs() -> EagerRuns:
    """The steps on one H100 of the project's study of a GPU, ``docs/validation/gpu``."""
    folder = project_root() / "docs/validation/gpu"
    parts = [read_json(path) for path in sorted(folder.glob("part*.json"))]
    rows: list[tuple[str, str, int, float]] = []
    for check in (check for part in parts for check in part["checks"]):
        what, _, network = check["check"].partition(" ")
        if what in _EAGER_ROWS:
            rows += _EAGER_ROWS[what](network, check["figures"])
    columns = map(np.array, zip(*rows, strict=True))
    return EagerRuns(DeviceSheet.named(parts[0]["machine"]["gpu"]), *columns)


def _clocked(network: str, figures: Mapping[str, Any]) -> list[tuple[str, str, int, float]]:
    return [
        (
            network,
            precision,
            _CLOCKED,
            figures[f"{precision}_step_s"] * (1 - figures[f"{precision}_load_share"]),
        )
        for precision in ("fp32", "tf32", "bf16")
        if f"{precision}_step_s" in figures
    ]


def _stepped(network: str, figures: Mapping[str, Any]) -> list[tuple[str, str, int, float]]:
    return [
        (network, "fp32", int(size), value * (1 - figures[f"waits_for_data_{size}_share"]))
        for name, value in figures.items()
        for size in re.findall(r"step_(\d+)_s", name)
    ]


_CLOCKED = 64
"""Samples of the steps of the check "clock"."""
_EAGER_ROWS = {"clock": _clocked, "profile": _stepped}


def fitted(
    networks: Sequence[ProfiledNetwork],
    runs: NodeRuns | None,
    eager: EagerRuns | None,
) -> Roofline:
    """Constants fitted on some blocks, runs and steps together.

    Constants that none of them tells stay at their prior.

    Raises:
        ConfigError: there are fewer rows than constants.
    """
    constants = shipped().with_priors()
    # Each with its seconds, their weights, and names of what errs together.
    parts: list[tuple[Callable[[Roofline], Array], Array, Array, Array]] = [
        (
            partial(block_s, network),
            network.seconds,
            _WEIGHT * network.seconds / network.seconds.sum(),
            np.full(len(network.seconds), network.name),
        )
        for network in networks
    ]
    names = set(_OF_PROFILE) if networks else set()
    if runs is not None:
        weights = _equal_weights(runs.device)
        parts.append((partial(run_s, runs), runs.step_s, weights, runs.device))
        names |= {*_OF_RUNS, "memory_share"}
    if eager is not None:
        weights, kinds = _equal_weights(eager.network), np.char.add("eager ", eager.network)
        parts.append((partial(eager_s, eager), eager.step_s, weights, kinds))
        names |= {*_OF_PROFILE, *_OF_EAGER} - {"timed_call_s"}
    models, *columns = zip(*parts, strict=True)
    seconds, weights, kinds = map(np.concatenate, columns)
    timed = seconds > 0
    fitted = fit(
        constants,
        lambda tried: np.concatenate([model(tried) for model in models])[timed],
        seconds[timed],
        soft=_SOFT,
        pull=_PULL,
        weights=weights[timed],
        groups=np.unique(kinds[timed], return_inverse=True)[1],
        names=[name for name in constants.constants if name in names],
    )
    return constants.fitted_to(fitted)


def _equal_weights(names: Sequence[str] | Array) -> Array:
    """Weights of rows: every name weighs the same, however many rows it has."""
    _, place, counts = np.unique(names, return_inverse=True, return_counts=True)
    return np.asarray(_WEIGHT / counts[place])


def block_s(network: ProfiledNetwork, constants: Roofline) -> Array:
    """Seconds of the forward, then of the backward passes of a profile's blocks, (2 blocks,).

    Blocks that only change shapes take no time; they get the least that a clock shows.
    """
    timed = constants.with_constants({"launch_s": constants.constant("timed_call_s")})
    both = passes_s(network.layers, _profiled_device(), "fp32", network.samples, timed)
    return np.maximum(np.concatenate(both), 1e-7)


@cache
def _profiled_device() -> DeviceSheet:
    return DeviceSheet.load(PROFILED_DEVICE)


@cache
def _layers(network: str) -> Layers:
    return Layers.of(layers_of(network, _DATASET))


def run_s(runs: NodeRuns, constants: Roofline) -> Array:
    """Seconds of the step of each run, (n,)."""

    @cache
    def step_s(device: str, samples: float) -> float:
        layers, sheet = _layers(_RUN_NETWORK), runs.sheets[device]
        passes = passes_s(layers, sheet, _RUN_PRECISION, samples, constants, fused=True)
        return float(sum(map(np.sum, passes)))

    return np.array([*map(step_s, runs.device, runs.samples)])


def eager_s(runs: EagerRuns, constants: Roofline) -> Array:
    """Seconds of each step, (n,)."""
    rows = zip(runs.network, runs.precision, runs.samples, strict=True)
    return np.array(
        [
            whole_step_s(_layers(network), runs.device, precision, samples, constants)
            for network, precision, samples in rows
        ]
    )


def scored(
    networks: Sequence[ProfiledNetwork], runs: NodeRuns | None, eager: EagerRuns | None
) -> dict[str, Any]:
    """Errors on networks and devices, each held out; shares, and ``ratio`` predicted over measured.

    A network's ``blocks_error`` is the sum of its blocks' errors over the sum of their times. All
    eager steps are held out together, as their device is.
    """
    of_networks = [_network_score(network, networks) for network in networks]
    of_devices = [] if runs is None else _device_scores(runs, networks)
    of_steps = [] if eager is None else _eager_scores(eager, networks, runs)
    groups = {"networks": of_networks, "devices": of_devices, "eager": of_steps}
    means = {
        f"{name}_mean_absolute_error": (
            float(np.mean([abs(row["ratio"] - 1) for row in rows])) if rows else None
        )
        for name, rows in groups.items()
    }
    return {
        **groups,
        **means,
        "rows": 0 if runs is None else len(runs.step_s),
        "cpu_ratios": [
            _cpu_score(network) for network in networks if _cpu_table(network.name).is_file()
        ],
    }


def _network_score(network: ProfiledNetwork, networks: Sequence[ProfiledNetwork]) -> dict[str, Any]:
    others = [other for other in networks if other.name != network.name]
    predicted = block_s(network, fitted(others, None, None))
    return {
        "network": network.name,
        "samples": network.samples,
        "predicted_s": float(predicted.sum()),
        "measured_s": float(network.seconds.sum()),
        "ratio": float(predicted.sum() / network.seconds.sum()),
        "blocks_error": float(np.abs(predicted - network.seconds).sum() / network.seconds.sum()),
    }


def _device_scores(runs: NodeRuns, networks: Sequence[ProfiledNetwork]) -> list[dict[str, Any]]:
    of = np.array([generation(name) for name in runs.device])
    scores = []
    for kind in np.unique(of):
        if np.all(of == kind):
            continue
        constants = fitted(networks, runs.take(of != kind), None)
        held = runs.take(of == kind)
        ratio = run_s(held, constants) / held.step_s
        for name in np.unique(held.device):
            ratios = ratio[held.device == name]
            scores.append(
                {
                    "device": str(name),
                    "rows": len(ratios),
                    "ratio": float(np.median(ratios)),
                    "mean_absolute_error": float(np.mean(np.abs(ratios - 1))),
                    "low": float(ratios.min()),
                    "high": float(ratios.max()),
                }
            )
    return scores


def _eager_scores(
    eager: EagerRuns, networks: Sequence[ProfiledNetwork], runs: NodeRuns | None
) -> list[dict[str, Any]]:
    """Without any row of the device's generation."""
    kind = generation(eager.device.description)
    others = runs and runs.take(np.array([generation(name) != kind for name in runs.device]))
    predicted = eager_s(eager, fitted(networks, others, None))
    known = np.zeros(len(predicted))  # the device known, the network not
    for network in dict.fromkeys(eager.network):
        of_network = eager.network == network
        known[of_network] = eager_s(
            eager.take(of_network), fitted(networks, runs, eager.take(~of_network))
        )
    return [
        {
            "device": eager.device.description,
            "network": str(eager.network[at]),
            "precision": str(eager.precision[at]),
            "samples": int(eager.samples[at]),
            "predicted_s": float(predicted[at]),
            "measured_s": float(eager.step_s[at]),
            "ratio": float(predicted[at] / eager.step_s[at]),
            "ratio_device_known": float(known[at] / eager.step_s[at]),
        }
        for at in range(len(eager.step_s))
    ]


def generation(device: str) -> str:
    """Devices of one generation are held out together."""
    return next((name for name in _GENERATIONS if name in device), device)


def _cpu_table(network: str) -> Path:
    folder = project_root() / "config/accelerators/scaled-core"
    return folder / _DATASET / f"{network}.csv"


def _cpu_score(network: ProfiledNetwork) -> dict[str, Any]:
    """A core's times in place of the roofline's, with the sum that the roofline gives.

    The core's table has gone through one factor, which this takes out again.
    """
    core = _profiled(network.name, read_table(_cpu_table(network.name), _DATASET)).seconds
    constants = fitted(
        [other for other in profiled_networks() if other.name != network.name], None, None
    )
    predicted = block_s(network, constants)
    shares = core / core.sum()
    measured = network.seconds / network.seconds.sum()
    roofline = predicted / predicted.sum()
    return {
        "network": network.name,
        "blocks_error": float(
            np.abs(shares * predicted.sum() / network.seconds.sum() - measured).sum()
        ),
        "shares_error": float(np.abs(shares - measured).sum()),
        "roofline_shares_error": float(np.abs(roofline - measured).sum()),
    }


def calibrated(runs: NodeRuns, where: str) -> Roofline:
    """The constants fitted on all that there is, with the interval of what was held out."""
    networks, eager = profiled_networks(), eager_runs()
    result = scored(networks, runs, eager)
    groups = [result["networks"], result["devices"], result["eager"]]
    ratios = [1 / row["ratio"] for rows in groups for row in rows]
    held_out = HeldOut.of(
        ratios,
        f"{len(groups[0])} networks, {len(groups[1])} devices of MLPerf and "
        f"{len(groups[2])} steps on an H100, each held out",
    )
    return replace(
        fitted(networks, runs, eager),
        devices=replace(held_out, low=round(held_out.low, 3), high=round(held_out.high, 3)),
        fitted_on=f"PipeDream's profiles (SOSP 2019), {len(runs.step_s)} one-node runs of "
        f"ResNet-50 in {where}, {len(eager.step_s)} steps of docs/validation/gpu",
    )
