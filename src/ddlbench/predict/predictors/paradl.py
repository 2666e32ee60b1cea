"""ParaDL's oracle (Kahira et al. 2021, Table III) with the measurements of a site.

::

    profile.json  layers: shapes, t_l(b)      |
    links.json    alpha, beta of both levels  |  Table III  ->  compute + communication, one after
    plan          strategy, groups, segments  |                 the other; memory; limits

Two predictors: ``paradl-authors`` evaluates the table as the authors' code does.
``paradl-corrected`` mends the faults that docs/oracle.md lists; for splits it has the exchanges
that this project's strategies make.

No constant is fitted: every efficiency is 1, flows on one link share it evenly, gradients go from
device to device. t_l(b) of a layer is the profile's time at the samples of one device (in a
pipeline: of a micro-batch). The times are scaled so that all layers add up to the passes of the
whole step. The rate of the weight update is the profile's optimizer time. Loading is the time to
load what one process reads: a worker's share, all samples of a group whose devices split layers, or
the whole batch in a pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, prod
from typing import Any, ClassVar

from ddlbench.planning.strategy import LayerSplit, rows_share
from ddlbench.planning.workload import FLOAT32_BYTES, Workload
from ddlbench.predict.constants import Constant
from ddlbench.predict.hardware import Level, Platform, TrainedDevice, Ways
from ddlbench.predict.paradl.configuration import Configuration, OwnSplit
from ddlbench.predict.paradl.oracle import project
from ddlbench.predict.paradl.workload import Kind, Layer
from ddlbench.predict.paradl.workload import Workload as OracleWorkload
from ddlbench.predict.prediction import (
    BuiltInPredictor,
    CellInputs,
    NotPredictable,
    Prediction,
    joined,
)

_KINDS: Mapping[str, Kind] = {
    "BatchNorm": "batchnorm",
    "Conv": "conv",
    "Linear": "linear",
    "Pool": "pool",
    "ReLU": "relu",
    "Dropout": "dropout",
}
_LIMIT = "communication is never hidden"
_OWN_CUT = "stages of a pipeline by ParaDL's own cut"
_NO_COPIES = "copying and packing of what is sent costs nothing"

# What the table and its authors' code assume of a strategy, where this project's differs.
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
        "layers after the rows cost nothing, a link is divided by 2 p2, a halo message takes 3 ms",
    ),
    "pipeline": (_OWN_CUT,),
}
_CORRECTED = {
    **dict.fromkeys(("filter", "channel", "data+filter", "spatial", "data+spatial"), (_NO_COPIES,)),
    "pipeline": (_OWN_CUT,),
}


class _Paradl(BuiltInPredictor):
    """Table III; a subclass names the variant.

    Class attributes:
        variant: of the oracle.
        limits: what the variant leaves out.
        assumed: what it assumes of a strategy, by ParaDL's name of it.
    """

    variant: ClassVar[str]
    limits: ClassVar[tuple[str, ...]] = (_LIMIT,)
    assumed: ClassVar[Mapping[str, tuple[str, ...]]]

    def model(self, inputs: CellInputs) -> Prediction:
        parallelism = _parallelism(inputs)
        workload, plan, cell = inputs.workload, inputs.plan, inputs.cell
        entries = _computing_layers(workload)
        layers = [layer for layer, _ in entries]
        split = inputs.strategy.layer_split(workload, plan)
        spatial_layers = _spatial_layers(workload, split, layers)
        # Groups share no samples: each reads a part of the mini-batch of its own.
        groups = plan.processes[0].num_shards
        config = Configuration(
            strategy=parallelism,
            devices=cell.devices,
            groups=groups,
            group_batch=cell.batch_size / groups,
            segments=inputs.strategy.micro_batches(plan),
            project_split=_own_split(workload, split, layers, spatial_layers),
        )
        platform, remarks = _platform(inputs)
        samples = config.group_batch
        if parallelism == "pipeline":
            samples = config.batch / config.segments
        times_s = _layer_times_s(workload, entries, samples)
        oracle_workload = OracleWorkload(
            network=workload.network,
            dataset=workload.dataset,
            samples_per_epoch=1,
            time_s=sum(times_s),
            layers=tuple(layers),
            spatial_layers=spatial_layers,
            layer_times_s=times_s,
        )
        projection = project(self.variant, oracle_workload, platform, config)
        load_s = workload.step(config.group_batch).load_s
        notes = [workload.step(samples).remark, *remarks]
        if config.devices > projection.max_devices:
            notes.append(
                f"beyond its limit: {projection.max_devices}, by {projection.limiting_layer}"
            )
        return Prediction(
            self.name,
            compute_s=projection.compute_s + load_s,
            communication_s=projection.communication_s,
            exposed_communication_s=projection.communication_s,
            memory_bytes=self.memory(round(projection.memory_bytes), cell.devices),
            limits=(*self.limits, *self.assumed.get(parallelism, ())),
            notes=joined(*notes),
        )

    def memory(self, projected_bytes: int, devices: int) -> tuple[int, ...]:
        return (projected_bytes,) * devices


class ParadlAuthors(_Paradl):
    """As in the authors' code, also for strategies of this project that work differently."""

    name = "paradl-authors"
    source = "ParaDL, Table III, authors' code"
    variant = "authors-code"
    limits = (
        _LIMIT,
        "no weight update; no shortcuts' projections; no weights of batch normalisation",
    )
    assumed = _PUBLISHED


