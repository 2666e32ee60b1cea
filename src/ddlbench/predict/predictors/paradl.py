"""ParaDL's oracle (Kahira et al. 2021, Table III) on what was measured at a site.

::

    profile.json  layers: shapes, t_l(b)      |
    links.json    alpha, beta of both levels  |  Table III  ->  compute + communication, one after
    plan          strategy, groups, segments  |                 the other; memory; limits

Two predictors: ``paradl-published`` as the authors' code evaluates the table, ``paradl-corrected``
with the faults mended that docs/oracle.md lists, and of splits with the exchanges that this
project's strategies make. No constant is fitted: every efficiency is 1, flows on one link share it
evenly, gradients go from device to device. Per layer, t_l(b) is the profile's at the samples that
one device sees (a micro-batch of a pipeline), scaled so that all layers add up to the whole step's
passes; the rate of the weight update is the profile's optimizer time. Loading is that of what one
process reads: a worker's share, all samples of a group whose devices split layers, and with
pipelines the whole batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from ddlbench.experiment.cell import Cell
from ddlbench.experiment.fits import Timing
from ddlbench.planning.plan import Plan
from ddlbench.planning.strategy import rows_share, strategy_of
from ddlbench.planning.workload import Workload
from ddlbench.predict.links import LinkTable
from ddlbench.predict.paradl.configuration import Configuration, OwnSplit
from ddlbench.predict.paradl.oracle import project
from ddlbench.predict.paradl.platform import FITTED, Platform
from ddlbench.predict.paradl.workload import Layer
from ddlbench.predict.paradl.workload import Workload as OracleWorkload
from ddlbench.predict.prediction import (
    NO_HISTORY,
    History,
    NotPredictable,
    Prediction,
    Predictor,
    joined,
    links_or_error,
)

_ITEM_BYTES = 4
_KINDS = (
    ("BatchNorm", "batchnorm"),
    ("Conv", "conv"),
    ("Linear", "linear"),
    ("Pool", "pool"),
    ("ReLU", "relu"),
    ("Dropout", "dropout"),
)


@dataclass(frozen=True)
class Shape:
    """One layer, and its forward and backward times over batch size."""

    layer: Layer
    timings: tuple[Timing, Timing]


def shapes_of(workload: Workload) -> list[Shape]:
    """Layers that compute; what only gives a tensor another form is none.

    Raises:
        NotPredictable: the profile is older than shapes, a layer is of a kind without a model, or
            none is a convolution.
    """
    found = []
    for entry in workload.layer_entries:
        shape = entry.get("shape")
        if shape is None:
            raise NotPredictable(
                f"the profile of {workload.network} has no shapes of layers; make it again"
            )
        kind = next((name for part, name in _KINDS if part in entry["kind"]), None)
        if kind is None:
            if entry["kind"] in ("Flatten", "Identity"):
                continue
            raise NotPredictable(f"ParaDL has no row for layer {entry['name']} ({entry['kind']})")
        layer = Layer(
            name=entry["name"],
            kind=kind,
            input=tuple(shape["input"]),
            output=tuple(shape["output"]),
            weights=entry["parameter_bytes"] // _ITEM_BYTES,
            kernel=shape["kernel"],
            stride=shape["stride"],
            shortcut="downsample" in entry["name"],
        )
        found.append(Shape(layer, workload.layer_timings(entry)))
    if not any(shape.layer.kind == "conv" for shape in found):
        raise NotPredictable(f"ParaDL's table is of convolutions, and {workload.network} has none")
    return found


def split_layers(layers: Sequence[Layer]) -> int:
    """How many of the first layers a spatial split takes: up to the head.

    The head begins with the first layer that has no extents left, or that makes a single pixel of
    an image.
    """
    for number, layer in enumerate(layers):
        single = prod(layer.output[1:]) == 1 and prod(layer.input[1:]) > 1
        if layer.kind == "linear" or len(layer.input) == 1 or (single and layer.kind == "pool"):
            return number
    return len(layers)


def own_split(workload: Workload, plan: Plan, layers: Sequence[Layer]) -> OwnSplit | None:
    """How the plan's strategy splits; None of a strategy that splits no layer.

    Args:
        workload: the profile.
        plan: of the cell.
        layers: the oracle's, of this profile.

    Raises:
        NotPredictable: rows end before the first layer.
        ConfigError: the profile has no shapes.
    """
    split = strategy_of(plan.cell.strategy).layer_split(workload, plan)
    if split is None:
        return None
    if split.end is None:
        return OwnSplit(tuple(split.weight_shares[layer.name] for layer in layers))
    count = _split_rows(workload, split.end, layers)
    shares = [rows_share(layer.output, split.grid) for layer in layers[:count]]
    return OwnSplit(
        shares=(*shares, *(1.0 for _ in layers[count:])),
        grid=tuple(split.grid.items()),
        by_mean=_by_mean(workload, split.end),
    )


def spatial_layers(workload: Workload, plan: Plan, layers: Sequence[Layer]) -> int:
    """How many of the oracle's layers have their rows split: as this plan ends them.

    Raises:
        NotPredictable: none has.
    """
    split = strategy_of(plan.cell.strategy).layer_split(workload, plan)
    if split is None or split.end is None:
        return split_layers(layers)
    return _split_rows(workload, split.end, layers)


def _split_rows(workload: Workload, end: int, layers: Sequence[Layer]) -> int:
    """How many of the oracle's layers stand before the first whole block."""
    blocks = {entry["name"]: entry["block"] for entry in workload.layer_entries}
    count = sum(blocks[layer.name] < end for layer in layers)
    if not count:
        raise NotPredictable("no layer stands before where rows end, so none is split")
    return count


