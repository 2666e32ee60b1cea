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

from ddlbench.planning.workload import Step, Workload
from ddlbench.predict.links import Hop
from ddlbench.predict.prediction import BuiltInPredictor, CellInputs, Prediction, joined
from ddlbench.strategies.parameter_server.descriptor import ParameterServerOptions, message_count


@dataclass(frozen=True)
class _Exchange:
    """The workers, the servers and what they send each other in a step.

    Args:
        server_s: seconds in which the busiest server gets the gradients of all workers.
        worker_s: seconds in which the slowest worker sends its gradients to all servers.
    """

    workers: int
    servers: int
    gradient_bytes: int
    message_bytes: int
    slowest_hop: Hop
    server_s: float
    worker_s: float
    step: Step

    @property
    def update_s(self) -> float:
        """Seconds in which a server updates its part of the weights."""
        return self.step.optimizer_s / self.servers

    @property
    def compute_s(self) -> float:
        """Seconds of a worker's step without its optimiser."""
        return self.step.step_s - self.step.optimizer_s

    def transfer_s(self, workers: int) -> float:
        """Seconds of all gradients or weights one way, without latency, of ``workers`` at once."""
        return max(self.server_s, self.worker_s) if workers > 1 else self.worker_s


class _ParameterServer(BuiltInPredictor):
    """A worker's step, and what it waits for."""

    def wait_s(self, exchange: _Exchange, workload: Workload, workers: int) -> float:
        """Seconds from the end of a backward pass to new weights, updates included."""
        raise NotImplementedError

    def model(self, inputs: CellInputs) -> Prediction:
        exchange, remarks = _exchange(inputs)
        synchronous = inputs.strategy.is_synchronous(inputs.cell)
        at_once = exchange.workers if synchronous else 1
        waited_s = self.wait_s(exchange, inputs.workload, at_once)
        if not synchronous:
            bound_s = max(exchange.server_s, exchange.workers * exchange.update_s)
            waited_s = max(waited_s, bound_s - exchange.compute_s)
        # Updates count as compute. Waiting for links or for a bound counts as communication.
        updates_s = min(waited_s, exchange.update_s)
        exposed_s = waited_s - updates_s
        sent_s = 2 * (exchange.slowest_hop.latency_s + exchange.transfer_s(at_once))
        step = exchange.step
        return Prediction(
            self.name,
            compute_s=exchange.compute_s + updates_s,
            communication_s=max(sent_s, exposed_s),
            exposed_communication_s=exposed_s,
            limits=(
                "the sum of the workers' gradients costs a server nothing",
                "each device has a link of its own; those of one node do not share one",
                "replicas do not slow each other down, no straggling worker",
            ),
            notes=joined(step.remark, remarks),
            interval_s=step.interval(1.0, updates_s - step.optimizer_s + exposed_s),
        )


class ParameterServer(_ParameterServer):
    """Push and pull one after the other, after the backward pass."""

    name = "parameter-server"
    source = "bounds of the links (Li et al. 2014 give none)"
    overlapped = "parameter-server-messages"

    def handled_share(self, inputs: CellInputs) -> float:
        """A worker's own bytes over those of all workers, where the server's link is the fuller."""
        exchange, _ = _exchange(inputs)
        return exchange.worker_s / exchange.transfer_s(exchange.workers)

    def wait_s(self, exchange: _Exchange, workload: Workload, workers: int) -> float:
        one_way_s = exchange.slowest_hop.latency_s + exchange.transfer_s(workers)
        return 2 * one_way_s + exchange.update_s


class ParameterServerMessages(_ParameterServer):
    """Message by message, while backward runs."""

    name = "parameter-server-messages"
    source = "our executor, a message at a time"

    def wait_s(self, exchange: _Exchange, workload: Workload, workers: int) -> float:
        messages = message_count(exchange.gradient_bytes, exchange.servers, exchange.message_bytes)
        rounds = messages // exchange.servers
        backward_s = exchange.step.backward_s
        done_s = round_trips_s(
            [fraction * backward_s for fraction in _ready_fractions(workload, rounds)],
            exchange.transfer_s(workers) / rounds,
            exchange.update_s / rounds,
            exchange.slowest_hop.latency_s,
        )
        return max(0.0, done_s - backward_s)


def round_trips_s(
    ready_s: list[float], transfer_s: float, update_s: float, latency_s: float
) -> float:
    """Seconds from the start of backward until a worker has the weights of the last round.

    Args:
        ready_s: when the gradients of each round are ready, from the start of backward.
        transfer_s: of one round, one way, without latency.
        update_s: of one round on a server.
        latency_s: one way.
    """
    pushed = updated = pulled = 0.0
    for ready in ready_s:
        pushed = max(ready, pushed) + transfer_s
        updated = max(pushed + latency_s, updated) + update_s
        pulled = max(updated, pulled) + transfer_s
    return pulled + latency_s


def _ready_fractions(workload: Workload, rounds: int) -> list[float]:
    """Share of backward after which each of ``rounds`` equal parts of the gradients is ready."""
    ends = [workload.parameter_bytes * (index + 1) / rounds for index in range(rounds)]
    fractions: list[float] = []
    filled = 0
    for tensor in workload.tensors:
        filled += tensor.bytes
        while len(fractions) < rounds and ends[len(fractions)] <= filled:
            fractions.append(tensor.ready_fraction)
    return fractions + [1.0] * (rounds - len(fractions))


def _exchange(inputs: CellInputs) -> tuple[_Exchange, tuple[str, ...]]:
    """The exchange of a cell, and remarks on its links."""
    links, workload, plan = inputs.links, inputs.workload, inputs.plan
    places: dict[str, list[tuple[int, int]]] = {"server": [], "worker": []}
    for process in plan.processes:
        places[process.role].append((process.node, process.devices[0]))
    pairs = [(worker, server) for worker in places["worker"] for server in places["server"]]
    both_ways = {
        (a, b): [links.hop("transport", *ends) for ends in ((a, b), (b, a))] for a, b in pairs
    }
    hops = [hop for ways in both_ways.values() for hop in ways]
    workers, servers = len(places["worker"]), len(places["server"])
    share = workload.parameter_bytes / servers
    # The slower way of each pair, as push and pull take equally long here.
    seconds = {
        pair: share / min(hop.bandwidth_bytes_per_s for hop, _ in ways)
        for pair, ways in both_ways.items()
    }
    exchange = _Exchange(
        workers=workers,
        servers=servers,
        gradient_bytes=workload.parameter_bytes,
        message_bytes=ParameterServerOptions.of(plan).message_cap(workload.shrunk),
        slowest_hop=max((hop for hop, _ in hops), key=lambda hop: hop.time_s(share)),
        server_s=max(sum(seconds[w, s] for w in places["worker"]) for s in places["server"]),
        worker_s=max(sum(seconds[w, s] for s in places["server"]) for w in places["worker"]),
        step=workload.step(inputs.cell.batch_size / workers),
    )
    return exchange, joined(remark for _, remark in hops if remark)
