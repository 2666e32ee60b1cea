"""Parameter server: N workers push gradients of S bytes to K servers and pull weights of as many.

::

    sync     T = t_c + push + pull
             push = L + max(N S / (K BW), S / BW)       the fuller of a server's and a worker's link
             pull = the same the other way
    async    T = max( t_c + 2 L + 2 S / BW,             a worker alone on its links
                      N S / (K BW),                     the servers' links, full each way
                      N t_u )                           the servers' updates

    t_c = t(B/N) - t_opt + t_u,  t_u = t_opt / K        servers share the optimiser's step

L is the latency of the slowest hop between a worker and a server, through the training transport;
BW its bandwidth. Where hops differ, each worker counts with its own: S / BW is then the sum over a
worker's servers, and N S / (K BW) that over a server's workers. T is the time of one mini-batch; in
async mode it is the time of one update by each worker. Li et al. (OSDI 2014) describe the system
and give no equation: these are the bounds of its links. Links are assumed to carry both directions
at once, so in async mode pushes of some workers overlap pulls of others.

Two predictors:

* ``parameter-server`` is the above: the backward pass hides nothing of push and pull.
* ``parameter-server-messages`` follows our executor message by message. The K messages g of a round
  (one per server) leave when the last of their gradients is ready::

      pushed_g  = max(ready_g, pushed_{g-1}) + p        p = max(N, K) s / BW
      updated_g = max(pushed_g + L, updated_{g-1}) + t_u / rounds
      pulled_g  = max(updated_g, pulled_{g-1}) + p
      T = t_c - t_u + max(0, pulled_last + L - t_backward)

  in async mode the first bound with N = 1 in p; the other two bounds stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ddlbench.planning.step import COMPUTE, Compute, Message, Step
from ddlbench.predict.links import Hop
from ddlbench.predict.prediction import BuiltInPredictor, CellInputs, Prediction, joined
from ddlbench.predict.step_costs import ALL_TERMS, MessageCost, StepCosts
from ddlbench.predict.step_replay import Replay


@dataclass(frozen=True)
class _Exchange:
    """What the workers and the servers of a cell send each other in a step.

    Args:
        workers: number of workers.
        slowest_hop: between a worker and a server.
        server_s: seconds in which the busiest server gets the gradients of all workers.
        worker_s: seconds in which the slowest worker sends its gradients to all servers.
        remarks: on the links.
    """

    workers: int
    slowest_hop: Hop
    server_s: float
    worker_s: float
    remarks: tuple[str, ...]

    @classmethod
    def of(cls, inputs: CellInputs) -> _Exchange:
        """Each pair by the slower of its ways, as push and pull take equally long here."""
        places: dict[str, list[tuple[int, int]]] = {"server": [], "worker": []}
        for process in inputs.plan.processes:
            places[process.role].append((process.node, process.devices[0]))
        share = inputs.workload.parameter_bytes / len(places["server"])
        ways = {
            (a, b): [inputs.links.hop("transport", *ends) for ends in ((a, b), (b, a))]
            for a in places["worker"]
            for b in places["server"]
        }
        seconds = {
            pair: share / min(hop.bandwidth_bytes_per_s for hop, _ in both)
            for pair, both in ways.items()
        }
        hops = [hop for both in ways.values() for hop in both]
        return cls(
            workers=len(places["worker"]),
            slowest_hop=max((hop for hop, _ in hops), key=lambda hop: hop.time_s(share)),
            server_s=max(sum(seconds[w, s] for w in places["worker"]) for s in places["server"]),
            worker_s=max(sum(seconds[w, s] for s in places["server"]) for w in places["worker"]),
            remarks=joined(remark for _, remark in hops if remark),
        )

    def transfer_s(self, workers: int) -> float:
        """Seconds of all gradients or weights one way, without latency, of ``workers`` at once."""
        return max(self.server_s, self.worker_s) if workers > 1 else self.worker_s


class _Costs(StepCosts):
    """A push or pull takes its part of the exchange, and is there a latency later."""

    slowdown = 1.0  # replicas do not slow each other down

    def __init__(self, inputs: CellInputs, step: Step, exchange: _Exchange, workers: int) -> None:
        super().__init__(inputs, step, ALL_TERMS)
        self.one_way_s = exchange.transfer_s(workers)
        self.latency_s = exchange.slowest_hop.latency_s
        self._whole = inputs.workload.parameter_bytes

    def message(self, message: Message) -> MessageCost:
        carried_s = self.one_way_s * message.bytes / self._whole
        return MessageCost(carried_s, later_s=self.latency_s)


class ParameterServerMessages(BuiltInPredictor):
    """Message by message, while backward runs."""

    name = "parameter-server-messages"
    source = "our executor, a message at a time"
    hides: ClassVar[bool] = True

    def model(self, inputs: CellInputs) -> Prediction:
        exchange, step = _Exchange.of(inputs), inputs.step
        synchronous = inputs.strategy.is_synchronous(inputs.cell)
        costs = _Costs(inputs, step, exchange, exchange.workers if synchronous else 1)
        seconds = {"server": 0.0, COMPUTE: 0.0}
        for task in step.tasks:
            if isinstance(task, Compute):
                seconds[task.lane] += costs.compute_s(task)
        update_s, compute_s = seconds["server"], seconds[COMPUTE]
        sent_s = 2 * (costs.latency_s + costs.one_way_s)
        waited_s = Replay(step, costs).exposed_s if self.hides else sent_s + update_s
        if not synchronous:
            bound_s = max(exchange.server_s, exchange.workers * update_s)
            waited_s = max(waited_s, bound_s - compute_s)
        # Updates count as compute. Waiting for links or for a bound counts as communication.
        updates_s = min(waited_s, update_s)
        exposed_s = waited_s - updates_s
        return Prediction(
            self.name,
            compute_s=compute_s + updates_s,
            communication_s=max(sent_s, exposed_s),
            exposed_communication_s=exposed_s,
            limits=(
                "the sum of the workers' gradients costs a server nothing",
                "each device has a link of its own; those of one node do not share one",
                "replicas do not slow each other down, no straggling worker",
            ),
            notes=joined(costs.remarks, exchange.remarks),
            interval_s=costs.interval(compute_s + updates_s, exposed_s),
        )


class ParameterServer(ParameterServerMessages):
    """Push and pull one after the other, after the backward pass."""

    name = "parameter-server"
    source = "bounds of the links (Li et al. 2014 give none)"
    hides = False
    overlapped = ParameterServerMessages.name

    def handled_share(self, inputs: CellInputs) -> float:
        """A worker's own bytes over those of all workers, where the server's link is the fuller."""
        exchange = _Exchange.of(inputs)
        return exchange.worker_s / exchange.transfer_s(exchange.workers)