def _by_mean(workload: Workload, end: int) -> bool:
    """Whether the first whole block is a mean over all positions, as in ResNet."""
    block = [entry for entry in workload.layer_entries if entry["block"] == end]
    return (
        len(block) == 1
        and str(block[0]["kind"]).startswith("AdaptiveAvgPool")
        and prod(block[0]["shape"]["output"][1:]) == 1
    )


_STATES = 1  # SGD keeps a momentum
_LIMIT = "communication is never hidden"
_OWN_CUT = "stages of a pipeline by ParaDL's own cut"
_NO_COPIES = "copying and packing of what is sent costs nothing"

# What the table and its authors' code take for granted of a strategy; ours does otherwise.
_LAYERS = (
    "linear layers are whole on every device",
    "each convolution, the first too, is charged three rounds of its output",
)
_ROWS = (
    "a halo is (kernel - 1) / 2 rows both ways, whatever the stride",
    "rows are gathered forward and scattered backward, also where a mean ends them",
    "a grid is projected as its first dimension; batch normalisation exchanges nothing",
)
_PUBLISHED = {
    "filter": _LAYERS,
    "channel": _LAYERS,
    "data+filter": (*_LAYERS, "all weights are exchanged between groups, a link is divided by p2"),
    "spatial": (*_ROWS, "gradients of all weights are all-reduced"),
    "data+spatial": (
        *_ROWS,
        "gradients of all weights are all-reduced in a group, then between groups",
        "layers behind the rows cost nothing, a link is divided by 2 p2, a halo message takes 3 ms",
    ),
    "pipeline": (_OWN_CUT,),
}
_CORRECTED = {
    **dict.fromkeys(("filter", "channel", "data+filter", "spatial", "data+spatial"), (_NO_COPIES,)),
    "pipeline": (_OWN_CUT,),
}


class _Paradl(Predictor):
    """Table III; a subclass names the variant.

    Class attributes:
        variant: of the oracle.
        limits: what the variant leaves out.
        assumed: what it takes for granted of a strategy, by ParaDL's name.
    """

    variant: ClassVar[str]
    limits: ClassVar[tuple[str, ...]] = (_LIMIT,)
    assumed: ClassVar[Mapping[str, tuple[str, ...]]]

    def predict(
        self,
        workload: Workload,
        links: LinkTable | None,
        plan: Plan,
        cell: Cell,
        history: History = NO_HISTORY,
    ) -> Prediction:
        """Predict one step; see the module.

        Raises:
            NotPredictable: the profile has no shapes of layers, or the plan several pipelines.
        """
        asked = _question(workload, plan)
        platform, remarks = _platform(workload, links, plan, self.name)
        micro_batch = asked.batch / asked.segments
        seen = micro_batch if asked.strategy == "pipeline" else asked.group_batch
        step = workload.step(seen)
        said = project(self.variant, _oracle_workload(workload, plan, seen), platform, asked)
        load_s = workload.step(asked.group_batch).load_s
        notes = [step.remark, *remarks]
        if asked.devices > said.max_devices:
            notes.append(f"beyond its limit: {said.max_devices}, by {said.limiting_layer}")
        return Prediction(
            self.name,
            compute_s=said.compute_s + load_s,
            communication_s=said.communication_s,
            exposed_communication_s=said.communication_s,
            memory_bytes=self.memory(round(said.memory_bytes), cell.devices),
            limits=(*self.limits, *self.assumed.get(asked.strategy, ())),
            notes=joined(*notes),
        )

    def memory(self, projected_bytes: int, devices: int) -> tuple[int, ...]:
        """Of each device: Table III's; a variant may leave it to the profile's saved bytes."""
        return (projected_bytes,) * devices


