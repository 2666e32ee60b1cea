"""Groups of devices that split pairs of linear layers: what is left of a step, and its all-reduces.

::

    group 0    | F | g | F | g | .. | B | f | B | f | .. | sum over groups | update |
    group 1    | F | g | F | g | .. | B | f | B | f | .. |                 | update |

    T = k (load(b) + s passes(b) + u update) + sum of T_AR,p(activations) + sum of T_AR,d(gradients)

p devices in each of d groups, b samples a group; s is the share of the passes that a device
computes, u that of the weights that it updates, k the slow-down of silent replicas on a node. Every
all-reduce is waited for where it stands. It follows a computation, so on CPUs it takes longer than
in a sweep, by what the links measured. Groups that lie on the same nodes share the links between
them: each then takes so many times the bytes.

No paper has this model; the messages are those of Shoeybi et al., "Megatron-LM" (2019), section 3.
"""

from __future__ import annotations

from ddlbench.planning.groups import groups_on_a_link, nodes_and_devices
from ddlbench.predict.collectives import ALL_REDUCE
from ddlbench.predict.prediction import (
    BuiltInPredictor,
    CellInputs,
    NotPredictable,
    Prediction,
    joined,
)

_LIMITS = (
    "no straggling worker",
    "a layer of fewer features takes its share of the whole layer's time",
    "what the host takes to start an operation of a split layer is not modelled",
)


class LinearPairs(BuiltInPredictor):
    """Measured all-reduces of every pair and of the gradients, behind the work of one device."""

    name = "linear-pairs"
    source = "measured all-reduces of every pair of linear layers"

    def model(self, inputs: CellInputs) -> Prediction:
        traffic = inputs.strategy.tensor_traffic(inputs.workload, inputs.plan)
        if traffic is None:
            raise NotPredictable(
                f"{self.name} is of pairs of linear layers; {inputs.cell.strategy} splits none"
            )
        workload, cell, plan = inputs.workload, inputs.cell, inputs.plan
        step = workload.step(cell.batch_size / traffic.replicas)
        slowdown = max(1.0, workload.slowdown(cell.devices_per_node))
        work_s = (
            step.load_s
            + traffic.computed_share * (step.forward_s + step.backward_s)
            + traffic.updated_share * step.optimizer_s
        )
        ranks = range(plan.world_size)
        within = list(ranks[: traffic.group])
        over = list(ranks[:: traffic.group])
        sent_s, notes = 0.0, (step.remark,)
        remarks: tuple[str, ...] = ()
        for group, sizes in ((within, traffic.activations), (over, traffic.gradients)):
            if len(group) > 1 and sizes:
                shape = nodes_and_devices(plan, group)
                times = inputs.links.collective(ALL_REDUCE, *shape, traffic.transport)
                sharing = groups_on_a_link(plan, group)
                sent_s += sum(times.time_s(sharing * size) for size in sizes)
                sent_s += len(sizes) * inputs.links.delay_s(ALL_REDUCE, traffic.transport, *shape)
                remarks = joined(remarks, times.notes)
        factor = slowdown * work_s / step.step_s if step.step_s else slowdown
        return Prediction(
            self.name,
            compute_s=slowdown * work_s,
            communication_s=sent_s,
            exposed_communication_s=sent_s,
            limits=_LIMITS,
            notes=joined(*notes, remarks),
            interval_s=step.interval(factor, sent_s),
        )
