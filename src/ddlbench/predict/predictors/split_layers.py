"""Devices that compute each layer together: one of them measured alone, and its messages.

::

    measured alone   | part of layer 1 | part of layer 2 | .. | update |
    a step           | part of layer 1 |-- messages --| part of layer 2 |-- messages --| ..

    T = k s + sum over messages of (d + T(bytes))

s is a step of one device without its peers, with data loading and update (``alone`` of
profile.json), k the slow-down of silent replicas on a node. Each message is waited for where it
stands, so nothing hides it. It follows a computation, so on CPUs it takes d longer than in a sweep
(``delays`` of links.json). A swap of rows is as long as its longest hop; its d is that of an
all-gather, in which every rank sends and waits, too. n groups that share a link take as long as one
with n times the bytes.

No paper has this model. ParaDL (Kahira et al. 2021, Table III) instead takes a part of a layer to
be as efficient as the whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ddlbench.experiment.profile import SWAP, LoneMessage
from ddlbench.planning.groups import groups_on_a_link, nodes_and_devices
from ddlbench.predict.collectives import ALL_GATHER
from ddlbench.predict.links import Place, places_of
from ddlbench.predict.prediction import (
    BuiltInPredictor,
    CellInputs,
    NotPredictable,
    Prediction,
    joined,
)

_LIMITS = ("no straggling worker: every exchange waits for the slowest",)


class SplitLayers(BuiltInPredictor):
    """A step of one device alone, and every measured message."""

    name = "split-layers"
    source = "one device measured alone, and its measured messages"

    def model(self, inputs: CellInputs) -> Prediction:
        cell, workload = inputs.cell, inputs.workload
        work = inputs.strategy.device_work(cell)
        if work is None:
            raise NotPredictable(
                f"{self.name} is of devices that compute each layer together; "
                f"those of {cell.strategy} do not"
            )
        if work not in workload.alone:
            raise NotPredictable(
                f"the profile of {workload.network} has no step of one device of {cell.strategy} "
                f"alone ({work}); make it again"
            )
        run = workload.alone[work]
        slowdown = max(1.0, workload.slowdown(cell.devices_per_node))
        sent_s = 0.0
        remarks: tuple[str, ...] = ()
        places = places_of(inputs.plan)
        for message in run.messages:
            seconds, further = _seconds(inputs, message, places)
            sent_s += message.count * seconds
            remarks = joined(remarks, further)
        interval_s = None
        if run.interval_s is not None:
            low_s, high_s = run.interval_s
            interval_s = (slowdown * low_s + sent_s, slowdown * high_s + sent_s)
        return Prediction(
            self.name,
            compute_s=slowdown * run.step_s,
            communication_s=sent_s,
            exposed_communication_s=sent_s,
            limits=_LIMITS,
            notes=remarks,
            interval_s=interval_s,
        )


def _seconds(
    inputs: CellInputs, message: LoneMessage, places: Sequence[Place]
) -> tuple[float, tuple[str, ...]]:
    """Seconds of one message after a computation, and remarks; ``places`` are of all ranks."""
    plan, links, ranks = inputs.plan, inputs.links, message.ranks
    transport = "gloo" if inputs.workload.device_kind == "cpu" else "nccl"
    shape = nodes_and_devices(plan, ranks)
    size = groups_on_a_link(plan, ranks) * message.bytes
    if message.operation == SWAP:
        delay_s = links.delay_s(ALL_GATHER, transport, *shape)
        hops = [links.hop("transport", places[a], places[b]) for a, b in pairwise(ranks)]
        longest_s = max(hop.time_s(size) for hop, _ in hops)
        return delay_s + longest_s, joined(*(remark for _, remark in hops))
    times = links.collective(message.operation, *shape, transport)
    delay_s = links.delay_s(message.operation, transport, *shape)
    return delay_s + times.time_s(size), times.notes
