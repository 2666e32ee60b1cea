"""Predictions of every strategy and predictor stay the numbers that they are.

Profiles and links are made up and hold every term of the models: delays, processor times, overlaps,
copies of libraries, costs of tensors, groups that share links. A change that moves a number on
purpose writes the table anew, in a commit of its own::

    python tests/unit/predict/test_pinned_predictions.py
"""

from __future__ import annotations

import csv
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import predict_factory as make
import pytest
import test_predict_linear_pairs as pairs_of_layers

from ddlbench.common.errors import ConfigError
from ddlbench.experiment.cell import Cell
from ddlbench.experiment.registry import BASE, SHIPPED_STRATEGIES, known
from ddlbench.planning.pipeline_stages import even_blocks
from ddlbench.planning.strategy import strategy_of
from ddlbench.planning.workload import Workload
from ddlbench.predict.links import LinkTable
from ddlbench.predict.prediction import DEFAULT_PREDICTOR, Prediction, predictor_of

TABLE = Path(__file__).with_name("pinned_predictions.csv")
KEYS = ("device", "geometry", "strategy", "options", "predictor")
NUMBERS = ("compute_s", "communication_s", "exposed_communication_s", "bubble_s", "low_s", "high_s")
KB, MB = 1000, make.MB
WIDTHS = (250, 1000, 250, 1000, 250, 250)  # features between the linear layers of the network

STRATEGIES = [name for name in SHIPPED_STRATEGIES if name in known("ddlbench.strategies")]
# Of those with other options than the defaults.
OPTIONS: dict[str, tuple[dict[str, Any], ...]] = {
    "ddp": (
        {},
        {"bucket_cap_bytes": 2 * MB},
        {"shard": "optimizer"},
        {"accumulate": 2},
        {"accumulate": 2, "shard": "optimizer"},
        {"hook": "fp16"},
        {"hook": "powersgd", "hook_rank": 2},
    ),
    "horovod": (
        {},
        {"fusion_threshold_bytes": 3 * MB},
        {"fusion_threshold_bytes": 0},
        {"accumulate": 2},
    ),
    "deepspeed": tuple({"stage": stage, "bucket_bytes": 2 * MB} for stage in range(4)),
    "fsdp": ({}, {"reshard_after_forward": False}, {"param_dtype": "bf16"}, {"accumulate": 2}),
    "hsdp": ({}, {"accumulate": 2}),
    "local-sgd": ({}, {"average_every_steps": 1}),
    "parameter-server": (
        {},
        {"mode": "async"},
        {"servers": 2, "message_bytes": MB},
        {"servers": 2, "mode": "async", "message_bytes": MB},
    ),
    "data-tensor": ({"group": 2},),
    "data-filter": ({"group": 2},),
    "data-spatial": ({"group": 2},),
    "pipedream": ({}, {"extra_warmup": 1}),
    "data-tensor-pipe": ({"group": 2},),
}
DEALT = tuple(
    {"balance": "+".join(map(str, even_blocks(len(WIDTHS) - 1, (1,) * stages)))}
    for stages in range(2, len(WIDTHS))
)
# Their steps need rows of images, or stages of pairs of layers, which these networks have not.
UNPINNED = {"spatial", "data-spatial", "data-tensor-pipe"}
Place = tuple[int, int]  # nodes, devices of each
Values = dict[str, Any]
PAIRS = ("tensor-parallel", "data-tensor")
GEOMETRIES = ("1x4", "2x2", "2x1", "4x2")


