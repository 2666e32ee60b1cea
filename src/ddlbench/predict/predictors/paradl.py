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

from collections.abc import Mapping
from typing import ClassVar

from ddlbench.experiment.cell import Cell
from ddlbench.planning.plan import Plan
from ddlbench.planning.strategy import strategy_of
from ddlbench.planning.workload import Workload
from ddlbench.predict.link_table import LinkTable
from ddlbench.predict.paradl.configuration import Configuration
from ddlbench.predict.paradl.oracle import project
from ddlbench.predict.paradl.own_splits import own_split, spatial_layers
from ddlbench.predict.paradl.platform import FITTED, Platform
from ddlbench.predict.paradl.shapes import shapes_of
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

__all__ = ["ParadlCorrected", "ParadlPublished"]

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