class ParadlPublished(_Paradl):
    """As the authors' code has it, also of what this project's strategies do otherwise."""

    name: ClassVar[str] = "paradl-published"
    source: ClassVar[str] = "ParaDL, Table III, as published"
    variant: ClassVar[str] = "as-published"
    limits: ClassVar[tuple[str, ...]] = (
        _LIMIT,
        "no weight update; no shortcuts' projections; no weights of batch normalisation",
    )
    assumed: ClassVar[Mapping[str, tuple[str, ...]]] = _PUBLISHED


class ParadlCorrected(_Paradl):
    """With its faults mended; memory is of what autograd was seen to save (``memory.py``)."""

    name: ClassVar[str] = "paradl-corrected"
    source: ClassVar[str] = "ParaDL, Table III, corrected"
    variant: ClassVar[str] = "corrected"
    assumed: ClassVar[Mapping[str, tuple[str, ...]]] = _CORRECTED

    def memory(self, projected_bytes: int, devices: int) -> tuple[int, ...]:
        """Nothing: ``ask`` fills in the model that every predictor shares."""
        return ()


def _question(workload: Workload, plan: Plan) -> Configuration:
    cell = plan.cell
    strategy = strategy_of(cell.strategy)
    name = strategy.parallelism
    if name is None:
        raise NotPredictable(f"ParaDL has no row for {cell.strategy}")
    pipeline = strategy.pipeline_of(plan)
    if pipeline is not None and len(pipeline.stages[0].ranks) > 1:
        raise NotPredictable("ParaDL has no row for several pipelines side by side")
    # Groups share no samples: each reads a part of the mini-batch of its own.
    groups = plan.processes[0].num_shards
    own = own_split(workload, plan, [shape.layer for shape in shapes_of(workload)])
    segments = strategy.micro_batches(plan)
    return Configuration(name, cell.devices, groups, cell.batch_size / groups, segments, own)


def _oracle_workload(workload: Workload, plan: Plan, samples: float) -> OracleWorkload:
    """The network as the oracle reads it, timed at so many samples a device."""
    shapes = shapes_of(workload)
    layers = tuple(shape.layer for shape in shapes)
    alone = [sum(timing.at(samples) for timing in shape.timings) for shape in shapes]
    step = workload.step(samples)
    passes_s = step.forward_s + step.backward_s
    scale = passes_s / sum(alone) if sum(alone) else 0.0
    times = tuple(scale * seconds / samples for seconds in alone)
    return OracleWorkload(
        network=workload.network,
        dataset=workload.dataset,
        samples_per_epoch=1,
        time_s=sum(times),
        layers=layers,
        spatial_layers=spatial_layers(workload, plan, layers),
        layer_times_s=times,
    )


def _platform(
    workload: Workload, links: LinkTable | None, plan: Plan, name: str
) -> tuple[Platform, tuple[str, ...]]:
    """The site as a platform file would describe it, without fitted constants."""
    cell = plan.cell
    levels, remarks = [], []
    ways = [("node", cell.devices_per_node, (0, 1)), ("network", cell.devices, (1, 0))]
    for level, ring, far in ways:
        there = cell.devices_per_node > 1 if level == "node" else cell.nodes > 1
        if there:
            hop, remark = links_or_error(links, name).hop("transport", (0, 0), far)
            remarks.append(remark)
            levels.append(
                {
                    "largest_ring": ring,
                    "latency_s": hop.latency_s,
                    "bandwidth_bytes_per_s": hop.bandwidth_bytes_per_s,
                }
            )
    if not levels:  # one device: nothing is sent
        levels = [{"largest_ring": 1, "latency_s": 0.0, "bandwidth_bytes_per_s": float("inf")}]
    update_s = workload.step(cell.batch_size).optimizer_s
    walked = (3 + 2 * _STATES) * float(workload.parameter_bytes)
    values = {
        "devices_per_node": cell.devices_per_node,
        "links_per_node": 1,
        "device": {
            "memory_bytes": workload.device_memory_bytes or float("inf"),
            "flops_per_s": 1.0,  # of the roofline, which spreads times that nobody measured
            "memory_bytes_per_s": walked / update_s if update_s else float("inf"),
            "optimizer_states": _STATES,
        },
        "levels": levels,
        "paths": {"host": levels[0]},
        "gradients": {},
        "fitted": {constant: {"value": 1.0} for constant in FITTED},
    }
    platform = Platform(values).with_constants({"layer_overhead_s": 0.0})
    return platform, joined(*remarks)