def workload(device: str) -> Workload:
    """Five pairs of weights and biases, in blocks of their own, with shapes and lone runs."""
    blocks, layers, tensors = [], [], []
    total = len(WIDTHS) - 1
    for index, (given, taken) in enumerate(itertools.pairwise(WIDTHS)):
        size = 4 * (given * taken + taken)
        blocks.append(
            make.block(
                index,
                size,
                input_bytes_per_sample=4 * given,
                output_bytes_per_sample=4 * taken,
                saved_bytes_per_sample=4 * given,
                forward=make.timings(0.0002, 0.0004 * (index + 1)),
                backward=make.timings(0.0003, 0.0009 * (index + 1)),
            )
        )
        layers.append(
            {
                "name": f"block{index}",
                "block": index,
                "block_name": f"block{index}",
                "kind": "Linear",
                "parameter_bytes": size,
                "output_bytes_per_sample": 4 * taken,
                "saved_bytes_per_sample": 4 * given,
                "shape": {"input": [given], "output": [taken], "kernel": 1, "stride": 1},
                "forward": make.timings(0.0002, 0.0004 * (index + 1)),
                "backward": make.timings(0.0003, 0.0009 * (index + 1)),
            }
        )
        for part, shape in enumerate(([taken], [taken, given])):
            numbers = 1
            for extent in shape:
                numbers *= extent
            tensors.append(
                {
                    "name": f"block{index}.{'weight' if part else 'bias'}",
                    "block": index,
                    "bytes": 4 * numbers,
                    "shape": shape,
                    "ready_fraction": (total - index - 0.5 * (1 - part)) / total,
                }
            )
    tensors.sort(key=lambda tensor: tensor["ready_fraction"])
    values = make.profile(
        blocks=blocks,
        layers=layers,
        tensors=tensors,
        device_kind=device,
        steps=[make.step(batch, 0.02 + 0.012 * batch) for batch in make.BATCHES],
        alone=[*_alone()],
    )
    return Workload(values)


def _alone() -> Iterator[dict[str, Any]]:
    """Runs of one device, with every operation among their messages."""
    for cell in cells():
        work = strategy_of(cell.strategy).device_work(cell)
        if work is None:
            continue
        ranks = list(range(cell.devices))
        summing = ranks[::2] if len(ranks) > 2 else ranks
        yield {
            "work": work,
            "count": 10,
            "step_s": 0.07,
            "interval_s": [0.065, 0.08],
            "messages": [
                {"operation": "all_gather", "ranks": ranks[:2], "bytes": 300 * KB, "count": 3},
                {"operation": "all_reduce", "ranks": summing, "bytes": MB, "count": 2},
                {"operation": "swap", "ranks": ranks, "bytes": 50 * KB, "count": 4},
            ],
        }


def _swept(place: Place, operation: str, through: str, alpha_s: float, rate: float) -> Values:
    """A sweep with processor times; between nodes all takes three times as long."""
    nodes, devices = place
    factor = 3.0 if nodes > 1 else 1.0
    points = [
        {
            "message_bytes": size,
            "time_s": factor * (alpha_s + size / rate),
            "interval_s": None,
            "repeats": 3,
            "cpu_s": 0.4 * factor * (alpha_s + size / rate),
        }
        for size in (KB, 100 * KB, 10 * MB)
    ]
    return make.sweep(
        factor * alpha_s,
        rate / factor,
        nodes * devices,
        nodes=nodes,
        devices_per_node=devices,
        operation=operation,
        transport=through,
        level="network" if nodes > 1 else "node",
        points=points,
    )


def _sweeps(place: Place, transport: str) -> list[Values]:
    operations = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "p2p")
    return [
        *(
            _swept(place, operation, transport, 2e-4 * number, 1e9 / number)
            for number, operation in enumerate(operations, start=1)
        ),
        _swept(place, "all_reduce", "horovod", 1e-3, 0.7e9),
        _swept(place, "all_reduce", "ddp", 5e-4, 0.8e9),
        *(_swept(place, name, "fsdp", 7e-4, 0.6e9) for name in ("all_gather", "reduce_scatter")),
    ]


def _delays(shape: Values) -> list[Values]:
    after_s = 0.018 if shape["nodes"] > 1 else 0.006
    return [
        {
            **shape,
            "operation": name,
            "transport": through,
            "message_bytes": KB,
            "alone_s": None,
            "after_s": after_s,
        }
        for name, through in (
            ("all_reduce", "gloo"),
            ("all_gather", "gloo"),
            ("reduce_scatter", "gloo"),
            ("all_gather", "fsdp"),
            ("reduce_scatter", "fsdp"),
        )
    ]


