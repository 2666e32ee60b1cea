"""Parameter server: N workers push gradients of S bytes to K servers and pull weights of as many.

::

    sync     T = t_c + push + pull
             push = L + max(N S / (K BW), S / BW)       the fuller of a server's and a worker's link
             pull = the same the other way
    async    T = max( t_c + 2 L + 2 S / BW,             a worker alone on its links
                      N S / (K BW),                     the servers' links, full each way
                      N t_u )                           the servers' updates

    t_c = t(B/N) - t_opt + t_u,  t_u = t_opt / K        servers share the optimiser's step

L and BW are latency and bandwidth of the slowest hop between a worker and a server, through the
training transport. T is the time of one mini-batch: in async mode of one update by each worker.
Li et al. (OSDI 2014) give the system and no equation; these are the bounds of its links. Links are
taken to carry both directions at once, so in async mode pushes of some overlap pulls of others.

Two predictors:

* ``parameter-server`` is the above: nothing of push and pull is hidden behind the backward pass.
* ``parameter-server-messages`` follows our executor message by message. The K messages g of a round
  (one a server) leave when the last of their gradients is ready::

      pushed_g  = max(ready_g, pushed_{g-1}) + p        p = max(N, K) s / BW
      updated_g = max(pushed_g + L, updated_{g-1}) + t_u / rounds
      pulled_g  = max(updated_g, pulled_{g-1}) + p
      T = t_c - t_u + max(0, pulled_last + L - t_backward)

  in async mode the first bound with N = 1 in p; the other two bounds stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ddlbench.experiment.cell import Cell
from ddlbench.planning.plan import Plan
from ddlbench.planning.strategy import strategy_of
from ddlbench.planning.workload import Step, Workload
from ddlbench.predict.links import Hop, LinkTable
from ddlbench.predict.prediction import (
    NO_HISTORY,
    History,
    Prediction,
    Predictor,
    joined,
    links_or_error,
)
from ddlbench.strategies.parameter_server.descriptor import ParameterServerDetails, message_count

LIMITS = (
    "the sum of the workers' gradients costs a server nothing",
    "each device has a link of its own; those of one node do not share one",
    "replicas do not slow each other down, no straggling worker",
)


@dataclass(frozen=True)
class _Case:
    """What both predictors compute with."""

    workers: int
    servers: int
    gradient_bytes: int
    message_bytes: int
    hop: Hop
    alone: Step

    @property
    def update_s(self) -> float:
        """Of one server's part of the weights."""
        return self.alone.optimizer_s / self.servers

    @property
    def compute_s(self) -> float:
        """A worker's step without its optimiser."""
        return self.alone.step_s - self.alone.optimizer_s

    def transfer_s(self, workers: int) -> float:
        """Of all gradients or weights one way, without latency, for so many workers at once."""
        share = max(workers / self.servers, 1.0)
        return share * self.gradient_bytes / self.hop.bandwidth_bytes_per_s


class _ParameterServer(Predictor):
    """A worker's step, and what it waits for."""

    def wait_s(self, case: _Case, workload: Workload, workers: int) -> float:
        """From the end of a backward pass to new weights, updates included."""
        raise NotImplementedError

    def predict(
        self,
        workload: Workload,
        links: LinkTable | None,
        plan: Plan,
        cell: Cell,
        history: History = NO_HISTORY,
    ) -> Prediction:
        """Predict one step; see the module."""
        case, remarks = _case(workload, links_or_error(links, self.name), plan, cell)
        synchronous = strategy_of(cell.strategy).is_synchronous(cell)
        at_once = case.workers if synchronous else 1
        waited_s = self.wait_s(case, workload, at_once)
        if not synchronous:
            links_s = case.workers * case.gradient_bytes / case.servers
            links_s /= case.hop.bandwidth_bytes_per_s
            bound_s = max(links_s, case.workers * case.update_s)
            waited_s = max(waited_s, bound_s - case.compute_s)
        # Updates count as work; waiting for links is communication, and so is what a bound adds.
        updates_s = min(waited_s, case.update_s)
        exposed_s = waited_s - updates_s
        sent_s = 2 * (case.hop.latency_s + case.transfer_s(at_once))
        return Prediction(
            self.name,
            compute_s=case.compute_s + updates_s,
            communication_s=max(sent_s, exposed_s),
            exposed_communication_s=exposed_s,
            limits=LIMITS,
            notes=joined(case.alone.remark, remarks),
            interval_s=case.alone.interval(1.0, updates_s - case.alone.optimizer_s + exposed_s),
        )


class ParameterServer(_ParameterServer):
    """Push and pull one after the other, after the backward pass."""

    name: ClassVar[str] = "parameter-server"
    source: ClassVar[str] = "bounds of the links (Li et al. 2014 give none)"

    def wait_s(self, case: _Case, workload: Workload, workers: int) -> float:
        """The sum."""
        return 2 * (case.hop.latency_s + case.transfer_s(workers)) + case.update_s


class ParameterServerMessages(_ParameterServer):
    """Message by message, while backward runs."""

    name: ClassVar[str] = "parameter-server-messages"
    source: ClassVar[str] = "our executor, a message at a time"

    def wait_s(self, case: _Case, workload: Workload, workers: int) -> float:
        """What the last message exposes."""
        rounds = (
            message_count(case.gradient_bytes, case.servers, case.message_bytes) // case.servers
        )
        backward_s = case.alone.backward_s
        ready_s = [fraction * backward_s for fraction in _ready_fractions(workload, rounds)]
        done_s = round_trips_s(
            ready_s,
            case.transfer_s(workers) / rounds,
            case.update_s / rounds,
            case.hop.latency_s,
        )
        return max(0.0, done_s - backward_s)


def round_trips_s(
    ready_s: list[float], transfer_s: float, update_s: float, latency_s: float
) -> float:
    """When the weights of the last round are back.

    Args:
        ready_s: when the gradients of each round are there, from the start of backward.
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
    """For each of so many equal parts of the gradients: when the last one in it is ready."""
    ends = [workload.parameter_bytes * (index + 1) / rounds for index in range(rounds)]
    fractions: list[float] = []
    filled = 0
    for tensor in workload.tensors:
        filled += tensor.bytes
        while len(fractions) < rounds and ends[len(fractions)] <= filled:
            fractions.append(tensor.ready_fraction)
    return fractions + [1.0] * (rounds - len(fractions))


def _case(
    workload: Workload, links: LinkTable, plan: Plan, cell: Cell
) -> tuple[_Case, tuple[str, ...]]:
    places: dict[str, list[tuple[int, int]]] = {"server": [], "worker": []}
    for process in plan.processes:
        places[process.role].append((process.node, process.devices[0]))
    found = [
        links.hop("transport", *ends)
        for worker in places["worker"]
        for server in places["server"]
        for ends in ((worker, server), (server, worker))
    ]
    gradient_bytes = workload.parameter_bytes
    share = gradient_bytes / len(places["server"])
    slowest = max((hop for hop, _ in found), key=lambda hop: hop.time_s(share))
    workers = len(places["worker"])
    case = _Case(
        workers=workers,
        servers=len(places["server"]),
        gradient_bytes=gradient_bytes,
        message_bytes=ParameterServerDetails.of(plan).message_bytes,
        hop=slowest,
        alone=workload.step(cell.batch_size / workers),
    )
    return case, joined(remark for _, remark in found if remark)
