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

from typing import ClassVar

from ddlbench.planning.step import COMPUTE, Compute
from ddlbench.predict.prediction import BuiltInPredictor, CellInputs, Prediction
from ddlbench.predict.step_costs import ALL_TERMS, Exchange, StepCosts
from ddlbench.predict.step_replay import Replay


class ParameterServerMessages(BuiltInPredictor):
    """Message by message, while backward runs."""

    name = "parameter-server-messages"
    source = "our executor, a message at a time"
    hides: ClassVar[bool] = True

    def model(self, inputs: CellInputs) -> Prediction:
        step = inputs.step
        costs = StepCosts(inputs, step, ALL_TERMS)
        exchange, one_way_s = costs.exchange, costs.one_way_s
        seconds = {"server": 0.0, COMPUTE: 0.0}
        for task in step.tasks:
            if isinstance(task, Compute):
                seconds[task.lane] += costs.compute_s(task)
        update_s, compute_s = seconds["server"], seconds[COMPUTE]
        sent_s = 2 * (exchange.slowest_hop.latency_s + one_way_s)
        waited_s = Replay(step, costs).exposed_s if self.hides else sent_s + update_s
        if not inputs.strategy.is_synchronous(inputs.cell):
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
            notes=costs.remarks,
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
        exchange = Exchange.of(inputs)
        return exchange.worker_s / exchange.transfer_s(exchange.workers)