class ParadlCorrected(_Paradl):
    """With its faults mended."""

    name = "paradl-corrected"
    source = "ParaDL, Table III, corrected"
    variant = "corrected"
    assumed = _CORRECTED

    def memory(self, projected_bytes: int, devices: int) -> tuple[int, ...]:
        return ()  # `ask` fills in the memory model that all predictors share


def _parallelism(inputs: CellInputs) -> str:
    """ParaDL's name of the cell's strategy.

    Raises:
        NotPredictable: Table III has no row for it.
    """
    name = inputs.strategy.parallelism
    if name is None:
        raise NotPredictable(f"ParaDL has no row for {inputs.cell.strategy}")
    step = inputs.strategy.step(inputs.workload, inputs.plan) if name == "data" else None
    if (
        step is not None
        and step.gradients
        and not (
            sum(step.fused) == inputs.workload.parameter_bytes
            and not step.others
            and inputs.strategy.micro_batches(inputs.plan) == 1
        )
    ):
        raise NotPredictable(
            "ParaDL's data parallelism computes a share at once, sums all gradients as they are "
            "and updates all weights on every device; these options of "
            f"{inputs.cell.strategy} do otherwise"
        )
    pipeline = inputs.strategy.pipeline_of(inputs.plan)
    if pipeline is not None and len(pipeline.stages[0].ranks) > 1:
        raise NotPredictable("ParaDL has no row for several pipelines side by side")
    return name


def _computing_layers(workload: Workload) -> list[tuple[Layer, Mapping[str, Any]]]:
    """Layers that compute, with their entries in the profile; Flatten and Identity do not.

    Raises:
        NotPredictable: the profile has no layers, or is older than shapes; a layer is of a kind
            without a model; or none is a convolution.
    """
    if not workload.layer_entries:
        raise NotPredictable(
            f"ParaDL predicts by layers, and only the blocks of {workload.network} are known here; "
            "measure a profile of it at a site"
        )
    layers: list[tuple[Layer, Mapping[str, Any]]] = []
    for entry in workload.layer_entries:
        shape = entry.get("shape")
        if shape is None:
            raise NotPredictable(
                f"the profile of {workload.network} has no shapes of layers; make it again"
            )
        kind = next((kind for part, kind in _KINDS.items() if part in entry["kind"]), None)
        if kind is None:
            if entry["kind"] in ("Flatten", "Identity"):
                continue
            raise NotPredictable(f"ParaDL has no row for layer {entry['name']} ({entry['kind']})")
        layer = Layer(
            name=entry["name"],
            kind=kind,
            input=tuple(shape["input"]),
            output=tuple(shape["output"]),
            weights=entry["parameter_bytes"] // FLOAT32_BYTES,
            kernel=shape["kernel"],
            stride=shape["stride"],
            shortcut="downsample" in entry["name"],
        )
        layers.append((layer, entry))
    if not any(layer.kind == "conv" for layer, _ in layers):
        raise NotPredictable(f"ParaDL's table is of convolutions, and {workload.network} has none")
    return layers