def link_table(device: str) -> LinkTable:
    """Sweeps, delays, overlaps and costs within a node and between two."""
    transport = "nccl" if device == "cuda" else "gloo"
    places: list[Place] = [(1, 4), (2, 2)]
    shapes = [
        {"nodes": nodes, "devices_per_node": devices, "ranks": nodes * devices}
        for nodes, devices in places
    ]
    overlap = {
        "transport": transport,
        "message_bytes": 10 * MB,
        "alone_s": 0.02,
        "compute_s": 0.02,
        "both_s": 0.03,
        "hidden_share": 0.5,
    }
    matrices = [
        make.pair([0, 0, 0, 0], 2e9, 5e-5, {(0, 3): 0.5e9}, method=transport),
        make.pair([0, 0, 1, 1, 2, 2, 3, 3], 4e8, 2e-4, {(0, 5): 1e8}, method=transport),
    ]
    sweeps = tuple(sweep for place in places for sweep in _sweeps(place, transport))
    values = make.links(*matrices, sweeps=sweeps) | {
        "device_kind": device,
        "overlaps": [{**shape, **overlap} for shape in shapes],
        "backgrounds": [
            {**shape, "library": "horovod", "alone_s": 0.1, "beside_s": 0.107} for shape in shapes
        ],
        "tensor_costs": [
            {**shape, "library": "fsdp", "operation": name, "tensor_s": 1e-4 * number}
            for shape in shapes
            for number, name in enumerate(("all_gather", "reduce_scatter"), start=1)
        ],
        "delays": [d for shape in shapes for d in _delays(shape)] if device == "cpu" else [],
    }
    return LinkTable(make.Links.from_dict(values))


def cells() -> Iterator[Cell]:
    """Every cell of the table that its strategy supports; stages deal the five blocks by hand."""
    yield make.cell(BASE, "1x1")
    for strategy, geometry in itertools.product(STRATEGIES, GEOMETRIES):
        staged = "balance" in strategy_of(strategy).options.defaults()
        for options in OPTIONS.get(strategy, ({},)):
            batch = 24 if strategy == "parameter-server" else 32
            if strategy == "parameter-server" and geometry == "4x2":
                batch = 42
            changes: dict[str, Any] = {"warmup_steps": 5} if "hook" in options else {}
            if strategy in PAIRS or staged:
                changes = {"network": "mine:net"}
            balances = DEALT if staged else ({},)
            for balance in balances:
                chosen = {**options, **balance}
                cell = make.cell(strategy, geometry, batch, options=chosen, **changes)
                if strategy_of(strategy).supports(cell) is None:
                    yield cell


def predictions() -> Iterator[dict[str, str]]:
    """A row a prediction; those that a model refuses are left out."""
    for device in ("cpu", "cuda"):
        chain, pairs = workload(device), pairs_of_layers.workload(device_kind=device)
        links = link_table(device)
        for cell in cells():
            plan = make.make_plan(cell)
            profile = pairs if cell.strategy in PAIRS else chain
            modelled = strategy_of(cell.strategy).predictors
            for name in (DEFAULT_PREDICTOR, *modelled):
                if name.startswith("paradl"):  # of convolutions; its own tables pin it
                    continue
                try:
                    prediction = predictor_of(name).predict(profile, links, plan, cell)
                except ConfigError:
                    continue
                options = " ".join(f"{key}={value}" for key, value in cell.options)
                values = (
                    device,
                    cell.geometry,
                    cell.strategy,
                    options,
                    name,
                    *_numbers(prediction),
                )
                yield dict(zip((*KEYS, *NUMBERS), values, strict=True))


def _numbers(prediction: Prediction) -> list[str]:
    ends = prediction.interval_s or ("", "")
    parts = [getattr(prediction, name) for name in NUMBERS[:4]]
    return [value if value == "" else f"{value:.12g}" for value in (*parts, *ends)]


def test_predictions_are_what_they_were() -> None:
    with TABLE.open() as stream:
        rows = [row for row in csv.DictReader(stream) if row["strategy"] in STRATEGIES]
    kept = {tuple(row[key] for key in KEYS): row for row in rows}
    now = {tuple(row[key] for key in KEYS): row for row in predictions()}
    assert now.keys() == kept.keys()
    assert {row["strategy"] for row in rows} == {*STRATEGIES} - UNPINNED
    for key, row in now.items():
        for name in NUMBERS:
            if row[name] or kept[key][name]:
                expected = pytest.approx(float(kept[key][name]), rel=1e-9, abs=1e-15)
                assert float(row[name]) == expected, (*key, name)


if __name__ == "__main__":
    with TABLE.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, (*KEYS, *NUMBERS), lineterminator="\n")
        writer.writeheader()
        writer.writerows(predictions())
    sys.stdout.write(f"{TABLE}: {len(TABLE.read_text().splitlines()) - 1} predictions\n")