def _layer_times_s(
    workload: Workload, entries: Sequence[tuple[Layer, Mapping[str, Any]]], samples: float
) -> tuple[float, ...]:
    """FW + BW of each layer for one of ``samples``; all add up to the passes of a step."""
    alone_s = [
        sum(timing.at(samples) for timing in workload.layer_timings(entry)) for _, entry in entries
    ]
    step = workload.step(samples)
    passes_s = step.forward_s + step.backward_s
    scale = passes_s / sum(alone_s) if sum(alone_s) else 0.0
    return tuple(scale * seconds / samples for seconds in alone_s)


def _own_split(
    workload: Workload, split: LayerSplit | None, layers: Sequence[Layer], spatial_layers: int
) -> OwnSplit | None:
    """The oracle's description of how the plan splits layers; None if it splits none."""
    if split is None:
        return None
    if split.end is None:
        return OwnSplit(tuple(split.weight_shares[layer.name] for layer in layers))
    shares = [rows_share(layer.output, split.grid) for layer in layers[:spatial_layers]]
    return OwnSplit(
        shares=(*shares, *(1.0 for _ in layers[spatial_layers:])),
        grid=tuple(split.grid.items()),
        by_mean=_by_mean(workload, split.end),
    )


def _spatial_layers(workload: Workload, split: LayerSplit | None, layers: Sequence[Layer]) -> int:
    """How many of the first layers have their rows split.

    These are the layers before the first block that the plan computes whole. A plan that splits no
    rows is projected up to the head: the first layer that has no extents left, or that reduces an
    image to a single pixel.

    Raises:
        NotPredictable: no layer is split.
    """
    if split is None or split.end is None:
        for number, layer in enumerate(layers):
            single = prod(layer.output[1:]) == 1 and prod(layer.input[1:]) > 1
            if layer.kind == "linear" or len(layer.input) == 1 or (single and layer.kind == "pool"):
                return number
        return len(layers)
    blocks = {entry["name"]: entry["block"] for entry in workload.layer_entries}
    count = sum(blocks[layer.name] < split.end for layer in layers)
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


def _platform(inputs: CellInputs) -> tuple[Platform, tuple[str, ...]]:
    """The site as a platform file would describe it, without fitted constants; remarks."""
    cell, workload = inputs.cell, inputs.workload
    ways, remarks = [], []
    ends = []
    if cell.devices_per_node > 1:
        ends.append((cell.devices_per_node, (0, 1)))
    if cell.nodes > 1:
        ends.append((cell.devices, (1, 0)))
    for largest_ring, target in ends:
        hop, remark = inputs.links.hop("transport", (0, 0), target)
        remarks.append(remark)
        ways.append((largest_ring, hop.latency_s, hop.bandwidth_bytes_per_s))
    levels = tuple(
        Level(name="", source="", largest_ring=ring, latency_s=alpha_s, bandwidth_bytes_per_s=rate)
        for ring, alpha_s, rate in ways or [(1, 0.0, inf)]  # one device sends nothing
    )
    update_s = workload.step(cell.batch_size).optimizer_s
    walked_bytes = (3 + 2 * cell.optimizer_states) * float(workload.parameter_bytes)
    even = Constant(value=1.0, prior=1.0, meaning="")
    platform = Platform(
        description="",
        devices_per_node=cell.devices_per_node,
        device=TrainedDevice(
            memory_bytes=workload.device_memory_bytes or inf,
            flops_per_s=1.0,  # of the roofline, which is used only for layers without times
            memory_bytes_per_s=walked_bytes / update_s if update_s else inf,
            optimizer_states=cell.optimizer_states,
        ),
        levels=levels,
        paths=Ways(host=levels[0]),
        gradients={},
        constants=dict.fromkeys(Platform.needed, even),
    )
    return platform.with_constants({"layer_overhead_s": 0.0}), joined(*remarks)
